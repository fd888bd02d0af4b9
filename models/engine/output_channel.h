// Brings the outputs of requests from the engine's thread to a reader. The file descriptor is readable while there are
// outputs, so an event loop can wait for it.
#pragma once

#include <chrono>
#include <mutex>
#include <vector>

#include "models/engine/request.h"

namespace shoal::models {

/// Any thread may call any function.
class OutputChannel {
 public:
  /// Throws DeviceError if the process has too many open files.
  OutputChannel();
  ~OutputChannel();
  OutputChannel(const OutputChannel&) = delete;
  OutputChannel& operator=(const OutputChannel&) = delete;

  /// A file descriptor that is readable while there are outputs. It belongs to the channel.
  int descriptor() const { return descriptor_; }
  /// Appends outputs. Never blocks on a reader.
  void put(std::vector<Output> outputs);
  /// Removes and returns all outputs, without waiting.
  std::vector<Output> take();
  /// Waits until there are outputs or the time is over. Then returns take().
  std::vector<Output> wait(std::chrono::milliseconds longest);

 private:
  int descriptor_ = -1;
  std::mutex mutex_;  // guards outputs_
  std::vector<Output> outputs_;
};

}  // namespace shoal::models
