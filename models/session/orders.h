// Messages from the session of process 0 to the sessions of other processes: every call that uses devices, in order.
// Other sessions execute the same calls on their devices.
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
  int64_t value = 0;                 ///< outputs of kEvaluate, position of kRewind
  std::vector<std::byte> data = {};  ///< tokens of kEvaluate, the checkpoint of kRewind, the state of kRestore
};

/// One end of the channel between sessions.
class Orders {
 public:
  /// Opens the channel. Collective.
  explicit Orders(ProcessGroup& group) : group_(group), tag_(group.open_channel()) {}
  /// Called in process 0. Sends an order to all other processes. Throws CommError.
  void send(Order::Kind kind, int64_t value = 0, std::span<const std::byte> data = {});
  /// Called in other processes. Returns the next order and waits as long as process 0 lives. Throws CommError.
  Order receive();

 private:
  /// Data beyond this size is sent as a second message.
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
