// The OS thread of a stream runs the blocks of a kernel one after the other. The threads of a block are fibers. When a
// CUDA thread ends, its fiber takes the next CUDA thread, so a kernel without barriers needs only one fiber.
//
// Threads of a block wait for each other at barriers. Lanes of a warp wait for each other in meetings: shuffles, votes,
// __syncwarp and matrix instructions. If no thread of a block can continue, or if threads are at different barriers,
// the program aborts. The message names the kernel, the lines and the threads.
//
// Blocks that wait for each other through flags call spin_pause(). Another OS thread of the stream then runs more
// blocks of the kernel, so finally each waiting block has its own OS thread. Each OS thread needs its own `__shared__`
// variables, so these variables are thread_local.
#pragma once

#include <vector_types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tests/cuda/emulator/fiber.h"
#include "tests/cuda/emulator/launch.h"
#include "tests/cuda/emulator/weak_memory.h"

namespace shoal::cuda::emulator {

struct Warp;

/// An asynchronous copy of 16 bytes to shared memory. Only the first `bytes` source bytes belong to an allocation. If
/// `from` is nullptr, the copy writes zeros. The source is read when the thread waits for the copy or calls
/// wait_for_previous(), whichever comes first.
struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
  unsigned group;
  bool has_read = false;
  std::array<std::byte, 16> data{};

  void read();
};

/// A CUDA thread.
struct Thread {
  uint3 index{};
  unsigned lane = 0;
  Warp* warp = nullptr;
  Fiber* fiber = nullptr;
  const char* waits_in = nullptr;  ///< name of the call in which the thread waits, or nullptr
  std::source_location where;      ///< source line of this call
  bool vote = false;               ///< the thread's predicate at a barrier
  int result = 0;                  ///< sum of the votes at the barrier
  bool ended = false;
  std::vector<PendingCopy> copies;
  unsigned copy_groups = 0;  ///< number of committed groups of copies
};

/// An operation that several lanes do together. Each lane has an argument, which exists until all lanes have arrived.
/// The last lane to arrive computes the results of all lanes.
struct Meeting {
  using Compute = void (*)(const std::array<void*, 32>& arguments, uint32_t present);

  uint32_t mask = 0;
  uint32_t arrived = 0;
  const char* name = nullptr;
  std::source_location where;
  Compute compute = nullptr;
  std::array<Thread*, 32> lanes{};
  std::array<void*, 32> arguments{};
};

struct WarpProducts;  // defined in wgmma.cpp

struct Warp {
  uint32_t live = 0;
  std::vector<Meeting> meetings;
  std::shared_ptr<WarpProducts> products;  ///< nullptr before the first product
};

/// The fibers of one OS thread, and the block that they currently run.
class Runner {
 public:
  Runner();
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void run_block(Launch& launch, uint3 index);

  uint3 block_index() const { return block_index_; }
  const LaunchSize& size() const { return launch_->size(); }
  int gpu() const { return launch_->kernel().gpu; }
  void* dynamic_shared() const { return shared_.get(); }
  StoreBuffer& stores() { return stores_; }

  /// Waits at the barrier of the block. Returns the number of true votes.
  int meet_block(bool vote, const char* name, const std::source_location& where);
  /// Waits at the barrier of the thread's warpgroup.
  void meet_warpgroup(const std::source_location& where);
  void meet_lanes(uint32_t mask, void* argument, Meeting::Compute compute, const char* name,
                  const std::source_location& where);
  void spin();
  /// Waits until all earlier work of the stream has completed.
  void wait_for_previous(const std::source_location& where);
  void let_next_start();
  [[noreturn]] void die(const Thread& thread, const std::string& message) const;

 private:
  static void fiber_main(Fiber& self, void* runner);
  void start_block();
  void end_block();
  Thread* next_unstarted();
  Thread& pop_ready();
  /// Lets another CUDA thread run on the OS thread. Returns when `self` is ready and is scheduled again.
  void yield(Thread& self);
  void wait(Thread& self, const char* name, const std::source_location& where);
  void wake(Thread& thread);
  void end(Thread& thread);
  /// Releases all threads at the barrier and returns the number of true votes, including `vote`.
  int release_barrier(bool vote);
  Fiber& fiber_for_unstarted();
  void let_others_run();
  /// The runner calls this function if no thread can continue. Waits until the earlier work has completed. Then wakes
  /// the threads in wait_for_previous().
  void wait_for_any();
  /// Only blocks that began early call these functions. stand() reports that the block waits or spins. go_on() waits
  /// for the end of the earlier work.
  void stand();
  void go_on();
  void complete(Meeting& meeting, const Thread* running);
  Meeting& join_meeting(Thread& self, uint32_t mask, const char* name, const std::source_location& where);
  void check_same_place(const Thread& self, const char* name, const std::source_location& where,
                        const Thread& other) const;
  [[noreturn]] void report_deadlock() const;

  Launch* launch_ = nullptr;
  uint3 block_index_{};
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<uint32_t> order_;  // start order of the threads
  size_t started_ = 0;
  size_t live_ = 0;
  std::vector<Thread*> ready_;  // a ring buffer
  size_t ready_begin_ = 0, ready_count_ = 0;
  std::vector<Thread*> at_barrier_;
  std::array<std::vector<Thread*>, 8> at_warpgroup_barriers_;
  bool goes_on_ = true;           // whether the earlier work has ended and the block has a slot on the GPU
  bool moves_ = false;            // whether the block began early and has not called stand()
  std::vector<Thread*> at_gate_;  // threads in wait_for_previous()
  bool lets_next_start_ = false;
  Seat seat_;
  StoreBuffer stores_;
  size_t pauses_ = 0;     // number of pauses since other OS threads last ran
  size_t os_pauses_ = 0;  // number of pauses in which this block let other OS threads run
  bool has_helper_ = false;
  uint64_t random_ = 0x9e3779b97f4a7c15;
  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::unique_ptr<void, void (*)(void*)> shared_{nullptr, &std::free};
  size_t shared_bytes_ = 0;
};

/// Returns the file and line of a source location for messages.
std::string text(const std::source_location& where);

/// g_thread is the running CUDA thread, or nullptr outside of kernels. g_runner is the runner of the OS thread, or
/// nullptr outside of streams.
extern constinit thread_local Thread* g_thread;
extern constinit thread_local Runner* g_runner;

}  // namespace shoal::cuda::emulator
