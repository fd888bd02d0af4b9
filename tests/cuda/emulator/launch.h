// One or more OS threads run a kernel. The stream's thread runs the blocks one after the other. If blocks wait for each
// other, additional OS threads also run blocks of this kernel.
//
// A kernel that launch_early() launches may begin before the previous work has ended. With SHOAL_EMULATED_EARLY=1, the
// first and last blocks of such a kernel may begin while up to three earlier kernels still run. These blocks run until
// all their threads are in wait_for_previous() or at a barrier. The blocks continue when the earlier kernels have
// ended.
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

/// The parameters of a launch.
struct LaunchSize {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  std::source_location where;  ///< source line of the launch, for messages
  bool early = false;          ///< whether the kernel may start before earlier work has ended
};

/// A kernel launch that a stream or a graph stores.
struct Kernel {
  LaunchSize size;
  std::function<void()> run_thread;  ///< the kernel with bound arguments
  Room room;                         ///< resources of one block
  int gpu;
};

/// One run of a kernel.
class Launch {
 public:
  Launch(std::shared_ptr<const Kernel> kernel, Workers& workers);

  const Kernel& kernel() const { return *kernel_; }
  const LaunchSize& size() const { return kernel_->size; }

  /// Starts some blocks while earlier work still runs. Returns when all of these blocks wait for the end of the earlier
  /// work.
  void begin_early();
  /// Sets the next kernel, which has begun early. The blocks of the next kernel may take slots when all blocks of this
  /// launch are on the GPU and have called let_next_start() or ended.
  void set_next(Launch* next);
  /// Runs all blocks and returns when they have ended.
  void run();

  // Blocks call the functions below.
  /// Returns whether the earlier work has ended.
  bool may_go_on() const { return may_go_on_.load(std::memory_order_acquire); }
  void wait_to_go_on() const { may_go_on_.wait(false, std::memory_order_acquire); }
  void note_wait_for_previous();
  /// Records that an early block waits, spins or has ended.
  void note_stand();
  void note_let_next_start();
  void offer_room();
  Seat take_seat();
  /// Adds an OS thread if some blocks have not started.
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
  uint64_t early_ = 0;  ///< number of blocks that begin early (first and last blocks of the grid)
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> started_{0};
  std::atomic<bool> may_go_on_{true};
  std::atomic<int> moving_{0};  ///< number of blocks that began early and have not called note_stand()
  std::atomic<bool> waits_for_previous_{false};
  std::atomic<uint64_t> let_next_start_{0};
  std::atomic<Launch*> next_launch_{nullptr};
  std::mutex held_mutex_;
  std::vector<Seat> held_;  ///< slots of blocks that wait for the previous kernel
  struct Helpers {
    std::mutex mutex;
    std::condition_variable changed;
    int running = 0;
  };
  const std::shared_ptr<Helpers> helpers_ = std::make_shared<Helpers>();  ///< the last helper may outlive the launch
};

}  // namespace shoal::cuda::emulator
