// QueuedCommunicator: the common part of the host and the mpi communicator. It queues each rank's side as a host
// function on the rank's backend, so that enqueue() neither blocks nor allocates, and a rank that fails makes all ranks
// fail.
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
  /// Throws InvalidArgument unless each rank has a backend of its own, and for backends that run no host functions.
  QueuedCommunicator(std::string_view name, std::span<Backend* const> backends);
  /// Tells the own backends that the work queued on them is useless: it may take long, and all ranks have failed.
  void give_up(std::string_view reason);

  /// The rank, for messages.
  virtual std::string describe_rank(int rank) const;
  virtual void throw_if_failed() const = 0;
  /// Makes all ranks fail with the message, unless they have failed; gives up.
  virtual void fail(const std::string& message) = 0;
  /// On the thread of the rank's backend, in a mesh of several ranks.
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
