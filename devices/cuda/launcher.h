// Launcher: the thread of a CUDA backend that passes work to the driver in order. The host only pushes work and never
// waits for the driver. So the launchers feed the streams of several GPUs concurrently. If a driver or NCCL call blocks
// the launcher of one rank, the other ranks continue. The launcher stores the first failure and then skips later work.
// But the launcher still calls tasks, and still records and awaits marks (positions in streams, mark.h), because other
// streams may depend on these tasks and marks. Items of work are plain data and allocate no memory.
//
//   host      set x | run plan | record mark | ...          pushes and continues
//   launcher  cudaMemcpyAsync, cudaGraphLaunch, cudaEventRecord, ...
//   GPU       the stream
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "devices/backend.h"
#include "devices/cpu/waiting.h"
#include "devices/cpu/work_queue.h"
#include "devices/cuda/gpu_trace.h"
#include "devices/cuda/mark.h"
#include "devices/cuda/op_kernel.h"
#include "devices/functions.h"
#include "devices/transfer_work.h"

namespace shoal::cuda {

class CudaPlan;
class CudaRecording;

/// A task that launches its own kernels, such as a collective. The launcher calls the task without waiting for the
/// stream. `failed`: whether earlier work of the stream failed. After a failure, the task must launch nothing, but it
/// may still notify other ranks. The task may throw.
struct LaunchTask {
  void (*run)(void* object, const void* argument, const LaunchContext& context, bool failed) = nullptr;
  void* object = nullptr;
  const void* argument = nullptr;
};

struct StopWork {};
struct ComputeWork {
  CudaPlan* plan;
  int first, last;  ///< segments [first, last)
};
struct BytesWork {
  const void* from;
  void* to;
  size_t size;
  cudaMemcpyKind kind;
};
struct RecordWork {
  Mark* mark;
};
struct WaitWork {
  Mark* mark;
};
/// Waits until the stream is done.
struct FinishWork {
  bool take_failure;  ///< whether failures of the GPU are checked and stored for the next synchronize()
};
struct StartRecordingWork {};
struct StopRecordingWork {
  std::unique_ptr<CudaRecording>* result;
};
struct ReplayWork {
  CudaRecording* recording;
};
using Work = std::variant<StopWork, HostTask, LaunchTask, ComputeWork, SetWork, GetWork, CopyWork, BytesWork,
                          RecordWork, WaitWork, FinishWork, StartRecordingWork, StopRecordingWork, ReplayWork>;

/// The work of a stream, captured as an executable CUDA graph.
class CudaRecording final : public Recording {
 public:
  /// Takes ownership of `exec`.
  explicit CudaRecording(cudaGraphExec_t exec) : exec_(exec) {}
  ~CudaRecording() override { cudaGraphExecDestroy(exec_); }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
};

/// Measures how long a thread waits. Excludes most of the time in which the process was stopped.
class WaitingTime {
 public:
  /// Call this function repeatedly, because each call adds at most 100 ms.
  std::chrono::nanoseconds so_far() {
    constexpr std::chrono::nanoseconds kMost = std::chrono::milliseconds(100);  // limit per call
    const auto now = std::chrono::steady_clock::now();
    waited_ += std::min<std::chrono::nanoseconds>(now - std::exchange(latest_, now), kMost);
    return waited_;
  }

 private:
  std::chrono::steady_clock::time_point latest_ = std::chrono::steady_clock::now();
  std::chrono::nanoseconds waited_{0};
};

class Launcher {
 public:
  /// Two callbacks of a component that launches its own kernels in the stream. The callbacks run on the launcher's
  /// thread. Each callback may be empty. If a callback throws, the stream fails.
  struct Watch {
    /// Called repeatedly while the launcher waits for the stream or is idle. `stuck` is the time since the last
    /// progress of the stream (Progress). A callback that throws must first ensure that the stream's work ends.
    std::function<void(std::chrono::nanoseconds stuck)> poll;
    /// Called when the stream's work is done. Throws if the component's kernels found an error.
    std::function<void()> done;
  };

  /// If CUDA cannot create a graph from a recording, `no_graph` is called with the reason, on the launcher's thread.
  /// Throws DeviceError if the thread or the stream cannot be created.
  Launcher(std::string name, const GpuTraits& gpu, std::function<void(cudaError_t why)> no_graph);
  /// Waits until all queued work has finished. Failures that synchronize() has not reported are lost.
  ~Launcher();

  /// Queues work. Only one thread may call push() at a time.
  void push(const Work& work);
  /// See functions::kWaitForQueued. Also returns kWorks while the stream waits for another stream.
  functions::QueueState wait_for_queued(std::chrono::nanoseconds time);
  /// Waits for all queued work. Throws the first failure and clears it.
  void synchronize();
  /// Waits for all queued work, without reporting or clearing a failure.
  void finish();
  /// Call this function only while nothing is queued.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// Waits like finish(), then sets the row that receives the trace. nullptr stops tracing.
  void set_trace(TraceRow* row);
  /// add_watch() and remove_watch() wait like finish(), then change the watches.
  void add_watch(const void* owner, Watch watch);
  void remove_watch(const void* owner);
  const std::string& name() const { return name_; }
  const LaunchContext& context() const { return context_; }

 private:
  void serve();
  bool run(const Work& work);  ///< returns false if the thread must stop
  bool run_item(const Work& work);
  void run_traced(const Work& work);
  void run_task(const HostTask& task);
  void run_unless_failed(const Work& work);
  void keep_failure(cudaError_t status, std::string_view what);
  void wait_for_all();

  // start() has one overload for each type of work that is skipped after a failure. These functions run on the
  // launcher's thread.
  void start(const HostTask& task);
  void start(const LaunchTask& task);
  void start(const ComputeWork& work);
  void start(const SetWork& work);
  void start(const GetWork& work);
  void start(const CopyWork& work);
  void start(const BytesWork& work);
  void start(const FinishWork& work);
  void start(const StartRecordingWork& work);
  void start(const ReplayWork& work);
  void stop_recording(const StopRecordingWork& work);
  void wait_before_reading(const void* to);
  void wait_before_writing(const void* from, size_t size);
  bool has_polls() const;
  /// Whether queued work may wait or copy. During a recording, the function returns false, and the recording becomes
  /// unusable.
  bool may_wait();
  /// Polls the watches until the stream's work is done or `stop` returns true. Rethrows the exception of a watch.
  cudaError_t wait_for_stream(const std::function<bool()>& stop = {});
  /// While the launcher is idle, polls the watches until the stream's work is done or the item of work with this number
  /// is queued.
  void keep_watch(uint64_t until);

  std::string name_;
  std::function<void(cudaError_t)> no_graph_;
  LaunchContext context_;
  AbortCallback abort_;
  bool recording_ = false;         ///< between start_recording() and stop_recording(); queued work must not execute
  bool capturing_ = false;         ///< queued work is being captured
  bool recording_failed_ = false;  ///< some queued work could not be captured
  bool is_idle_ = true;            ///< the most recent work was FinishWork, which waits for the stream
  bool is_watched_ = false;        ///< the stream may still have work, and a Watch must be polled
  std::vector<std::pair<const void*, Watch>> watches_;
  Progress progress_;
  std::unique_ptr<GpuTrace> trace_;
  cpu::WorkQueue<Work> queue_;
  cpu::ThreadCount count_{1};
  static constexpr uint64_t kNever = UINT64_MAX;
  uint64_t queued_count_ = 0;  ///< used only by the pushing thread
  uint64_t asked_ = kNever;    ///< value of queued_count_ when wait_for_queued() last pushed FinishWork
  cpu::Counter queued_, finished_;
  /// Written by the launcher's thread. The host reads and clears the failure only when all queued work has finished.
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace shoal::cuda
