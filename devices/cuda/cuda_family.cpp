#include "devices/cuda/cuda_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/functions.h"
#include "devices/params.h"
#include "graph/error.h"

namespace shoal::cuda {
namespace {

constexpr int kMaxPerGpu = 64;

/// The features are asked for without a family at hand; there is one of it.
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
  if (!g_family->reason().empty()) found.push_back({"no_devices", g_family->reason()});
  found.push_back({"devices_per_gpu", fmt::format("{}", devices_per_gpu())});
  return found;
}

void set_abort_callback(Backend& backend, bool (*stop)(void*), void* data) {
  backend.set_abort_callback(stop == nullptr ? AbortCallback() : [stop, data] { return stop(data); });
}

Gpu describe_gpu(int index) {
  Gpu gpu;
  cudaDeviceProp found{};
  const std::string owner = fmt::format("CUDA{}", index);
  check(cudaGetDeviceProperties(&found, index), owner, "read the GPU's properties");
  gpu.traits = {index, found.major * 10 + found.minor, found.multiProcessorCount, found.sharedMemPerBlockOptin};
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

CudaDevice::CudaDevice(BackendReg& reg, std::string name, const Gpu& gpu, int part, int parts)
    : reg_(reg), name_(std::move(name)), gpu_(gpu), part_(part), parts_(parts) {}

std::string CudaDevice::description() const {
  const std::string share = parts_ > 1 ? fmt::format(", part {} of {}", part_ + 1, parts_) : "";
  return fmt::format("{}, sm_{}, {} multiprocessors{}", gpu_.name, gpu_.traits.compute_capability,
                     gpu_.traits.processors, share);
}

DeviceMemory CudaDevice::memory() const {
  const CurrentGpu current(gpu_.traits.gpu);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), name_, "read how much memory is free");
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
  return std::make_unique<CudaBackend>(*this, parsed.integer("graphs", 1, 0, 1) != 0);
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
  fail<OutOfMemory>("[{}] out of memory: {} asked for, {} free: use more devices, or give this one a smaller share",
                    name_, format_bytes(size), format_bytes(free));
}

CudaFamily::CudaFamily(std::function<void*(std::string_view)> functions) : functions_(std::move(functions)) {
  g_family = this;
  const int parts = devices_per_gpu();
  find_gpus();
  enable_peers();
  for (const auto& gpu : gpus_) {
    for (int part = 0; part < parts; ++part) {
      std::string name = fmt::format("CUDA{}", gpu->traits.gpu);
      if (parts > 1) name += fmt::format(".{}", part);
      devices_.push_back(std::make_unique<CudaDevice>(*this, std::move(name), *gpu, part, parts));
      listed_.push_back(devices_.back().get());
    }
  }
}

CudaFamily::~CudaFamily() {
  if (g_family == this) g_family = nullptr;
}

void CudaFamily::find_gpus() {
  // Each stream has a queue of its own in the hardware only as far as this goes; kernels of two streams in one queue
  // that wait for each other would never end. Read by the driver when it starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    reason_ = status == cudaSuccess ? "no GPU found" : cudaGetErrorString(status);
    return;
  }
  for (int index = 0; index < count; ++index) {
    try {
      auto gpu = std::make_unique<Gpu>(describe_gpu(index));
      const CurrentGpu current(index);
      check(cudaStreamCreateWithFlags(&gpu->transfers, cudaStreamNonBlocking), gpu->name, "make a stream");
      gpus_.push_back(std::move(gpu));
    } catch (const DeviceError& error) {  // one GPU that is broken or taken: the others are still good
      reason_ = error.what();
    }
  }
}

/// So that one GPU's kernels and copies may use another's memory, where the hardware can.
void CudaFamily::enable_peers() const {
  for (const auto& from : gpus_) {
    const CurrentGpu current(from->traits.gpu);
    for (const auto& to : gpus_) {
      int reaches = 0;
      if (from == to || cudaDeviceCanAccessPeer(&reaches, from->traits.gpu, to->traits.gpu) != cudaSuccess) continue;
      if (reaches != 0) cudaDeviceEnablePeerAccess(to->traits.gpu, 0);
      // What is allocated in a stream's order has an access list of its own.
      cudaMemPool_t pool = nullptr;
      const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, from->traits.gpu}, cudaMemAccessFlagsProtReadWrite};
      if (reaches != 0 && cudaDeviceGetDefaultMemPool(&pool, to->traits.gpu) == cudaSuccess) {
        cudaMemPoolSetAccess(pool, &access, 1);
      }
      cudaGetLastError();  // enabled already, or not possible after all: then it is not used
    }
  }
}

void* CudaFamily::function(std::string_view name) const {
  static const FunctionEntry table[] = {
      {functions::kFeatures, features},
      {functions::kSetAbortCallback, set_abort_callback},
  };
  if (void* found = find_in(table, name)) return found;
  return functions_ ? functions_(name) : nullptr;
}

}  // namespace shoal::cuda
