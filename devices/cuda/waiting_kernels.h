// Kernels that wait for each other, as those of collectives do, and calls of CUDA that must not be made meanwhile. A
// call may wait for all that a GPU does and keep other threads from launching there (cudaFreeHost,
// cudaGraphInstantiate, cudaGraphExecDestroy; drivers differ, and do not say): when a kernel waits on that GPU for one
// that is still to be launched there, neither ever ends. So communicators say on which streams their kernels may wait,
// and who wants to make such a call makes it here, where it happens only while those streams are done and nothing is
// launched on them. What cannot be freed now is freed later. Thread-safe; one state for the process.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <shared_mutex>
#include <span>
#include <string>

namespace shoal::cuda {

/// Where a rank of a mesh runs.
struct Place {
  int gpu = 0;  ///< CUDA's number
  cudaStream_t stream = nullptr;
  std::string device_name = "";  ///< for messages
};

/// The streams of a mesh: while it lives, kernels on them may wait for each other.
class WaitingKernels {
 public:
  /// The streams must outlive this, and be done before.
  explicit WaitingKernels(std::span<const Place> ranks);
  ~WaitingKernels();
  WaitingKernels(const WaitingKernels&) = delete;
  WaitingKernels& operator=(const WaitingKernels&) = delete;
};

/// To be held while such kernels are launched, and while a stream of a mesh is switched to being captured.
std::shared_lock<std::shared_mutex> launch_waiting_kernels();

/// Calls `work`, which may wait for the GPU, once no kernel can wait there for what is not launched yet. False: that
/// was not so within `patience`; it was not called.
bool run_while_none_waits(int gpu, std::chrono::milliseconds patience, const std::function<void()>& work);

/// Destroys a graph that no stream runs, now or later.
void destroy_graph(int gpu, cudaGraphExec_t exec);
/// Frees what was left for later, as far as that can be done within `patience`. For who waits for it, as NCCL does for
/// the graphs of a rank. Not between launches of a mesh.
void free_what_is_left(std::chrono::milliseconds patience);

/// Host memory that is pinned for all GPUs; its contents are those of an earlier use, or nothing. Allocated while no
/// kernel waits for one that is not launched yet, if that comes soon. Leaves CUDA's last error.
cudaError_t allocate_pinned(void** data, size_t size);
/// Nothing may use it any more: backends that copy from or to it were synchronized, and streams are done. Given back
/// now or later, or at once to the next who asks for as much.
void free_pinned(void* data, size_t size);

}  // namespace shoal::cuda
