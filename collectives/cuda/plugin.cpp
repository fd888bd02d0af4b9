// The plug-in libshoal-cuda.so: the family of CUDA devices and the communicators of their backends.
#include "devices/plugin.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/factory.h"
#include "devices/cuda/cuda_family.h"

namespace shoal::cuda {
namespace {

void* function(std::string_view name) {
  static collectives::FamilyFactory own{
      collectives::class_sizes(),
      {collectives::cuda::make_cuda_communicator, collectives::cuda::describe_cuda_communicator}};
  static const FunctionEntry table[] = {{collectives::kCommunicatorFactory, &own}};
  return find_in(table, name);
}

std::unique_ptr<BackendReg> make_family() {
  return std::make_unique<CudaFamily>(function);
}

/// The plug-in loads on every machine. Without a GPU, the family reports why it has no devices.
int score() {
  return 1;
}

}  // namespace
}  // namespace shoal::cuda

extern "C" const shoal::PluginInfo* shoal_plugin() {
  static const shoal::PluginInfo info = shoal::plugin_info("CUDA", "", shoal::cuda::score, shoal::cuda::make_family);
  return &info;
}
