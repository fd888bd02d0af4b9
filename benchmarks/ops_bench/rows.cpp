// Ops on rows: row look-ups, cache writes, normalisation, RoPE, soft-max and selection.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "benchmarks/ops_bench/subject.h"
#include "graph/ops/ops.h"

namespace shoal::bench {
namespace {

constexpr int64_t kEmbd = 2048, kHeadDim = 64, kHeads = 32, kKvHeads = 8, kVocab = 128256;
/// Number of nodes for ops that take only microseconds. With this many nodes, the time to wake a device is negligible.
constexpr int kMany = 64;

double bytes_of(const Tensor* tensor) {
  return static_cast<double>(tensor->bytes());
}

/// Adds every 97th element and the last element as samples.
template <class F>
std::vector<Sample> sample_all(int64_t elements, F&& expected) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < elements; i += 97) samples.push_back({i, expected(i)});
  samples.push_back({elements - 1, expected(elements - 1)});
  return samples;
}

Cost build_get_rows(Subject& s, DType dtype, int64_t rows) {
  const Leaf& table = s.leaf(dtype, {kEmbd, kVocab / 4, 1, 1}, Role::kWeight, s.target().weights);
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  for (int n = 0; n < kMany; ++n) {
    for (int64_t i = 0; i < rows; ++i)
      ids[static_cast<size_t>(i)] = static_cast<int32_t>((n * 7919 + i * 331) % (kVocab / 4));
    s.node(get_rows(s.graph(), table.tensor, s.ints(ids, {rows, 1, 1, 1})));
  }
  Cost cost{.bytes = static_cast<double>(rows) * (static_cast<double>(bytes_for(dtype, kEmbd)) + 4.0 * kEmbd)};
  cost.samples = sample_all(rows * kEmbd, [&](int64_t i) {
    return static_cast<double>(table.at(i % kEmbd, ids[static_cast<size_t>(i / kEmbd)]));
  });
  return cost;
}

/// Writes one row per token of a batch into the caches of many layers.
Cost build_set_rows(Subject& s, DType dtype, int64_t tokens) {
  constexpr int64_t kRows = 4096;
  const Leaf& x = s.leaf(DType::kF32, {kHeadDim, kKvHeads, tokens, 1});
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 1000);
  Tensor* places = s.ints(ids, {tokens, 1, 1, 1});
  for (int n = 0; n < 16; ++n) {
    const Leaf& cache = s.leaf(dtype, {kHeadDim, kRows, kKvHeads, 1}, Role::kCache);
    s.node(set_rows(s.graph(), cache.tensor, permute(s.graph(), x.tensor, {0, 2, 1, 3}), places));
  }
  Cost cost{.bytes = bytes_of(x.tensor) + static_cast<double>(bytes_for(dtype, kHeadDim * kKvHeads * tokens)),
            .tolerance = traits(dtype).is_quantized ? 1e-4 : 1e-6};
  for (int64_t head = 0; head < kKvHeads; ++head) {
    for (const int64_t token : {int64_t{0}, tokens / 2, tokens - 1}) {
      for (int64_t i = 0; i < kHeadDim; ++i) {
        cost.samples.push_back({(head * kRows + 1000 + token) * kHeadDim + i, x.at(i, token * kKvHeads + head)});
      }
    }
  }
  return cost;
}

Cost build_rms_norm(Subject& s, int64_t rows) {
  const Leaf& x = s.leaf(DType::kF32, {kEmbd, rows, 1, 1});
  for (int n = 0; n < kMany; ++n) s.node(rms_norm(s.graph(), x.tensor, {1e-5f}));
  Cost cost{.bytes = 2 * bytes_of(x.tensor)};
  cost.samples = sample_all(kEmbd * rows, [&](int64_t at) {
    double squares = 0;
    for (int64_t i = 0; i < kEmbd; ++i) squares += std::pow(x.at(i, at / kEmbd), 2);
    return x.at(at % kEmbd, at / kEmbd) / std::sqrt(squares / kEmbd + 1e-5f);
  });
  return cost;
}

Cost build_rope(Subject& s, RopeMode mode, int64_t tokens) {
  const Leaf& x = s.leaf(DType::kF32, {kHeadDim, kHeads, tokens, 1});
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 100);
  Tensor* at = s.ints(positions, {tokens, 1, 1, 1});
  constexpr double kBase = 500000;
  const RopeParams params{.dims = kHeadDim, .mode = mode, .base = static_cast<float>(kBase)};
  for (int n = 0; n < kMany; ++n) s.node(rope(s.graph(), x.tensor, at, nullptr, params));
  // In f32, an angle of about 1000 radians has an error of up to 1e-4. The tolerance is the square of this error.
  Cost cost{.bytes = 2 * bytes_of(x.tensor), .tolerance = 1e-8};
  cost.samples = sample_all(x.tensor->elements(), [&](int64_t index) {
    const int64_t i = index % kHeadDim, row = index / kHeadDim;
    const bool halves = mode == RopeMode::kHalves;
    const int64_t pair = halves ? i % (kHeadDim / 2) : i / 2;
    const int64_t first = halves ? pair : 2 * pair, second = halves ? pair + kHeadDim / 2 : 2 * pair + 1;
    const double angle =
        static_cast<double>(100 + row / kHeads) * std::pow(kBase, -2.0 * static_cast<double>(pair) / kHeadDim);
    const double a = x.at(first, row), b = x.at(second, row);
    return i == first ? a * std::cos(angle) - b * std::sin(angle) : a * std::sin(angle) + b * std::cos(angle);
  });
  return cost;
}

Cost build_soft_max(Subject& s, int64_t length, int64_t rows) {
  const Leaf& x = s.leaf(DType::kF32, {length, rows, 1, 1});
  const float scale = 3.0f;
  for (int n = 0; n < kMany; ++n) s.node(soft_max(s.graph(), x.tensor, nullptr, nullptr, {scale}));
  Cost cost{.bytes = 2 * bytes_of(x.tensor)};
  for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
    double sum = 0;
    for (int64_t i = 0; i < length; ++i) sum += std::exp(static_cast<double>(scale) * x.at(i, row));
    for (int64_t i = 0; i < length; i += 7) {
      cost.samples.push_back({row * length + i, std::exp(static_cast<double>(scale) * x.at(i, row)) / sum});
    }
  }
  return cost;
}

/// Selects the `count` largest elements of each row of logits. If `count` is 0, the timed op is argmax.
Cost build_selection(Subject& s, int64_t count) {
  const Leaf& x = s.leaf(DType::kF32, {kVocab, 1, 1, 1});
  for (int n = 0; n < 8; ++n) s.node(count == 0 ? argmax(s.graph(), x.tensor) : top_k(s.graph(), x.tensor, count));
  std::vector<int64_t> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  const int64_t wanted = std::max<int64_t>(1, count);
  std::partial_sort(order.begin(), order.begin() + wanted, order.end(),
                    [&](int64_t a, int64_t b) { return x.at(a, 0) != x.at(b, 0) ? x.at(a, 0) > x.at(b, 0) : a < b; });
  Cost cost{.bytes = bytes_of(x.tensor), .tolerance = 0};
  for (int64_t i = 0; i < wanted; ++i) cost.samples.push_back({i, static_cast<double>(order[static_cast<size_t>(i)])});
  return cost;
}

}  // namespace

void add_rows(Target& target) {
  for (const int64_t rows : {1, 512}) {
    for (const DType dtype :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
      add_benchmark(target, fmt::format("get_rows/{}/rows:{}", name_of(dtype), rows),
                    [=](Subject& s) { return build_get_rows(s, dtype, rows); });
    }
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
      add_benchmark(target, fmt::format("set_rows/{}/tokens:{}", name_of(dtype), rows),
                    [=](Subject& s) { return build_set_rows(s, dtype, rows); });
    }
    add_benchmark(target, fmt::format("rms_norm/f32/rows:{}", rows),
                  [=](Subject& s) { return build_rms_norm(s, rows); });
    add_benchmark(target, fmt::format("rope/neighbours/tokens:{}", rows),
                  [=](Subject& s) { return build_rope(s, RopeMode::kNeighbours, rows); });
    add_benchmark(target, fmt::format("rope/halves/tokens:{}", rows),
                  [=](Subject& s) { return build_rope(s, RopeMode::kHalves, rows); });
  }
  for (const int64_t length : {512, 4096}) {
    for (const int64_t rows : {1, 32, 512}) {
      add_benchmark(target, fmt::format("soft_max/f32/length:{}/rows:{}", length, rows),
                    [=](Subject& s) { return build_soft_max(s, length, rows); });
    }
  }
  add_benchmark(target, "argmax/f32/vocab:128256", [](Subject& s) { return build_selection(s, 0); });
  add_benchmark(target, "top_k/f32/vocab:128256/k:40", [](Subject& s) { return build_selection(s, 40); });
}

}  // namespace shoal::bench
