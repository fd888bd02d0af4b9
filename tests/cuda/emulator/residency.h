// Blocks occupy the multiprocessors of a GPU if SHOAL_EMULATED_RESIDENCY is 1. A block keeps its slot on a
// multiprocessor from its start to its end, even while it waits for other blocks. If no multiprocessor has room for a
// block, the block waits, as on a GPU. The resources of a multiprocessor depend on the generation (runtime.h). sm_90
// has 65,536 registers, 228 KiB of shared memory, 2,048 threads and 32 blocks. The emulator gives each thread as many
// registers as the block size allows (at most 255). Compiled kernels never use more registers than this number, so
// blocks that fit here also fit on a GPU. All functions are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace shoal::cuda::emulator {

/// Amounts of resources: threads, registers, bytes of shared memory, blocks.
using Room = std::array<size_t, 4>;
Room room_of(size_t threads, size_t shared_bytes);

/// The slot of a block on a multiprocessor. The destructor of Seat frees the slot.
struct Occupied {
  int gpu;
  size_t processor;
  Room room;
};
struct Leave {
  void operator()(Occupied* place) const;
};
using Seat = std::unique_ptr<Occupied, Leave>;
/// Waits until a multiprocessor has room, and takes a slot on it. Returns null if SHOAL_EMULATED_RESIDENCY is 0.
Seat take_seat(int gpu, const Room& room);
/// Takes a slot without waiting. Returns null if no multiprocessor has room now.
Seat try_take_seat(int gpu, const Room& room);

bool residency_counts();

}  // namespace shoal::cuda::emulator
