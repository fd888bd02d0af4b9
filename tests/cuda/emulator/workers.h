// A pool of OS threads without an upper limit on their number. Each task starts immediately, on a free thread or on a
// new thread. Each stream has its own pool. If a kernel needs several OS threads, a task of this pool runs some blocks
// of the kernel.
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
