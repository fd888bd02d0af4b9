// The runner of process 0 sends each call that uses devices to the runners of all other processes, in order. These
// runners execute the same calls on their devices.
//
//   process 0                                   every other process
//   runner.lead(group);                         follow(runner, group);   // until process 0's runner is destroyed
//   runner.run(batch);
//   runner.logits(0, 1);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/session/runner.h"
#include "processes/process_group.h"

namespace shoal::models {

struct Order {
  enum class Kind : uint32_t { kRun, kLogits, kCandidates, kReadCache, kWriteCache, kEnd };
  Kind kind = Kind::kEnd;
  int64_t value = 0;  ///< kLogits: the first output; kReadCache and kWriteCache: number of tokens
  int64_t count = 0;  ///< kLogits and kCandidates: number of outputs; kReadCache and kWriteCache: the CacheScope
  std::vector<std::byte> data = {};  ///< kRun: the batch; kWriteCache: the contents
};

/// One end of the channel between runners.
class Orders {
 public:
  /// Opens the channel. Collective.
  explicit Orders(ProcessGroup& group) : group_(group), tag_(group.open_channel()) {}
  /// Sends an order to all other processes. Only process 0 calls send(). Throws CommError.
  void send(Order::Kind kind, int64_t value = 0, int64_t count = 0, std::span<const std::byte> data = {});
  /// Returns the next order. Waits without a time limit while process 0 is alive. Only processes other than process 0
  /// call receive(). Throws CommError.
  Order receive();

 private:
  /// If the data of an order exceed kInline bytes, a second message carries the remaining bytes.
  static constexpr size_t kInline = 200;
  struct Note {
    uint32_t kind;
    uint32_t reserved = 0;
    int64_t value, count;
    uint64_t size;
    std::byte data[kInline];
  };

  ProcessGroup& group_;
  int tag_;
};

/// A batch as numbers: the data of an Order.
std::vector<int32_t> to_numbers(const RunnerBatch& batch);

/// Executes the calls of process 0's runner until that runner is destroyed. Collective with Runner::lead(). Throws the
/// error of a failed call.
void follow(Runner& runner, ProcessGroup& group);

}  // namespace shoal::models
