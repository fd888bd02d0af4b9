// Element types: a table with the traits of all types, including their conversions to and from f32. Quantised types are
// storage formats of GGUF: a row is divided into blocks. Each block contains `block_elems` elements and has
// `block_bytes` bytes. Traits are plain data; all functions are thread-safe.
//
//   bytes_for(DType::kQ4_0, 256) == 256 / 32 * 18 == 144
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal {

enum class DType : uint8_t {
#define SHOAL_PLAIN(id, ...) k##id,
#define SHOAL_QUANTIZED(id, ...) k##id,
#include "graph/dtypes.def"
  kCount
};
inline constexpr int kDTypeCount = static_cast<int>(DType::kCount);

struct DTypeTraits {
  DType dtype;
  std::string_view name;  ///< name in flags and files: "f32", "q4_K"; lookup ignores case
  uint32_t gguf_type;     ///< the type's number in GGUF files
  int64_t block_elems;    ///< elements per block; 1 for plain types
  size_t block_bytes;     ///< bytes per block
  bool is_quantized;
  bool is_float;  ///< true for f32, f16 and bf16
  bool is_coded;  ///< whether graph/quants/codes.inc decodes this type
  /// Converts n elements (a multiple of block_elems) to f32. Integers are converted by value.
  void (*to_f32)(const void* src, float* dst, int64_t n);
  /// Converts n f32 elements (a multiple of block_elems) to this type, rounding to nearest. nullptr for types with
  /// blocks of more than 32 elements: only weights have these types, so no device converts to them.
  void (*from_f32)(const float* src, void* dst, int64_t n);
};

/// Does not fail if `dtype` is a valid enumerator.
const DTypeTraits& traits(DType dtype);
inline std::string_view name_of(DType dtype) {
  return traits(dtype).name;
}
/// The name is case-insensitive. Returns nullopt if no type has this name.
std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_gguf(uint32_t gguf_type);

/// Number of bytes of n consecutive elements. Throws InvalidArgument if n is not a multiple of block_elems.
size_t bytes_for(DType dtype, int64_t n);

/// IEEE half and bfloat16 conversions. These conversions round to nearest even and are exact for NaN and infinities.
float f16_to_f32(uint16_t half);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);

}  // namespace shoal
