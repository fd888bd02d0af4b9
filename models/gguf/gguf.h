// A GGUF file, mapped read-only: metadata by key, tensors by name. Version 2 and 3, little-endian. A model in several
// files (parts.h) is opened by its first one, and then is like one file: all are mapped side by side (map.h).
//
// Everything the file says is checked when it is opened (gguf_parse.h lists the checks), so that later accesses can
// neither leave the map nor overflow. Strings and numbers are decoded from the map on request; tensor data is read
// by read(), which finds out when the file has become shorter in the meantime, or through the map, which cannot.
// A GgufFile is immutable but for rename_tensor() and the bytes that unlock_tensors() gives out: any number of threads
// may read it.
// Pointers and views into it live as long as it does (moving it keeps them valid).
//
// All errors are InvalidArgument (DeviceError where the system refuses to map or read), one line each:
//   "m.gguf: key 'a.b': the file ends inside the value (at byte 8123); the file is damaged or no valid GGUF: download
//   or convert it again"
//   "m.gguf: key 'llama.block_count' should be u32, found array of f32; convert the model again"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/dtype.h"
#include "graph/tensor.h"
#include "models/gguf/map.h"

namespace shoal::models {

/// Value types with their numbers in the file.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kCount
};
inline constexpr int kGgufTypeCount = static_cast<int>(GgufType::kCount);

/// "u32", "string", "array", ...
std::string_view name_of(GgufType type);
/// Bytes of one value; 0 for strings and arrays.
size_t size_of(GgufType type);

/// One key with the place of its value in the file.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kCount;     ///< kArray for arrays
  GgufType element = GgufType::kCount;  ///< type of the elements; equals `type` unless it is kArray
  uint64_t count = 1;                   ///< elements; 1 unless `type` is kArray
  const std::byte* data = nullptr;      ///< first element; of a string its 8-byte length
};

/// One tensor: what a graph needs to know and where its bytes are.
struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape{1, 1, 1, 1};  ///< shape[0] innermost; axes the file does not mention are 1
  int dims = 1;             ///< axes that the file mentions, 1..4
  size_t offset = 0;        ///< from the start of the mapping: of the file, or of the first of several
  size_t bytes = 0;
  const std::byte* data = nullptr;  ///< mapped
};

class GgufFile {
 public:
  /// Maps and checks the file, and those that it is the first part of.
  explicit GgufFile(const std::string& path);
  /// Checks an image in memory that the caller keeps alive and unchanged; `name` stands for the path in messages.
  GgufFile(std::string name, std::span<const std::byte> image);

  GgufFile(GgufFile&&) = default;
  GgufFile& operator=(GgufFile&&) = default;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  size_t alignment() const { return alignment_; }
  /// Files that the model is in; 1 for an image in memory.
  size_t file_count() const { return std::max<size_t>(1, map_.parts().size()); }
  /// Bytes of all files, and of all tensors together (padding not counted).
  size_t file_bytes() const { return file_bytes_; }
  size_t tensor_bytes() const { return tensor_bytes_; }
  /// Of all metadata, and of the names, types, shapes and places of the tensors.
  uint64_t header_digest() const;

  // Metadata. T is one of uint8_t ... int64_t, float, double, bool, std::string, and must be exactly the type stored.
  /// In file order.
  std::span<const GgufValue> values() const { return values_; }
  bool has(std::string_view key) const { return find_value(key) != nullptr; }
  /// nullptr when there is no such key.
  const GgufValue* find_value(std::string_view key) const;
  /// Throws when the key is missing or of another type.
  template <class T>
  T get(std::string_view key) const;
  /// nullopt when the key is missing; throws when it is of another type.
  template <class T>
  std::optional<T> find(std::string_view key) const;
  template <class T>
  T get_or(std::string_view key, T fallback) const {
    return find<T>(key).value_or(std::move(fallback));
  }
  /// A u32 that must not be 0 (counts and sizes that something is divided by or made of).
  uint32_t get_positive(std::string_view key) const;
  template <class T>
  std::vector<T> get_array(std::string_view key) const;

  // Tensors.
  /// In file order.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  /// Gives a tensor the name that this program has for it, unless another one has that name. Pointers to tensors and
  /// their names become invalid.
  void rename_tensor(std::string_view name, const std::string& to);
  /// nullptr when there is no such tensor.
  const GgufTensor* find_tensor(std::string_view name) const;
  /// Throws when there is no such tensor.
  const GgufTensor& tensor(std::string_view name) const;
  /// Copies bytes [offset, offset + to.size()) of a tensor of this file. Throws when the file has become shorter.
  void read(const GgufTensor& tensor, size_t offset, std::span<std::byte> to) const;
  /// The mapped bytes from the first tensor to the end of the last one, with what lies between them.
  std::span<const std::byte> tensor_span() const;
  /// The same bytes for use where they are, writable, which the file never sees. Empty
  /// where the system refuses. For a file only, not for an image in memory.
  std::span<std::byte> unlock_tensors();
  /// Brings bytes of a tensor into memory at the place where they are mapped. Throws as read() does.
  void fetch(const GgufTensor& tensor, size_t offset, size_t size) const;

 private:
  void parse();
  void open_parts(const std::vector<std::string>& paths);
  void index();
  void require_range(const GgufTensor& tensor, size_t offset, size_t size) const;
  const GgufValue& require_value(std::string_view key) const;
  void require_type(const GgufValue& value, GgufType type, GgufType element) const;

  std::string path_;
  GgufMap map_;                       // empty for an image in memory
  std::span<const std::byte> image_;  // what map_ maps, or the caller's image
  uint32_t version_ = 0;
  size_t alignment_ = 0;
  size_t file_bytes_ = 0;
  size_t tensor_bytes_ = 0;
  std::vector<GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> value_index_;   // views into image_
  std::unordered_map<std::string_view, size_t> tensor_index_;  // views into tensors_, which is never resized again
};

}  // namespace shoal::models
