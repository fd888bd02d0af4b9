// The running soft-max of attention.
#include "devices/cpu/kernels/attention_exp.h"
#include "devices/cpu/kernels/attention_forms.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kRowVectors = kAttentionBlock / kLanes;

inline I32 lane_numbers() {
  int32_t numbers[kLanes];
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return load<I32>(numbers);
}

/// Processes one row. Scores of KV rows outside [first, last) become -infinity.
template <bool kHidden>
void one_row(const BlockSoftMax& args, int64_t row) {
  float* scores = args.scores + row * kAttentionBlock;
  const int32_t first = kHidden ? args.first[row] : 0;
  const int32_t last = kHidden ? args.last[row] : static_cast<int32_t>(args.count);
  F32 v[kRowVectors], most = splat(args.top[row]);
  SHOAL_UNROLL
  for (int i = 0; i < kRowVectors; ++i) {
    const I32 at = lane_numbers() + i * kLanes;
    v[i] = ((at >= splat(first)) & (at < splat(last))) ? load<F32>(scores + i * kLanes) : splat(kMinusInfinity);
    most = larger(most, v[i]);
  }
  const F32 before = splat(args.top[row]), top = splat(max_lanes(most)), base = base_of(top);
  F32 sum = {};
  SHOAL_UNROLL
  for (int i = 0; i < kRowVectors; ++i) {
    F32 weight = exp_below(v[i] - base);
    sum += weight;
    if (kHidden) weight = hide(weight, v[i]);
    store(scores + i * kLanes, weight);
  }
  const float keep = exp_below(before - base)[0];
  args.top[row] = top[0];
  args.keep[row] = keep;
  args.sum[row] = args.sum[row] * keep + sum_lanes(sum);
}

/// Returns the sums of the weights of one vector of lanes. The order of the additions is the order of one_row(): the
/// weights of every kLanes-th KV row of the block are added first. `place` is the position of the first KV row in the
/// block.
inline F32 sum_of_weights(const float* weights, int64_t count, int64_t place) {
  F32 sums[kLanes] = {};
  for (int64_t j = -(place % kLanes); j < count; j += kLanes) {
    const float* from = weights + j * kAttentionRows;
    if (j >= 0 && j + kLanes <= count) {
      SHOAL_UNROLL
      for (int i = 0; i < kLanes; ++i) sums[i] += load<F32>(from + i * kAttentionRows);
    } else {
      SHOAL_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        if (j + i >= 0 && j + i < count) sums[i] += load<F32>(from + i * kAttentionRows);
      }
    }
  }
  SHOAL_UNROLL
  for (int n = kLanes / 2; n > 0; n /= 2) {
    SHOAL_UNROLL
    for (int i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

/// Processes one vector of lanes, starting at `lane`.
template <bool kHidden>
void one_vector(const BlockSoftMax& args, int64_t lane) {
  float* scores = args.scores + lane;
  const F32 before = load<F32>(args.top + lane);
  F32 top = before;
  if (kHidden) {
    const I32 first = load<I32>(args.first + lane), last = load<I32>(args.last + lane);
    for (int64_t j = 0; j < args.count; ++j) {
      const I32 at = splat(static_cast<int32_t>(j));
      const F32 score = load<F32>(scores + j * kAttentionRows);
      const F32 seen = ((at >= first) & (at < last)) ? score : splat(kMinusInfinity);
      store(scores + j * kAttentionRows, seen);
      top = larger(top, seen);
    }
  } else {
    for (int64_t j = 0; j < args.count; ++j) top = larger(top, load<F32>(scores + j * kAttentionRows));
  }
  const F32 base = base_of(top), keep = exp_below(before - base);
  for (int64_t j = 0; j < args.count; ++j) {
    const F32 score = load<F32>(scores + j * kAttentionRows);
    const F32 weight = exp_below(score - base);
    store(scores + j * kAttentionRows, kHidden ? hide(weight, score) : weight);
  }
  store(args.top + lane, top);
  store(args.keep + lane, keep);
  const F32 sum = sum_of_weights(scores, args.count, args.place);
  store(args.sum + lane, load<F32>(args.sum + lane) * keep + sum);
}

}  // namespace

void row_soft_max(const BlockSoftMax& args) {
  for (int64_t row = 0; row < args.rows; ++row) args.hidden ? one_row<true>(args, row) : one_row<false>(args, row);
}

void lane_soft_max(const BlockSoftMax& args) {
  for (int64_t lane = 0; lane < args.rows; lane += kLanes) {
    args.hidden ? one_vector<true>(args, lane) : one_vector<false>(args, lane);
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
