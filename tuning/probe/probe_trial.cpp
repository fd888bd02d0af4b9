#include "tuning/probe/probe_trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "devices/allocate.h"

namespace shoal::probe {
namespace {

constexpr int kFewestSamples = 3, kMostSamples = 50;
constexpr int kMostRuns = 4096;
/// If the samples take at least this number of seconds in total, fewer than kFewestSamples samples are enough, because
/// disturbances hardly affect long runs.
constexpr double kLongest = 3;

thread_local const std::function<void()>* current_poll = nullptr;

/// A pseudorandom number in [-1, 1], determined by the index.
float ordinary(size_t i) {
  uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<float>(static_cast<int64_t>(bits) >> 40) * 0x1p-23f;
}

/// Returns the bytes of 7 rows of numbers from ordinary(). If the dtype has no encoder, the bytes are random. The two
/// highest bits of each random byte are 0, so that every quantisation scale is finite.
std::vector<std::byte> some_rows(DType dtype, int64_t length) {
  constexpr int64_t kRows = 7;
  std::vector<float> values(static_cast<size_t>(kRows * length));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ordinary(i);
  std::vector<std::byte> bytes(bytes_for(dtype, kRows * length));
  if (traits(dtype).from_f32 != nullptr) {
    traits(dtype).from_f32(values.data(), bytes.data(), kRows * length);
  } else {
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(static_cast<int>(ordinary(i) * 0x1p23f) & 0x3f);
  }
  return bytes;
}

void fill(Tensor& leaf) {
  if (leaf.dtype == DType::kI32) return;
  const std::vector<std::byte> rows = some_rows(leaf.dtype, leaf.shape[0]);
  std::vector<std::byte> all(leaf.bytes());
  for (size_t at = 0; at < all.size(); at += rows.size()) {
    std::copy_n(rows.begin(), std::min(rows.size(), all.size() - at), all.begin() + static_cast<std::ptrdiff_t>(at));
  }
  tensor_set(leaf, all.data(), 0, all.size());
}

}  // namespace

double median(std::vector<double> values) {
  check(!values.empty(), "no median of an empty list");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

PollScope::PollScope(const std::function<void()>& poll) : before_(std::exchange(current_poll, &poll)) {}
PollScope::~PollScope() {
  current_poll = before_;
}

void poll() {
  if (current_poll != nullptr && *current_poll) (*current_poll)();
}

double repeat_for(double budget, const std::function<double()>& sample) {
  std::vector<double> samples;
  double spent = 0;
  const auto wants_more = [&] {
    if (samples.size() < kFewestSamples) return samples.empty() || spent < kLongest;
    return samples.size() < kMostSamples && spent < budget;
  };
  while (wants_more()) {
    poll();
    spent += seconds_of([&] { samples.push_back(sample()); });
  }
  return median(std::move(samples));
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Tensor* TrialLeaves::add(DType dtype, Shape shape, Role role) {
  Tensor* tensor = context_.add(fmt::format("leaf_{}", context_.tensors().size()), dtype, shape, role);
  (role == Role::kWeight ? weights_ : others_).push_back(tensor);
  return tensor;
}

Tensor* TrialLeaves::ints(std::vector<int32_t> values) {
  Tensor* tensor = add(DType::kI32, {static_cast<int64_t>(values.size()), 1, 1, 1}, Role::kCache);
  ints_.emplace_back(tensor, std::move(values));
  return tensor;
}

void TrialLeaves::place() {
  if (!weights_.empty()) memory_.push_back(allocate_tensors(weights_, device_.weights_type(), Usage::kWeights));
  if (!others_.empty()) memory_.push_back(allocate_tensors(others_, device_.buffer_type(), Usage::kAny));
  for (Tensor* tensor : weights_) fill(*tensor);
  for (Tensor* tensor : others_) fill(*tensor);
  for (const auto& [tensor, values] : ints_) tensor_set(*tensor, values.data(), 0, values.size() * sizeof(int32_t));
}

void Trial::start(int times) {
  const HeldBackend held(backend_);
  for (int i = 0; i < times; ++i) backend_.compute_async(*plan_);
}

double Trial::measure(double budget) {
  const auto series = [&](int runs) {
    poll();
    return seconds_of([&] {
             start(runs);
             backend_.synchronize();
           }) /
           runs;
  };
  series(2);  // warm-up: fills caches and raises clock rates; in the second run, a device may record its plan
  int runs = 1;
  for (double one = series(runs); one * runs < kSeries && runs < kMostRuns; one = series(runs)) {
    runs = std::min(kMostRuns, std::max(2 * runs, static_cast<int>(std::ceil(kSeries / std::max(one, 1e-9)))));
  }
  return repeat_for(budget, [&] { return series(runs); });
}

}  // namespace shoal::probe
