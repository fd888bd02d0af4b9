// The queues through which a GPU gets its work: SHOAL_EMULATED_QUEUES=1. Each GPU has CUDA_DEVICE_MAX_CONNECTIONS of
// them (8, at most 32), and streams take turns at them in the order of their creation. A queue hands out its first
// operation only: one of a stream that is behind one of another stream in the same queue cannot begin before that one
// has, which waits for what is before it in its own stream. A kernel has begun when all of its blocks have, a copy or
// fill when it starts; anything else keeps its place until it is done. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace shoal::cuda::emulator {

class HardwareQueue {
 public:
  /// Of the next stream of a GPU; nullptr without the mode. It stays for ever.
  static HardwareQueue* assign(int gpu);

  /// A place at the end.
  uint64_t enter();

 private:
  friend class QueueTurn;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_ = 0;
  uint64_t left_ = 0;
};

/// While it lasts an operation is the first one of its queue.
class QueueTurn {
 public:
  /// Waits for it; without a queue there is nothing to wait for.
  QueueTurn(HardwareQueue* queue, uint64_t place);
  ~QueueTurn() { leave(); }
  QueueTurn(const QueueTurn&) = delete;
  QueueTurn& operator=(const QueueTurn&) = delete;
  /// The operation has begun.
  void leave();

 private:
  HardwareQueue* queue_;
};

}  // namespace shoal::cuda::emulator
