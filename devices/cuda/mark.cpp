#include "devices/cuda/mark.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "devices/cuda/cuda_api.h"

namespace shoal::cuda {
namespace {

/// Unused marks of each GPU.
struct MarkPool {
  std::mutex mutex;
  std::vector<std::vector<Mark*>> free;
  static MarkPool& instance() {
    static MarkPool& pool = *new MarkPool;
    return pool;
  }
};

}  // namespace

Mark* Mark::take(int gpu) {
  MarkPool& pool = MarkPool::instance();
  Mark* mark = nullptr;
  {
    const std::lock_guard lock(pool.mutex);
    if (pool.free.size() <= static_cast<size_t>(gpu)) pool.free.resize(static_cast<size_t>(gpu) + 1);
    auto& free = pool.free[static_cast<size_t>(gpu)];
    if (!free.empty()) {
      mark = free.back();
      free.pop_back();
    }
  }
  if (mark == nullptr) {
    const CurrentGpu current(gpu);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), fmt::format("GPU {}", gpu), "create an event");
    mark = new Mark(gpu, event);
  }
  mark->references_ = 1;
  mark->recorded_ = 0;
  return mark;
}

void Mark::drop() {
  if (--references_ > 0) return;
  MarkPool& pool = MarkPool::instance();
  const std::lock_guard lock(pool.mutex);
  pool.free[static_cast<size_t>(gpu_)].push_back(this);
}

cudaError_t Mark::record(cudaStream_t stream) {
  const cudaError_t status = cudaEventRecord(event_, stream);
  recorded_ = status == cudaSuccess ? 1 : 2;
  recorded_.notify_all();
  return status;
}

void Mark::pass() {
  recorded_ = 2;
  recorded_.notify_all();
}

cudaError_t Mark::wait(cudaStream_t stream) {
  recorded_.wait(0);
  return recorded_ == 1 ? cudaStreamWaitEvent(stream, event_, 0) : cudaSuccess;
}

void Mark::synchronize() {
  recorded_.wait(0);
  if (recorded_ == 1 && cudaEventSynchronize(event_) != cudaSuccess) cudaGetLastError();
}

Progress::~Progress() {
  for (cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

cudaError_t Progress::mark(cudaStream_t stream) {
  cudaEvent_t& event = events_[marked_ % kMarks];
  cudaError_t status = cudaSuccess;
  if (event == nullptr) status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (status == cudaSuccess) status = cudaEventRecord(event, stream);
  if (status == cudaSuccess) ++marked_;
  return status;
}

uint64_t Progress::passed() {
  if (marked_ > kMarks) passed_ = std::max(passed_, marked_ - kMarks);
  while (passed_ < marked_ && ask(cudaEventQuery, events_[passed_ % kMarks]) == cudaSuccess) ++passed_;
  return passed_;
}

}  // namespace shoal::cuda
