// The mpi communicator: ranks that live in several processes. Like the host communicator it queues each rank's side as
// a host function on the rank's backend; those of one node meet in memory that their processes share (segment.h), and
// the first of them exchanges messages with those of other nodes (leaders.h). A failure is one of the group: it reaches
// all processes, and all communicators in them.
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "collectives/host/exchange.h"
#include "collectives/mpi/algorithms.h"
#include "collectives/mpi/crowding.h"
#include "devices/functions.h"

namespace shoal::collectives {
namespace mpi {
namespace {

using std::chrono::milliseconds;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::span<Backend* const> backends, const Options& options);
  ~MpiCommunicator() override;

  std::string_view name() const override { return "mpi"; }
  int size() const override { return seating_.ranks(); }
  void enqueue(int rank, const Call& call) override;
  void abort(std::string_view reason) override;
  size_t buffer_bytes(int rank) const override { return Segment::bytes_of(rank, seating_); }

 private:
  /// One own rank's things; `scratch` belongs to its backend's thread.
  struct Rank {
    MpiCommunicator& communicator;
    const int rank;
    Backend& backend;
    RankScratch scratch;
  };
  /// What the group calls, as long as the communicator lives.
  struct Hearing {
    std::mutex mutex;
    MpiCommunicator* communicator;
  };

  host::Rendezvous rendezvous(const Options& options);
  void touch_all_memory();
  static void touch_memory(void* object, const void*, bool failed);
  static void run(void* object, const void* argument, bool failed);
  void run_together(Rank& rank, const Call& call);
  void name_the_missing(std::span<const int> seats, const Call& call, std::chrono::nanoseconds waited);
  void fail(const std::string& message);
  void hear(const std::string& failure);

  ProcessGroup& group_;
  const Seating seating_;
  Segment segment_;
  host::Rendezvous rendezvous_;
  Leaders leaders_;
  Node node_;
  std::vector<std::unique_ptr<Rank>> ranks_;  ///< of the mesh; null where it is another process's
  TimeoutReport report_;
  const std::shared_ptr<Hearing> hearing_;
  int callback_ = 0;
};

/// How long a leader waits for another node: longer than ranks wait for each other, which know better who is missing.
milliseconds limit_of(const Options& options) {
  return options.timeout + options.timeout / 2 + std::chrono::seconds(1);
}

MpiCommunicator::MpiCommunicator(std::span<Backend* const> backends, const Options& options)
    : group_(*options.processes),
      seating_(devices_of(backends), group_),
      segment_(seating_, group_),
      rendezvous_(rendezvous(options)),
      leaders_(seating_, group_, limit_of(options), [this](const std::string& message) { fail(message); }),
      node_{seating_,
            segment_,
            rendezvous_,
            leaders_,
            4 * limit_of(options),
            [this](const std::string& message) { fail(message); }},
      hearing_(std::make_shared<Hearing>()) {
  for (int rank = 0; rank < size(); ++rank) {
    ranks_.emplace_back();
    if (!seating_.is_own(rank)) continue;
    ranks_.back().reset(new Rank{*this, rank, *backends[static_cast<size_t>(rank)], RankScratch(seating_)});
  }
  hearing_->communicator = this;
  callback_ = group_.on_failure([hearing = hearing_](const std::string& failure) {
    const std::lock_guard lock(hearing->mutex);
    if (hearing->communicator != nullptr) hearing->communicator->hear(failure);
  });
  try {
    touch_all_memory();
  } catch (...) {
    const std::lock_guard lock(hearing_->mutex);
    hearing_->communicator = nullptr;
    throw;
  }
}

MpiCommunicator::~MpiCommunicator() {
  group_.forget(callback_);
  const std::lock_guard lock(hearing_->mutex);
  hearing_->communicator = nullptr;
}

// Ranks wait for each other on one node alone, and spin where all threads of its processes can have cores.
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

// Memory that a rank writes is to be near it, and backends that run no host functions are to be found before one waits
// for them.
void MpiCommunicator::touch_all_memory() {
  const Backend* refuses = nullptr;
  for (const auto& rank : ranks_) {
    if (rank != nullptr && !rank->backend.enqueue({touch_memory, rank.get(), nullptr})) refuses = &rank->backend;
  }
  // All of them, whatever happens: what was queued refers to this object.
  std::exception_ptr failure;
  for (const auto& rank : ranks_) {
    try {
      if (rank != nullptr) rank->backend.synchronize();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  require<InvalidArgument>(refuses == nullptr,
                           "[mpi communicator] {} cannot run host functions in stream order; use a communicator of its "
                           "own kind",
                           refuses == nullptr ? "" : refuses->name());
  if (failure) std::rethrow_exception(failure);
}

void MpiCommunicator::touch_memory(void* object, const void*, bool) {
  const Rank& rank = *static_cast<Rank*>(object);
  const MpiCommunicator& self = rank.communicator;
  if (self.size() == 1 || self.seating_.on(self.seating_.own_node).size() == 1) return;
  for (const uint32_t step : {0, 1}) std::fill_n(self.segment_.slot(rank.rank, step), kSlotBytes, std::byte{0});
}

void MpiCommunicator::enqueue(int rank, const Call& call) {
  validate(rank, call);
  require<InvalidArgument>(ranks_[static_cast<size_t>(rank)] != nullptr,
                           "[{} {}] rank {} ({}) belongs to another process", name_of(call.kind), call.what, rank,
                           seating_.names[static_cast<size_t>(rank)]);
  Rank& own = *ranks_[static_cast<size_t>(rank)];
  require<DeviceError>(own.backend.enqueue({run, &own, &call}), "[{} {}] {} refused a host function",
                       name_of(call.kind), call.what, own.backend.name());
}

void MpiCommunicator::abort(std::string_view reason) {
  fail(fmt::format("[mpi communicator] aborted: {}", reason));
}

void MpiCommunicator::name_the_missing(std::span<const int> seats, const Call& call, std::chrono::nanoseconds waited) {
  std::vector<std::string> names;
  for (const int seat : seats) {
    const auto rank = static_cast<size_t>(seating_.on(seating_.own_node)[static_cast<size_t>(seat)]);
    names.push_back(fmt::format("{}{} ({})", names.empty() ? "rank " : "", rank, seating_.names[rank]));
  }
  fail(host::missing_message(call, names, size(), waited));
}

// Several ranks of a node, in several processes, may find something at the same time: one of them tells it.
void MpiCommunicator::fail(const std::string& message) {
  constexpr int kLooks = 2000;
  if (rendezvous_.is_failed()) return;
  if (segment_.head().speaks.exchange(1) != 0) {
    for (int i = 0; i < kLooks && !rendezvous_.is_failed(); ++i) std::this_thread::sleep_for(milliseconds(1));
    if (rendezvous_.is_failed()) return;
  }
  try {
    group_.fail(message);
  } catch (const CommError&) {  // this one, or an earlier one
  }
}

void MpiCommunicator::hear(const std::string& failure) {
  rendezvous_.fail(failure);
  // What comes before the collective on a rank that is missing is of no use any more, and may take long.
  for (const auto& rank : ranks_) {
    if (rank == nullptr) continue;
    const auto give_up = find_function(rank->backend.device().reg(), functions::kGiveUp);
    if (give_up != nullptr) give_up(rank->backend, failure);
  }
  // Every message of a time-out ends with what users can do.
  if (failure.find("raise the time-out") != std::string::npos) report_.say(failure);
}

void MpiCommunicator::run(void* object, const void* argument, bool failed) {
  Rank& rank = *static_cast<Rank*>(object);
  MpiCommunicator& self = rank.communicator;
  const Call& call = *static_cast<const Call*>(argument);
  describe_span(call);
  if (failed) {
    // The stream keeps its own, earlier error; here only the peers need to hear of it.
    self.fail(fmt::format("[{} {}] rank {} ({}) cannot take part: earlier work on it failed", name_of(call.kind),
                          call.what, rank.rank, self.seating_.names[static_cast<size_t>(rank.rank)]));
    return;
  }
  self.rendezvous_.throw_if_failed();
  try {
    self.run_together(rank, call);
  } catch (const CommError& error) {
    self.fail(error.what());  // unless it is known already: the transport's own
    throw;
  } catch (const std::exception& error) {
    self.fail(fmt::format("[{} {}] rank {} failed: {}", name_of(call.kind), call.what, rank.rank, error.what()));
    throw;
  }
}

void MpiCommunicator::run_together(Rank& rank, const Call& call) {
  if (size() == 1) {
    const int64_t count = call.counts.empty() ? call.count : call.counts[0];
    host::copy_bytes(static_cast<std::byte*>(call.out), static_cast<const std::byte*>(call.in),
                     bytes_for(call.dtype, count));
    return;
  }
  Round round(node_, rank.scratch, rank.rank, call);
  algorithm_for(call.kind)(round);
}

}  // namespace
}  // namespace mpi

CommunicatorTraits describe_mpi_communicator(std::span<Device* const> devices, const Options& options) {
  require<InvalidArgument>(options.processes != nullptr, "[mpi communicator] needs several processes");
  const mpi::Seating seating(devices, *options.processes);
  CommunicatorTraits traits;
  for (int rank = 0; rank < seating.ranks(); ++rank) {
    traits.buffer_bytes.push_back(mpi::Segment::bytes_of(rank, seating));
  }
  return traits;
}

std::unique_ptr<Communicator> make_mpi_communicator(std::span<Backend* const> ranks, const Options& options) {
  require<InvalidArgument>(options.processes != nullptr, "[mpi communicator] needs several processes");
  require<InvalidArgument>(!ranks.empty(), "[mpi communicator] needs at least one rank");
  const std::set<Backend*> distinct(ranks.begin(), ranks.end());
  require<InvalidArgument>(distinct.size() == ranks.size() && !distinct.contains(nullptr),
                           "[mpi communicator] every rank needs a backend of its own, got {} for {} ranks",
                           distinct.size(), ranks.size());
  return std::make_unique<mpi::MpiCommunicator>(ranks, options);
}

}  // namespace shoal::collectives
