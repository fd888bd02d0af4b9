// The host communicator: ranks meet on their backends' threads (rendezvous.h) and read each other's memory.
#include <deque>
#include <memory>
#include <vector>

#include "base/error.h"
#include "collectives/host/algorithms.h"
#include "collectives/host/queued_communicator.h"
#include "processes/remote_device.h"

namespace shoal::collectives {
namespace host {
namespace {

class HostCommunicator final : public QueuedCommunicator {
 public:
  HostCommunicator(std::span<Backend* const> backends, const Options& options)
      : QueuedCommunicator("host", backends), rendezvous_(size(), options) {
    for (const Backend* backend : backends) {
      require<InvalidArgument>(!is_remote(backend->device()),
                               "[host communicator] {} belongs to another process; use mpi or staged", backend->name());
    }
    std::vector<RankMemory*> blocks;
    for (int rank = 0; size() > 1 && rank < size(); ++rank) {
      memory_.emplace_back(new RankMemory);  // make_unique would initialise the slots on this thread instead of the
                                             // rank's thread
      blocks.push_back(memory_.back().get());
    }
    for (int rank = 0; rank < size(); ++rank) scratch_.emplace_back(blocks);
  }
  size_t buffer_bytes(int) const override { return size() > 1 ? sizeof(RankMemory) : 0; }

 private:
  void throw_if_failed() const override { rendezvous_.throw_if_failed(); }
  void fail(const std::string& message) override {
    rendezvous_.fail(message);
    give_up(message);
  }
  void exchange(int rank, const Call& call) override {
    Exchange exchange(rendezvous_, scratch_[rank], rank, call);
    kAlgorithms[static_cast<size_t>(call.kind)](exchange);
  }

  Rendezvous rendezvous_;
  std::vector<std::unique_ptr<RankMemory>> memory_;  ///< empty in a mesh of one rank
  std::deque<RankScratch> scratch_;                  ///< one element per rank, used only by the rank's backend thread
};

}  // namespace
}  // namespace host

CommunicatorTraits describe_host_communicator(std::span<Device* const> devices, const Options&) {
  const size_t bytes = devices.size() > 1 ? sizeof(host::RankMemory) : 0;
  return {std::vector<size_t>(devices.size(), bytes), {}};
}

std::unique_ptr<Communicator> make_host_communicator(std::span<Backend* const> ranks, const Options& options) {
  return std::make_unique<host::HostCommunicator>(ranks, options);
}

}  // namespace shoal::collectives
