// f32 to the quantised blocks of GGUF, by one warp for each block and with the bits of graph/quants: the same searches,
// their candidates spread over the lanes, every sum in the same order.
//
//   __shared__ QuantizeScratch scratch[kWarps];
//   QuantizeScratch& s = scratch[warp];
//   ... all lanes write the block's elements to s.x ...
//   __syncwarp();
//   quantize_block(s, blocks[b]);
//   __syncwarp();  // before s.x is written again
#pragma once

#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/dequantize.h"
#include "graph/quants/blocks.h"

namespace shoal::cuda {

/// Of one warp, in shared memory.
struct QuantizeScratch {
  float x[quants::kSuperBlock];
  float trials[3][32];  ///< what the lanes' candidates gave
  float scales[16], mins[16];
  int small_scales[16], small_mins[16];
  uint8_t codes[quants::kSuperBlock];
};

namespace quantizing {

constexpr int kSteps = 9;  // as in graph/quants/fit.cpp
constexpr int kCandidates = 2 * kSteps + 1;
constexpr float kStepLevels = 0.1f;
constexpr uint16_t kNaNHalf = 0x7e00;  // f32_to_f16(quiet_NaN); the GPU's own conversion gives another

__device__ inline int lane_of_warp() {
  return static_cast<int>(threadIdx.x % 32);
}

/// round(x) limited to [low, high]; NaN gives low.
__device__ inline int round_to(float x, int low, int high) {
  if (!(x > static_cast<float>(low))) return low;
  if (x >= static_cast<float>(high)) return high;
  return static_cast<int>(rintf(x));
}
/// 1 / x, 0 for 0.
__device__ inline float inverse(float x) {
  return x == 0.0f ? 0.0f : 1.0f / x;
}
__device__ inline uint16_t half_bits(float x) {
  return std::bit_cast<uint16_t>(__float2half_rn(x));
}

/// The first of the elements with the largest magnitude.
__device__ inline float extreme_of(const float* x, int n) {
  float extreme = x[0];
  for (int i = 1; i < n; ++i) extreme = fabsf(extreme) < fabsf(x[i]) ? x[i] : extreme;
  return extreme;
}

struct Bounds {
  float lowest, highest;
};
/// The first of the smallest, the last of the largest (they differ when they are zeros of either sign).
__device__ inline Bounds bounds_of(const float* x, int n) {
  Bounds bounds{x[0], x[0]};
  for (int i = 1; i < n; ++i) {
    if (x[i] < bounds.lowest) bounds.lowest = x[i];
    if (!(x[i] < bounds.highest)) bounds.highest = x[i];
  }
  return bounds;
}

/// The scale with the smallest error for x ~ scale * q, q in [low, high]. All lanes call it and get the result.
__device__ inline float fit_symmetric(QuantizeScratch& s, const float* x, int n, int low, int high) {
  const float extreme = extreme_of(x, n);
  if (extreme == 0) return 0;
  const int lane = lane_of_warp();
  if (lane < kCandidates) {
    const float step = static_cast<float>(lane - kSteps);
    const Rounded inverse_scale =
        (Rounded(static_cast<float>(low)) + Rounded(kStepLevels) * Rounded(step)) / Rounded(extreme);
    Rounded xq = 0, qq = 0;
    for (int i = 0; i < n; ++i) {
      const Rounded q = static_cast<float>(round_to(Rounded(x[i]) * inverse_scale, low, high));
      xq = xq + Rounded(x[i]) * q;
      qq = qq + q * q;
    }
    s.trials[0][lane] = xq;
    s.trials[1][lane] = qq;
  }
  __syncwarp();
  float best_scale = 0, best_gain = -1;
  for (int i = 0; i < kCandidates; ++i) {
    const Rounded xq = s.trials[0][i], qq = s.trials[1][i];
    if (qq.value > 0 && (xq * xq).value > (Rounded(best_gain) * qq).value) {
      best_gain = (xq * xq) / qq;
      best_scale = xq / qq;
    }
  }
  __syncwarp();
  return best_scale;
}

struct Affine {
  float scale, min;
};
struct Trial {
  Affine fit;
  float error;
};

/// Squared error and the best scale and minimum when the integers are those of (inverse_scale, min).
__device__ inline Trial try_affine(const float* x, int n, int high, float inverse_scale, float min) {
  Rounded sx = 0, sq = 0, sqq = 0, sxq = 0, sxx = 0;
  for (int i = 0; i < n; ++i) {
    const Rounded xi = x[i];
    const Rounded q = static_cast<float>(round_to((xi + Rounded(min)) * Rounded(inverse_scale), 0, high));
    sx = sx + xi, sq = sq + q, sqq = sqq + q * q, sxq = sxq + xi * q, sxx = sxx + xi * xi;
  }
  const Rounded count = static_cast<float>(n);
  const Rounded determinant = count * sqq - sq * sq;
  const Rounded mean = Rounded(-sx.value) / count;
  Rounded fit_scale = 0, fit_min = mean.value > 0 ? mean.value : 0;
  if (determinant.value > 0) {
    fit_scale = (count * sxq - sx * sq) / determinant;
    fit_min = (fit_scale * sq - sx) / count;
  }
  if (sqq.value > 0 && sxq.value > 0 && (fit_min.value < 0 || determinant.value <= 0)) {
    fit_scale = sxq / sqq;
    fit_min = 0;
  }
  const Rounded error = sxx + fit_scale * fit_scale * sqq + count * fit_min * fit_min -
                        Rounded(2) * (fit_scale * sxq - fit_min * sx + fit_scale * fit_min * sq);
  return {{fit_scale, fit_min}, error};
}

/// x ~ scale * q - min with q in [0, high]. All lanes call it and get the result.
__device__ inline Affine fit_affine(QuantizeScratch& s, const float* x, int n, int high) {
  const Bounds bounds = bounds_of(x, n);
  const float min = -bounds.lowest > 0 ? -bounds.lowest : 0;
  const Rounded span = Rounded(bounds.highest) + Rounded(min);
  if (!(span.value > 0)) return {0, min};
  const int lane = lane_of_warp();
  if (lane < kCandidates) {
    const float step = static_cast<float>(lane - kSteps);
    const Rounded levels = Rounded(static_cast<float>(high)) + Rounded(kStepLevels) * Rounded(step);
    const Trial first = try_affine(x, n, high, levels / span, min);
    const Trial second = try_affine(x, n, high, inverse(first.fit.scale), first.fit.min);
    const Trial better = second.error < first.error ? second : first;
    s.trials[0][lane] = better.fit.scale;
    s.trials[1][lane] = better.fit.min;
    s.trials[2][lane] = better.error;
  }
  __syncwarp();
  Trial best{{span / Rounded(static_cast<float>(high)), min}, INFINITY};
  for (int i = 0; i < kCandidates; ++i) {
    if (s.trials[0][i] >= 0 && s.trials[2][i] < best.error) {
      best = {{s.trials[0][i], s.trials[1][i]}, s.trials[2][i]};
    }
  }
  __syncwarp();
  return best.fit;
}

/// The f16 factor of a super-block's small scales, and its value.
struct Factor {
  uint16_t bits;
  float value;
};

__device__ inline Factor factor_of(float largest, int steps) {
  const uint16_t bits = half_bits(largest / static_cast<float>(steps));
  return {bits, half_bits_to_float(bits)};
}

/// Integers in [0, high] for scales >= 0, of which the largest gets `high`; lane i < count writes values[i].
__device__ inline Factor split_scales(const float* scales, int count, int high, int* values) {
  float largest = scales[0];
  for (int i = 1; i < count; ++i) largest = largest < scales[i] ? scales[i] : largest;
  const Factor factor = factor_of(largest, high);
  const int lane = lane_of_warp();
  if (lane < count) values[lane] = round_to(Rounded(scales[lane]) * Rounded(inverse(factor.value)), 0, high);
  return factor;
}
/// Integers in [low, -low - 1] for 16 scales of either sign.
__device__ inline Factor split_signed_scales(const float* scales, int low, int* values) {
  const Factor factor = factor_of(extreme_of(scales, 16), low);
  const int lane = lane_of_warp();
  if (lane < 16) values[lane] = round_to(Rounded(scales[lane]) * Rounded(inverse(factor.value)), low, -low - 1);
  return factor;
}

/// Codes of the elements of this lane: round((x + min) * inverse_scale), limited, minus low.
__device__ inline void encode(QuantizeScratch& s, int element, float min, float inverse_scale, int low, int high) {
  const float scaled = (Rounded(s.x[element]) + Rounded(min)) * Rounded(inverse_scale);
  s.codes[element] = static_cast<uint8_t>(round_to(scaled, low, high) - low);
}
/// The same without a minimum; -0 stays -0.
__device__ inline void encode(QuantizeScratch& s, int element, float inverse_scale, int low, int high) {
  s.codes[element] = static_cast<uint8_t>(round_to(Rounded(s.x[element]) * Rounded(inverse_scale), low, high) - low);
}

/// --- blocks of 32: lane j has element j ---

template <class Block>
__device__ inline void write_nibbles(const QuantizeScratch& s, Block& block) {
  const int lane = lane_of_warp();
  if (lane < 16) block.nibbles[lane] = static_cast<uint8_t>((s.codes[lane] & 15) | s.codes[lane + 16] << 4);
}
template <class Block>
__device__ inline void write_fifth_bits(const QuantizeScratch& s, Block& block) {
  const int lane = lane_of_warp();
  if (lane >= 4) return;
  int bits = 0;
  for (int i = 0; i < 8; ++i) bits |= s.codes[lane * 8 + i] >> 4 << i;
  block.high_bits[lane] = static_cast<uint8_t>(bits);
}

template <class Block>
__device__ inline void symmetric_32(QuantizeScratch& s, Block& block, int low, int high) {
  const uint16_t scale = half_bits(fit_symmetric(s, s.x, 32, low, high));
  block.scale = scale;
  encode(s, lane_of_warp(), inverse(half_bits_to_float(scale)), low, high);
  __syncwarp();
}
template <class Block>
__device__ inline void affine_32(QuantizeScratch& s, Block& block, int high) {
  const Bounds bounds = bounds_of(s.x, 32);
  const uint16_t min_bits = half_bits(bounds.lowest);
  const float min = half_bits_to_float(min_bits);
  const uint16_t scale_bits = half_bits((Rounded(bounds.highest) - Rounded(min)) / Rounded(static_cast<float>(high)));
  block.scale = scale_bits;
  block.min = min_bits;
  encode(s, lane_of_warp(), -min, inverse(half_bits_to_float(scale_bits)), 0, high);
  __syncwarp();
}

__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ4_0& block) {
  symmetric_32(s, block, -8, 7);
  write_nibbles(s, block);
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ5_0& block) {
  symmetric_32(s, block, -16, 15);
  write_nibbles(s, block);
  write_fifth_bits(s, block);
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ4_1& block) {
  affine_32(s, block, 15);
  write_nibbles(s, block);
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ5_1& block) {
  affine_32(s, block, 31);
  write_nibbles(s, block);
  write_fifth_bits(s, block);
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ8_0& block) {
  const int lane = lane_of_warp();
  const float x = s.x[lane];
  uint32_t largest = std::bit_cast<uint32_t>(fabsf(x));  // as an integer: NaN is the largest of all, for every lane
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, largest, distance);
    largest = largest < other ? other : largest;
  }
  const bool has_nan = largest > 0x7f800000u;
  const uint16_t scale = has_nan ? kNaNHalf : half_bits(std::bit_cast<float>(largest) / 127);
  if (lane == 0) block.scale = scale;
  const float factor = inverse(half_bits_to_float(scale));
  block.values[lane] = static_cast<int8_t>(round_to(Rounded(x) * Rounded(factor), -127, 127));
}

/// The number of limits between neighbouring levels that are below x.
template <class Block, int... kIndices>
__device__ inline int nearest_level(float x, std::integer_sequence<int, kIndices...>) {
  return (0 + ... +
          static_cast<int>(
              x > std::integral_constant<int, Block::kLevels[kIndices] + Block::kLevels[kIndices + 1]>::value * 0.5f));
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockIQ4_NL& block) {
  using Block = quants::BlockIQ4_NL;
  const uint16_t scale = half_bits(extreme_of(s.x, 32) / std::integral_constant<int, Block::kLevels[0]>::value);
  block.scale = scale;
  const int lane = lane_of_warp();
  const float scaled = Rounded(s.x[lane]) * Rounded(inverse(half_bits_to_float(scale)));
  s.codes[lane] = static_cast<uint8_t>(nearest_level<Block>(scaled, std::make_integer_sequence<int, 15>{}));
  __syncwarp();
  write_nibbles(s, block);
}

/// --- blocks of 256 ---

struct Factors {
  Factor scale, min;
};
/// Scales and minima of all groups in s.small_scales and s.small_mins, codes in s.codes.
__device__ inline Factors affine_256(QuantizeScratch& s, int group, int high, int high_scale) {
  const int lane = lane_of_warp(), groups = quants::kSuperBlock / group;
  for (int j = 0; j < groups; ++j) {
    const Affine fit = fit_affine(s, s.x + j * group, group, high);
    if (lane == 0) s.scales[j] = fit.scale, s.mins[j] = fit.min;
  }
  __syncwarp();
  const Factors factors{split_scales(s.scales, groups, high_scale, s.small_scales),
                        split_scales(s.mins, groups, high_scale, s.small_mins)};
  __syncwarp();
  for (int i = lane; i < quants::kSuperBlock; i += 32) {
    const Rounded scale = Rounded(factors.scale.value) * Rounded(static_cast<float>(s.small_scales[i / group]));
    const Rounded min = Rounded(factors.min.value) * Rounded(static_cast<float>(s.small_mins[i / group]));
    encode(s, i, min, inverse(scale), 0, high);
  }
  __syncwarp();
  return factors;
}
/// Scales of 16 groups in s.small_scales, codes in s.codes.
__device__ inline Factor symmetric_256(QuantizeScratch& s, int low, int high, int low_scale) {
  const int lane = lane_of_warp();
  for (int j = 0; j < 16; ++j) {
    const float scale = fit_symmetric(s, s.x + j * 16, 16, low, high);
    if (lane == 0) s.scales[j] = scale;
  }
  __syncwarp();
  const Factor factor = split_signed_scales(s.scales, low_scale, s.small_scales);
  __syncwarp();
  for (int i = lane; i < quants::kSuperBlock; i += 32) {
    const Rounded scale = Rounded(factor.value) * Rounded(static_cast<float>(s.small_scales[i / 16]));
    encode(s, i, inverse(scale), low, high);
  }
  __syncwarp();
  return factor;
}

/// Byte l of the two-bit parts (codes >> shift) of a half of 128 elements.
__device__ inline uint8_t crumbs_of(const QuantizeScratch& s, int half, int l, int shift) {
  int bits = 0;
  for (int j = 0; j < 4; ++j) bits |= (s.codes[half * 128 + j * 32 + l] >> shift & 3) << (j * 2);
  return static_cast<uint8_t>(bits);
}
/// Bit `shift` of element l of all 8 groups of 32.
__device__ inline uint8_t bits_of_groups(const QuantizeScratch& s, int l, int shift) {
  int bits = 0;
  for (int j = 0; j < 8; ++j) bits |= (s.codes[j * 32 + l] >> shift & 1) << j;
  return static_cast<uint8_t>(bits);
}
/// Low four bits of the elements `first` and `second`.
__device__ inline uint8_t nibbles_of(const QuantizeScratch& s, int first, int second) {
  return static_cast<uint8_t>((s.codes[first] & 15) | (s.codes[second] & 15) << 4);
}

__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ2_K& block) {
  const Factors factors = affine_256(s, 16, 3, 15);
  const int lane = lane_of_warp();
  block.scale = factors.scale.bits;
  block.min_scale = factors.min.bits;
  if (lane < 16) block.scales[lane] = static_cast<uint8_t>(s.small_scales[lane] | s.small_mins[lane] << 4);
  for (int half = 0; half < 2; ++half) block.crumbs[half * 32 + lane] = crumbs_of(s, half, lane, 0);
}

__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ3_K& block) {
  const Factor factor = symmetric_256(s, -4, 3, -32);
  const int lane = lane_of_warp();
  block.scale = factor.bits;
  if (lane < 8) {
    const int low = (s.small_scales[lane] + 32) & 15, high = (s.small_scales[lane + 8] + 32) & 15;
    block.scales[lane] = static_cast<uint8_t>(low | high << 4);
  } else if (lane < 12) {
    int bits = 0;
    for (int k = 0; k < 4; ++k) bits |= (s.small_scales[lane - 8 + 4 * k] + 32) >> 4 << (2 * k);
    block.scales[lane] = static_cast<uint8_t>(bits);
  }
  for (int half = 0; half < 2; ++half) block.crumbs[half * 32 + lane] = crumbs_of(s, half, lane, 0);
  block.high_bits[lane] = bits_of_groups(s, lane, 2);
}

/// What q4_K and q5_K share: everything but the fifth bit.
template <class Block>
__device__ inline void affine_8_groups(QuantizeScratch& s, Block& block, int high) {
  const Factors factors = affine_256(s, 32, high, 63);
  const int lane = lane_of_warp();
  block.scale = factors.scale.bits;
  block.min_scale = factors.min.bits;
  if (lane < 4) {
    const int *scales = s.small_scales + lane, *mins = s.small_mins + lane;
    block.scales[lane] = static_cast<uint8_t>(scales[0] | scales[4] >> 4 << 6);
    block.scales[lane + 4] = static_cast<uint8_t>(mins[0] | mins[4] >> 4 << 6);
    block.scales[lane + 8] = static_cast<uint8_t>((scales[4] & 15) | (mins[4] & 15) << 4);
  }
  for (int pair = 0; pair < 4; ++pair) {
    block.nibbles[pair * 32 + lane] = nibbles_of(s, pair * 64 + lane, pair * 64 + 32 + lane);
  }
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ4_K& block) {
  affine_8_groups(s, block, 15);
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ5_K& block) {
  affine_8_groups(s, block, 31);
  const int lane = lane_of_warp();
  block.high_bits[lane] = bits_of_groups(s, lane, 4);
}

__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ6_K& block) {
  const Factor factor = symmetric_256(s, -32, 31, -128);
  const int lane = lane_of_warp();
  block.scale = factor.bits;
  if (lane < 16) block.scales[lane] = static_cast<int8_t>(s.small_scales[lane]);
  for (int half = 0; half < 2; ++half) {
    const int first = half * 128 + lane;
    block.nibbles[half * 64 + lane] = nibbles_of(s, first, first + 64);
    block.nibbles[half * 64 + 32 + lane] = nibbles_of(s, first + 32, first + 96);
    block.crumbs[half * 32 + lane] = crumbs_of(s, half, lane, 4);
  }
}

}  // namespace quantizing

/// The elements of s.x (32 or 256 of them) as a block. All lanes of a warp call it.
template <class Block>
__device__ inline void quantize_block(QuantizeScratch& s, Block& block) {
  quantizing::quantize(s, block);
}

}  // namespace shoal::cuda
