#include "tests/support/faulty_communicator.h"

#include <thread>

#include "base/error.h"

namespace shoal {
namespace {

using collectives::Call;

void stall(void*, const void* fault, bool) {
  std::this_thread::sleep_for(static_cast<const Fault*>(fault)->stall);
}

void fail_stream(void*, const void* argument, bool) {
  const auto& fault = *static_cast<const Fault*>(argument);
  fail<DeviceError>("injected fault before call {} of rank {}", fault.call, fault.rank);
}

void corrupt(void* out, const void*, bool failed) {
  if (!failed && out != nullptr) *static_cast<uint8_t*>(out) ^= 1;
}

}  // namespace

FaultyCommunicator::FaultyCommunicator(std::unique_ptr<collectives::Communicator> inner,
                                       std::span<Backend* const> backends, const Fault& fault)
    : inner_(std::move(inner)), backends_(backends.begin(), backends.end()), fault_(fault), counts_(backends.size()) {}

void FaultyCommunicator::enqueue(int rank, const Call& call) {
  const bool faulty = rank == fault_.rank && calls(rank) == fault_.call;
  counts_.at(rank).at(static_cast<size_t>(call.kind)).fetch_add(1);
  Backend& backend = *backends_[rank];
  if (faulty && fault_.kind == Fault::kStall) backend.enqueue({stall, nullptr, &fault_});
  if (faulty && fault_.kind == Fault::kFail) backend.enqueue({fail_stream, nullptr, &fault_});
  inner_->enqueue(rank, call);
  if (faulty && fault_.kind == Fault::kCorrupt) backend.enqueue({corrupt, call.out, nullptr});
}

int FaultyCommunicator::calls(int rank) const {
  int total = 0;
  for (const std::atomic<int>& count : counts_.at(rank)) total += count.load();
  return total;
}

int FaultyCommunicator::calls(int rank, Collective kind) const {
  return counts_.at(rank).at(static_cast<size_t>(kind)).load();
}

}  // namespace shoal
