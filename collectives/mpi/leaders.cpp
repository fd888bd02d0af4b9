#include "collectives/mpi/leaders.h"

#include <array>
#include <thread>

#include "base/error.h"
#include "collectives/host/exchange.h"

namespace shoal::collectives::mpi {
namespace {

/// Data of at most this size are sent in the same message as the call's mark. Copying such data into and out of
/// this message costs less time than a second message.
constexpr size_t kEnclosedBytes = 32 * 1024;
constexpr int kLetters = 0, kParcels = 1;  ///< message tags: kLetters for the first message of a call, kParcels for
                                           ///< later messages

size_t total(std::span<const Passage> passages, int node, bool sends) {
  size_t sum = 0;
  for (const Passage& one : passages) sum += one.node == node && one.sends == sends ? one.size : 0;
  return sum;
}

}  // namespace

struct Leaders::Letter {
  host::CallMark mark;
  int rank = 0;  ///< the sending rank
  std::array<std::byte, kEnclosedBytes> enclosed;
};

Leaders::Leaders(const Seating& seating, ProcessGroup& group, std::chrono::milliseconds limit, Fail fail)
    : seating_(seating), group_(group), limit_(limit), fail_(std::move(fail)), channel_(group.open_channel()) {
  if (seating.own_node < 0 || !seating.is_own(seating.leader(seating.own_node))) return;
  const auto nodes = static_cast<size_t>(seating.nodes());
  outbox_ = std::make_unique<Letter[]>(nodes);
  inbox_ = std::make_unique<Letter[]>(nodes);
  messages_.reserve(2 * nodes * static_cast<size_t>(seating.ranks()));
}

Leaders::~Leaders() = default;

void Leaders::exchange(std::span<const Passage> passages, const Call& call, bool is_first) {
  messages_.clear();
  if (is_first) return exchange_first(passages, call);
  for (const Passage& one : passages) add(one);
  send_and_receive(call);
}

void Leaders::exchange_first(std::span<const Passage> passages, const Call& call) {
  const host::CallMark mark = host::mark_of(call);
  for (int node = 0; node < seating_.nodes(); ++node) {
    if (node == seating_.own_node) continue;
    Letter &out = outbox_[static_cast<size_t>(node)], &in = inbox_[static_cast<size_t>(node)];
    const size_t sent = total(passages, node, true);
    const bool is_enclosed = sent <= kEnclosedBytes;
    out.mark = mark;
    out.rank = seating_.leader(seating_.own_node);
    if (is_enclosed) write(out, passages, node);
    const size_t size = offsetof(Letter, enclosed) + (is_enclosed ? sent : 0);
    // The receive buffer has the size of the longest letter. The length of the received letter is known only if the
    // calls of both nodes agree.
    messages_.push_back({false, peer(node), channel_ + kLetters, reinterpret_cast<std::byte*>(&in), sizeof(in)});
    messages_.push_back({true, peer(node), channel_ + kLetters, reinterpret_cast<std::byte*>(&out), size});
  }
  send_and_receive(call);
  for (int node = 0; node < seating_.nodes(); ++node) {
    const Letter& letter = inbox_[static_cast<size_t>(node)];
    if (node == seating_.own_node || letter.mark == mark) continue;
    await_first_node();
    fail_(host::disagreement(call, seating_.leader(seating_.own_node), mark, letter.rank, letter.mark));
    group_.throw_if_failed();
  }
  messages_.clear();
  for (int node = 0; node < seating_.nodes(); ++node) {
    if (node == seating_.own_node) continue;
    const bool was_sent = total(passages, node, true) <= kEnclosedBytes;
    const bool has_come = total(passages, node, false) <= kEnclosedBytes;
    if (has_come) read(inbox_[static_cast<size_t>(node)], passages, node);
    for (const Passage& one : passages) {
      if (one.node == node && !(one.sends ? was_sent : has_come)) add(one);
    }
  }
  send_and_receive(call);
}

// Every node has received the marks of all nodes, so the first node detects every mismatch. Only the first node reports
// a mismatch, so that all processes get the same message.
void Leaders::await_first_node() const {
  const auto end = std::chrono::steady_clock::now() + limit_;
  while (seating_.own_node > 0 && !group_.has_failed() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  group_.throw_if_failed();
}

void Leaders::write(Letter& letter, std::span<const Passage> passages, int node) {
  std::byte* to = letter.enclosed.data();
  for (const Passage& one : passages) {
    if (one.node != node || !one.sends) continue;
    host::copy_bytes(to, one.data, one.size);
    to += one.size;
  }
}

void Leaders::read(const Letter& letter, std::span<const Passage> passages, int node) {
  const std::byte* from = letter.enclosed.data();
  for (const Passage& one : passages) {
    if (one.node != node || one.sends) continue;
    host::copy_bytes(one.data, from, one.size);
    from += one.size;
  }
}

void Leaders::add(const Passage& passage) {
  if (passage.size == 0) return;
  messages_.push_back({passage.sends, peer(passage.node), channel_ + kParcels, passage.data, passage.size});
}

void Leaders::send_and_receive(const Call& call) {
  if (messages_.empty()) return;
  std::array<char, 200> what;
  const auto end = fmt::format_to_n(what.begin(), what.size(), "{} {}", name_of(call.kind), call.what);
  group_.exchange(messages_, {what.data(), std::min(end.size, what.size())}, limit_);
}

}  // namespace shoal::collectives::mpi
