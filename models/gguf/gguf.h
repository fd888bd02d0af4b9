// A GgufFile maps a GGUF file read-only and finds metadata by key and tensors by name. GgufFile supports versions 2 and
// 3 in little-endian byte order. If a model has several files (parts.h), the caller opens the first file. GgufFile then
// maps all files one after another (map.h), so that all files act as one file.
//
// Opening checks the whole structure of the file (parse.h lists the checks). Therefore, later accesses stay inside the
// mapping, and sizes do not overflow. Strings and numbers are decoded from the mapping on request. read() copies tensor
// data and throws if the file was truncated. Callers may also access tensor data directly in the mapping. If the file
// was truncated, a direct access beyond the end of the file raises SIGBUS (map.h). Only rename_tensor() and writes to
// the bytes from unlock_tensors() change a GgufFile. Any number of threads may read a GgufFile. Pointers and views into
// the file are valid until the GgufFile is destroyed. Moving the GgufFile keeps these pointers and views valid.
//
// Errors are InvalidArgument, or DeviceError if the system refuses to map or read the file. Each message is one line:
//   "m.gguf: key 'a.b': the file ends inside the value (at byte 8123); the file is damaged or not valid GGUF: download
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

/// Value types, with their numbers in the file format.
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

/// Returns "u32", "string", "array" and so on.
std::string_view name_of(GgufType type);
/// Returns the size of one value in bytes; 0 for strings and arrays.
size_t size_of(GgufType type);

/// One key and the location of its value in the file.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kCount;     ///< kArray for arrays
  GgufType element = GgufType::kCount;  ///< for an array, the type of its elements; otherwise equal to `type`
  uint64_t count = 1;                   ///< for an array, the number of elements; otherwise 1
  const std::byte* data = nullptr;      ///< address of the first element, or of the 8-byte length of a string
};

/// The name, type and shape of one tensor, and the location of its bytes.
struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape{1, 1, 1, 1};  ///< shape[0] is innermost; axes that the file does not list have length 1
  int dims = 1;             ///< number of axes that the file lists, 1 to 4
  size_t offset = 0;        ///< offset of the data in bytes from the start of the mapping of all files
  size_t bytes = 0;
  const std::byte* data = nullptr;  ///< address inside the mapping
};

class GgufFile {
 public:
  /// Maps and checks the file. If `path` is the first file of a model in several files, also maps and checks all other
  /// files of the model.
  explicit GgufFile(const std::string& path);
  /// Checks an image in memory. The caller keeps the image alive and unchanged. `name` replaces the path in messages.
  GgufFile(std::string name, std::span<const std::byte> image);

  GgufFile(GgufFile&&) = default;
  GgufFile& operator=(GgufFile&&) = default;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  size_t alignment() const { return alignment_; }
  /// Number of files of the model; 1 for an image in memory.
  size_t file_count() const { return std::max<size_t>(1, map_.parts().size()); }
  /// file_bytes() is the total size of all files. tensor_bytes() is the total size of all tensors without padding.
  size_t file_bytes() const { return file_bytes_; }
  size_t tensor_bytes() const { return tensor_bytes_; }
  /// Hash of all metadata and of the names, types, shapes and offsets of the tensors.
  uint64_t header_digest() const;

  // Metadata. T must be exactly the stored type: uint8_t to int64_t, float, double, bool or std::string.
  /// All keys, in file order.
  std::span<const GgufValue> values() const { return values_; }
  bool has(std::string_view key) const { return find_value(key) != nullptr; }
  /// Returns nullptr if there is no such key.
  const GgufValue* find_value(std::string_view key) const;
  /// Throws if the key is missing or has another type.
  template <class T>
  T get(std::string_view key) const;
  /// Returns nullopt if the key is missing. Throws if the value has another type.
  template <class T>
  std::optional<T> find(std::string_view key) const;
  template <class T>
  T get_or(std::string_view key, T fallback) const {
    return find<T>(key).value_or(std::move(fallback));
  }
  /// Returns a u32 such as a size or a divisor. Throws if the value is 0.
  uint32_t get_positive(std::string_view key) const;
  template <class T>
  std::vector<T> get_array(std::string_view key) const;

  /// All tensors, in file order.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  /// Renames tensor `name` to `to`. No-op if there is no tensor `name`, or if there is already a tensor `to`.
  /// Invalidates pointers to tensors and to their names.
  void rename_tensor(std::string_view name, const std::string& to);
  /// Returns nullptr if there is no such tensor.
  const GgufTensor* find_tensor(std::string_view name) const;
  /// Throws if there is no such tensor.
  const GgufTensor& tensor(std::string_view name) const;
  /// Copies bytes [offset, offset + to.size()) of a tensor of this file. Throws if the file was truncated.
  void read(const GgufTensor& tensor, size_t offset, std::span<std::byte> to) const;
  /// The mapped bytes from the first tensor to the end of the last tensor, including the padding between tensors.
  std::span<const std::byte> tensor_span() const;
  /// Makes the bytes of tensor_span() writable and returns them. Writes never reach the file. Returns an empty span for
  /// an image in memory, or if the system refuses.
  std::span<std::byte> unlock_tensors();
  /// Reads mapped bytes of a tensor from the disk into memory (GgufMap::fetch). Throws like read().
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
  std::span<const std::byte> image_;  // the bytes of map_, or the caller's image
  uint32_t version_ = 0;
  size_t alignment_ = 0;
  size_t file_bytes_ = 0;
  size_t tensor_bytes_ = 0;
  std::vector<GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> value_index_;   // views into image_
  std::unordered_map<std::string_view, size_t> tensor_index_;  // views into tensors_, which is not resized after
                                                               // parsing
};

}  // namespace shoal::models
