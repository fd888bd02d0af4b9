// Quantises f32 to GGUF's blocks of 32 elements, one warp per block. Results have the same bits as in graph/quants,
// because the lanes together try the same candidate scales and add the elements in the same order.
//
//   __shared__ QuantizeScratch scratch[kWarps];
//   QuantizeScratch& s = scratch[warp];
//   ... all lanes write the block's elements to s.x ...
//   __syncwarp();
//   quantize_block(s, dtype, block);
//   __syncwarp();  // before s.x is written again
#pragma once

#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/dequantize.h"
#include "devices/cuda/kernels/reduce.h"
#include "graph/quants/blocks.h"

namespace shoal::cuda {

/// Scratch memory of one warp, in shared memory.
struct QuantizeScratch {
  float x[quants::kBlock];
  float trials[2][32];  ///< two numbers per lane, from the trials of candidate scales
  uint8_t codes[quants::kBlock];
};

namespace quantizing {

constexpr int kSteps = 9;  // number of scales tried on each side of the first scale
constexpr int kCandidates = 2 * kSteps + 1;
constexpr float kStepLevels = 0.1f;
constexpr uint16_t kNaNHalf = 0x7e00;  // f32_to_f16(quiet_NaN); the GPU's conversion instruction returns another NaN

__device__ inline int lane_of_warp() {
  return static_cast<int>(threadIdx.x % 32);
}

/// round(x) clamped to [low, high]. NaN gives low.
__device__ inline int round_to(float x, int low, int high) {
  if (!(x > static_cast<float>(low))) return low;
  if (x >= static_cast<float>(high)) return high;
  return static_cast<int>(rintf(x));
}
/// 1 / x, or 0 if x is 0.
__device__ inline float inverse(float x) {
  return x == 0.0f ? 0.0f : 1.0f / x;
}
__device__ inline uint16_t half_bits(float x) {
  return std::bit_cast<uint16_t>(__float2half_rn(x));
}

/// Returns the element with the largest magnitude, or the first of several such elements.
__device__ inline float extreme_of(const float (&x)[quants::kBlock]) {
  float extreme = x[0];
#pragma unroll 1
  for (int i = 1; i < quants::kBlock; ++i) extreme = fabsf(extreme) < fabsf(x[i]) ? x[i] : extreme;
  return extreme;
}

struct Bounds {
  float lowest, highest;
};
/// Returns the smallest element (the first of several equal elements) and the largest element (the last of several
/// equal elements). The choice among equal elements matters for zeros of different sign.
__device__ inline Bounds bounds_of(const float (&x)[quants::kBlock]) {
  Bounds bounds{x[0], x[0]};
#pragma unroll 1
  for (int i = 1; i < quants::kBlock; ++i) {
    if (x[i] < bounds.lowest) bounds.lowest = x[i];
    if (!(x[i] < bounds.highest)) bounds.highest = x[i];
  }
  return bounds;
}

/// Tries kCandidates scales. Each trial rounds the elements to integers q in [low, high] and fits the scale in x ~
/// scale * q. Returns the fitted scale with the smallest error. All lanes of a warp call this function and get the
/// result.
__device__ inline float fit_symmetric(QuantizeScratch& s, int low, int high) {
  const float extreme = extreme_of(s.x);
  if (extreme == 0) return 0;
  const int lane = lane_of_warp();
  if (lane < kCandidates) {
    const float step = static_cast<float>(lane - kSteps);
    const Rounded inverse_scale =
        (Rounded(static_cast<float>(low)) + Rounded(kStepLevels) * Rounded(step)) / Rounded(extreme);
    Rounded xq = 0, qq = 0;
    for (const float x : s.x) {
      const Rounded q = static_cast<float>(round_to(Rounded(x) * inverse_scale, low, high));
      xq = xq + Rounded(x) * q;
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

/// Stores the code of this lane's element: round((x + min) * inverse_scale), clamped to [low, high], minus low.
__device__ inline void encode(QuantizeScratch& s, float min, float inverse_scale, int low, int high) {
  const float scaled = (Rounded(s.x[lane_of_warp()]) + Rounded(min)) * Rounded(inverse_scale);
  s.codes[lane_of_warp()] = static_cast<uint8_t>(round_to(scaled, low, high) - low);
}
/// Stores the code without adding a minimum. Adding a minimum of 0 would change -0 to 0.
__device__ inline void encode(QuantizeScratch& s, float inverse_scale, int low, int high) {
  const float scaled = Rounded(s.x[lane_of_warp()]) * Rounded(inverse_scale);
  s.codes[lane_of_warp()] = static_cast<uint8_t>(round_to(scaled, low, high) - low);
}

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
  const uint16_t scale = half_bits(fit_symmetric(s, low, high));
  block.scale = scale;
  encode(s, inverse(half_bits_to_float(scale)), low, high);
  __syncwarp();
}
template <class Block>
__device__ inline void affine_32(QuantizeScratch& s, Block& block, int high) {
  const Bounds bounds = bounds_of(s.x);
  const uint16_t min_bits = half_bits(bounds.lowest);
  const float min = half_bits_to_float(min_bits);
  const uint16_t scale_bits = half_bits((Rounded(bounds.highest) - Rounded(min)) / Rounded(static_cast<float>(high)));
  block.scale = scale_bits;
  block.min = min_bits;
  encode(s, -min, inverse(half_bits_to_float(scale_bits)), 0, high);
  __syncwarp();
}

/// Quantises a block of q4_0, q4_1, q5_0 or q5_1.
template <class Block>
requires(Block::kBits < 8 && !quants::kHasLevels<Block>) __device__
    inline void quantize(QuantizeScratch& s, Block& block) {
  constexpr int kCodes = 1 << Block::kBits;
  if constexpr (Block::kAdds) {
    affine_32(s, block, kCodes - 1);
  } else {
    symmetric_32(s, block, -kCodes / 2, kCodes / 2 - 1);
  }
  write_nibbles(s, block);
  if constexpr (Block::kBits == 5) write_fifth_bits(s, block);
}
/// Returns the bits of the largest magnitude among all lanes. Every lane gets this result. NaN counts as larger than
/// every number.
__device__ inline uint32_t largest_magnitude(float x) {
  return static_cast<uint32_t>(warp_max(std::bit_cast<int32_t>(fabsf(x))));
}

/// Quantises a block of 32 elements. Each lane passes one element.
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

/// Counts the boundaries (between consecutive levels) that are below x.
template <class Levels, int... kIndices>
__device__ inline int levels_below(float x, std::integer_sequence<int, kIndices...>) {
  return (
      0 + ... +
      static_cast<int>(
          x > std::integral_constant<int, Levels::kLevels[kIndices] + Levels::kLevels[kIndices + 1]>::value * 0.5f));
}

/// The scale maps the element with the largest magnitude to the level with the largest magnitude.
__device__ inline void quantize(QuantizeScratch& s, quants::BlockIQ4_NL& block) {
  using Levels = quants::IQ4Levels;
  const uint16_t scale = half_bits(extreme_of(s.x) / std::integral_constant<int, Levels::kLevels[0]>::value);
  block.scale = scale;
  const int lane = lane_of_warp();
  const float scaled = Rounded(s.x[lane]) * Rounded(inverse(half_bits_to_float(scale)));
  s.codes[lane] = static_cast<uint8_t>(levels_below<Levels>(scaled, std::make_integer_sequence<int, 15>{}));
  __syncwarp();
  write_nibbles(s, block);
}

struct NearestMxfp4 {
  int code;
  float error;

  __device__ NearestMxfp4(float x, int scale) {
    using Block = quants::BlockMXFP4;
    const float half = std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23);  // half of the inverse scale,
                                                                                        // because the inverse scale
                                                                                        // itself may overflow
    const Rounded scaled = Rounded(x) * Rounded(half) * Rounded(2);
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

}  // namespace quantizing

/// Quantises the 32 elements of s.x to a block of this dtype. All lanes of a warp call quantize_block().
__device__ inline void quantize_block(QuantizeScratch& s, DType dtype, std::byte* block) {
  using quantizing::quantize;
  switch (dtype) {
#define SHOAL_QUANTIZED_32(id, ...) \
  case DType::k##id:                \
    return quantize(s, *reinterpret_cast<quants::Block##id*>(block));
#include "graph/dtypes.def"
    default:
      return;
  }
}

}  // namespace shoal::cuda
