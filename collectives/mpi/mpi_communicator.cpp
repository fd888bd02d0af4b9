// The mpi communicator, for ranks in several processes. Ranks of one node meet in memory shared by their processes
// (segment.h). The first rank of each node exchanges messages with the first ranks of other nodes (leaders.h). If one
// communicator fails, all processes of the group and all communicators of the group fail.
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "collectives/host/queued_communicator.h"
#include "collectives/mpi/algorithms.h"

namespace shoal::collectives {
namespace mpi {
namespace {

using std::chrono::milliseconds;

class MpiCommunicator final : public host::QueuedCommunicator {
 public:
  MpiCommunicator(std::span<Backend* const> backends, const Options& options);
  ~MpiCommunicator() override { group_.remove_callback(callback_); }

  size_t buffer_bytes(int rank) const override { return Segment::bytes_of(rank, seating_); }

 private:
  host::Rendezvous rendezvous(const Options& options);
  std::string describe_rank(int rank) const override { return seating_.names[static_cast<size_t>(rank)]; }
  void throw_if_failed() const override { rendezvous_.throw_if_failed(); }
  void fail(const std::string& message) override;
  void exchange(int rank, const Call& call) override;
  void name_the_missing(std::span<const int> seats, const Call& call, std::chrono::nanoseconds waited);
  void hear(const std::string& failure);

  ProcessGroup& group_;
  const Seating seating_;
  Segment segment_;
  host::Rendezvous rendezvous_;
  Leaders leaders_;
  Node node_;
  std::deque<RankScratch> scratch_;  ///< one element per rank, used only by the rank's backend thread
  TimeoutReport report_;
  int callback_ = 0;
};

/// Longest wait of a leader for another node. This limit is longer than the ranks' time-out, so that the ranks of the
/// other node report the missing rank before the leader gives up.
milliseconds limit_of(const Options& options) {
  return options.timeout + options.timeout / 2 + std::chrono::seconds(1);
}

MpiCommunicator::MpiCommunicator(std::span<Backend* const> backends, const Options& options)
    : QueuedCommunicator("mpi", backends),
      group_(*options.processes),
      seating_(devices_of(backends), group_),
      segment_(seating_, group_),
      rendezvous_(rendezvous(options)),
      leaders_(seating_, group_, limit_of(options), [this](const std::string& message) { fail(message); }),
      node_{seating_, segment_, rendezvous_, leaders_, 4 * limit_of(options), [this](const std::string& message) {
              fail(message);
            }} {
  for (int rank = 0; rank < size(); ++rank) scratch_.emplace_back(seating_);
  callback_ = group_.on_failure([this](const std::string& failure) { hear(failure); });
}

// The barrier for the ranks of this node. These ranks spin only if each thread of the node's processes can have its own
// core.
host::Rendezvous MpiCommunicator::rendezvous(const Options& options) {
  int own = 0;
  for (int rank = 0; rank < size(); ++rank) own += seating_.is_own(rank) ? 1 : 0;
  Options here = options;
  if (is_crowded(group_, own)) here.spin = std::chrono::microseconds(0);
  return {segment_.head().meeting, segment_.seats(), here,
          [this](std::span<const int> seats, const Call& call, std::chrono::nanoseconds waited) {
            name_the_missing(seats, call, waited);
          }};
}

void MpiCommunicator::name_the_missing(std::span<const int> seats, const Call& call, std::chrono::nanoseconds waited) {
  std::vector<std::string> names;
  for (const int seat : seats) {
    const auto rank = static_cast<size_t>(seating_.on(seating_.own_node)[static_cast<size_t>(seat)]);
    names.push_back(fmt::format("{}{} ({})", names.empty() ? "rank " : "", rank, seating_.names[rank]));
  }
  fail(host::missing_message(call, names, size(), waited));
}

// Several ranks of a node, in several processes, may detect a failure at the same time. Only one of these ranks reports
// the failure.
void MpiCommunicator::fail(const std::string& message) {
  constexpr int kLooks = 2000;
  if (rendezvous_.is_failed()) return;
  if (segment_.head().speaks.exchange(1) != 0) {
    for (int i = 0; i < kLooks && !rendezvous_.is_failed(); ++i) std::this_thread::sleep_for(milliseconds(1));
    if (rendezvous_.is_failed()) return;
  }
  try {
    group_.fail(message);
  } catch (const CommError&) {  // group_.fail() throws this failure or an earlier one
  }
}

void MpiCommunicator::hear(const std::string& failure) {
  rendezvous_.fail(failure);
  give_up(failure);
  // Only messages about time-outs contain "raise the time-out".
  if (failure.find("raise the time-out") != std::string::npos) report_.say(failure);
}

void MpiCommunicator::exchange(int rank, const Call& call) {
  Round round(node_, scratch_[static_cast<size_t>(rank)], rank, call);
  kAlgorithms[static_cast<size_t>(call.kind)](round);
}

}  // namespace
}  // namespace mpi

CommunicatorTraits describe_mpi_communicator(std::span<Device* const> devices, const Options& options) {
  require<InvalidArgument>(options.processes != nullptr, "[mpi communicator] needs several processes; use auto");
  const mpi::Seating seating(devices, *options.processes);
  CommunicatorTraits traits;
  for (int rank = 0; rank < seating.ranks(); ++rank) {
    traits.buffer_bytes.push_back(mpi::Segment::bytes_of(rank, seating));
  }
  return traits;
}

std::unique_ptr<Communicator> make_mpi_communicator(std::span<Backend* const> ranks, const Options& options) {
  require<InvalidArgument>(options.processes != nullptr, "[mpi communicator] needs several processes; use auto");
  return std::make_unique<mpi::MpiCommunicator>(ranks, options);
}

}  // namespace shoal::collectives
