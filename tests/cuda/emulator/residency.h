// Occupancy of a GPU's multiprocessors by blocks, with SHOAL_EMULATED_RESIDENCY=1. A block keeps its place from its
// start to its end, also while it waits for other blocks. A block without room waits, as on a GPU. The resources of a
// multiprocessor depend on the generation (runtime.h); sm_90 has 65,536 registers, 228 KiB of shared memory, 2,048
// threads and 32 blocks. Each thread is counted with the largest number of registers that the block size allows (at
// most 255). Compiled kernels never use more registers, so blocks that fit here also fit on a GPU. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace shoal::cuda::emulator {

/// Resources of a block: threads, registers, bytes of shared memory, blocks.
using Room = std::array<size_t, 4>;
Room room_of(size_t threads, size_t shared_bytes);

/// The place of a block on a multiprocessor. The destructor frees it.
struct Occupied {
  int gpu;
  size_t processor;
  Room room;
};
struct Leave {
  void operator()(Occupied* place) const;
};
using Seat = std::unique_ptr<Occupied, Leave>;
/// Waits until a multiprocessor has room, and takes a place on it. Returns null if the mode is off.
Seat take_seat(int gpu, const Room& room);
/// Takes a place without waiting. Returns null if no multiprocessor has room now.
Seat try_take_seat(int gpu, const Room& room);

bool residency_counts();

}  // namespace shoal::cuda::emulator
