#include "tests/cuda/emulator/exported.h"

#include <utility>

#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {
namespace {

cudaError_t enqueue(cudaStream_t handle, std::function<void()> work) {
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  return submit(*stream, {OperationKind::kKernel, [work = std::move(work)](Workers&) { work(); }});
}

}  // namespace
}  // namespace shoal::cuda::emulator

const shoal::cuda::emulator::Exported* shoal_emulated_cuda() {
  static constexpr shoal::cuda::emulator::Exported kExported = {shoal::cuda::emulator::enqueue, cudaGetDevice};
  return &kExported;
}
