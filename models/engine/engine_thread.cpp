#include "models/engine/engine_thread.h"

#include <utility>

#include "base/error.h"

namespace shoal::models {

EngineThread::EngineThread(Engine& engine) : engine_(engine), stats_(engine.stats()), thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  stop();
}

void EngineThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

RequestId EngineThread::submit(std::shared_ptr<OutputChannel> channel, std::vector<int32_t> prompt,
                               const RequestOptions& options, std::shared_ptr<OutputChannel> tokens) {
  const std::lock_guard lock(mutex_);
  require<DeviceError>(failure_.empty(), "{}", failure_);
  require<InvalidArgument>(!ends_, "the engine has stopped; load the model again");
  // The lock is held, so the outputs of the request find its channel.
  const RequestId request = engine_.submit(std::move(prompt), options);
  receivers_.emplace(request, Receivers{std::move(channel), std::move(tokens)});
  has_news_ = true;
  wake_.notify_one();
  return request;
}

void EngineThread::cancel(RequestId request) {
  engine_.cancel(request);
  const std::lock_guard lock(mutex_);
  has_news_ = true;
  wake_.notify_one();
}

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EngineThread::run() {
  for (bool has_requests = false;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return has_requests || has_news_ || ends_; });
      has_news_ = false;
      if (ends_) break;
    }
    try {
      has_requests = engine_.step();
      deliver(engine_.take_outputs());
    } catch (const std::exception& error) {
      return finish_all(Finish::kFailed, error.what());
    }
  }
  finish_all(Finish::kCancelled, "");
}

void EngineThread::deliver(std::vector<Output> outputs) {
  const std::lock_guard lock(mutex_);
  stats_ = engine_.stats();
  std::map<std::shared_ptr<OutputChannel>, std::vector<Output>> by_channel;
  for (Output& output : outputs) {
    const auto found = receivers_.find(output.request);
    const auto& [channel, tokens] = found->second;
    if (tokens && !output.is_prompt && (output.token >= 0 || output.finish))
      by_channel[tokens].push_back({.request = output.request, .token = output.token, .finish = output.finish});
    const bool is_last = output.finish.has_value();
    by_channel[channel].push_back(std::move(output));
    if (is_last) receivers_.erase(found);
  }
  for (auto& [channel, list] : by_channel) channel->put(std::move(list));
}

void EngineThread::finish_all(Finish finish, const std::string& error) {
  const std::lock_guard lock(mutex_);
  failure_ = error;
  stats_.running = stats_.waiting = 0;
  for (auto& [request, to] : std::exchange(receivers_, {})) {
    to.channel->put({Output{.request = request, .finish = finish, .error = error}});
    if (to.tokens) to.tokens->put({Output{.request = request, .finish = finish}});
  }
}

}  // namespace shoal::models
