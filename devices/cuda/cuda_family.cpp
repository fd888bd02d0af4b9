#include "devices/cuda/cuda_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "devices/cuda/architectures.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/cuda/driver_environment.h"
#include "devices/cuda/peer_access.h"
#include "devices/functions.h"

namespace shoal::cuda {
namespace {

constexpr int kMaxPerGpu = 64;
constexpr size_t kStaticShared = 1024;  // upper bound in bytes for the static shared memory of a kernel that also uses
                                        // dynamic shared memory

/// The only instance. features() reads this pointer, because feature queries receive no pointer to the family.
const CudaFamily* g_family = nullptr;

std::string version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::vector<functions::Feature> features() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  std::vector<functions::Feature> found{{"cuda_runtime", version(runtime)},
                                        {"cuda_driver", driver == 0 ? "none" : version(driver)}};
  if (g_family == nullptr) return found;
  if (!g_family->unusable().empty()) {
    found.push_back({"unusable_gpus", g_family->unusable()});
  } else if (!g_family->reason().empty()) {
    found.push_back({"no_devices", g_family->reason()});
  }
  if (const std::string problems = g_family->problems(); !problems.empty()) found.push_back({"problems", problems});
  found.push_back({"devices_per_gpu", fmt::format("{}", devices_per_gpu())});
  if (const std::string off = to_string(g_family->off()); !off.empty()) found.push_back({"off", off});
  return found;
}

functions::QueueState wait_for_queued(Backend& backend, std::chrono::nanoseconds time) {
  auto* cuda = dynamic_cast<CudaBackend*>(&backend);
  require<InvalidArgument>(cuda != nullptr, "{} is not a CUDA device", backend.name());
  return cuda->wait_for_queued(time);
}

Gpu describe_gpu(int index) {
  Gpu gpu;
  cudaDeviceProp found{};
  const std::string owner = fmt::format("CUDA{}", index);
  check(cudaGetDeviceProperties(&found, index), owner, "read the GPU's properties");
  gpu.traits = {index, found.major * 10 + found.minor, found.multiProcessorCount,
                found.sharedMemPerBlockOptin - kStaticShared};
  gpu.name = found.name;
  gpu.memory = found.totalGlobalMem;
  gpu.integrated = found.integrated != 0;
  char id[32] = {};
  check(cudaDeviceGetPCIBusId(id, sizeof(id), index), owner, "read the GPU's PCI id");
  gpu.pci_id = id;
  std::transform(gpu.pci_id.begin(), gpu.pci_id.end(), gpu.pci_id.begin(), ::tolower);
  return gpu;
}

}  // namespace

int devices_per_gpu() {
  const char* text = std::getenv("SHOAL_CUDA_DEVICES_PER_GPU");
  if (text == nullptr || *text == '\0') return 1;
  return static_cast<int>(parse_integer("environment variable SHOAL_CUDA_DEVICES_PER_GPU", text, 1, kMaxPerGpu));
}

bool waits_by_yielding(size_t devices, size_t processors) {
  return devices >= processors;
}

CudaDevice::CudaDevice(BackendReg& reg, std::string name, const Gpu& gpu, int part, int parts)
    : reg_(reg), name_(std::move(name)), gpu_(gpu), part_(part), parts_(parts) {}

std::string CudaDevice::description() const {
  const std::string share = parts_ > 1 ? fmt::format(", part {} of {}", part_ + 1, parts_) : "";
  return fmt::format("{}, sm_{}, {} multiprocessors{}", gpu_.name, gpu_.traits.compute_capability,
                     gpu_.traits.processors, share);
}

// Waits until the GPU has released the memory of destroyed buffers, so that this memory counts as free.
DeviceMemory CudaDevice::memory() const {
  const CurrentGpu current(gpu_.traits.gpu);
  gpu_.family->finish_transfers(gpu_);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), name_, "read how much memory is free");
  free = std::min(free + kept_pool_memory(gpu_.traits.gpu), total);
  const size_t share = total / static_cast<size_t>(parts_);
  return {std::min(free, share - std::min(used_.load(), share)), share};
}

DeviceProps CudaDevice::props() const {
  DeviceProps props{name_, description(), type(), memory(), gpu_.pci_id, {}};
  props.caps = {.async = true, .host_buffer = true, .buffer_from_host_ptr = false, .events = true, .peers = {}};
  for (const Device* device : reg_.devices()) {
    if (device == this) continue;
    const int other = static_cast<const CudaDevice*>(device)->gpu().traits.gpu;
    int reaches = other == gpu_.traits.gpu;
    if (reaches == 0) cudaDeviceCanAccessPeer(&reaches, other, gpu_.traits.gpu);
    if (reaches != 0) props.caps.peers.push_back(device->name());
  }
  return props;
}

std::unique_ptr<Backend> CudaDevice::init(std::string_view params) {
  const Params parsed(name_, params, {"graphs"});
  gpu_.transfers();
  return std::make_unique<CudaBackend>(*this, parsed.integer("graphs", gpu_.traits.off.graphs ? 0 : 1, 0, 1) != 0);
}

bool CudaDevice::supports_op(const Tensor& node) const {
  if (node.is_leaf() || is_view(node.op)) return true;
  const OpKernel& kernel = kernel_for(node.op);
  return kernel.run != nullptr && (node.empty() || kernel.supports == nullptr || kernel.supports(node));
}

size_t CudaDevice::workspace_size(const Tensor& node) const {
  const OpKernel& kernel = kernel_for(node.op);
  return kernel.workspace == nullptr || node.empty() ? 0 : kernel.workspace(node, gpu_.traits);
}

std::unique_ptr<Event> CudaDevice::new_event() {
  return std::make_unique<CudaEvent>(*this);
}

void CudaDevice::take(size_t size) {
  const size_t share = gpu_.memory / static_cast<size_t>(parts_);
  const size_t before = used_.fetch_add(size);
  const size_t free = share - std::min(before, share);
  if (size <= free) return;
  used_ -= size;
  fail<OutOfMemory>("[{}] out of memory: {} requested, {} free: use more devices, or give this device a smaller share",
                    name_, format_bytes(size), format_bytes(free));
}

void CudaDevice::note_no_graph(cudaError_t why) const {
  gpu_.family->note_problem(
      fmt::format("{} launches kernels one by one (slower), because CUDA cannot create a graph ({})", name_,
                  cudaGetErrorString(why)));
}

CudaFamily::CudaFamily(std::function<void*(std::string_view)> functions) : functions_(std::move(functions)) {
  const int parts = devices_per_gpu();
  const char* off = std::getenv("SHOAL_CUDA_OFF");
  off_ = parse_switched_off(off != nullptr ? off : "");
  find_gpus();
  for (const auto& gpu : gpus_) {
    for (int part = 0; part < parts; ++part) {
      std::string name = fmt::format("CUDA{}", gpu->traits.gpu);
      if (parts > 1) name += fmt::format(".{}", part);
      devices_.push_back(std::make_unique<CudaDevice>(*this, std::move(name), *gpu, part, parts));
      listed_.push_back(devices_.back().get());
    }
  }
  g_family = this;
}

std::string CudaFamily::problems() const {
  const std::lock_guard lock(mutex_);
  return problems_;
}

void CudaFamily::note_problem(const std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (problems_.find(problem) == std::string::npos) add_problem(problem);
}

void CudaFamily::add_problem(const std::string& problem) {
  problems_ += (problems_.empty() ? "" : "; ") + problem;
}

CudaFamily::~CudaFamily() {
  if (g_family == this) g_family = nullptr;
}

void CudaFamily::find_gpus() {
  set_driver_environment();
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    reason_ = status == cudaSuccess ? "no GPU found" : cudaGetErrorString(status);
    return;
  }
  std::map<std::string, std::string> unusable;  // names of GPUs, keyed by the reason for their exclusion
  const auto leave_out = [&](const std::string& why, int index) {
    std::string& names = unusable[why];
    names += fmt::format("{}CUDA{}", names.empty() ? "" : ", ", index);
  };
  for (int index = 0; index < count; ++index) {
    try {
      auto gpu = std::make_unique<Gpu>(describe_gpu(index));
      const int capability = gpu->traits.compute_capability;
      const std::string lack = lack_of_code(built_architectures(), capability);
      if (!lack.empty()) {
        leave_out(fmt::format(" ({}, sm_{}): {}", gpu->name, capability, lack), index);
        continue;
      }
      gpu->family = this;
      gpu->traits.off = off_;
      gpus_.push_back(std::move(gpu));
    } catch (const DeviceError& error) {  // a broken or busy GPU does not affect the other GPUs
      leave_out(fmt::format(": {}", error.what()), index);
    }
  }
  for (const auto& [why, names] : unusable) unusable_ += (unusable_.empty() ? "" : "; ") + names + why;
  if (gpus_.empty()) reason_ = unusable_;
}

cudaStream_t Gpu::transfers() const {
  family->prepare(const_cast<Gpu&>(*this));
  return stream;
}

void CudaFamily::finish_transfers(const Gpu& gpu) const {
  cudaStream_t stream = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stream = gpu.stream;
  }
  if (stream != nullptr) check(cudaStreamSynchronize(stream), fmt::format("CUDA{}", gpu.traits.gpu), "free memory");
}

namespace {

/// Makes threads that wait for the current GPU yield. Does nothing if the program has already chosen a wait mode.
void wait_by_yielding() {
  unsigned flags = 0;
  if (cudaGetDeviceFlags(&flags) == cudaSuccess && (flags & cudaDeviceScheduleMask) == cudaDeviceScheduleAuto) {
    cudaSetDeviceFlags(flags | cudaDeviceScheduleYield);
  }
  cudaGetLastError();  // clears the error of a failed call; without the yield mode, waits are only slower
}

}  // namespace

void CudaFamily::prepare(Gpu& gpu) {
  const std::lock_guard lock(mutex_);
  if (gpu.stream != nullptr) return;
  const CurrentGpu current(gpu.traits.gpu);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), fmt::format("CUDA{}", gpu.traits.gpu),
        "create a stream");
  keep_pool_memory(gpu.traits.gpu);
  if (waits_by_yielding(devices_.size(), std::thread::hardware_concurrency())) wait_by_yielding();
  for (const auto& other : gpus_) {
    if (other.get() == &gpu || other->stream == nullptr) continue;
    connect(gpu.traits.gpu, other->traits.gpu);
  }
  gpu.stream = stream;
}

/// Lets two GPUs access each other's memory if test copies in both directions are correct. The driver chooses which GPU
/// performs a copy, so an error in one direction disables both directions.
void CudaFamily::connect(int one, int other) {
  try {
    const std::array<PeerAccess, 2> access = connect_peers(other, one);
    if (!access[0].is_wrong && !access[1].is_wrong) return;
    const auto [from, to] = access[0].is_wrong ? std::pair{other, one} : std::pair{one, other};
    add_problem(fmt::format("direct copies from CUDA{} to CUDA{} corrupt data and are not used", from, to));
  } catch (const Error& error) {
    turn_off_peer_access(one, other);
    turn_off_peer_access(other, one);
    add_problem(fmt::format("direct copies between CUDA{} and CUDA{} are not used: {}", one, other, error.what()));
  }
}

void* CudaFamily::function(std::string_view name) const {
  static const FunctionEntry table[] = {
      {functions::kFeatures, features},
      {functions::kWaitForQueued, wait_for_queued},
  };
  if (void* found = find_in(table, name)) return found;
  return functions_ ? functions_(name) : nullptr;
}

}  // namespace shoal::cuda
