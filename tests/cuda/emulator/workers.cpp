#include "tests/cuda/emulator/workers.h"

#include <utility>

#include "tests/cuda/emulator/block.h"

namespace shoal::cuda::emulator {

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::start(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(work));
  if (waiting_.size() > free_) {
    threads_.emplace_back([this] { serve(); });
  } else {
    changed_.notify_one();
  }
}

void Workers::serve() {
  Runner runner;
  std::unique_lock lock(mutex_);
  for (;;) {
    ++free_;
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    --free_;
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace shoal::cuda::emulator
