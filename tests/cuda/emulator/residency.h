// Which blocks are on the multiprocessors of a GPU: SHOAL_EMULATED_RESIDENCY=1. A block takes its place when it starts
// and keeps it to its end, also while it waits for others: what has no room waits, as on a GPU. A multiprocessor has
// 65,536 registers, 228 KiB of shared memory, and room for 2,048 threads and 32 blocks. Threads are taken to have as
// many registers as a block of their number may have (at most 255), so that blocks of 512 threads and more have a
// multiprocessor each, whatever the compiler makes of a kernel. Thread-safe.
#pragma once

#include <cstddef>

#include "tests/cuda/emulator/block.h"

namespace shoal::cuda::emulator {

/// The place of a block; without the mode it needs none.
class Seat {
 public:
  /// Waits until a multiprocessor has room.
  Seat(int gpu, const LaunchSize& size);
  ~Seat();
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

 private:
  const int gpu_;
  size_t processor_ = 0;
  size_t threads_ = 0, registers_ = 0, shared_bytes_ = 0;  ///< no threads: it has no place
};

}  // namespace shoal::cuda::emulator
