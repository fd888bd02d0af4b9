#include "graph/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "graph/quants/blocks.h"
#include "graph/quants/quants.h"

namespace shoal {
namespace {

void copy_f32(const void* src, float* dst, int64_t n) {
  if (n > 0) std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

void store_f32(const float* src, void* dst, int64_t n) {
  copy_f32(src, static_cast<float*>(dst), n);
}

template <float (*Convert)(uint16_t)>
void from_16_bits(const void* src, float* dst, int64_t n) {
  const auto* values = static_cast<const uint16_t*>(src);
  for (int64_t i = 0; i < n; ++i) dst[i] = Convert(values[i]);
}

template <uint16_t (*Convert)(float)>
void to_16_bits(const float* src, void* dst, int64_t n) {
  auto* values = static_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) values[i] = Convert(src[i]);
}

template <class Integer>
void from_integers(const void* src, float* dst, int64_t n) {
  const auto* values = static_cast<const Integer*>(src);
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(values[i]);
}

/// Rounds each element to the nearest integer and clamps it to the type's range. NaN becomes 0.
template <class Integer>
void to_integers(const float* src, void* dst, int64_t n) {
  using Limits = std::numeric_limits<Integer>;
  auto* values = static_cast<Integer*>(dst);
  // 2^31 or 2^63, the first value above the range. This power of two is exact in f32.
  const float bound = -static_cast<float>(Limits::min());
  for (int64_t i = 0; i < n; ++i) {
    const float x = std::nearbyint(src[i]);
    if (std::isnan(x)) {
      values[i] = 0;
    } else if (x >= bound) {
      values[i] = Limits::max();
    } else {
      values[i] = x < -bound ? Limits::min() : static_cast<Integer>(x);
    }
  }
}

namespace q = quants;

constexpr std::array kDTypes = std::to_array<DTypeTraits>({
    {DType::kF32, "f32", 0, 1, 4, false, true, false, copy_f32, store_f32},
    {DType::kF16, "f16", 1, 1, 2, false, true, false, from_16_bits<f16_to_f32>, to_16_bits<f32_to_f16>},
    {DType::kBF16, "bf16", 30, 1, 2, false, true, false, from_16_bits<bf16_to_f32>, to_16_bits<f32_to_bf16>},
    {DType::kI32, "i32", 26, 1, 4, false, false, false, from_integers<int32_t>, to_integers<int32_t>},
    {DType::kI64, "i64", 27, 1, 8, false, false, false, from_integers<int64_t>, to_integers<int64_t>},
#define SHOAL_QUANTIZED_TRAITS(id, name, number, is_coded, from_f32)             \
  {DType::k##id, #name, number,   q::Block##id::kElements, sizeof(q::Block##id), \
   true,         false, is_coded, q::name##_to_f32,        from_f32},
#define SHOAL_QUANTIZED_32(id, name, number) SHOAL_QUANTIZED_TRAITS(id, name, number, false, q::name##_from_f32)
#define SHOAL_QUANTIZED(id, name, number) SHOAL_QUANTIZED_TRAITS(id, name, number, false, nullptr)
#define SHOAL_QUANTIZED_CODED(id, name, number) SHOAL_QUANTIZED_TRAITS(id, name, number, true, nullptr)
#include "graph/dtypes.def"
});

constexpr bool in_order() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(kDTypes.size() == kDTypeCount && in_order(), "one entry per dtype, in the order of the enumeration");

constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

const DTypeTraits& traits(DType dtype) {
  if (dtype >= DType::kCount) fail<InvalidArgument>("there is no dtype number {}", static_cast<int>(dtype));
  return kDTypes[static_cast<size_t>(dtype)];
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeTraits& t : kDTypes) {
    if (equal_ignoring_case(t.name, name)) return t.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_gguf(uint32_t gguf_type) {
  for (const DTypeTraits& t : kDTypes) {
    if (t.gguf_type == gguf_type) return t.dtype;
  }
  return std::nullopt;
}

size_t bytes_for(DType dtype, int64_t n) {
  const DTypeTraits& t = traits(dtype);
  require<InvalidArgument>(n >= 0 && n % t.block_elems == 0, "[{}] {} elements do not fill whole blocks of {} elements",
                           t.name, n, t.block_elems);
  const auto blocks = static_cast<size_t>(n / t.block_elems);
  require<InvalidArgument>(blocks <= std::numeric_limits<size_t>::max() / t.block_bytes,
                           "[{}] {} elements are too many", t.name, n);
  return blocks * t.block_bytes;
}

float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x0400u) return std::bit_cast<float>(sign | ((rest << 13) + ((127u - 15u) << 23)));
  const float subnormal = static_cast<float>(rest) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) {  // NaN: keep the high payload bits and set at least one bit
    const uint32_t payload = rest >> 13 & 0x3ffu;
    return static_cast<uint16_t>(sign | 0x7c00u | (payload ? payload : 0x200u));
  }
  if (rest >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // below 2^-14: the last bit of 0.5 + x has the value 2^-24, so the addition rounds x to a
                             // multiple of 2^-24
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = rest + 0xfffu + (rest >> 13 & 1u) - ((127u - 15u) << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    const uint32_t top = bits >> 16;
    return static_cast<uint16_t>(top & 0x7fu ? top : top | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace shoal
