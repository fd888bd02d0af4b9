// A kernel that is run by one or more OS threads: blocks one after the other on the stream's, more on others when
// blocks wait for each other.
//
// A kernel of launch_early() may begin before the work in front of it has ended: SHOAL_EMULATED_EARLY=1 lets its first
// and last blocks begin before the three kernels in front of it do. They run until all their threads stand in
// wait_for_previous() or behind a barrier, and go on when these kernels have ended.
#pragma once

#include <vector_types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <vector>

#include "tests/cuda/emulator/residency.h"
#include "tests/cuda/emulator/workers.h"

namespace shoal::cuda::emulator {

/// What a launch asks for.
struct LaunchSize {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  std::source_location where;  ///< the line that launches, for messages
  bool early = false;          ///< it may start before what was queued before it has ended
};

/// A launch as streams and graphs keep it.
struct Kernel {
  LaunchSize size;
  std::function<void()> run_thread;  ///< with its arguments
  Room room;                         ///< that a block needs
  int gpu;
};

/// One run of a kernel.
class Launch {
 public:
  Launch(std::shared_ptr<const Kernel> kernel, Workers& workers);

  const Kernel& kernel() const { return *kernel_; }
  const LaunchSize& size() const { return kernel_->size; }

  /// Lets some blocks begin while work in front still runs; returns when none of them can go on without its end.
  void begin_early();
  /// Sets the kernel that has begun early behind this one. Its blocks take the room that there is when all blocks of
  /// this launch are on the GPU, and have called let_next_start() or ended.
  void set_next(Launch* next);
  /// Runs all blocks; returns when they are done.
  void run();

  // By blocks:
  /// Has the work in front ended?
  bool may_go_on() const { return may_go_on_.load(std::memory_order_acquire); }
  void wait_to_go_on() const { may_go_on_.wait(false, std::memory_order_acquire); }
  void note_wait_for_previous();
  /// A block that began early stands, spins or has ended.
  void note_stand();
  void note_let_next_start();
  void offer_room();
  Seat take_seat();
  /// Another OS thread joins in, if there are blocks left.
  void start_helper();

 private:
  void start_worker(std::function<void()> work);
  void work();
  void run_block(uint64_t nth);
  void hold_room();
  void check_waits() const;

  const std::shared_ptr<const Kernel> kernel_;
  Workers& workers_;
  const uint64_t blocks_;
  uint64_t early_ = 0;  ///< blocks that begin early, of both ends
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> started_{0};
  std::atomic<bool> may_go_on_{true};
  std::atomic<int> moving_{0};  ///< blocks that began early and do not stand yet
  std::atomic<bool> waits_for_previous_{false};
  std::atomic<uint64_t> let_next_start_{0};
  std::atomic<Launch*> next_launch_{nullptr};
  std::mutex held_mutex_;
  std::vector<Seat> held_;  ///< room that its blocks have taken while they wait for the kernel in front
  struct Helpers {
    std::mutex mutex;
    std::condition_variable changed;
    int running = 0;
  };
  const std::shared_ptr<Helpers> helpers_ = std::make_shared<Helpers>();  ///< the last one may leave after the launch
};

}  // namespace shoal::cuda::emulator
