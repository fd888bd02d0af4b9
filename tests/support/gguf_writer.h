// Writes GGUF images for tests. The writer computes counts, types and offsets. A test can override these fields to
// create a malformed image. The writer checks nothing. Single-threaded value type.
//
//   GgufWriter writer;
//   writer.add<uint32_t>("llama.block_count", 2).add_tensor("output.weight", DType::kF32, {4, 2}, floats);
//   GgufFile file("test", writer.image());  // the image must outlive the file
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "graph/dtype.h"

namespace shoal::test {

using Bytes = std::vector<std::byte>;

/// Appends a number, or a string in the GGUF encoding (64-bit length, then characters).
template <class T>
void append(Bytes& bytes, const T& value) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    const std::string_view text = value;
    append(bytes, static_cast<uint64_t>(text.size()));
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    bytes.insert(bytes.end(), data, data + text.size());
  } else {
    const auto* data = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), data, data + sizeof(T));
  }
}

/// The number of value type T in GGUF files.
template <class T>
constexpr uint32_t gguf_type() {
  if constexpr (std::is_same_v<T, uint8_t>) return 0;
  if constexpr (std::is_same_v<T, int8_t>) return 1;
  if constexpr (std::is_same_v<T, uint16_t>) return 2;
  if constexpr (std::is_same_v<T, int16_t>) return 3;
  if constexpr (std::is_same_v<T, uint32_t>) return 4;
  if constexpr (std::is_same_v<T, int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::string>) return 8;
  if constexpr (std::is_same_v<T, uint64_t>) return 10;
  if constexpr (std::is_same_v<T, int64_t>) return 11;
  if constexpr (std::is_same_v<T, double>) return 12;
}
inline constexpr uint32_t kGgufArray = 9;

struct GgufTensorSpec {
  std::string name;
  uint32_t type = 0;  ///< number of the dtype in GGUF files
  std::vector<int64_t> dims;
  Bytes data;
  std::optional<uint32_t> dim_count;  ///< written instead of dims.size()
  std::optional<uint64_t> offset;     ///< written instead of the next aligned offset
};

class GgufWriter {
 public:
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  std::optional<uint64_t> key_count, tensor_count;  ///< written instead of the actual counts
  uint64_t alignment = 32;                          ///< alignment of tensor data; if not 32, tests must also add
                                                    ///< general.alignment

  template <class T>
  GgufWriter& add(const std::string& key, const T& value) {
    Bytes bytes;
    append(bytes, value);
    return add_raw(key, gguf_type<T>(), bytes);
  }
  GgufWriter& add(const std::string& key, const char* value) { return add<std::string>(key, value); }
  template <class T>
  GgufWriter& add_array(const std::string& key, const std::vector<T>& values) {
    Bytes bytes;
    append(bytes, gguf_type<T>());
    append(bytes, static_cast<uint64_t>(values.size()));
    for (const T& value : values) append(bytes, value);
    return add_raw(key, kGgufArray, bytes);
  }
  /// Adds a key with any value type and any bytes as its value.
  GgufWriter& add_raw(const std::string& key, uint32_t type, const Bytes& value);

  GgufWriter& add_tensor(const GgufTensorSpec& tensor);
  /// Adds a tensor of f32 values. The values are converted to `dtype`.
  GgufWriter& add_tensor(const std::string& name, DType dtype, const std::vector<int64_t>& dims,
                         std::span<const float> values);

  Bytes image() const;
  /// Writes the image to `path`.
  void write(const std::string& path) const;

 private:
  Bytes keys_;
  uint64_t keys_added_ = 0;
  std::vector<GgufTensorSpec> tensors_;
};

void write_file(const std::string& path, const Bytes& bytes);

}  // namespace shoal::test
