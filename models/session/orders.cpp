#include "models/session/orders.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "models/session/session.h"
#include "models/session/session_state.h"

namespace shoal::models {

void Orders::send(Order::Kind kind, int64_t value, std::span<const std::byte> data) {
  Note note{static_cast<uint32_t>(kind), 0, value, data.size(), {}};
  std::copy_n(data.begin(), std::min(data.size(), kInline), note.data);
  const std::span<const std::byte> rest = data.subspan(std::min(data.size(), kInline));
  std::vector<Message> messages;
  for (int process = 1; process < group_.size(); ++process) {
    messages.push_back({true, process, tag_, reinterpret_cast<std::byte*>(&note), sizeof(note)});
    if (!rest.empty()) messages.push_back({true, process, tag_, const_cast<std::byte*>(rest.data()), rest.size()});
  }
  group_.exchange(messages, "orders of process 0");
}

Order Orders::receive() {
  Note note{};
  group_.receive(0, tag_, {reinterpret_cast<std::byte*>(&note), sizeof(note)}, "orders of process 0");
  Order order{static_cast<Order::Kind>(note.kind), note.value, std::vector<std::byte>(note.size)};
  const size_t here = std::min(order.data.size(), kInline);
  std::copy_n(note.data, here, order.data.begin());
  if (order.data.size() > here) group_.receive(0, tag_, std::span(order.data).subspan(here), "orders of process 0");
  return order;
}

void follow(Session& session, ProcessGroup& group) {
  Orders orders(group);
  session.follow();
  for (;;) {
    const Order order = orders.receive();
    switch (order.kind) {
      case Order::Kind::kEvaluate: {
        std::vector<int32_t> tokens(order.data.size() / sizeof(int32_t));
        if (!tokens.empty()) std::memcpy(tokens.data(), order.data.data(), order.data.size());
        session.evaluate(tokens, order.value);
        break;
      }
      case Order::Kind::kLogits:
        session.logits();
        break;
      case Order::Kind::kCandidates:
        session.candidates();
        break;
      case Order::Kind::kCheckpoint:
        session.checkpoint();
        break;
      case Order::Kind::kRewind:
        session.rewind(order.value, order.data);
        break;
      case Order::Kind::kSave:
        save_state(session);
        break;
      case Order::Kind::kRestore:
        try {
          restore_state(session, order.data);
        } catch (const InvalidArgument&) {  // process 0 reports the error
        }
        break;
      case Order::Kind::kEnd:
        session.synchronize();
        return;
    }
  }
}

}  // namespace shoal::models
