// Which blocks are on the multiprocessors of a GPU: SHOAL_EMULATED_RESIDENCY=1. A block takes its place when it starts
// and keeps it to its end, also while it waits for others: what has no room waits, as on a GPU. A multiprocessor has
// the room of its generation (runtime.h): on sm_90 65,536 registers, 228 KiB of shared memory, 2,048 threads and 32
// blocks. Threads are taken to have as many registers as a block of their number may have (at most 255): no compiled
// kernel has more, so what finds room here finds it on a GPU. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace shoal::cuda::emulator {

/// What a block needs of a multiprocessor: threads, registers, bytes of shared memory, blocks.
using Room = std::array<size_t, 4>;
Room room_of(size_t threads, size_t shared_bytes);

/// The place of a block, which becomes free when this is destroyed.
struct Occupied {
  int gpu;
  size_t processor;
  Room room;
};
struct Leave {
  void operator()(Occupied* place) const;
};
using Seat = std::unique_ptr<Occupied, Leave>;
/// Waits until a multiprocessor has room. Null without the mode.
Seat take_seat(int gpu, const Room& room);
/// Null if none has room now.
Seat try_take_seat(int gpu, const Room& room);

bool residency_counts();

}  // namespace shoal::cuda::emulator
