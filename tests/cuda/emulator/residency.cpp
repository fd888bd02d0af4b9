#include "tests/cuda/emulator/residency.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kRegisters = 65536, kMostRegisters = 255;  // of a multiprocessor, of a thread
constexpr size_t kReservedBytes = 1024;                     // of shared memory, of each block

/// What is free of a multiprocessor.
struct Processor {
  explicit Processor(const Generation& gpu) : free{gpu.threads, kRegisters, gpu.shared_bytes}, blocks(gpu.blocks) {}

  Room free;
  size_t blocks;

  bool fits(const Room& room) const {
    return free.threads >= room.threads && free.registers >= room.registers && free.shared_bytes >= room.shared_bytes &&
           blocks > 0;
  }
  void take(const Room& room) {
    free.threads -= room.threads, free.registers -= room.registers, free.shared_bytes -= room.shared_bytes, --blocks;
  }
  void give_back(const Room& room) {
    free.threads += room.threads, free.registers += room.registers, free.shared_bytes += room.shared_bytes, ++blocks;
  }
};

struct Occupancy {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::vector<Processor>> gpus;
  std::map<int, int> resident, without_room;

  /// Takes the emptiest multiprocessor, as GPUs spread blocks; nullopt: none has room.
  std::optional<size_t> take(int gpu, const Room& room) {
    std::vector<Processor>& processors = gpus[gpu];
    const size_t count = setting("SHOAL_EMULATED_PROCESSORS", 8);
    processors.resize(std::max(processors.size(), count), Processor(generation(gpu)));
    std::optional<size_t> best;
    for (size_t i = 0; i < count; ++i) {
      if (!processors[i].fits(room)) continue;
      if (!best || processors[i].free.threads > processors[*best].free.threads) best = i;
    }
    if (best) {
      processors[*best].take(room);
      ++resident[gpu];
    }
    return best;
  }
};

Occupancy& occupancy() {
  static Occupancy& all = *new Occupancy;  // streams use it until the process ends
  return all;
}

}  // namespace

bool residency_counts() {
  return setting("SHOAL_EMULATED_RESIDENCY", 0) != 0;
}

Room room_of(size_t threads, size_t shared_bytes) {
  threads = (threads + 31) / 32 * 32;
  return {threads, threads * std::min(kMostRegisters, kRegisters / threads / 8 * 8), shared_bytes + kReservedBytes};
}

Seat::Seat(int gpu, size_t processor, const Room& room) : gpu_(gpu), processor_(processor), room_(room) {}

Seat::Seat(Seat&& other) noexcept
    : gpu_(other.gpu_), processor_(other.processor_), room_(std::exchange(other.room_, Room{})) {}

Seat& Seat::operator=(Seat&& other) noexcept {
  if (this == &other) return *this;
  release();
  gpu_ = other.gpu_;
  processor_ = other.processor_;
  room_ = std::exchange(other.room_, Room{});
  return *this;
}

Seat::~Seat() {
  release();
}

Seat Seat::take(int gpu, const Room& room) {
  if (!residency_counts()) return {};
  Occupancy& all = occupancy();
  std::unique_lock lock(all.mutex);
  std::optional<size_t> processor;
  ++all.without_room[gpu];
  all.changed.wait(lock, [&] { return (processor = all.take(gpu, room)).has_value(); });
  --all.without_room[gpu];
  return {gpu, *processor, room};
}

std::optional<Seat> Seat::try_take(int gpu, const Room& room) {
  if (!residency_counts()) return Seat();
  Occupancy& all = occupancy();
  const std::lock_guard lock(all.mutex);
  const std::optional<size_t> processor = all.take(gpu, room);
  if (!processor) return std::nullopt;
  return Seat(gpu, *processor, room);
}

void Seat::release() {
  const Room room = std::exchange(room_, Room{});
  if (room.threads == 0) return;
  Occupancy& all = occupancy();
  {
    const std::lock_guard lock(all.mutex);
    all.gpus[gpu_][processor_].give_back(room);
    --all.resident[gpu_];
  }
  all.changed.notify_all();
}

int blocks_without_room(int gpu) {
  Occupancy& all = occupancy();
  const std::lock_guard lock(all.mutex);
  return all.without_room[gpu];
}

int resident_blocks(int gpu) {
  Occupancy& all = occupancy();
  const std::lock_guard lock(all.mutex);
  return all.resident[gpu];
}

}  // namespace shoal::cuda::emulator
