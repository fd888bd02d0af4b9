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

Stream::Stream(int gpu, bool blocking)
    : gpu_(gpu), blocking_(blocking), hardware_queue_(HardwareQueue::assign(gpu)), thread_([this] { serve(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::push(Operation operation) {
  // Freeing is the driver's own work, in the order of the stream.
  HardwareQueue* const queue = operation.kind == OperationKind::kFree ? nullptr : hardware_queue_;
  push(Item{std::move(operation), true, queue});
}

void Stream::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    if (item.queue != nullptr) item.place = item.queue->enter();
    queue_.push_back(std::move(item));
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
  busy_ = item.works || item.queue != nullptr;
  const std::vector<const Operation*> next = early_ones(lock, item.operation);
  lock.unlock();
  {
    QueueTurn turn(item.queue, item.place);
    const OperationKind kind = item.operation.kind;
    if (kind == OperationKind::kCopy || kind == OperationKind::kFill) turn.leave();
    if (!item.works) {  // who has been told that all is done may ask for it at once
      lock.lock();
      busy_ = false;
      lock.unlock();
    }
    sequence_.run(item.operation, next, [&turn] { turn.leave(); });
  }
  item = {};
  lock.lock();
}

std::vector<const Operation*> Stream::early_ones(std::unique_lock<std::mutex>& lock, const Operation& operation) {
  if (operation.kernel == nullptr || !kernels_start_early()) return {};
  // The next one is mostly queued at once. A kernel that starts before it is there is no error.
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
  return push_record(nullptr);
}

std::shared_ptr<Record> Stream::record_event() {
  return push_record(hardware_queue_);
}

std::shared_ptr<Record> Stream::push_record(HardwareQueue* queue) {
  auto record = std::make_shared<Record>();
  push(Item{{OperationKind::kEventRecord, [record](Workers&) { record->set(); }}, false, queue});
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
  const auto found = all.streams.find(reinterpret_cast<Stream*>(handle));
  return found == all.streams.end() ? nullptr : *found;
}

namespace {

/// The default stream and the blocking ones of its GPU wait for each other.
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
  const DriverLock lock(stream.gpu());
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

Event* find_event(cudaEvent_t handle) {
  Runtime& all = runtime();
  const auto found = all.events.find(reinterpret_cast<Event*>(handle));
  return found == all.events.end() ? nullptr : *found;
}

/// Calls function(stream) for a valid handle.
template <class Function>
cudaError_t with_stream(const char* name, cudaStream_t handle, Function&& function) {
  return api(name, [&] {
    Stream* const stream = find_stream(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : function(*stream);
  });
}

/// For a wait of the host: spoils the capture of a stream that is captured.
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
  runtime().streams.insert(created.get());
  *stream = reinterpret_cast<cudaStream_t>(created.release());
  return cudaSuccess;
}

/// Queues or captures a recorded event.
cudaError_t record_event(Stream& stream, cudaEvent_t handle) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  Event* const event = find_event(handle);
  if (event == nullptr || event->gpu != stream.gpu()) return cudaErrorInvalidResourceHandle;
  event->capture = stream.capture;
  if (stream.capture == nullptr) {
    event->record = stream.record_event();
    return cudaSuccess;
  }
  if (stream.capture->broken) return cudaErrorStreamCaptureInvalidated;
  const Capture::Lane& lane = stream.capture->lanes[static_cast<size_t>(stream.lane)];
  event->sources = lane.sources;
  if (lane.last >= 0) event->sources.push_back(lane.last);
  return cudaSuccess;
}

/// The stream becomes part of the event's capture, if it is not.
cudaError_t wait_for_captured(Stream& stream, const Event& event) {
  if (event.capture->over) return cudaErrorCapturedEvent;
  if (event.capture->broken) return cudaErrorStreamCaptureInvalidated;
  if (stream.capture == nullptr) {
    stream.capture = event.capture;
    stream.lane = static_cast<int>(event.capture->lanes.size());
    event.capture->lanes.emplace_back();
  } else if (stream.capture != event.capture) {
    stream.capture->broken = event.capture->broken = true;
    return cudaErrorStreamCaptureMerge;
  }
  std::vector<int>& sources = stream.capture->lanes[static_cast<size_t>(stream.lane)].sources;
  sources.insert(sources.end(), event.sources.begin(), event.sources.end());
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api("cudaStreamCreateWithFlags", [&] { return create_stream(stream, flags); });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return api("cudaStreamCreate", [&] { return create_stream(stream, cudaStreamDefault); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return api("cudaStreamCreateWithPriority", [&] { return create_stream(stream, flags); });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api("cudaDeviceGetStreamPriorityRange", [&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
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
    trim_at_synchronize(stream.gpu());
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
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return with_stream("cudaStreamGetDevice", handle, [&](Stream& stream) {
    *device = stream.gpu();
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return with_stream("cudaLaunchHostFunc", handle, [&](Stream& stream) {
    return submit(stream, {OperationKind::kHostFunction, [function, data](Workers&) {
                             in_host_function() = true;
                             function(data);
                             in_host_function() = false;
                           }});
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return api("cudaEventCreateWithFlags", [&] {
    auto created = std::make_unique<Event>();
    created->gpu = current_gpu();
    created->timing = (flags & cudaEventDisableTiming) == 0;
    const std::lock_guard lock(runtime().mutex);
    runtime().events.insert(created.get());
    *event = reinterpret_cast<cudaEvent_t>(created.release());
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return api("cudaEventDestroy", [&] {
    const std::lock_guard lock(runtime().mutex);
    Event* const event = find_event(handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    runtime().events.erase(event);
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return with_stream("cudaEventRecord", handle, [&](Stream& stream) { return record_event(stream, event); });
}
/// With cudaEventRecordExternal a graph records the event each time it runs.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned flags) {
  return with_stream("cudaEventRecordWithFlags", on, [&](Stream& stream) {
    if ((flags & cudaEventRecordExternal) == 0 || !is_capturing(stream)) return record_event(stream, handle);
    return submit(stream, {OperationKind::kEventRecord, [handle](Workers&) {
                             auto record = std::make_shared<Record>();
                             record->set();
                             const std::lock_guard lock(runtime().mutex);
                             if (Event* const event = find_event(handle)) event->record = record;
                           }});
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t handle, unsigned flags) {
  return with_stream("cudaStreamWaitEvent", on, [&](Stream& stream) {
    std::unique_lock lock(runtime().mutex);
    Event* const event = find_event(handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return wait_for_captured(stream, *event);
    const std::shared_ptr<Record> record = event->record;
    if (stream.capture == nullptr) {
      if (record != nullptr) stream.wait_for(record);
      return cudaSuccess;
    }
    if ((flags & cudaEventWaitExternal) == 0) {
      stream.capture->broken = true;
      return cudaErrorStreamCaptureIsolation;
    }
    return add_node(stream, {OperationKind::kEventWait, [handle](Workers&) {
                               std::shared_ptr<Record> latest;
                               {
                                 const std::lock_guard guard(runtime().mutex);
                                 if (Event* const now = find_event(handle)) latest = now->record;
                               }
                               if (latest != nullptr) latest->wait();
                             }});
  });
}

namespace {

/// What an event last recorded, and on which GPU; an error for one that is not there or was captured.
cudaError_t recorded(cudaEvent_t handle, std::shared_ptr<Record>& record, int* gpu = nullptr) {
  const std::lock_guard lock(runtime().mutex);
  const Event* const event = find_event(handle);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) return cudaErrorCapturedEvent;
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
    trim_at_synchronize(gpu);
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
