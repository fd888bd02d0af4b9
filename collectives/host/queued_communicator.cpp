#include "collectives/host/queued_communicator.h"

#include <exception>
#include <set>

#include "base/error.h"
#include "collectives/host/exchange.h"
#include "devices/functions.h"
#include "processes/remote_device.h"

namespace shoal::collectives::host {

QueuedCommunicator::QueuedCommunicator(std::string_view name, std::span<Backend* const> backends) : name_(name) {
  require<InvalidArgument>(!backends.empty(), "[{} communicator] needs at least one rank", name);
  const std::set<Backend*> distinct(backends.begin(), backends.end());
  require<InvalidArgument>(distinct.size() == backends.size() && !distinct.contains(nullptr),
                           "[{} communicator] every rank needs its own backend, got {} backends for {} ranks", name,
                           distinct.size(), backends.size());
  for (Backend* backend : backends) {
    const bool is_own = !is_remote(backend->device());
    // Rejects backends that cannot run host functions, so that no other rank waits for such a backend.
    require<InvalidArgument>(
        !is_own || backend->enqueue({[](void*, const void*, bool) {}, nullptr, nullptr}),
        "[{} communicator] {} cannot run host functions in stream order; use the communicator of this device's family",
        name, backend->name());
    ranks_.push_back({*this, static_cast<int>(ranks_.size()), is_own ? backend : nullptr});
  }
  std::exception_ptr failure;
  for (const Rank& rank : ranks_) {
    try {
      if (rank.backend != nullptr) rank.backend->synchronize();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void QueuedCommunicator::enqueue(int rank, const Call& call) {
  validate(rank, call);
  Rank& own = ranks_[static_cast<size_t>(rank)];
  require<InvalidArgument>(own.backend != nullptr, "[{} {}] rank {} belongs to another process", name_of(call.kind),
                           call.what, rank);
  require<DeviceError>(own.backend->enqueue({run, &own, &call}), "[{} {}] {} refused a host function",
                       name_of(call.kind), call.what, own.backend->name());
}

void QueuedCommunicator::abort(std::string_view reason) {
  fail(fmt::format("[{} communicator] aborted: {}", name_, reason));
}

void QueuedCommunicator::give_up(std::string_view reason) {
  for (const Rank& rank : ranks_) {
    if (rank.backend == nullptr) continue;
    const auto give_up = find_function(rank.backend->device().reg(), functions::kCancel);
    if (give_up != nullptr) give_up(*rank.backend, reason);
  }
}

std::string QueuedCommunicator::describe_rank(int rank) const {
  return ranks_[static_cast<size_t>(rank)].backend->name();
}

void QueuedCommunicator::run(void* object, const void* argument, bool failed) {
  const Rank& rank = *static_cast<Rank*>(object);
  QueuedCommunicator& self = rank.communicator;
  const Call& call = *static_cast<const Call*>(argument);
  describe_span(call);
  if (failed) {
    // The stream already stores an earlier error; fail() only notifies the other ranks.
    self.fail(fmt::format("[{} {}] rank {} ({}) cannot take part: earlier work on this rank failed", name_of(call.kind),
                          call.what, rank.rank, self.describe_rank(rank.rank)));
    return;
  }
  self.throw_if_failed();
  try {
    self.run_together(rank.rank, call);
  } catch (const CommError& error) {
    self.fail(error.what());
    throw;
  } catch (const std::exception& error) {
    self.fail(fmt::format("[{} {}] rank {} failed: {}", name_of(call.kind), call.what, rank.rank, error.what()));
    throw;
  }
}

void QueuedCommunicator::run_together(int rank, const Call& call) {
  if (size() > 1) return exchange(rank, call);
  const int64_t count = call.counts.empty() ? call.count : call.counts[0];
  copy_bytes(static_cast<std::byte*>(call.out), static_cast<const std::byte*>(call.in), bytes_for(call.dtype, count));
}

}  // namespace shoal::collectives::host
