#include "tests/cuda/emulator/hardware_queue.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kMostQueues = 32;

struct Queues {
  std::array<HardwareQueue, kMostQueues> all;
  size_t streams = 0;
};

}  // namespace

HardwareQueue* HardwareQueue::assign(int gpu) {
  if (setting("SHOAL_EMULATED_QUEUES", 0) == 0) return nullptr;
  static std::mutex mutex;
  static auto& queues = *new std::map<std::pair<int, size_t>, Queues>;  // streams use them until the process ends
  const size_t count = std::clamp<size_t>(setting("CUDA_DEVICE_MAX_CONNECTIONS", 8), 1, kMostQueues);
  const std::lock_guard lock(mutex);
  Queues& own = queues[{gpu, count}];
  return &own.all[own.streams++ % count];
}

uint64_t HardwareQueue::enter() {
  const std::lock_guard lock(mutex_);
  return last_++;
}

QueueTurn::QueueTurn(HardwareQueue* queue, uint64_t place) : queue_(queue) {
  if (queue == nullptr) return;
  std::unique_lock lock(queue->mutex_);
  queue->changed_.wait(lock, [&] { return queue->left_ == place; });
}

void QueueTurn::leave() {
  HardwareQueue* const queue = std::exchange(queue_, nullptr);
  if (queue == nullptr) return;
  {
    const std::lock_guard lock(queue->mutex_);
    ++queue->left_;
  }
  queue->changed_.notify_all();
}

}  // namespace shoal::cuda::emulator
