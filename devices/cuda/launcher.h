// Launcher: the thread behind a CUDA backend, which hands work to the driver in order. The host only pushes: it never
// waits for the driver, the streams of several GPUs are fed at the same time, and a call that blocks (NCCL connecting
// its ranks) blocks no other rank. The first failure is kept; later work is skipped, except that tasks are told and
// marks are still recorded and waited for (others may rely on the order). Nothing here allocates per item.
//
//   host      set x | run plan | record mark | ...          pushes and goes on
//   launcher  cudaMemcpyAsync, cudaGraphLaunch, cudaEventRecord, ...
//   GPU       the stream
//
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

/// Something that queues kernels by itself, such as a collective: run by the launcher, which does not wait for it.
/// `failed`: earlier work of the stream failed; it must launch nothing then but may tell others. It may throw.
struct LaunchTask {
  void (*run)(void* object, const void* argument, const LaunchContext& context, bool failed) = nullptr;
  void* object = nullptr;
  const void* argument = nullptr;
};

struct StopWork {};
struct ComputeWork {
  CudaPlan* plan;
  int first, last;  ///< segments
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
  bool take_failure;  ///< looks for failures of the GPU, reported to the next synchronize
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

/// What was captured of a stream, ready to be launched.
class CudaRecording final : public Recording {
 public:
  /// Takes over `exec`.
  explicit CudaRecording(cudaGraphExec_t exec) : exec_(exec) {}
  ~CudaRecording() override { cudaGraphExecDestroy(exec_); }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
};

/// How long a thread waits, while the process runs: time in which it was stopped does not count.
class WaitingTime {
 public:
  /// Asked again and again.
  std::chrono::nanoseconds so_far() {
    constexpr std::chrono::nanoseconds kMost = std::chrono::milliseconds(100);  // between two times
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
  /// A user with kernels of its own in the stream. On the launcher's thread; both may be empty and may throw,
  /// which fails the stream.
  struct Watch {
    /// While the launcher waits for the stream or has nothing to do, again and again; `stuck`: how long no work of the
    /// stream has ended. What throws has seen to it that the stream ends.
    std::function<void(std::chrono::nanoseconds stuck)> poll;
    /// When the stream is done: did its kernels find that something is wrong?
    std::function<void()> done;
  };

  /// `no_graph` is told why CUDA made no graph of a recording, on the launcher's thread. Throws DeviceError when no
  /// thread or stream can be made.
  Launcher(std::string name, const GpuTraits& gpu, std::function<void(cudaError_t why)> no_graph);
  /// Finishes the queued work first. Failures not asked for are lost.
  ~Launcher();

  /// Queues work; one thread at a time.
  void push(const Work& work);
  /// See functions::kWaitForQueued. Says kWorks of a stream that waits for another one, too.
  functions::QueueState wait_for_queued(std::chrono::nanoseconds time);
  /// Waits for everything queued; throws the first failure and clears it.
  void synchronize();
  /// Waits for everything queued; failures stay.
  void finish();
  /// While nothing is queued.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// Waits for queued work; failures stay. nullptr: nothing is traced.
  void set_trace(TraceRow* row);
  /// Waits for queued work; failures stay.
  void add_watch(const void* owner, Watch watch);
  void remove_watch(const void* owner);
  const std::string& name() const { return name_; }
  const LaunchContext& context() const { return context_; }

 private:
  void serve();
  bool run(const Work& work);  ///< false: stop
  bool run_item(const Work& work);
  void run_traced(const Work& work);
  void run_task(const HostTask& task);
  void run_unless_failed(const Work& work);
  void keep_failure(cudaError_t status, std::string_view what);
  void wait_for_all();

  // One for each kind of work that is skipped after a failure; on the launcher's thread.
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
  /// False while a recording is made: what cannot be recorded spoils it.
  bool may_wait();
  /// Until the stream is done, or `stop` says so, with an eye on it. Throws what a watch has thrown.
  cudaError_t wait_for_stream(const std::function<bool()>& stop = {});
  /// The same while there is nothing else to do, until the piece of work with this number is queued.
  void keep_watch(uint64_t until);

  std::string name_;
  std::function<void(cudaError_t)> no_graph_;
  LaunchContext context_;
  AbortCallback abort_;
  bool recording_ = false;         ///< what is queued must not run
  bool capturing_ = false;         ///< and is written down
  bool recording_spoilt_ = false;  ///< something in it could not be
  bool is_idle_ = true;            ///< the stream had ended after the latest work
  bool is_watched_ = false;        ///< it had not, and a user has kernels of its own in it
  std::vector<std::pair<const void*, Watch>> watches_;
  Progress progress_;
  std::unique_ptr<GpuTrace> trace_;
  cpu::WorkQueue<Work> queue_;
  cpu::ThreadCount count_{1};
  static constexpr uint64_t kNever = UINT64_MAX;
  uint64_t queued_count_ = 0;  ///< pushing thread only
  uint64_t asked_ = kNever;    ///< what was queued when wait_for_queued() asked for its end
  cpu::Counter queued_, finished_;
  /// Written by the launcher; the host reads and clears it only when all queued work is finished.
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace shoal::cuda
