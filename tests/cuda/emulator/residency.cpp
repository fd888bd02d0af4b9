#include "tests/cuda/emulator/residency.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kRegisters = 65536, kMostRegisters = 255;  // of a multiprocessor, of a thread
constexpr size_t kSharedBytes = 228 * 1024, kReservedBytes = 1024;
constexpr size_t kThreads = 2048;
constexpr size_t kBlocks = 32;

/// What is free of a multiprocessor.
struct Processor {
  size_t threads = kThreads, registers = kRegisters, shared_bytes = kSharedBytes, blocks = kBlocks;
};

struct Occupancy {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::vector<Processor>> gpus;
  std::map<int, int> resident;
};

Occupancy& occupancy() {
  static Occupancy& all = *new Occupancy;  // streams use it until the process ends
  return all;
}

size_t registers_of(size_t threads) {
  return threads * std::min(kMostRegisters, kRegisters / threads / 8 * 8);
}

}  // namespace

Seat::Seat(int gpu, const LaunchSize& size) : gpu_(gpu) {
  if (setting("SHOAL_EMULATED_RESIDENCY", 0) == 0) return;
  threads_ = (size_t{size.block.x} * size.block.y * size.block.z + 31) / 32 * 32;
  registers_ = registers_of(threads_);
  shared_bytes_ = size.shared_bytes + kReservedBytes;
  Occupancy& all = occupancy();
  std::unique_lock lock(all.mutex);
  std::vector<Processor>& processors = all.gpus[gpu];
  const auto fits = [this](const Processor& one) {
    return one.threads >= threads_ && one.registers >= registers_ && one.shared_bytes >= shared_bytes_ &&
           one.blocks > 0;
  };
  all.changed.wait(lock, [&] {
    processors.resize(std::max(processors.size(), setting("SHOAL_EMULATED_PROCESSORS", 8)));
    // The emptiest one, as GPUs spread blocks.
    size_t best = processors.size();
    for (size_t i = 0; i < setting("SHOAL_EMULATED_PROCESSORS", 8); ++i) {
      if (!fits(processors[i])) continue;
      if (best == processors.size() || processors[i].threads > processors[best].threads) best = i;
    }
    processor_ = best;
    return best < processors.size();
  });
  Processor& own = processors[processor_];
  own.threads -= threads_, own.registers -= registers_, own.shared_bytes -= shared_bytes_, --own.blocks;
  ++all.resident[gpu_];
}

Seat::~Seat() {
  if (threads_ == 0) return;
  Occupancy& all = occupancy();
  {
    const std::lock_guard lock(all.mutex);
    Processor& own = all.gpus[gpu_][processor_];
    own.threads += threads_, own.registers += registers_, own.shared_bytes += shared_bytes_, ++own.blocks;
    --all.resident[gpu_];
  }
  all.changed.notify_all();
}

int resident_blocks(int gpu) {
  Occupancy& all = occupancy();
  const std::lock_guard lock(all.mutex);
  return all.resident[gpu];
}

}  // namespace shoal::cuda::emulator
