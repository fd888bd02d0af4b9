#include "devices/cuda/waiting_kernels.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "devices/cuda/cuda_api.h"
#include "devices/cuda/granule.h"

namespace shoal::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kAnyGpu = -1;
/// How long pinned memory that is asked for waits for meshes to be done. Without it nothing goes on, so then it is
/// allocated all the same.
constexpr std::chrono::milliseconds kPinPatience{50};

struct Rank {
  const WaitingKernels* mesh;
  Place place;
};

struct Pinned {
  void* data;
  size_t size;
};

struct State {
  /// Shared by those who launch; closed while a call is made that may wait for a GPU, and when `ranks` changes.
  std::shared_mutex gate;
  std::vector<Rank> ranks;  ///< of meshes of several
  std::mutex mutex;         ///< of what waits to be freed
  std::vector<std::pair<int, cudaGraphExec_t>> graphs;
  std::vector<Pinned> pinned;
};

State& state() {
  static State& state = *new State;  // buffers may go after every static object
  return state;
}

/// A stream that is captured was done before; one with an error runs nothing any more.
bool is_done(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t status = cudaStreamIsCapturing(stream, &capture);
  if (status == cudaSuccess && capture == cudaStreamCaptureStatusNone) status = cudaStreamQuery(stream);
  if (status != cudaSuccess) cudaGetLastError();
  return status != cudaErrorNotReady;
}

/// The gate is closed, for all GPUs: what a kernel on this one waits for cannot be launched on another one either.
bool none_waits(const State& all, int gpu) {
  return std::all_of(all.ranks.begin(), all.ranks.end(), [gpu](const Rank& rank) {
    const bool matters = gpu == kAnyGpu || rank.place.gpu == gpu;
    return !matters || is_done(rank.place.stream);
  });
}

/// The gate is closed.
void free_what_can_be(State& all) {
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.graphs, [&](const auto& entry) {
    if (!none_waits(all, entry.first)) return false;
    const CurrentGpu current(entry.first);
    cudaGraphExecDestroy(entry.second);
    return true;
  });
  if (all.pinned.empty() || !none_waits(all, kAnyGpu)) return;
  for (const Pinned& memory : all.pinned) cudaFreeHost(memory.data);
  all.pinned.clear();
}

/// Frees now if none waits. Does not wait for the gate: who launches may be waiting for others who will launch.
void try_to_free(State& all) {
  for (int i = 0; i < 20; ++i) {
    const std::unique_lock gate(all.gate, std::try_to_lock);
    if (gate.owns_lock()) return free_what_can_be(all);
    std::this_thread::yield();
  }
}

}  // namespace

WaitingKernels::WaitingKernels(std::span<const Place> ranks) {
  if (ranks.size() < 2) return;
  State& all = state();
  const std::lock_guard lock(all.gate);
  for (const Place& place : ranks) all.ranks.push_back({this, place});
}

WaitingKernels::~WaitingKernels() {
  State& all = state();
  const std::lock_guard lock(all.gate);
  std::erase_if(all.ranks, [this](const Rank& rank) { return rank.mesh == this; });
  free_what_can_be(all);
}

std::shared_lock<std::shared_mutex> launch_waiting_kernels() {
  return std::shared_lock(state().gate);
}

bool run_while_none_waits(int gpu, std::chrono::milliseconds patience, const std::function<void()>& work) {
  State& all = state();
  for (const Clock::time_point end = Clock::now() + patience;;) {
    {
      const std::unique_lock gate(all.gate, std::try_to_lock);
      if (gate.owns_lock() && none_waits(all, gpu)) {
        work();
        return true;
      }
    }
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void destroy_graph(int gpu, cudaGraphExec_t exec) {
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    all.graphs.emplace_back(gpu, exec);
  }
  try_to_free(all);
}

void free_what_is_left(std::chrono::milliseconds patience) {
  State& all = state();
  for (const Clock::time_point end = Clock::now() + patience;;) {
    try_to_free(all);
    {
      const std::lock_guard lock(all.mutex);
      if ((all.graphs.empty() && all.pinned.empty()) || Clock::now() >= end) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

cudaError_t allocate_pinned(void** data, size_t size) {
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    const auto found = std::find_if(all.pinned.begin(), all.pinned.end(),
                                    [size](const Pinned& memory) { return memory.size == whole_granules(size); });
    if (found != all.pinned.end()) {
      *data = found->data;
      all.pinned.erase(found);
      return cudaSuccess;
    }
  }
  cudaError_t status = cudaSuccess;
  const auto allocate = [&] {
    status = cudaHostAlloc(data, whole_granules(size), cudaHostAllocPortable | cudaHostAllocMapped);
  };
  if (!run_while_none_waits(kAnyGpu, kPinPatience, allocate)) allocate();
  return status;
}

void free_pinned(void* data, size_t size) {
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    all.pinned.push_back({data, whole_granules(size)});
  }
  try_to_free(all);
}

}  // namespace shoal::cuda
