// Runs an engine in a thread of its own. Any thread may submit and cancel requests. The outputs of a request go to the
// channel of its submitter.
//
//   EngineThread thread(engine);
//   auto channel = std::make_shared<OutputChannel>();
//   thread.submit(channel, prompt, {.most_tokens = 100});
//   for (const Output& output : channel->wait(100ms)) ...
//
// The last output of each request has `finish`. If a device fails, all requests end with Finish::kFailed and the error,
// and submit() throws from then on.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "models/engine/engine.h"
#include "models/engine/output_channel.h"

namespace shoal::models {

class EngineThread {
 public:
  /// The engine must outlive the thread. Only the thread may use the engine until the destructor.
  explicit EngineThread(Engine& engine);
  /// Calls stop().
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// Waits for the current step, and ends the thread. Requests that have not finished get Finish::kCancelled.
  void stop();
  /// Throws the errors of Engine::submit(). Throws DeviceError if a device has failed, and InvalidArgument after
  /// stop(). `tokens` receives the tokens of the answer and its end, without texts, for the thread that computes masks
  /// (mask_feed.h).
  RequestId submit(std::shared_ptr<OutputChannel> channel, std::vector<int32_t> prompt, const RequestOptions& options,
                   std::shared_ptr<OutputChannel> tokens = nullptr);
  /// Ends a request before the next step. No-op for an unknown request.
  void cancel(RequestId request);
  /// The statistics after the latest step.
  EngineStats stats() const;
  /// The error of a failed device; "" if no device has failed.
  std::string failure() const;

 private:
  struct Receivers {
    std::shared_ptr<OutputChannel> channel, tokens;
  };

  void run();
  /// Sends the outputs of a step to their channels.
  void deliver(std::vector<Output> outputs);
  void finish_all(Finish finish, const std::string& error);

  Engine& engine_;
  mutable std::mutex mutex_;  // guards the next members
  std::condition_variable wake_;
  std::map<RequestId, Receivers> receivers_;  // of the requests that have not finished
  EngineStats stats_;
  std::string failure_;
  bool has_news_ = false, ends_ = false;
  std::mutex join_mutex_;  // guards thread_.join()
  std::thread thread_;     // starts last
};

}  // namespace shoal::models
