#include "tests/cuda/nccl_standin/faults.h"

#include <utility>

#include "tests/cuda/nccl_standin/world.h"

namespace shoal::nccl_standin {

Faults& Faults::instance() {
  static Faults& faults = *new Faults;  // threads of a rank that never ends may outlive everything
  return faults;
}

void Faults::reset() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
  async_errors_.clear();
  unconnected_.clear();
  stalled_.clear();
  calls_.clear();
  counts_.clear();
  problems_.clear();
}
void Faults::fail_call(const std::string& name, int rank, int nth, int result) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({name, rank, nth - 1, static_cast<Result>(result)});
}
void Faults::set_async_error(int rank, int result) {
  const std::lock_guard lock(mutex_);
  async_errors_[rank] = static_cast<Result>(result);
}
void Faults::never_connect(int rank) {
  const std::lock_guard lock(mutex_);
  unconnected_.insert(rank);
}
void Faults::stall(int rank) {
  const std::lock_guard lock(mutex_);
  stalled_.insert(rank);
}
std::vector<std::string> Faults::take_calls(int rank) {
  const std::lock_guard lock(mutex_);
  return std::exchange(calls_[rank], {});
}
int Faults::count_calls(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return counts_[name];
}
std::vector<std::string> Faults::problems() {
  const std::lock_guard lock(mutex_);
  return problems_;
}
int Faults::live_ranks() {
  return nccl_standin::live_ranks();
}

Result Faults::begin(const std::string& name, int rank) {
  const std::lock_guard lock(mutex_);
  ++counts_[name];
  for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
    if (fault->name != name || (fault->rank >= 0 && fault->rank != rank) || fault->skip-- > 0) continue;
    const Result result = fault->result;
    faults_.erase(fault);
    return result;
  }
  return Result::kSuccess;
}
void Faults::record(int rank, std::string call) {
  const std::lock_guard lock(mutex_);
  calls_[rank].push_back(std::move(call));
}
void Faults::report(std::string problem) {
  const std::lock_guard lock(mutex_);
  problems_.push_back(std::move(problem));
}
Result Faults::async_error(int rank) {
  const std::lock_guard lock(mutex_);
  const auto found = async_errors_.find(rank);
  return found == async_errors_.end() ? Result::kSuccess : found->second;
}
bool Faults::connects(int rank) {
  const std::lock_guard lock(mutex_);
  return !unconnected_.contains(rank);
}
bool Faults::stalls(int rank) {
  const std::lock_guard lock(mutex_);
  return stalled_.contains(rank);
}

}  // namespace shoal::nccl_standin

extern "C" __attribute__((visibility("default"))) shoal::nccl_standin::Control* shoal_nccl_standin() {
  return &shoal::nccl_standin::Faults::instance();
}
