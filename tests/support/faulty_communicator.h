// FaultyCommunicator forwards calls to another communicator, counts them, and injects one fault at one call of one
// rank. The fault occurs in the rank's stream, as a real fault would.
//
//   Fault{Fault::kStall, 1, 3, 500ms}: rank 1 starts its fourth collective 500 ms late
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "collectives/communicator.h"

namespace shoal {

struct Fault {
  enum Kind : uint8_t {
    kNone,
    kStall,   ///< the call is delayed by `stall`
    kFail,    ///< a task before the call fails with DeviceError("injected fault ...")
    kCorrupt  ///< one bit of the first element of the rank's result is flipped
  };
  Kind kind = kNone;
  int rank = 0;
  int call = 0;  ///< index of the rank's call, from 0
  std::chrono::milliseconds stall{0};
};

class FaultyCommunicator : public collectives::Communicator {
 public:
  /// `backends` are the backends of the inner communicator.
  FaultyCommunicator(std::unique_ptr<collectives::Communicator> inner, std::span<Backend* const> backends,
                     const Fault& fault = {});

  std::string_view name() const override { return "faulty"; }
  int size() const override { return inner_->size(); }
  void enqueue(int rank, const collectives::Call& call) override;
  void abort(std::string_view reason) override { inner_->abort(reason); }
  size_t buffer_bytes(int rank) const override { return inner_->buffer_bytes(rank); }

  /// Number of calls that a rank has queued: all calls, or only the calls of collective `kind`.
  int calls(int rank) const;
  int calls(int rank, Collective kind) const;

 private:
  using Counts = std::array<std::atomic<int>, static_cast<size_t>(Collective::kCount)>;

  const std::unique_ptr<collectives::Communicator> inner_;
  const std::vector<Backend*> backends_;
  const Fault fault_;
  std::vector<Counts> counts_;
};

}  // namespace shoal
