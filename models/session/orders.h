// The session of process 0 sends each call that uses devices to the sessions of all other processes, in order. These
// sessions execute the same calls on their devices.
//
//   process 0                                   every other process
//   session.lead(group);                        follow(session, group);   // until process 0's session is destroyed
//   session.evaluate(prompt);
//   session.logits();
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "processes/process_group.h"

namespace shoal::models {

class Session;

struct Order {
  enum class Kind : uint32_t { kEvaluate, kLogits, kCandidates, kCheckpoint, kRewind, kSave, kRestore, kEnd };
  Kind kind = Kind::kEnd;
  int64_t value = 0;                 ///< kEvaluate: number of outputs; kRewind: position
  std::vector<std::byte> data = {};  ///< kEvaluate: tokens; kRewind: the checkpoint; kRestore: the state
};

/// One end of the channel between sessions.
class Orders {
 public:
  /// Opens the channel. Collective.
  explicit Orders(ProcessGroup& group) : group_(group), tag_(group.open_channel()) {}
  /// Sends an order to all other processes. Only process 0 calls send(). Throws CommError.
  void send(Order::Kind kind, int64_t value = 0, std::span<const std::byte> data = {});
  /// Returns the next order. Waits without a time limit while process 0 is alive. Only processes other than process 0
  /// call receive(). Throws CommError.
  Order receive();

 private:
  /// If the data of an order exceed kInline bytes, a second message carries the remaining bytes.
  static constexpr size_t kInline = 40;
  struct Note {
    uint32_t kind;
    uint32_t reserved = 0;
    int64_t value;
    uint64_t size;
    std::byte data[kInline];
  };

  ProcessGroup& group_;
  int tag_;
};

/// Executes the calls of process 0's session until that session is destroyed. Collective with Session::lead(). Throws
/// the error of a failed call.
void follow(Session& session, ProcessGroup& group);

}  // namespace shoal::models
