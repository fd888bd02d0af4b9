#include "devices/cpu/cpu_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "devices/cpu/cpu_backend.h"
#include "devices/cpu/cpu_family.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/op_kernel.h"
#include "devices/params.h"
#include "graph/error.h"

namespace shoal::cpu {
namespace {

/// One for each core, in proportion less where the process may not keep all cores busy.
int threads_for(const CoreSet& cores) {
  size_t all = 0;
  for (const Node& node : machine_nodes()) all += node.cores.size();
  return std::max(1, static_cast<int>(cores.cores.size() * static_cast<size_t>(usable_cores()) / all));
}

}  // namespace

CpuDevice::CpuDevice(BackendReg& reg, std::string name, CoreSet cores, int sharers, int threads, const Limits& limits)
    : reg_(reg),
      name_(std::move(name)),
      cores_(std::move(cores)),
      sharers_(sharers),
      default_threads_(threads > 0 ? threads : threads_for(cores_)),
      limits_(limits),
      most_threads_(default_threads_) {}

std::string CpuDevice::description() const {
  const size_t count = cores_.cores.size();
  return fmt::format("{}, {} core{}{}", cpu_model(), count, count == 1 ? "" : "s",
                     cores_.node >= 0 ? fmt::format(", node {}", cores_.node) : "");
}

DeviceMemory CpuDevice::memory() const {
  if (limits_.memory) return {*limits_.memory - std::min(used_.load(), *limits_.memory), *limits_.memory};
  const DeviceMemory node = node_memory(cores_.node);
  const auto parts = static_cast<size_t>(sharers_);
  return {node.free / parts, node.total / parts};
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
  const int threads = static_cast<int>(parsed.integer("threads", default_threads_, 1, kMaxThreads));
  kernels();  // a bad SHOAL_CPU_ISA is refused here rather than in the stream
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
  require<DeviceError>(size <= limits_.max_size,
                       "[{}] one allocation can have {}, {} were asked for: split the tensor over more devices", name_,
                       format_bytes(limits_.max_size), format_bytes(size));
  const size_t before = used_.fetch_add(size);
  const size_t free = limits_.memory ? *limits_.memory - std::min(before, *limits_.memory) : node_memory(node()).free;
  if (size <= free) return;
  used_ -= size;
  fail<OutOfMemory>("[{}] out of memory: {} asked for, {} free: use more devices, or give this one a smaller share",
                    name_, format_bytes(size), format_bytes(free));
}

std::span<Device* const> CpuFamily::devices() const {
  const std::lock_guard lock(mutex_);
  if (lists_.empty()) make_devices({devices_from_environment(), 0, {}});
  return lists_.back();
}

void CpuFamily::configure(std::string_view text) {
  const Params params("CPU", text, {"devices", "threads", "max_size", "memory"});
  Settings settings;
  settings.devices = static_cast<int>(params.integer("devices", devices_from_environment(), 0, kMaxDevices));
  settings.threads = static_cast<int>(params.integer("threads", 0, 0, kMaxThreads));
  settings.limits.max_size = params.bytes("max_size", settings.limits.max_size);
  if (params.has("memory")) settings.limits.memory = params.bytes("memory", 0);
  const std::lock_guard lock(mutex_);
  int uses = 0;
  for (const auto& device : owned_) uses += device->uses();
  require<InvalidArgument>(uses == 0, "CPU devices cannot be configured again: {} backends and buffers of them exist",
                           uses);
  make_devices(settings);
}

void CpuFamily::make_devices(const Settings& settings) const {
  std::vector<CoreSet> sets = divide_cores(machine_nodes(), settings.devices);
  std::vector<Device*>& devices = lists_.emplace_back();
  for (size_t i = 0; i < sets.size(); ++i) {
    const auto sharers = std::count_if(sets.begin(), sets.end(), [node = sets[i].node](const CoreSet& other) {
      return other.node == node || other.node < 0;
    });
    owned_.push_back(std::make_unique<CpuDevice>(const_cast<CpuFamily&>(*this), fmt::format("CPU{}", i), sets[i],
                                                 static_cast<int>(sharers), settings.threads, settings.limits));
    devices.push_back(owned_.back().get());
  }
}

int devices_from_environment() {
  const char* text = std::getenv("SHOAL_CPU_DEVICES");
  if (text == nullptr || *text == '\0') return 0;
  return static_cast<int>(parse_integer("environment variable SHOAL_CPU_DEVICES", text, 0, kMaxDevices));
}

void configure(std::string_view params) {
  dynamic_cast<CpuFamily&>(*Registry::instance().find_family("CPU")).configure(params);
}

int default_threads(const Device& device) {
  const auto* cpu = dynamic_cast<const CpuDevice*>(&device);
  require<InvalidArgument>(cpu != nullptr, "{} is not a CPU device", device.name());
  return cpu->default_threads();
}

std::unique_ptr<BackendReg> make_family() {
  return std::make_unique<CpuFamily>();
}

}  // namespace shoal::cpu
