#include "tests/support/random_leaves.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/support/tensors.h"

namespace shoal::test {
namespace {

std::vector<int64_t> integers(const Tensor& leaf, std::mt19937_64& rng) {
  const size_t digits = leaf.name.find_first_of("0123456789");
  const std::string kind = leaf.name.substr(0, digits);
  const int64_t range = std::max<int64_t>(1, std::stoll(leaf.name.substr(digits)));
  std::vector<int64_t> values(static_cast<size_t>(leaf.elements()));
  if (kind == "slots") {
    std::vector<int64_t> all(static_cast<size_t>(range));
    const auto count = static_cast<size_t>(leaf.shape[0]);
    for (size_t at = 0; at < values.size(); at += count) {  // the ids of each row are distinct
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), rng);
      std::copy_n(all.begin(), std::min(all.size(), count), values.begin() + static_cast<ptrdiff_t>(at));
    }
    return values;
  }
  for (int64_t& value : values) value = static_cast<int64_t>(rng() % static_cast<uint64_t>(range));
  if (kind == "runs") std::sort(values.begin(), values.end(), std::greater<>());
  if (kind == "texts") {
    for (int64_t& value : values) value -= range / 3;
  }
  if (kind == "ints") {
    for (int64_t& value : values) value = 2 * value - range;
  }
  if (kind == "pos") std::sort(values.begin(), values.end());
  return values;
}

std::vector<double> floats(const Tensor& leaf, std::mt19937_64& rng) {
  std::vector<double> values(static_cast<size_t>(leaf.elements()));
  const bool positive = leaf.name.starts_with("div");
  for (double& value : values) {
    const float unit = static_cast<float>(rng() >> 40) / static_cast<float>(1 << 24);
    value = positive ? 1.0f + unit : 2.0f * unit - 1.0f;
  }
  return values;
}

}  // namespace

meta::Layout random_layout(std::mt19937_64& rng, const Tensor& leaf, int ranks, bool allow_partial) {
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  const int64_t kind = pick(10);
  if (kind < 2) return meta::Layout::mirrored();
  if (kind < 5 && allow_partial) return meta::Layout::partial();
  const int axis = static_cast<int>(pick(4));
  const int64_t unit = axis == 0 ? traits(leaf.dtype).block_elems : 1;
  int64_t left = leaf.shape[axis] / unit;
  if (left < 2 && pick(4) != 0) return random_layout(rng, leaf, ranks, allow_partial);
  std::vector<meta::Run> runs;
  const bool shared = pick(6) == 0;
  int next = static_cast<int>(pick(ranks));
  while (left > 0) {
    const int64_t length = 1 + pick(std::max<int64_t>(1, std::min(left, 1 + 2 * leaf.shape[axis] / unit / ranks)));
    meta::Owners owners{next};
    if (shared && pick(2) == 0 && ranks > 1) owners.push_back((next + 1) % ranks);
    std::sort(owners.begin(), owners.end());
    runs.push_back({length * unit, owners});
    left -= length;
    next = pick(4) == 0 ? static_cast<int>(pick(ranks)) : (next + 1) % ranks;
  }
  return meta::Layout::split(axis, meta::Partition(ranks, std::move(runs)));
}

std::string random_reshard(std::mt19937_64& rng, const Tensor& x, int ranks) {
  const meta::Layout layout = random_layout(rng, x, ranks, false);
  if (layout.is_mirrored()) return "mirrored";
  const std::string runs = rng() % 3 == 0 ? "" : fmt::format(" [{}]", layout.partition.to_string());
  return fmt::format("axis {}{}", layout.axis, runs);
}

std::optional<meta::LayoutConstraint> random_constraint(std::mt19937_64& rng, const Tensor& tensor, int ranks,
                                                        bool allow_partial) {
  const bool is_fixed = info(tensor.op).alias == Alias::kWrites || tensor.op == Op::kReshard;
  if (is_fixed || rng() % 4 != 0) return std::nullopt;
  const bool summable = tensor.dtype == DType::kF32 || tensor.dtype == DType::kI32;
  return meta::LayoutConstraint{random_layout(rng, tensor, ranks, allow_partial && summable), rng() % 3 != 0,
                                rng() % 2 == 0 ? meta::kHintFactor : 100.0};
}

meta::Layout whole_experts(std::mt19937_64& rng, int64_t experts, int ranks) {
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  const int first = pick(ranks);
  std::vector<meta::Run> runs;
  for (int64_t i = 0; i < experts; ++i) runs.push_back({1, {first + pick(ranks - first)}});
  return meta::Layout::split(2, meta::Partition(ranks, std::move(runs)));
}

std::vector<std::vector<int64_t>> random_segments(std::mt19937_64& rng, int64_t length, int64_t unit, int segments,
                                                  int ranks) {
  const auto pick = [&](int64_t n) { return static_cast<size_t>(rng() % static_cast<uint64_t>(n)); };
  std::vector<std::vector<int64_t>> drawn(static_cast<size_t>(segments),
                                          std::vector<int64_t>(static_cast<size_t>(ranks), 0));
  // The first `busy` ranks get most of the length. Other cases already test even splits.
  const size_t busy = 1 + pick(ranks);
  for (int64_t i = 0; i < length / unit; ++i) {
    drawn[pick(segments)][pick(pick(2) == 0 ? static_cast<int64_t>(busy) : ranks)] += unit;
  }
  return drawn;
}

std::vector<std::byte> leaf_data(const Tensor& leaf, uint64_t seed) {
  std::mt19937_64 rng(seed ^ std::hash<std::string>()(leaf.name));
  if (leaf.dtype != DType::kI32 && leaf.dtype != DType::kI64) return encode(leaf.dtype, floats(leaf, rng));
  const auto values = integers(leaf, rng);
  return encode(leaf.dtype, {values.begin(), values.end()});
}

}  // namespace shoal::test
