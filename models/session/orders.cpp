#include "models/session/orders.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace shoal::models {
namespace {

/// Reads a batch from the result of to_numbers(). The batch refers to the numbers and to `sequences`.
class Received {
 public:
  explicit Received(std::span<const int32_t> numbers) : rest_(numbers) {
    batch_.tokens = list();
    batch_.inputs.positions = list();
    batch_.inputs.sequences = list();
    batch_.outputs = list();
    const std::span<const int32_t> shape = list();
    batch_.shape = {shape[0], shape[1], shape[2]};
    of_.resize(static_cast<size_t>(next()));
    for (BatchSequence& one : of_) {
      one.reads = next();
      one.writes = next();
      for (int32_t groups = next(); groups > 0; --groups) one.pages.push_back(list());
    }
    batch_.inputs.of = of_;
  }
  const RunnerBatch& batch() const { return batch_; }

 private:
  int32_t next() {
    const int32_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::span<const int32_t> list() {
    const auto size = static_cast<size_t>(next());
    const auto found = rest_.first(size);
    rest_ = rest_.subspan(size);
    return found;
  }

  std::span<const int32_t> rest_;
  std::vector<BatchSequence> of_;
  RunnerBatch batch_;
};

}  // namespace

std::vector<int32_t> to_numbers(const RunnerBatch& batch) {
  std::vector<int32_t> numbers;
  const auto add = [&](int64_t value) { numbers.push_back(static_cast<int32_t>(value)); };
  const auto add_list = [&](std::span<const int32_t> list) {
    add(static_cast<int64_t>(list.size()));
    numbers.insert(numbers.end(), list.begin(), list.end());
  };
  add_list(batch.tokens);
  add_list(batch.inputs.positions);
  add_list(batch.inputs.sequences);
  add_list(batch.outputs);
  for (const int64_t value : {int64_t{3}, batch.shape.tokens, batch.shape.outputs, batch.shape.sequences}) add(value);
  add(static_cast<int64_t>(batch.inputs.of.size()));
  for (const BatchSequence& one : batch.inputs.of) {
    add(one.reads), add(one.writes), add(static_cast<int64_t>(one.pages.size()));
    for (const std::span<const int32_t> pages : one.pages) add_list(pages);
  }
  return numbers;
}

void Orders::send(Order::Kind kind, int64_t value, int64_t count, std::span<const std::byte> data) {
  Note note{static_cast<uint32_t>(kind), 0, value, count, data.size(), {}};
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
  Order order{static_cast<Order::Kind>(note.kind), note.value, note.count, std::vector<std::byte>(note.size)};
  const size_t here = std::min(order.data.size(), kInline);
  std::copy_n(note.data, here, order.data.begin());
  if (order.data.size() > here) group_.receive(0, tag_, std::span(order.data).subspan(here), "orders of process 0");
  return order;
}

void follow(Runner& runner, ProcessGroup& group) {
  Orders orders(group);
  for (;;) {
    const Order order = orders.receive();
    switch (order.kind) {
      case Order::Kind::kRun: {
        std::vector<int32_t> numbers(order.data.size() / sizeof(int32_t));
        std::memcpy(numbers.data(), order.data.data(), order.data.size());
        runner.run(Received(numbers).batch());
        break;
      }
      case Order::Kind::kLogits:
        runner.logits(order.value, order.count);
        break;
      case Order::Kind::kCandidates:
        runner.candidates(order.count);
        break;
      case Order::Kind::kReadCache:
        runner.read_cache(order.value, static_cast<CacheScope>(order.count));
        break;
      case Order::Kind::kWriteCache:
        runner.write_cache(order.value, static_cast<CacheScope>(order.count), order.data);
        break;
      case Order::Kind::kEnd:
        runner.wait_for("everything");
        return;
    }
  }
}

}  // namespace shoal::models
