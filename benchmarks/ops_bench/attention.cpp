// Attention of one token (decode) or of a batch (prompt). The cache already contains earlier tokens. The sizes are from
// a Llama with 1B parameters: 32 heads of 64 elements and 8 KV heads. In latent attention, all heads share one KV head
// of 576 elements. The first 512 of these elements are the values.
#include "graph/ops/ops.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "benchmarks/ops_bench/subject.h"

namespace shoal::bench {
namespace {

struct Heads {
  const char* name;
  int64_t keys, values, count, kv;
  bool latent = false;  ///< each value row is the beginning of the key row
  float scale() const { return 1 / std::sqrt(static_cast<float>(keys)); }
};
constexpr Heads kLlama{"", 64, 64, 32, 8};
constexpr Heads kLatents[] = {{"latent:16/", 576, 512, 16, 1, true}, {"latent:128/", 576, 512, 128, 1, true}};

/// Adds four samples, which are elements from the result of one head.
void add_samples(Cost& cost, const Heads& n, const Leaf& q, const Leaf& k, const Leaf& v, int64_t token, int64_t head,
                 int64_t seen) {
  const int64_t rows = k.tensor->shape[1], first = head / (n.count / n.kv) * rows;
  std::vector<double> weights(static_cast<size_t>(seen));
  double sum = 0;
  for (int64_t row = 0; row < seen; ++row) {
    double score = 0;
    for (int64_t i = 0; i < n.keys; ++i)
      score += static_cast<double>(q.at(i, token * n.count + head)) * k.at(i, first + row);
    sum += weights[static_cast<size_t>(row)] = std::exp(n.scale() * score);
  }
  for (int64_t i = 0; i < n.values; i += n.values / 3) {
    double value = 0;
    for (int64_t row = 0; row < seen; ++row) value += weights[static_cast<size_t>(row)] * v.at(i, first + row);
    cost.samples.push_back({(token * n.count + head) * n.values + i, value / sum});
  }
}

Cost build(Subject& s, const Heads& n, DType dtype, int64_t depth, int64_t tokens) {
  const int64_t rows = depth + tokens, columns = n.keys + (n.latent ? 0 : n.values);
  const auto cache_bytes = static_cast<double>(bytes_for(dtype, columns * rows * n.kv));
  const Leaf& q = s.leaf(DType::kF32, {n.keys, n.count, tokens, 1});
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(depth));
  Tensor* at = s.ints(positions, {tokens, 1, 1, 1});
  Tensor* by_tokens = permute(s.graph(), q.tensor, {0, 2, 1, 3});
  const Leaf *k = nullptr, *v = nullptr;
  AttentionParams params;
  params.scale = n.scale();
  params.causal = true;
  for (int64_t i = 0; i < (tokens == 1 ? leaves_for(s.target(), cache_bytes) : 1); ++i) {
    k = &s.leaf(dtype, {n.keys, rows, n.kv, 1}, Role::kCache);
    v = n.latent ? k : &s.leaf(dtype, {n.values, rows, n.kv, 1}, Role::kCache);
    Tensor* values = n.latent ? slice(s.graph(), k->tensor, {0, 0, n.values}) : v->tensor;
    s.node(attention(s.graph(), by_tokens, k->tensor, values, at, nullptr, nullptr, params));
  }
  const double seen = static_cast<double>(tokens * depth + tokens * (tokens + 1) / 2);
  const auto depth_of_products = static_cast<double>(n.keys + n.values);
  Cost cost{
      .bytes = cache_bytes + static_cast<double>(q.tensor->bytes()) * depth_of_products / static_cast<double>(n.keys),
      .ops = seen * static_cast<double>(n.count) * 2 * depth_of_products,
      .tolerance = traits(dtype).is_quantized ? 1e-4 : 1e-6};
  for (const int64_t token : {int64_t{0}, tokens / 2, tokens - 1}) {
    for (const int64_t head : {int64_t{0}, n.count * 13 / 32, n.count - 1}) {
      add_samples(cost, n, q, *k, *v, token, head, depth + token + 1);
    }
  }
  return cost;
}

void add(Target& target, const Heads& heads, DType dtype, int64_t tokens, int64_t depth) {
  const char* kind = tokens == 1 ? "decode" : "prompt:512";
  add_benchmark(target, fmt::format("attention/{}{}/{}/depth:{}", heads.name, name_of(dtype), kind, depth),
                [=](Subject& s) { return build(s, heads, dtype, depth, tokens); });
}

}  // namespace

void add_attention(Target& target) {
  for (const DType dtype : {DType::kF16, DType::kQ8_0}) {
    for (const int64_t tokens : {1, 512}) {
      for (const int64_t depth : {512, 4096, 16384}) add(target, kLlama, dtype, tokens, depth);
      for (const Heads& heads : kLatents) {
        add(target, heads, dtype, tokens, 512);
        if (tokens == 1) add(target, heads, dtype, tokens, 4096);
      }
    }
  }
}

}  // namespace shoal::bench
