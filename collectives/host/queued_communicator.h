// QueuedCommunicator: the base class of the host and mpi communicators. enqueue() queues the rank's work as a host
// function on the rank's backend, so enqueue() neither blocks nor allocates. If a rank fails, all ranks fail.
#pragma once

#include <deque>
#include <string>

#include "collectives/communicator.h"

namespace shoal::collectives::host {

class QueuedCommunicator : public Communicator {
 public:
  std::string_view name() const final { return name_; }
  int size() const final { return static_cast<int>(ranks_.size()); }
  void enqueue(int rank, const Call& call) final;
  void abort(std::string_view reason) final;

 protected:
  /// Throws InvalidArgument if two ranks share a backend, or if a backend cannot run host functions.
  QueuedCommunicator(std::string_view name, std::span<Backend* const> backends);
  /// Makes the local backends drop their queued work after a failure. This work is useless and could take long.
  void give_up(std::string_view reason);

  /// The name of the rank in messages.
  virtual std::string describe_rank(int rank) const;
  virtual void throw_if_failed() const = 0;
  /// Makes all ranks fail with the message. If the ranks have already failed, keeps the earlier message. Drops the
  /// queued work.
  virtual void fail(const std::string& message) = 0;
  /// Runs a call on the thread of the rank's backend. Called only in meshes of several ranks.
  virtual void exchange(int rank, const Call& call) = 0;

 private:
  struct Rank {
    QueuedCommunicator& communicator;
    int rank;
    Backend* backend;  ///< null if the rank belongs to another process
  };
  static void run(void* object, const void* argument, bool failed);
  void run_together(int rank, const Call& call);

  const std::string_view name_;
  std::deque<Rank> ranks_;
};

}  // namespace shoal::collectives::host
