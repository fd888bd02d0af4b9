// Attention of one token (decode) and of a batch (prompt) after a number of tokens that are in the cache, with the
// heads of a Llama of 1B parameters: 32 of 64 elements that share 8 heads of keys and values.
#include "graph/ops/ops.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "benchmarks/ops_bench/subject.h"

namespace shoal::bench {
namespace {

constexpr int64_t kDim = 64, kHeads = 32, kKvHeads = 8;
const float kScale = 1 / std::sqrt(static_cast<float>(kDim));

/// Elements 0, 21, 42 and 63 of the head.
void add_samples(Cost& cost, const Leaf& q, const Leaf& k, const Leaf& v, int64_t token, int64_t head, int64_t seen) {
  const int64_t rows = k.tensor->shape[1], first = head / (kHeads / kKvHeads) * rows;
  std::vector<double> weights(static_cast<size_t>(seen));
  double sum = 0;
  for (int64_t row = 0; row < seen; ++row) {
    double score = 0;
    for (int64_t i = 0; i < kDim; ++i)
      score += static_cast<double>(q.at(i, token * kHeads + head)) * k.at(i, first + row);
    sum += weights[static_cast<size_t>(row)] = std::exp(kScale * score);
  }
  for (int64_t i = 0; i < kDim; i += 21) {
    double value = 0;
    for (int64_t row = 0; row < seen; ++row) value += weights[static_cast<size_t>(row)] * v.at(i, first + row);
    cost.samples.push_back({(token * kHeads + head) * kDim + i, value / sum});
  }
}

Cost build(Subject& s, DType dtype, int64_t depth, int64_t tokens) {
  const int64_t rows = depth + tokens;
  const auto cache_bytes = 2.0 * static_cast<double>(bytes_for(dtype, kDim * rows * kKvHeads));
  const Leaf& q = s.leaf(DType::kF32, {kDim, kHeads, tokens, 1});
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(depth));
  Tensor* at = s.ints(positions, {tokens, 1, 1, 1});
  Tensor* by_tokens = permute(s.graph(), q.tensor, {0, 2, 1, 3});
  const Leaf *k = nullptr, *v = nullptr;
  AttentionParams params;
  params.scale = kScale;
  params.causal = true;
  for (int64_t n = 0; n < (tokens == 1 ? leaves_for(s.target(), cache_bytes) : 1); ++n) {
    k = &s.leaf(dtype, {kDim, rows, kKvHeads, 1}, Role::kCache);
    v = &s.leaf(dtype, {kDim, rows, kKvHeads, 1}, Role::kCache);
    s.node(attention(s.graph(), by_tokens, k->tensor, v->tensor, at, nullptr, nullptr, params));
  }
  const double seen = static_cast<double>(tokens * depth + tokens * (tokens + 1) / 2);
  Cost cost{.bytes = cache_bytes + 2.0 * static_cast<double>(q.tensor->bytes()),
            .ops = seen * kHeads * 4 * kDim,
            .tolerance = traits(dtype).is_quantized ? 1e-4 : 1e-6};
  for (const int64_t token : {int64_t{0}, tokens / 2, tokens - 1}) {
    for (const int64_t head : {0, 13, 31}) add_samples(cost, q, *k, *v, token, head, depth + token + 1);
  }
  return cost;
}

}  // namespace

void add_attention(Target& target) {
  for (const DType dtype : {DType::kF16, DType::kQ8_0}) {
    for (const int64_t tokens : {1, 512}) {
      for (const int64_t depth : {512, 4096, 16384}) {
        add_benchmark(
            target,
            fmt::format("attention/{}/{}/depth:{}", name_of(dtype), tokens == 1 ? "decode" : "prompt:512", depth),
            [=](Subject& s) { return build(s, dtype, depth, tokens); });
      }
    }
  }
}

}  // namespace shoal::bench
