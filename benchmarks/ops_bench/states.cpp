// Ops with a state, for one token and for a batch. The sizes are from Qwen3-Next. Each layer has its own state.
#include "graph/ops/ops.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "benchmarks/ops_bench/subject.h"

namespace shoal::bench {
namespace {

// Head size and head counts of gated_delta.
constexpr int64_t kSize = 128, kKeyHeads = 16, kHeads = 32;
// Channels and taps of causal_conv. Each element of the queries, keys and values has a channel.
constexpr int64_t kChannels = (2 * kKeyHeads + kHeads) * kSize, kTaps = 4;

Tensor* positions_of(Subject& s, int64_t tokens) {
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 1000);
  return s.ints(positions, {tokens, 1, 1, 1});
}

/// The leaves that all layers of gated_delta share.
struct DeltaLeaves {
  // These scales keep the states small: keys have a small norm, betas are in [0, 1], and decay factors are below 1.
  static constexpr ScaleParams kKey{0.1f, 0}, kDecay{0.25f, -0.25f}, kBeta{0.5f, 0.5f};

  DeltaLeaves(Subject& s, int64_t tokens)
      : q(s.leaf(DType::kF32, {kSize, kKeyHeads, tokens, 1})),
        k(s.leaf(DType::kF32, {kSize, kKeyHeads, tokens, 1})),
        v(s.leaf(DType::kF32, {kSize, kHeads, tokens, 1})),
        decay(s.leaf(DType::kF32, {kHeads, tokens, 1, 1})),
        beta(s.leaf(DType::kF32, {kHeads, tokens, 1, 1})) {}

  const Leaf &q, &k, &v, &decay, &beta;
};

double scaled(const ScaleParams& params, float x) {
  return static_cast<double>(x) * params.scale + params.bias;
}

/// Adds two samples of a head: element j of the last token's row, and one element of column j of the new state.
void add_samples(Cost& cost, const DeltaLeaves& leaves, const Leaf& state, int64_t tokens, int64_t head, int64_t j) {
  const int64_t key_head = head / (kHeads / kKeyHeads);
  std::vector<double> column(kSize);
  for (int64_t i = 0; i < kSize; ++i) column[i] = state.at(i, head * kSize + j);
  double row = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto key = [&](int64_t i) { return scaled(DeltaLeaves::kKey, leaves.k.at(i, t * kKeyHeads + key_head)); };
    const double factor = std::exp(scaled(DeltaLeaves::kDecay, leaves.decay.at(head, t)));
    double known = 0;
    for (int64_t i = 0; i < kSize; ++i) known += (column[i] *= factor) * key(i);
    const double beta = scaled(DeltaLeaves::kBeta, leaves.beta.at(head, t));
    const double error = beta * (leaves.v.at(j, t * kHeads + head) - known);
    row = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      column[i] += key(i) * error;
      row += column[i] * leaves.q.at(i, t * kKeyHeads + key_head);
    }
  }
  const int64_t first = head * (tokens + kSize) * kSize;
  cost.samples.push_back({first + (tokens - 1) * kSize + j, row});
  cost.samples.push_back({first + (tokens + j) * kSize + 5, column[5]});
}

Cost delta(Subject& s, int64_t tokens) {
  const DeltaLeaves leaves(s, tokens);
  const auto scale_of = [&](const Leaf& leaf, const ScaleParams& params) {
    return scale(s.graph(), leaf.tensor, params);
  };
  Tensor* k = scale_of(leaves.k, DeltaLeaves::kKey);
  Tensor* decay = scale_of(leaves.decay, DeltaLeaves::kDecay);
  Tensor* beta = scale_of(leaves.beta, DeltaLeaves::kBeta);
  Tensor* positions = positions_of(s, tokens);
  const Shape shape{kSize, kSize, kHeads, 1};
  const auto state_bytes = static_cast<double>(kSize * kSize * kHeads * sizeof(float));
  const Leaf* state = nullptr;
  for (int64_t i = 0; i < (tokens == 1 ? leaves_for(s.target(), state_bytes) : 1); ++i) {
    state = &s.leaf(DType::kF32, shape, Role::kCache);
    s.node(gated_delta(s.graph(), leaves.q.tensor, k, leaves.v.tensor, decay, beta, state->tensor, positions, {}));
  }
  const auto rows = static_cast<double>(tokens * (2 * kKeyHeads + 2 * kHeads) * kSize * sizeof(float));
  Cost cost{.bytes = 2 * state_bytes + rows, .ops = 6.0 * static_cast<double>(kSize * kSize * kHeads * tokens)};
  for (const int64_t head : {int64_t{0}, kHeads / 2, kHeads - 1}) {
    for (const int64_t j : {int64_t{0}, kSize / 3, kSize - 1}) add_samples(cost, leaves, *state, tokens, head, j);
  }
  return cost;
}

Cost conv(Subject& s, int64_t tokens) {
  const Leaf& x = s.leaf(DType::kF32, {kChannels, tokens, 1, 1});
  const Leaf& state = s.leaf(DType::kF32, {kChannels, kTaps - 1, 1, 1}, Role::kCache);
  Tensor* positions = positions_of(s, tokens);
  const Leaf* weight = nullptr;
  for (int i = 0; i < 8; ++i) {
    weight = &s.leaf(DType::kF32, {kTaps, kChannels, 1, 1});
    s.node(causal_conv(s.graph(), x.tensor, weight->tensor, state.tensor, positions));
  }
  const double columns = static_cast<double>(2 * (tokens + kTaps - 1) + kTaps);
  Cost cost{.bytes = columns * kChannels * sizeof(float), .ops = 2.0 * static_cast<double>(kChannels * kTaps * tokens)};
  for (const int64_t channel : {int64_t{0}, kChannels / 3, kChannels - 1}) {
    double sum = 0;
    for (int64_t j = 0; j < kTaps; ++j) {
      const int64_t token = tokens - kTaps + j;
      const float input = token >= 0 ? x.at(channel, token) : state.at(channel, kTaps - 1 + token);
      sum += static_cast<double>(weight->at(j, channel)) * input;
    }
    cost.samples.push_back({(tokens - 1) * kChannels + channel, sum});
  }
  return cost;
}

}  // namespace

void add_states(Target& target) {
  for (const int64_t tokens : {1, 512}) {
    const char* kind = tokens == 1 ? "decode" : "prompt:512";
    add_benchmark(target, fmt::format("gated_delta/{}", kind), [=](Subject& s) { return delta(s, tokens); });
    add_benchmark(target, fmt::format("causal_conv/{}", kind), [=](Subject& s) { return conv(s, tokens); });
  }
}

}  // namespace shoal::bench
