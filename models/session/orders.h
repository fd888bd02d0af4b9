// What the session of process 0 tells those of the other processes: each call that makes devices work, in order. Theirs
// do the same with their devices.
//
//   process 0                                   every other process
//   session.lead(group);                        follow(session, group);   // returns when the session of process 0 goes
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

/// One end of the line between sessions.
class Orders {
 public:
  /// Collective.
  explicit Orders(ProcessGroup& group) : group_(group), tag_(group.open_channel()) {}
  /// To all others, by process 0. Throws CommError.
  void tell(Order::Kind kind, int64_t value = 0, std::span<const std::byte> data = {});
  /// The next one, in any other process. Waits as long as process 0 lives. Throws CommError.
  Order hear();

 private:
  /// What does not fit in comes as a second message.
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

/// Does what the session of process 0 is asked to do until that goes. Collective with Session::lead(). Throws what
/// failed.
void follow(Session& session, ProcessGroup& group);

}  // namespace shoal::models
