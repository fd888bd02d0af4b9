#include "models/gguf/gguf.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "models/gguf/parse.h"
#include "models/gguf/parts.h"

namespace shoal::models {
namespace {

#define SHOAL_GGUF_TYPES(X)                                                                             \
  X(uint8_t, kU8)                                                                                       \
  X(int8_t, kI8)                                                                                        \
  X(uint16_t, kU16)                                                                                     \
  X(int16_t, kI16) X(uint32_t, kU32) X(int32_t, kI32) X(uint64_t, kU64) X(int64_t, kI64) X(float, kF32) \
      X(double, kF64) X(bool, kBool) X(std::string, kString)

// The GGUF type of a C++ type.
template <class T>
constexpr GgufType kTypeOf = GgufType::kCount;
#define SHOAL_TYPE_OF(T, type) \
  template <>                  \
  constexpr GgufType kTypeOf<T> = GgufType::type;
SHOAL_GGUF_TYPES(SHOAL_TYPE_OF)
#undef SHOAL_TYPE_OF

// Decodes one element and advances `data`. The parser has checked that the element is inside the image.
template <class T>
T decode(const std::byte*& data) {
  if constexpr (std::is_same_v<T, std::string>) {
    const auto length = decode<uint64_t>(data);
    std::string text(reinterpret_cast<const char*>(data), length);
    data += length;
    return text;
  } else {
    T value;
    std::memcpy(&value, data, sizeof(T));
    data += sizeof(T);
    return value;
  }
}

std::string describe_type(GgufType type, GgufType element) {
  return type == GgufType::kArray ? fmt::format("array of {}", name_of(element)) : std::string(name_of(type));
}

}  // namespace

GgufFile::GgufFile(const std::string& path)
    : path_(path), map_({path}), image_(map_.bytes()), file_bytes_(image_.size()) {
  parse();
  const std::vector<std::string> paths = part_paths(*this);
  if (paths.size() > 1) open_parts(paths);
}

GgufFile::GgufFile(std::string name, std::span<const std::byte> image)
    : path_(std::move(name)), image_(image), file_bytes_(image.size()) {
  parse();
}

void GgufFile::parse() {
  GgufContents contents = parse_gguf(image_, path_);
  version_ = contents.version;
  alignment_ = contents.alignment;
  values_ = std::move(contents.values);
  tensors_ = std::move(contents.tensors);
  index();
}

void GgufFile::open_parts(const std::vector<std::string>& paths) {
  map_ = GgufMap(paths);
  image_ = map_.bytes();
  file_bytes_ = 0;
  std::vector<GgufFile> parts;
  for (const GgufMap::Part& part : map_.parts()) {
    parts.emplace_back(part.path, image_.subspan(part.begin, part.size));
    file_bytes_ += part.size;
  }
  check_parts(parts);
  values_ = std::move(parts.front().values_);
  tensors_.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    for (GgufTensor& tensor : parts[i].tensors_) {
      tensor.offset += map_.parts()[i].begin;
      tensors_.push_back(std::move(tensor));
    }
  }
  index();
}

void GgufFile::index() {
  value_index_.clear();
  tensor_index_.clear();
  tensor_bytes_ = 0;
  for (size_t i = 0; i < values_.size(); ++i) value_index_.emplace(values_[i].key, i);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensor_index_.emplace(tensors_[i].name, i);
    tensor_bytes_ += tensors_[i].bytes;  // tensors do not overlap, so the sum does not exceed the size of the files
  }
}

const GgufValue* GgufFile::find_value(std::string_view key) const {
  const auto found = value_index_.find(key);
  return found == value_index_.end() ? nullptr : &values_[found->second];
}

const GgufValue& GgufFile::require_value(std::string_view key) const {
  const GgufValue* value = find_value(key);
  require<InvalidArgument>(value != nullptr, "{}: key '{}' is missing; convert the model again", path_, printable(key));
  return *value;
}

void GgufFile::require_type(const GgufValue& value, GgufType type, GgufType element) const {
  require<InvalidArgument>(value.type == type && value.element == element,
                           "{}: key '{}' should be {}, found {}; convert the model again", path_, printable(value.key),
                           describe_type(type, element), describe_type(value.type, value.element));
}

template <class T>
T GgufFile::get(std::string_view key) const {
  const GgufValue& value = require_value(key);
  require_type(value, kTypeOf<T>, kTypeOf<T>);
  const std::byte* data = value.data;
  return decode<T>(data);
}

template <class T>
std::optional<T> GgufFile::find(std::string_view key) const {
  return has(key) ? std::optional<T>(get<T>(key)) : std::nullopt;
}

template <class T>
std::vector<T> GgufFile::get_array(std::string_view key) const {
  const GgufValue& value = require_value(key);
  require_type(value, GgufType::kArray, kTypeOf<T>);
  std::vector<T> elements;
  elements.reserve(value.count);
  const std::byte* data = value.data;
  for (uint64_t i = 0; i < value.count; ++i) elements.push_back(decode<T>(data));
  return elements;
}

uint32_t GgufFile::get_positive(std::string_view key) const {
  const auto value = get<uint32_t>(key);
  require<InvalidArgument>(value > 0, "{}: key '{}' is 0, expected a positive number; convert the model again", path_,
                           printable(key));
  return value;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

void GgufFile::rename_tensor(std::string_view name, const std::string& to) {
  const auto found = tensor_index_.find(name);
  if (found == tensor_index_.end() || tensor_index_.contains(to)) return;
  const size_t position = found->second;
  tensor_index_.erase(found);  // erased before the renaming, because the key is a view of the old name
  tensors_[position].name = to;
  tensor_index_.emplace(tensors_[position].name, position);
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  const GgufTensor* tensor = find_tensor(name);
  require<InvalidArgument>(tensor != nullptr, "{}: tensor '{}' is missing; the file is incomplete or of another model",
                           path_, printable(name));
  return *tensor;
}

void GgufFile::require_range(const GgufTensor& tensor, size_t offset, size_t size) const {
  require<InvalidArgument>(offset <= tensor.bytes && size <= tensor.bytes - offset,
                           "{}: tensor '{}' has {} bytes, but {} bytes from offset {} on were requested", path_,
                           printable(tensor.name), tensor.bytes, size, offset);
}

void GgufFile::read(const GgufTensor& tensor, size_t offset, std::span<std::byte> to) const {
  require_range(tensor, offset, to.size());
  if (!map_.bytes().empty()) return map_.read(tensor.offset + offset, to);
  std::copy_n(tensor.data + offset, to.size(), to.data());
}

uint64_t GgufFile::header_digest() const {
  uint64_t sum = 14695981039346656037U;
  const auto add = [&](const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 1099511628211U;
  };
  size_t first = image_.size();
  for (const GgufTensor& tensor : tensors_) first = std::min(first, tensor.offset);
  add(image_.data(), first);
  for (const GgufTensor& tensor : tensors_) {
    add(tensor.name.data(), tensor.name.size());
    add(&tensor.dtype, sizeof(tensor.dtype));
    add(tensor.shape.data(), sizeof(tensor.shape));
    add(&tensor.offset, sizeof(tensor.offset));
  }
  return sum;
}

std::span<const std::byte> GgufFile::tensor_span() const {
  size_t begin = image_.size(), end = 0;
  for (const GgufTensor& tensor : tensors_) {
    begin = std::min(begin, tensor.offset);
    end = std::max(end, tensor.offset + tensor.bytes);
  }
  return begin < end ? image_.subspan(begin, end - begin) : std::span<const std::byte>();
}

std::span<std::byte> GgufFile::unlock_tensors() {
  const std::span<const std::byte> bytes = tensor_span();
  if (bytes.empty() || map_.bytes().empty()) return {};
  if (!map_.unlock(static_cast<size_t>(bytes.data() - image_.data()), bytes.size())) return {};
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

void GgufFile::fetch(const GgufTensor& tensor, size_t offset, size_t size) const {
  require_range(tensor, offset, size);
  if (!map_.bytes().empty()) map_.fetch(tensor.offset + offset, size);
}

#define SHOAL_GGUF_ACCESS(T, type)                                     \
  template T GgufFile::get<T>(std::string_view) const;                 \
  template std::optional<T> GgufFile::find<T>(std::string_view) const; \
  template std::vector<T> GgufFile::get_array<T>(std::string_view) const;
SHOAL_GGUF_TYPES(SHOAL_GGUF_ACCESS)
#undef SHOAL_GGUF_ACCESS
#undef SHOAL_GGUF_TYPES

}  // namespace shoal::models
