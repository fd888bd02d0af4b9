// The host communicator: queues each rank's side as a host function on the rank's backend. Ranks meet on the
// backends' own threads (rendezvous.h), so enqueue() neither blocks nor allocates.
#include <exception>
#include <memory>
#include <set>
#include <vector>

#include "base/error.h"
#include "collectives/communicator.h"
#include "collectives/host/algorithms.h"
#include "collectives/host/rendezvous.h"
#include "devices/functions.h"

namespace shoal::collectives {
namespace host {
namespace {

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::span<Backend* const> backends, const Options& options);

  std::string_view name() const override { return "host"; }
  int size() const override { return rendezvous_.size(); }
  void enqueue(int rank, const Call& call) override;
  void abort(std::string_view reason) override;
  size_t buffer_bytes(int) const override { return size() > 1 ? sizeof(RankMemory) : 0; }

 private:
  /// One rank's own things; `scratch` and `calls` belong to its backend's thread.
  struct Rank {
    HostCommunicator& communicator;
    int rank;
    Backend& backend;
    RankMemory* memory;  ///< of this rank; null in a mesh of one
    RankScratch scratch;
    uint32_t calls = 0;
  };

  void touch_all_memory();
  static void touch_memory(void* object, const void*, bool failed);
  static void run(void* object, const void* argument, bool failed);
  static void run_together(Rank& rank, const Call& call);
  void fail(const std::string& message);
  void give_up(std::string_view reason);

  Rendezvous rendezvous_;
  std::vector<std::unique_ptr<RankMemory>> memory_;
  std::vector<Rank> ranks_;
};

HostCommunicator::HostCommunicator(std::span<Backend* const> backends, const Options& options)
    : rendezvous_(static_cast<int>(backends.size()), options) {
  std::vector<RankMemory*> blocks;
  if (size() > 1) {
    for (int rank = 0; rank < size(); ++rank) {
      memory_.emplace_back(new RankMemory);  // not make_unique, which would touch the slots here
      blocks.push_back(memory_.back().get());
    }
  }
  for (int rank = 0; rank < size(); ++rank) {
    ranks_.push_back({*this, rank, *backends[rank], blocks.empty() ? nullptr : blocks[rank], RankScratch(blocks)});
  }
  touch_all_memory();
}

void HostCommunicator::touch_all_memory() {
  const Backend* refuses = nullptr;
  for (Rank& rank : ranks_) {
    if (!rank.backend.enqueue({touch_memory, &rank, nullptr})) refuses = &rank.backend;
  }
  // All of them, whatever happens: what was queued refers to this object.
  std::exception_ptr failure;
  for (Rank& rank : ranks_) {
    try {
      rank.backend.synchronize();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  require<InvalidArgument>(refuses == nullptr,
                           "[host communicator] {} cannot run host functions in stream order; use a communicator of "
                           "its own kind",
                           refuses == nullptr ? "" : refuses->name());
  if (failure) std::rethrow_exception(failure);
}

void HostCommunicator::touch_memory(void* object, const void*, bool) {
  RankMemory* memory = static_cast<Rank*>(object)->memory;
  if (memory == nullptr) return;
  for (auto& slot : memory->slots) slot.fill(std::byte{0});
}

void HostCommunicator::enqueue(int rank, const Call& call) {
  validate(rank, call);
  Rank& own = ranks_[rank];
  require<DeviceError>(own.backend.enqueue({run, &own, &call}), "[{} {}] {} refused a host function",
                       name_of(call.kind), call.what, own.backend.name());
}

void HostCommunicator::abort(std::string_view reason) {
  fail(fmt::format("[host communicator] aborted: {}", reason));
}

void HostCommunicator::fail(const std::string& message) {
  rendezvous_.fail(message);
  give_up(message);
}

// What comes before the collective on a rank that is missing is of no use any more, and may take long.
void HostCommunicator::give_up(std::string_view reason) {
  for (Rank& rank : ranks_) {
    const auto give_up = find_function(rank.backend.device().reg(), functions::kGiveUp);
    if (give_up != nullptr) give_up(rank.backend, reason);
  }
}

void HostCommunicator::run(void* object, const void* argument, bool failed) {
  Rank& rank = *static_cast<Rank*>(object);
  const Call& call = *static_cast<const Call*>(argument);
  describe_span(call);
  if (failed) {
    // The stream keeps its own, earlier error; here only the peers need to hear of it.
    rank.communicator.fail(fmt::format("[{} {}] rank {} ({}) cannot take part: earlier work on it failed",
                                       name_of(call.kind), call.what, rank.rank, rank.backend.name()));
    return;
  }
  rank.communicator.rendezvous_.throw_if_failed();
  try {
    run_together(rank, call);
  } catch (const CommError& error) {
    rank.communicator.give_up(error.what());
    throw;
  } catch (const std::exception& error) {
    rank.communicator.fail(
        fmt::format("[{} {}] rank {} failed: {}", name_of(call.kind), call.what, rank.rank, error.what()));
    throw;
  }
}

void HostCommunicator::run_together(Rank& rank, const Call& call) {
  Rendezvous& rendezvous = rank.communicator.rendezvous_;
  if (rendezvous.size() == 1) {
    const int64_t count = call.counts.empty() ? call.count : call.counts[0];
    copy_bytes(static_cast<std::byte*>(call.out), static_cast<const std::byte*>(call.in), bytes_for(call.dtype, count));
    return;
  }
  Exchange exchange(rendezvous, rank.scratch, rank.rank, call, rank.calls++ & 1);
  algorithm_for(call.kind)(exchange);
}

}  // namespace
}  // namespace host

CommunicatorTraits describe_host_communicator(std::span<Device* const> devices, const Options&) {
  const size_t bytes = devices.size() > 1 ? sizeof(host::RankMemory) : 0;
  return {std::vector<size_t>(devices.size(), bytes), {}};
}

std::unique_ptr<Communicator> make_host_communicator(std::span<Backend* const> ranks, const Options& options) {
  require<InvalidArgument>(!ranks.empty(), "[host communicator] needs at least one rank");
  const std::set<Backend*> distinct(ranks.begin(), ranks.end());
  require<InvalidArgument>(distinct.size() == ranks.size() && !distinct.contains(nullptr),
                           "[host communicator] every rank needs a backend of its own, got {} for {} ranks",
                           distinct.size(), ranks.size());
  return std::make_unique<host::HostCommunicator>(ranks, options);
}

}  // namespace shoal::collectives
