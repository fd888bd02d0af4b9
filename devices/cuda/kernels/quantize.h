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
/// Integers in [low, -low - 1] for scales of either sign.
__device__ inline Factor split_signed_scales(const float* scales, int count, int low, int* values) {
  const Factor factor = factor_of(extreme_of(scales, count), low);
  const int lane = lane_of_warp();
  if (lane < count) values[lane] = round_to(Rounded(scales[lane]) * Rounded(inverse(factor.value)), low, -low - 1);
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
/// The bits of the largest of the lanes' magnitudes, for every lane; NaN is the largest of all.
__device__ inline uint32_t largest_magnitude(float x) {
  uint32_t largest = std::bit_cast<uint32_t>(fabsf(x));
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, largest, distance);
    largest = largest < other ? other : largest;
  }
  return largest;
}

/// Each lane has an element.
__device__ inline void quantize(float x, quants::BlockQ8_0& block) {
  const int lane = lane_of_warp();
  const uint32_t largest = largest_magnitude(x);
  const bool has_nan = largest > 0x7f800000u;
  const uint16_t scale = has_nan ? kNaNHalf : half_bits(std::bit_cast<float>(largest) / 127);
  if (lane == 0) block.scale = scale;
  const float factor = inverse(half_bits_to_float(scale));
  block.values[lane] = static_cast<int8_t>(round_to(Rounded(x) * Rounded(factor), -127, 127));
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockQ8_0& block) {
  quantize(s.x[lane_of_warp()], block);
}

/// The number of limits between the first neighbouring levels that are below x.
template <class Levels, int... kIndices>
__device__ inline int levels_below(float x, std::integer_sequence<int, kIndices...>) {
  return (
      0 + ... +
      static_cast<int>(
          x > std::integral_constant<int, Levels::kLevels[kIndices] + Levels::kLevels[kIndices + 1]>::value * 0.5f));
}

/// The scale with which the extreme of 32 elements gets the level of the largest magnitude.
__device__ inline float iq4_scale(const float* x) {
  return extreme_of(x, 32) / std::integral_constant<int, quants::IQ4Levels::kLevels[0]>::value;
}
__device__ inline void encode_iq4(QuantizeScratch& s, int element, float scale) {
  const float scaled = Rounded(s.x[element]) * Rounded(inverse(scale));
  const int code = levels_below<quants::IQ4Levels>(scaled, std::make_integer_sequence<int, 15>{});
  s.codes[element] = static_cast<uint8_t>(code);
}
__device__ inline void quantize(QuantizeScratch& s, quants::BlockIQ4_NL& block) {
  const uint16_t scale = half_bits(iq4_scale(s.x));
  block.scale = scale;
  encode_iq4(s, lane_of_warp(), half_bits_to_float(scale));
  __syncwarp();
  write_nibbles(s, block);
}

/// Of x / 2^(scale - 128): the code of the nearest level, and the squared difference from it.
struct NearestMxfp4 {
  int code;
  float error;

  __device__ NearestMxfp4(float x, int scale) {
    using Block = quants::BlockMXFP4;
    const float half = std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23);  // of the inverse, which may
    const Rounded scaled = Rounded(x) * Rounded(half) * Rounded(2);                     // be above the largest float
    code = levels_below<Block>(fabsf(scaled.value), std::make_integer_sequence<int, 7>{});
    if (code > 0 && scaled.value < 0) code += 8;
    const Rounded level = static_cast<float>(static_cast<int8_t>(levels_of<Block>(static_cast<uint32_t>(code))));
    error = (scaled - level) * (scaled - level);
  }
};
__device__ inline void quantize(QuantizeScratch& s, quants::BlockMXFP4& block) {
  const int lane = lane_of_warp();
  const float x = s.x[lane];
  const uint32_t largest = largest_magnitude(x);
  const int whole = static_cast<int>(largest >> 23) - 2 + ((largest & 0x7fffffu) > 0x400000u ? 1 : 0);
  int scale = whole <= 0 ? 0 : whole < 253 ? whole : 253;
  if (whole > 0) {
    s.trials[0][lane] = NearestMxfp4(x, scale - 1).error;
    s.trials[1][lane] = NearestMxfp4(x, scale).error;
    __syncwarp();
    Rounded errors[2] = {0, 0};
    for (int i = 0; i < 32; ++i) {
      for (int trial = 0; trial < 2; ++trial) errors[trial] = errors[trial] + Rounded(s.trials[trial][i]);
    }
    if (errors[0].value < (Rounded(4) * errors[1]).value) --scale;
  }
  block.scale = static_cast<uint8_t>(scale);
  s.codes[lane] = static_cast<uint8_t>(NearestMxfp4(x, scale).code);
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
  const Factor factor = split_signed_scales(s.scales, 16, low_scale, s.small_scales);
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

__device__ inline void quantize(QuantizeScratch& s, quants::BlockIQ4_XS& block) {
  const int lane = lane_of_warp();
  if (lane < 8) s.scales[lane] = iq4_scale(s.x + 32 * lane);
  __syncwarp();
  const Factor factor = split_signed_scales(s.scales, 8, -32, s.small_scales);
  __syncwarp();
  for (int i = lane; i < quants::kSuperBlock; i += 32) {
    encode_iq4(s, i, Rounded(factor.value) * Rounded(static_cast<float>(s.small_scales[i / 32])));
  }
  __syncwarp();
  block.scale = factor.bits;
  int high = 0;
  for (int j = 0; j < 8; ++j) high |= (s.small_scales[j] + 32) >> 4 << (2 * j);
  block.high_scales = static_cast<uint16_t>(high);
  if (lane < 4) {
    const int* scales = s.small_scales + 2 * lane;
    block.low_scales[lane] = static_cast<uint8_t>(((scales[0] + 32) & 15) | ((scales[1] + 32) & 15) << 4);
  }
  for (int i = lane; i < 128; i += 32) {
    const int first = i / 16 * 32 + i % 16;
    block.nibbles[i] = nibbles_of(s, first, first + 16);
  }
}

}  // namespace quantizing

/// The elements of s.x (32 or 256 of them) as a block. All lanes of a warp call it.
template <class Block>
__device__ inline void quantize_block(QuantizeScratch& s, Block& block) {
  quantizing::quantize(s, block);
}

}  // namespace shoal::cuda
