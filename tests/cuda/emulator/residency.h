// Which blocks are on the multiprocessors of a GPU: SHOAL_EMULATED_RESIDENCY=1. A block takes its place when it starts
// and keeps it to its end, also while it waits for others: what has no room waits, as on a GPU. A multiprocessor has
// the room of its generation (runtime.h): on sm_90 65,536 registers, 228 KiB of shared memory, 2,048 threads and 32
// blocks. Threads are taken to have as
// many registers as a block of their number may have (at most 255): no compiled kernel has more, so what finds room
// here finds it on a GPU. Thread-safe.
#pragma once

#include <cstddef>
#include <optional>

namespace shoal::cuda::emulator {

/// What a block needs of a multiprocessor.
struct Room {
  size_t threads = 0, registers = 0, shared_bytes = 0;
};
Room room_of(size_t threads, size_t shared_bytes);

/// The place of a block; without the mode it needs none.
class Seat {
 public:
  Seat() = default;
  /// Waits until a multiprocessor has room.
  static Seat take(int gpu, const Room& room);
  /// nullopt: none has room now.
  static std::optional<Seat> try_take(int gpu, const Room& room);

  Seat(Seat&& other) noexcept;
  Seat& operator=(Seat&& other) noexcept;
  ~Seat();

 private:
  Seat(int gpu, size_t processor, const Room& room);
  void release();

  int gpu_ = 0;
  size_t processor_ = 0;
  Room room_;  ///< no threads: it has no place
};

bool residency_counts();

}  // namespace shoal::cuda::emulator
