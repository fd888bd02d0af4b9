#include "collectives/mpi/round.h"

#include "devices/trace.h"

namespace shoal::collectives::mpi {
namespace {

/// Adds a rank's waiting time to the current trace span of the rank's thread.
class WaitingTime {
 public:
  WaitingTime() : span_(current_span()), begin_(span_ != nullptr ? trace_clock() : 0) {}
  ~WaitingTime() {
    if (span_ != nullptr) span_->waiting_ns += trace_clock() - begin_;
  }
  WaitingTime(const WaitingTime&) = delete;
  WaitingTime& operator=(const WaitingTime&) = delete;

 private:
  TraceSpan* span_;
  int64_t begin_;
};

}  // namespace

Round::Round(Node& node, RankScratch& scratch, int rank, const Call& call)
    : node_(node), scratch_(scratch), rank_(rank), call_(call) {
  if (!is_alone()) node_.segment.mark(seat(), number(0)) = host::mark_of(call);
}

int64_t Round::per_slot() const {
  const DTypeTraits& type = traits(dtype());
  return static_cast<int64_t>(kSlotBytes / type.block_bytes) * type.block_elems;
}

void Round::meet() {
  if (is_alone()) return;
  {
    const WaitingTime time;
    node_.rendezvous.meet(seat(), call_);
  }
  if (!have_met_) check_agreement();
  have_met_ = true;
}

void Round::meet_after_leader() {
  if (is_alone()) return;
  const WaitingTime time;
  node_.rendezvous.meet(seat(), call_, node_.patience);
}

void Round::check_agreement() {
  const auto mark = [this](int seat) -> const host::CallMark& { return node_.segment.mark(seat, number(0)); };
  for (int other = 1; other < seats(); ++other) {
    if (mark(0) == mark(other)) continue;
    const std::vector<int>& here = on(node());
    node_.fail(host::disagreement(call_, here[0], mark(0), here[static_cast<size_t>(other)], mark(other)));
    node_.rendezvous.throw_if_failed();
  }
}

void Round::exchange(std::span<const Passage> passages) {
  const WaitingTime time;
  node_.leaders.exchange(passages, call_, !has_exchanged_);
  has_exchanged_ = true;
}

}  // namespace shoal::collectives::mpi
