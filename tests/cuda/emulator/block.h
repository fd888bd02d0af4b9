// Running a kernel: its blocks one after the other on one OS thread (the stream's), the threads of a block as fibers.
// A fiber that comes to the end of a CUDA thread takes the next, so that a kernel without barriers needs one fiber
// only.
//
// Threads wait for each other at barriers (of the block) and in meetings (of lanes of a warp: shuffles, votes,
// __syncwarp, matrix instructions). When no thread of a block can go on, or threads are at different barriers, the
// program aborts with a message that names the kernel, the lines and the threads.
//
// Blocks that wait for each other through flags call spin_pause(): then another OS thread of the stream starts on the
// kernel's other blocks, so that in the end each block that waits has an OS thread. `__shared__` variables are
// thread_local for that reason.
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

/// An asynchronous copy of 16 bytes to shared memory, of which the first `bytes` are in an allocation; from == nullptr:
/// zeros. It reads when the thread waits for it, or for the kernel in front, whatever comes first.
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
  const char* waits_in = nullptr;  ///< name of what it waits in; nullptr = it does not
  std::source_location where;      ///< the line of that
  bool vote = false;               ///< at a barrier
  int result = 0;                  ///< of the barrier
  bool ended = false;
  std::vector<PendingCopy> copies;
  unsigned copy_groups = 0;  ///< committed
};

/// Lanes that do something together, each with an argument that lives until all are there. The last one to come
/// computes for all of them.
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

struct WarpProducts;  // shoal_cuda_emulator_wgmma.h

struct Warp {
  uint32_t live = 0;
  std::vector<Meeting> meetings;
  std::shared_ptr<WarpProducts> products;  ///< nullptr: none yet
};

/// The fibers of one OS thread and the block that they run.
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

  /// The barrier of the block; the sum of all votes.
  int meet_block(bool vote, const char* name, const std::source_location& where);
  /// A barrier of the thread's warpgroup.
  void meet_warpgroup(const std::source_location& where);
  void meet_lanes(uint32_t mask, void* argument, Meeting::Compute compute, const char* name,
                  const std::source_location& where);
  void spin();
  /// Waits until what the launch began before has ended.
  void wait_for_previous(const std::source_location& where);
  void let_next_start();
  [[noreturn]] void die(const Thread& thread, const std::string& message) const;

 private:
  static void fiber_main(Fiber& self, void* runner);
  void start_block();
  void end_block();
  Thread* next_unstarted();
  Thread& pop_ready();
  /// Gives the OS thread to another CUDA thread; returns when this one is ready and has its turn.
  void yield(Thread& self);
  void wait(Thread& self, const char* name, const std::source_location& where);
  void wake(Thread& thread);
  void end(Thread& thread);
  /// Lets all at the barrier go on; the sum of their votes and `vote`.
  int release_barrier(bool vote);
  Fiber& fiber_for_unstarted();
  void let_others_run();
  /// No thread can go on: those in wait_for_previous() do, once they may.
  void wait_for_any();
  /// For a block that began early: it stands (or spins), and it may go on.
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
  std::vector<uint32_t> order_;  // in which threads start
  size_t started_ = 0;
  size_t live_ = 0;
  std::vector<Thread*> ready_;  // a ring
  size_t ready_begin_ = 0, ready_count_ = 0;
  std::vector<Thread*> at_barrier_;
  std::array<std::vector<Thread*>, 8> at_warpgroup_barriers_;
  bool goes_on_ = true;           // what is in front has ended, and the block has a seat
  bool moves_ = false;            // it began early and has not told yet that it stands
  std::vector<Thread*> at_gate_;  // in wait_for_previous()
  bool lets_next_start_ = false;
  Seat seat_;
  StoreBuffer stores_;
  size_t pauses_ = 0;     // since other OS threads had their turn
  size_t os_pauses_ = 0;  // in this block
  bool has_helper_ = false;
  uint64_t random_ = 0x9e3779b97f4a7c15;
  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::unique_ptr<void, void (*)(void*)> shared_{nullptr, &std::free};
  size_t shared_bytes_ = 0;
};

/// For messages.
std::string text(const std::source_location& where);

/// The CUDA thread that runs, and the runner of the OS thread; nullptr where there is none.
extern constinit thread_local Thread* g_thread;
extern constinit thread_local Runner* g_runner;

}  // namespace shoal::cuda::emulator
