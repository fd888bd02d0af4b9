#include <chrono>
#include <utility>

#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {

void Record::set() {
  time_ = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
  set_.store(1, std::memory_order_release);
  set_.notify_all();
}

void Record::wait() const {
  set_.wait(0, std::memory_order_acquire);
}

Stream::Stream(int gpu, bool blocking) : gpu_(gpu), blocking_(blocking), thread_([this] { serve(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::push(Operation operation, bool works) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(operation), works});
  }
  changed_.notify_all();
}

void Stream::serve() {
  Runner runner;
  current_gpu() = gpu_;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    run(std::move(item), lock);
    busy_ = false;
  }
}

void Stream::run(Item item, std::unique_lock<std::mutex>& lock) {
  busy_ = item.works;
  const std::vector<const Operation*> next = early_ones(lock, item.operation);
  lock.unlock();
  sequence_.run(item.operation, next);
  item = {};
  lock.lock();
}

std::vector<const Operation*> Stream::early_ones(std::unique_lock<std::mutex>& lock, const Operation& operation) {
  if (operation.kernel == nullptr || !kernels_start_early()) return {};
  // The longest wait for the next operation, which usually arrives immediately. An operation that arrives after this
  // time starts after the current kernel has ended. This order is also correct.
  constexpr std::chrono::milliseconds kPatience{5};
  changed_.wait_for(lock, kPatience, [this] { return ends_ || !queue_.empty(); });
  std::vector<const Operation*> found;
  for (const Item& item : queue_) {
    if (found.size() == kMostEarly || !item.operation.may_start_early()) break;
    found.push_back(&item.operation);
  }
  return found;
}

std::shared_ptr<Record> Stream::record() {
  auto record = std::make_shared<Record>();
  push({OperationKind::kEventRecord, [record](Workers&) { record->set(); }}, false);
  return record;
}

void Stream::wait_for(std::shared_ptr<Record> record) {
  push(Operation{OperationKind::kEventWait, [record = std::move(record)](Workers&) { record->wait(); }});
}

void Stream::synchronize() {
  record()->wait();
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !busy_;
}

Stream& default_stream(int gpu) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Stream>& stream = all.gpus[gpu].default_stream;
  if (stream == nullptr) stream = std::make_unique<Stream>(gpu, true);
  return *stream;
}

Stream* find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return &default_stream(current_gpu());
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  return find(all.streams, handle);
}

namespace {

/// The default stream and the blocking streams of its GPU wait for each other.
void order_with_default(Stream& stream) {
  if (!stream.blocking()) return;
  Runtime& all = runtime();
  std::vector<Stream*> others;
  {
    const std::lock_guard lock(all.mutex);
    Stream* const by_default = all.gpus[stream.gpu()].default_stream.get();
    if (by_default != &stream) {
      if (by_default != nullptr) others.push_back(by_default);
    } else {
      for (Stream* other : all.streams) {
        if (other->blocking() && other->gpu() == stream.gpu()) others.push_back(other);
      }
    }
  }
  for (Stream* other : others) {
    if (!other->idle()) stream.wait_for(other->record());
  }
}

}  // namespace

cudaError_t submit(Stream& stream, Operation operation) {
  {
    const std::lock_guard lock(runtime().mutex);
    if (stream.capture != nullptr) return add_node(stream, std::move(operation));
  }
  order_with_default(stream);
  stream.push(std::move(operation));
  return cudaSuccess;
}

void synchronize_gpu(int gpu) {
  Runtime& all = runtime();
  std::vector<std::shared_ptr<Record>> records;
  {
    const std::lock_guard lock(all.mutex);
    for (Stream* stream : all.streams) {
      if (stream->gpu() == gpu) records.push_back(stream->record());
    }
    if (Stream* stream = all.gpus[gpu].default_stream.get()) records.push_back(stream->record());
  }
  for (const auto& record : records) record->wait();
}

}  // namespace shoal::cuda::emulator

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

namespace {

/// Breaks the capture of the stream, if there is one. Stream queries, host waits and event calls use this function,
/// because the emulator cannot capture these calls.
cudaError_t refuse_capturing(Stream& stream) {
  const std::lock_guard lock(runtime().mutex);
  if (stream.capture == nullptr) return cudaSuccess;
  stream.capture->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags) {
  if (stream == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) return cudaErrorInvalidValue;
  if (current_gpu() >= gpu_count()) return cudaErrorNoDevice;
  auto created = std::make_unique<Stream>(current_gpu(), flags != cudaStreamNonBlocking);
  const std::lock_guard lock(runtime().mutex);
  add(runtime().streams, std::move(created), stream);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api("cudaStreamCreateWithFlags", [&] { return create_stream(stream, flags); });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return api("cudaStreamCreate", [&] { return create_stream(stream, cudaStreamDefault); });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return with_stream("cudaStreamDestroy", handle, [&](Stream& stream) {
    {
      const std::lock_guard lock(runtime().mutex);
      if (runtime().streams.erase(&stream) == 0) return cudaErrorInvalidResourceHandle;
      if (stream.capture != nullptr) stream.capture->broken = true;
    }
    delete &stream;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return with_stream("cudaStreamSynchronize", handle, [&](Stream& stream) {
    const cudaError_t status = refuse_capturing(stream);
    if (status != cudaSuccess) return status;
    stream.synchronize();
    trim_pool(stream.gpu());
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return with_stream("cudaStreamQuery", handle, [&](Stream& stream) {
    const cudaError_t status = refuse_capturing(stream);
    if (status != cudaSuccess) return status;
    return stream.idle() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return api("cudaEventCreateWithFlags", [&] {
    auto created = std::make_unique<Event>();
    created->gpu = current_gpu();
    const std::lock_guard lock(runtime().mutex);
    add(runtime().events, std::move(created), event);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return api("cudaEventDestroy", [&] { return destroy(runtime().events, handle, cudaErrorInvalidResourceHandle); });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  return with_stream("cudaEventRecord", on, [&](Stream& stream) {
    const cudaError_t status = refuse_capturing(stream);
    if (status != cudaSuccess) return status;
    const std::lock_guard lock(runtime().mutex);
    Event* const event = find(runtime().events, handle);
    if (event == nullptr || event->gpu != stream.gpu()) return cudaErrorInvalidResourceHandle;
    event->record = stream.record();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t handle, unsigned) {
  return with_stream("cudaStreamWaitEvent", on, [&](Stream& stream) {
    const cudaError_t status = refuse_capturing(stream);
    if (status != cudaSuccess) return status;
    const std::lock_guard lock(runtime().mutex);
    const Event* const event = find(runtime().events, handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->record != nullptr) stream.wait_for(event->record);
    return cudaSuccess;
  });
}

namespace {

/// Finds the latest record of an event and the event's GPU. Returns an error for an unknown handle.
cudaError_t recorded(cudaEvent_t handle, std::shared_ptr<Record>& record, int* gpu = nullptr) {
  const std::lock_guard lock(runtime().mutex);
  const Event* const event = find(runtime().events, handle);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  record = event->record;
  if (gpu != nullptr) *gpu = event->gpu;
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api("cudaEventSynchronize", [&] {
    std::shared_ptr<Record> record;
    int gpu = 0;
    const cudaError_t status = recorded(event, record, &gpu);
    if (status != cudaSuccess || record == nullptr) return status;
    record->wait();
    trim_pool(gpu);
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api("cudaEventQuery", [&] {
    std::shared_ptr<Record> record;
    const cudaError_t status = recorded(event, record);
    return status == cudaSuccess && record != nullptr && !record->is_set() ? cudaErrorNotReady : status;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return api("cudaEventElapsedTime", [&] {
    std::shared_ptr<Record> from, to;
    cudaError_t status = recorded(start, from);
    if (status == cudaSuccess) status = recorded(end, to);
    if (status != cudaSuccess) return status;
    if (from == nullptr || to == nullptr) return cudaErrorInvalidResourceHandle;
    if (!from->is_set() || !to->is_set()) return cudaErrorNotReady;
    *milliseconds = static_cast<float>(static_cast<double>(to->time()) - static_cast<double>(from->time())) * 1e-6f;
    return cudaSuccess;
  });
}
