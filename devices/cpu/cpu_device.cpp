#include "devices/cpu/cpu_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/text.h"
#include "devices/cpu/cpu_backend.h"
#include "devices/cpu/cpu_family.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/op_kernel.h"

namespace shoal::cpu {
namespace {

/// Returns the number of threads of a device: one per core. If usable_cores() is lower than the number of cores of all
/// nodes, the number of threads is reduced in proportion.
int threads_for(const CoreSet& cores) {
  size_t all = 0;
  for (const Node& node : machine_nodes()) all += node.cores.size();
  return std::max(1, static_cast<int>(cores.cores.size() * static_cast<size_t>(usable_cores()) / all));
}

std::atomic<int> sharing_processes{1};

}  // namespace

void share_memory(int processes) {
  int most = sharing_processes;
  while (most < processes && !sharing_processes.compare_exchange_weak(most, processes)) {
  }
}

CpuDevice::CpuDevice(BackendReg& reg, std::string name, Share share)
    : reg_(reg), name_(std::move(name)), share_(std::move(share)) {
  if (share_.threads == 0) share_.threads = threads_for(cores());
  most_threads_ = share_.threads;
}

// This text is the key under which measurements of a device are stored. So the text contains every setting that changes
// the device's speed.
std::string CpuDevice::description() const {
  const auto count = static_cast<int>(cores().cores.size());
  std::string text = fmt::format("{}, {} core{}", cpu_model(), count, count == 1 ? "" : "s");
  if (share_.threads != count) text += fmt::format(", {} thread{}", share_.threads, share_.threads == 1 ? "" : "s");
  if (node() >= 0) text += fmt::format(", node {}", node());
  if (share_.slowdown > 1) text += fmt::format(", slowed {:g}x", share_.slowdown);
  return text;
}

DeviceMemory CpuDevice::memory() const {
  const std::optional<size_t>& limit = share_.limits.memory;
  if (limit) return {*limit - std::min(used_.load(), *limit), *limit};
  const DeviceMemory all = node_memory(node());
  const auto parts = static_cast<size_t>(share_.sharers) * static_cast<size_t>(sharing_processes);
  return {all.free / parts, all.total / parts};
}

DeviceProps CpuDevice::props() const {
  DeviceProps props{name_, description(), type(), memory(), "", {}};
  props.caps = {.async = true, .host_buffer = false, .buffer_from_host_ptr = true, .events = true, .peers = {}};
  for (const Device* device : reg_.devices()) {
    if (device != this) props.caps.peers.push_back(device->name());
  }
  return props;
}

std::unique_ptr<Backend> CpuDevice::init(std::string_view params) {
  const Params parsed(name_, params, {"threads"});
  const int threads = static_cast<int>(parsed.integer("threads", share_.threads, 1, kMaxThreads));
  kernels();  // throws here instead of in the stream if SHOAL_CPU_ISA is invalid
  expect_threads(threads);
  return std::make_unique<CpuBackend>(*this, threads);
}

void CpuDevice::expect_threads(int threads) {
  int most = most_threads_;
  while (most < threads && !most_threads_.compare_exchange_weak(most, threads)) {
  }
}

bool CpuDevice::supports_op(const Tensor& node) const {
  if (node.is_leaf() || is_view(node.op)) return true;
  const OpKernel& kernel = kernel_for(node.op);
  return kernel.run != nullptr && (node.empty() || kernel.supports == nullptr || kernel.supports(node));
}

bool CpuDevice::supports_buffer_type(const BufferType& type) const {
  return type.is_host() || dynamic_cast<const PackedBufferType*>(&type) != nullptr;
}

size_t CpuDevice::workspace_size(const Tensor& node) const {
  const OpKernel& kernel = kernel_for(node.op);
  return kernel.workspace == nullptr || node.empty() ? 0 : kernel.workspace(node, most_threads_);
}

std::unique_ptr<Event> CpuDevice::new_event() {
  return std::make_unique<CpuEvent>(*this);
}

void CpuDevice::take(size_t size) {
  require<DeviceError>(size <= max_size(),
                       "[{}] an allocation is limited to {}, but {} were requested: split the tensor over more devices",
                       name_, format_bytes(max_size()), format_bytes(size));
  const size_t before = used_.fetch_add(size);
  const std::optional<size_t>& limit = share_.limits.memory;
  const size_t free = limit ? *limit - std::min(before, *limit) : node_memory(node()).free;
  if (size <= free) return;
  used_ -= size;
  fail<OutOfMemory>("[{}] out of memory: {} requested, {} free: use more devices, or give this device a smaller share",
                    name_, format_bytes(size), format_bytes(free));
}

std::span<Device* const> CpuFamily::devices() const {
  const std::lock_guard lock(mutex_);
  if (lists_.empty()) make_devices(read_settings({}));
  return lists_.back();
}

void CpuFamily::configure(std::string_view text) {
  const Settings settings = read_settings(text);
  const std::lock_guard lock(mutex_);
  int uses = 0;
  for (const auto& device : owned_) uses += device->uses();
  require<InvalidArgument>(uses == 0, "CPU devices cannot be changed while {} backends and buffers use them", uses);
  make_devices(settings);
}

void CpuFamily::make_devices(const Settings& settings) const {
  const std::vector<CoreSet> sets = divide_cores(machine_nodes(), settings.devices, settings.threads.numbers);
  std::vector<Device*>& devices = lists_.emplace_back();
  for (size_t i = 0; i < sets.size(); ++i) {
    const auto sharers = std::count_if(sets.begin(), sets.end(), [node = sets[i].node](const CoreSet& other) {
      return other.node == node || other.node < 0;
    });
    CpuDevice::Share share{sets[i], static_cast<int>(sharers), settings.threads.of(i, 0), settings.slowdown.of(i, 1),
                           settings.limits};
    owned_.push_back(
        std::make_unique<CpuDevice>(const_cast<CpuFamily&>(*this), fmt::format("CPU{}", i), std::move(share)));
    devices.push_back(owned_.back().get());
  }
}

void configure(std::string_view params) {
  dynamic_cast<CpuFamily&>(*Registry::instance().find_family("CPU")).configure(params);
}

namespace {

const CpuDevice& cpu_device(const Device& device) {
  const auto* cpu = dynamic_cast<const CpuDevice*>(&device);
  require<InvalidArgument>(cpu != nullptr, "{} is not a CPU device", device.name());
  return *cpu;
}

}  // namespace

int default_threads(const Device& device) {
  return cpu_device(device).default_threads();
}

std::vector<int> cores_of(const Device& device) {
  return cpu_device(device).cores().cores;
}

int node_of(const Device& device) {
  return cpu_device(device).node();
}

std::unique_ptr<BackendReg> make_family() {
  return std::make_unique<CpuFamily>();
}

}  // namespace shoal::cpu
