#include "devices/cuda/launcher.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_buffer.h"
#include "devices/cuda/cuda_plan.h"

namespace shoal::cuda {
namespace {

/// Copies of up to 64 KB from the host are asynchronous (CUDA C++ Programming Guide, Asynchronous Concurrent
/// Execution). For larger copies from pageable memory, the driver uses a staging buffer and may wait for the stream
/// (CUDA Driver API, API synchronization behavior).
constexpr size_t kMostUnstaged = 64 * 1024;

// The overloads of describe() describe work for traces. Launch tasks describe themselves (current_span()).
void describe(const ComputeWork& work, TraceSpan& span) {
  work.plan->describe(work.first, work.last, span);
}
void describe(const BytesWork& work, TraceSpan& span) {
  const bool reads = work.kind == cudaMemcpyDeviceToHost;
  span.describe(TraceKind::kCopy, {reads ? "read bytes" : "write bytes"}, static_cast<int64_t>(work.size));
}
void describe(const WaitWork&, TraceSpan& span) {
  span.describe(TraceKind::kWait, {"wait for another stream"});
}
void describe(const ReplayWork&, TraceSpan& span) {
  span.describe(TraceKind::kCompute, {"recording"});
}

/// Whether events in the stream measure the work for the trace. Host tasks are measured with the host's clock. Marks do
/// not appear in the trace.
bool is_traced(const Work& work) {
  const auto is_described = [](const auto& item) {
    return requires(TraceSpan & span) {
      describe(item, span);
    };
  };
  return std::holds_alternative<LaunchTask>(work) || std::visit(is_described, work);
}

}  // namespace

Launcher::Launcher(std::string name, const GpuTraits& gpu, std::function<void(cudaError_t)> no_graph)
    : name_(std::move(name)), no_graph_(std::move(no_graph)), context_{nullptr, gpu} {
  const CurrentGpu current(gpu.gpu);
  check(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), name_, "create a stream");
  constexpr size_t counters = kCounters * sizeof(uint32_t);
  static_assert(counters % 256 == 0, "the record after the counters is aligned");
  const size_t bytes = counters + kRecordBytes;
  cudaError_t status = cudaMallocAsync(reinterpret_cast<void**>(&context_.counters), bytes, context_.stream);
  if (status == cudaSuccess) status = cudaMemsetAsync(context_.counters, 0, bytes, context_.stream);
  if (status != cudaSuccess) {
    if (context_.counters != nullptr) cudaFreeAsync(context_.counters, context_.stream);
    cudaStreamDestroy(context_.stream);
  }
  check(status, name_, "allocate counters");
  context_.record_memory = reinterpret_cast<std::byte*>(context_.counters) + counters;
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    cudaFreeAsync(context_.counters, context_.stream);
    cudaStreamDestroy(context_.stream);
    fail<DeviceError>("[{}] cannot start a thread ({}): raise the limit of processes, or use fewer devices", name_,
                      error.what());
  }
  pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
}

Launcher::~Launcher() {
  push(StopWork{});
  thread_.join();
  const CurrentGpu current(context_.gpu.gpu);
  cudaStreamSynchronize(context_.stream);
  if (trace_ != nullptr) trace_->resolve();
  cudaFreeAsync(context_.counters, context_.stream);
  cudaStreamDestroy(context_.stream);
}

void Launcher::push(const Work& work) {
  queue_.push(work);
  queued_.advance_to(++queued_count_);
}

void Launcher::wait_for_all() {
  finished_.wait_for(queued_count_, cpu::Waiter::kHost);
}

functions::QueueState Launcher::wait_for_queued(std::chrono::nanoseconds time) {
  if (asked_ != queued_count_) {
    push(FinishWork{true});
    asked_ = queued_count_;
  }
  const bool ended = finished_.wait_for(queued_count_, cpu::Waiter::kHost, time);
  return {ended ? functions::Activity::kNone : functions::Activity::kWorks, finished_.value()};
}

void Launcher::synchronize() {
  if (std::exchange(asked_, kNever) != queued_count_) push(FinishWork{true});
  wait_for_all();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Launcher::finish() {
  push(FinishWork{false});
  wait_for_all();
}

void Launcher::set_trace(TraceRow* row) {
  finish();
  const CurrentGpu current(context_.gpu.gpu);
  trace_ = row != nullptr ? std::make_unique<GpuTrace>(*row, context_.stream) : nullptr;
}

void Launcher::add_watch(const void* owner, Watch watch) {
  finish();
  watches_.emplace_back(owner, std::move(watch));
}

void Launcher::remove_watch(const void* owner) {
  finish();
  std::erase_if(watches_, [owner](const auto& entry) { return entry.first == owner; });
}

void Launcher::serve() {
  cudaSetDevice(context_.gpu.gpu);
  for (uint64_t done = 0;;) {
    keep_watch(done + 1);
    queued_.wait_for(done + 1, cpu::Waiter::kWorker);
    const bool more = run(queue_.pop());
    // is_watched_ must be set before finished_ advances. After finished_ advances, a thread that has waited for
    // FinishWork may change the watches.
    is_watched_ = more && !is_idle_ && !recording_ && has_polls();
    finished_.advance_to(++done);
    if (!more) return;
  }
}

// An idle launcher also polls the watches, because a host thread may wait for an event of the stream and not for the
// launcher.
void Launcher::keep_watch(uint64_t until) {
  if (!is_watched_) return;
  try {
    wait_for_stream([&] { return queued_.value() >= until; });
  } catch (...) {
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

bool Launcher::run(const Work& work) {
  if (trace_ == nullptr || recording_) return run_item(work);
  if (failure_ == nullptr && is_traced(work)) {
    run_traced(work);
    return true;
  }
  const bool more = run_item(work);
  if (std::holds_alternative<FinishWork>(work)) trace_->resolve();
  return more;
}

// Runs the work and records trace events before and after the work.
void Launcher::run_traced(const Work& work) {
  TraceSpan span;
  trace_->begin(span);
  std::visit(
      [&span](const auto& item) {
        if constexpr (requires { describe(item, span); }) describe(item, span);
      },
      work);
  {
    const CurrentSpan current(span);
    run_item(work);
  }
  trace_->end(span);
  if (!trace_->is_full()) return;
  run_item(FinishWork{false});
  trace_->resolve();
}

bool Launcher::run_item(const Work& work) {
  if (std::holds_alternative<StopWork>(work)) return false;
  is_idle_ = std::holds_alternative<FinishWork>(work);
  if (const auto* record = std::get_if<RecordWork>(&work)) {
    may_wait() ? keep_failure(record->mark->record(context_.stream), "record an event") : record->mark->pass();
    record->mark->drop();
  } else if (const auto* wait = std::get_if<WaitWork>(&work)) {
    if (may_wait()) keep_failure(wait->mark->wait(context_.stream), "wait for another stream");
    wait->mark->drop();
  } else if (const auto* stop = std::get_if<StopRecordingWork>(&work)) {
    stop_recording(*stop);
  } else {
    try {
      run_unless_failed(work);
    } catch (...) {
      if (recording_) {
        recording_failed_ = true;  // the error is not stored, because the work fails again when it runs without a
                                   // recording
      } else if (failure_ == nullptr) {
        failure_ = std::current_exception();
      }
    }
  }
  return true;
}

void Launcher::run_unless_failed(const Work& work) {
  if (failure_ == nullptr) {
    std::visit(
        [this](const auto& item) {
          if constexpr (requires { start(item); }) start(item);
        },
        work);
  } else if (const auto* task = std::get_if<HostTask>(&work)) {
    if (may_wait()) task->run(task->object, task->argument, true);
  } else if (const auto* launch = std::get_if<LaunchTask>(&work)) {
    launch->run(launch->object, launch->argument, context_, true);
  } else if (std::holds_alternative<FinishWork>(work) && may_wait()) {
    wait_for_stream();  // polls the watches, because kernels of the stream may still wait for other ranks
  }
}

/// Stores the failure of work that runs even after earlier failures.
void Launcher::keep_failure(cudaError_t status, std::string_view what) {
  try {
    check(status, name_, what);
  } catch (...) {
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

bool Launcher::has_polls() const {
  return std::any_of(watches_.begin(), watches_.end(), [](const auto& entry) { return entry.second.poll != nullptr; });
}

bool Launcher::may_wait() {
  recording_failed_ |= recording_;
  return !recording_;
}

// The launcher runs a host task when all earlier work of the stream is done, and starts later work when the task has
// returned. So the task may block.
void Launcher::start(const HostTask& task) {
  if (!may_wait()) return;
  try {
    start(FinishWork{true});
  } catch (...) {
    failure_ = std::current_exception();  // run_task() passes failed = true to the task
  }
  run_task(task);
}

void Launcher::run_task(const HostTask& task) {
  if (trace_ == nullptr) return task.run(task.object, task.argument, failure_ != nullptr);
  trace_->resolve();
  TraceSpan span;
  span.begin_ns = trace_clock();
  const CurrentSpan current(span);
  task.run(task.object, task.argument, failure_ != nullptr);
  span.end_ns = trace_clock();
  if (span.is_shown()) trace_->add(span);
}

void Launcher::start(const LaunchTask& task) {
  if (recording_ && !capturing_) return;
  task.run(task.object, task.argument, context_, false);
  if (!recording_ && has_polls()) check(progress_.mark(context_.stream), name_, "record an event");
}

void Launcher::start(const ComputeWork& work) {
  if (recording_ && !capturing_) return;
  work.plan->run(context_, work.first, work.last, recording_, abort_);
}

void Launcher::start(const SetWork& work) {
  if (!may_wait()) return;
  const HeldBuffer held(work.memory);
  check_held(held, "set");
  wait_before_writing(work.data, work.rows.rows * work.rows.row_bytes);
  const cudaError_t status = copy_rows_to_gpu(*work.tensor, work.data, work.host_stride, work.rows, context_.stream);
  if (status != cudaSuccess) check(status, name_, "write " + work.tensor->name);
}

// If the host memory is not pinned, the copy call of the driver waits for the stream. During that call no watch is
// polled, and the driver may block launches of other threads. If the stream depends on such a launch, the call never
// returns. So before the call, the launcher waits for the stream here and polls the watches.
void Launcher::wait_before_reading(const void* to) {
  if (has_polls() || is_pageable(to)) check(wait_for_stream(), name_, "finish queued work");
}

// A copy call that uses a staging buffer also waits for the stream, so the launcher waits here before this call. Small
// copies go through the driver's queue instead.
void Launcher::wait_before_writing(const void* from, size_t size) {
  if (size > kMostUnstaged && is_pageable(from)) check(wait_for_stream(), name_, "finish queued work");
}

void Launcher::start(const GetWork& work) {
  if (!may_wait()) return;
  const HeldBuffer held(work.memory);
  check_held(held, "get");
  wait_before_reading(work.data);
  const cudaError_t status = copy_rows_from_gpu(*work.tensor, work.data, work.host_stride, work.rows, context_.stream);
  if (status != cudaSuccess) check(status, name_, "read " + work.tensor->name);
}

void Launcher::start(const CopyWork& work) {
  if (!may_wait()) return;
  const HeldBuffer from(work.from), to(work.to);
  check_held(from, "copy");
  check_held(to, "copy");
  const cudaError_t status = copy_contiguous(*work.src, *work.dst, context_.stream);
  if (status != cudaSuccess) check(status, name_, "copy " + work.src->name);
}

void Launcher::start(const BytesWork& work) {
  if (!may_wait()) return;
  if (work.kind == cudaMemcpyDeviceToHost) wait_before_reading(work.to);
  if (work.kind == cudaMemcpyHostToDevice) wait_before_writing(work.from, work.size);
  check(cudaMemcpyAsync(work.to, work.from, work.size, work.kind, context_.stream), name_, "copy bytes");
}

void Launcher::start(const FinishWork& work) {
  if (!may_wait()) return;
  const cudaError_t status = wait_for_stream();
  if (!work.take_failure) return;
  check(status, name_, "finish queued work");
  for (const auto& [owner, watch] : watches_) {
    if (watch.done) watch.done();
  }
}

cudaError_t Launcher::wait_for_stream(const std::function<bool()>& stop) {
  if (!has_polls()) return cudaStreamSynchronize(context_.stream);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  WaitingTime stuck;
  std::exception_ptr problem;  // a watch's exception; before the throw, the watch ensured that the stream's work ends
  for (uint64_t passed = progress_.passed();;) {
    const cudaError_t status = ask(cudaStreamQuery, context_.stream);
    if (status != cudaErrorNotReady || (stop && stop())) {
      if (problem != nullptr) std::rethrow_exception(problem);
      return status;
    }
    if (const uint64_t latest = progress_.passed(); latest != passed) passed = latest, stuck = WaitingTime();
    const std::chrono::nanoseconds stuck_for = stuck.so_far();
    for (const auto& [owner, watch] : watches_) {
      try {
        if (watch.poll) watch.poll(stuck_for);
      } catch (...) {
        if (problem == nullptr) problem = std::current_exception();
      }
    }
    // The work of a token ends within milliseconds, so the loop polls without a delay for 20 ms. After 20 ms, or if the
    // launcher is idle, a delay of 50 us is acceptable.
    if (stop || Clock::now() - begin > std::chrono::milliseconds(20))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void Launcher::start(const StartRecordingWork&) {
  recording_ = true;
  const cudaError_t status = cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal);
  capturing_ = status == cudaSuccess;
  if (!capturing_) {
    cudaGetLastError();
    no_graph_(status);
  }
  recording_failed_ = !capturing_;
}

void Launcher::stop_recording(const StopRecordingWork& work) {
  work.result->reset();
  recording_ = false;
  if (!std::exchange(capturing_, false)) return;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaError_t status = cudaStreamEndCapture(context_.stream, &graph);
  const bool usable = status == cudaSuccess && !recording_failed_ && failure_ == nullptr;
  if (usable) status = cudaGraphInstantiate(&exec, graph, 0);
  if (exec != nullptr) {
    cudaGraphUpload(exec, context_.stream);  // uploads now, so that other ranks do not wait for the upload at the first
                                             // launch
    *work.result = std::make_unique<CudaRecording>(exec);
  }
  if (status != cudaSuccess) no_graph_(status);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

void Launcher::start(const ReplayWork& work) {
  check(cudaGraphLaunch(work.recording->exec(), context_.stream), name_, "launch a recorded graph");
  if (has_polls()) check(progress_.mark(context_.stream), name_, "record an event");
}

}  // namespace shoal::cuda
