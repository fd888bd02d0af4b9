// OS threads that are kept for work which comes up now and then, all at the same time if need be: each piece of work
// starts at once, on a thread that is free or a new one. Used by one stream: helpers of its launches, branches of
// graphs.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace shoal::cuda::emulator {

class Workers {
 public:
  Workers() = default;
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void start(std::function<void()> work);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  size_t free_ = 0;
  bool ends_ = false;
};

}  // namespace shoal::cuda::emulator
