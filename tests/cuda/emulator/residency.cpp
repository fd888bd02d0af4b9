#include "tests/cuda/emulator/residency.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kRegisters = 65536, kMostRegisters = 255;  // registers per multiprocessor; maximum per thread
constexpr size_t kReservedBytes = 1024;                     // shared memory that the GPU reserves per block, in bytes

template <class Change>
void change(Room& free, const Room& room, Change change) {
  std::transform(free.begin(), free.end(), room.begin(), free.begin(), change);
}

struct Occupancy {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::vector<Room>> free;  ///< free resources of each multiprocessor; the key is the GPU
  std::map<int, int> resident;

  /// Takes a slot on the multiprocessor with the largest number of free threads, because GPUs also distribute blocks
  /// evenly. Returns null if no multiprocessor has room.
  Seat take(int gpu, const Room& room) {
    const Generation& kind = generation(gpu);
    std::vector<Room>& processors = free[gpu];
    const size_t count = setting("SHOAL_EMULATED_PROCESSORS", 8);
    processors.resize(std::max(processors.size(), count), {kind.threads, kRegisters, kind.shared_bytes, kind.blocks});
    Room* best = nullptr;
    for (Room& one : std::span(processors).first(count)) {
      const bool fits = std::equal(one.begin(), one.end(), room.begin(), std::greater_equal());
      if (fits && (best == nullptr || one[0] > (*best)[0])) best = &one;
    }
    if (best == nullptr) return nullptr;
    change(*best, room, std::minus());
    ++resident[gpu];
    return Seat(new Occupied{gpu, static_cast<size_t>(best - processors.data()), room});
  }
};

Occupancy& occupancy() {
  static Occupancy& all = *new Occupancy;  // never freed, because streams use it until the process ends
  return all;
}

}  // namespace

bool residency_counts() {
  return setting("SHOAL_EMULATED_RESIDENCY", 0) != 0;
}

Room room_of(size_t threads, size_t shared_bytes) {
  threads = (threads + 31) / 32 * 32;
  return {threads, threads * std::min(kMostRegisters, kRegisters / threads / 8 * 8), shared_bytes + kReservedBytes, 1};
}

Seat take_seat(int gpu, const Room& room) {
  Seat seat;
  if (!residency_counts()) return seat;
  Occupancy& all = occupancy();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&] { return (seat = all.take(gpu, room)) != nullptr; });
  return seat;
}

Seat try_take_seat(int gpu, const Room& room) {
  Occupancy& all = occupancy();
  const std::lock_guard lock(all.mutex);
  return all.take(gpu, room);
}

void Leave::operator()(Occupied* place) const {
  Occupancy& all = occupancy();
  {
    const std::lock_guard lock(all.mutex);
    change(all.free[place->gpu][place->processor], place->room, std::plus());
    --all.resident[place->gpu];
  }
  all.changed.notify_all();
  delete place;
}

int resident_blocks(int gpu) {
  Occupancy& all = occupancy();
  const std::lock_guard lock(all.mutex);
  return all.resident[gpu];
}

}  // namespace shoal::cuda::emulator
