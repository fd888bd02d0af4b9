#include "models/gguf/parse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "base/printable.h"
#include "models/gguf/foreign.h"

namespace shoal::models {
namespace {

static_assert(sizeof(size_t) == 8, "offsets in the file are stored in size_t");
static_assert(std::endian::native == std::endian::little, "values are read from the mapping without swapping bytes");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMinAlignment = 8;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxNameBytes = 64;
// Minimum size of a key in bytes (length, one character, type, one byte), and minimum size of a tensor info in bytes
// (length, one character, number of dimensions, one dimension, type, offset). read_header() rejects a header if its
// keys or its tensor infos would need more than the rest of the file.
constexpr size_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr size_t kMinInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;

struct TypeTraits {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<TypeTraits, kGgufTypeCount> kTypes{{{"u8", 1},
                                                         {"i8", 1},
                                                         {"u16", 2},
                                                         {"i16", 2},
                                                         {"u32", 4},
                                                         {"i32", 4},
                                                         {"f32", 4},
                                                         {"bool", 1},
                                                         {"string", 0},
                                                         {"array", 0},
                                                         {"u64", 8},
                                                         {"i64", 8},
                                                         {"f64", 8}}};

/// Tensor types of the GGUF format that shoal does not support. Error messages contain these names.
struct ForeignType {
  uint32_t number;
  std::string_view name;
};
constexpr ForeignType kForeignTypes[] = {
#define SHOAL_FOREIGN(name, number) {number, #name},
#include "graph/dtypes.def"
};

/// A position in the image. Each read checks the bounds of the image. The caller of a read passes the name of the item.
/// Errors for a truncated file therefore name the item and the byte. Borrows the image and the path.
class Cursor {
 public:
  Cursor(std::span<const std::byte> image, const std::string& path) : image_(image), path_(path) {}

  size_t position() const { return position_; }
  size_t remaining() const { return image_.size() - position_; }
  const std::byte* here() const { return image_.data() + position_; }

  /// Sets the subject of later messages: enter("key 'a.b'"). enter("") clears the subject.
  void enter(std::string subject) { subject_ = std::move(subject); }

  template <class T>
  T read(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, here(), sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  /// Reads a 64-bit length in bytes, then a string of this length. A length above `limit` is an error.
  std::string_view read_string(std::string_view what, uint64_t limit = UINT64_MAX) {
    const size_t start = position_;
    const auto length = read<uint64_t>(what);
    if (length > limit) reject(start, fmt::format("{} has {} bytes, but at most {} are valid", what, length, limit));
    if (length > remaining()) {
      reject(start, fmt::format("{} has {} bytes, but only {} bytes follow in the file", what, length, remaining()));
    }
    const std::string_view text(reinterpret_cast<const char*>(here()), length);
    position_ += length;
    return text;
  }
  /// Skips `count` elements of `size` bytes each. Throws if the image is too short, even if count * size exceeds 64
  /// bits.
  void skip(uint64_t count, size_t size, std::string_view what) {
    if (count > remaining() / size) {
      reject(position_, fmt::format("{}: {} x {} bytes do not fit in the {} bytes that follow in the file", what, count,
                                    size, remaining()));
    }
    position_ += count * size;
  }

  /// Throws "<path>: <subject>: <what> (at byte <at>); <remedy>".
  [[noreturn]] void reject(size_t at, const std::string& what) const {
    refuse(at, what, "the file is damaged or not valid GGUF: download or convert it again");
  }
  /// Like reject(), but with another remedy. Used for valid files with unsupported content.
  [[noreturn]] void refuse(size_t at, const std::string& what, const std::string& remedy) const {
    fail<InvalidArgument>("{}: {}{} (at byte {}); {}", path_, subject_.empty() ? "" : subject_ + ": ", what, at,
                          remedy);
  }

 private:
  void need(size_t bytes, std::string_view what) const {
    if (bytes > remaining()) reject(position_, fmt::format("the file ends inside {}", what));
  }

  std::span<const std::byte> image_;
  const std::string& path_;
  std::string subject_;
  size_t position_ = 0;  // <= image_.size()
};

struct Header {
  uint32_t version;
  uint64_t tensors;
  uint64_t keys;
};

Header read_header(Cursor& cursor) {
  if (cursor.read<uint32_t>("the magic number") != kMagic) {
    cursor.reject(0, "does not start with \"GGUF\"");
  }
  Header header{};
  header.version = cursor.read<uint32_t>("the version");
  if ((header.version & 0xffff) == 0 && header.version != 0) {
    cursor.reject(4, "is big-endian, but only little-endian files are supported");
  }
  if (header.version != 2 && header.version != 3) {
    cursor.reject(4, fmt::format("has GGUF version {}; versions 2 and 3 are supported", header.version));
  }
  header.tensors = cursor.read<uint64_t>("the number of tensors");
  header.keys = cursor.read<uint64_t>("the number of keys");
  if (header.keys > cursor.remaining() / kMinKeyBytes) {
    cursor.reject(16, fmt::format("{} keys cannot fit in {} bytes", header.keys, cursor.remaining()));
  }
  if (header.tensors > cursor.remaining() / kMinInfoBytes) {
    cursor.reject(8, fmt::format("{} tensors cannot fit in {} bytes", header.tensors, cursor.remaining()));
  }
  return header;
}

std::string_view read_name(Cursor& cursor, std::string_view what, uint64_t limit,
                           std::unordered_set<std::string_view>& seen) {
  cursor.enter("");
  const size_t start = cursor.position();
  const std::string_view name = cursor.read_string(what, limit);
  if (name.empty()) cursor.reject(start, fmt::format("{} is empty", what));
  if (!seen.insert(name).second) cursor.reject(start, fmt::format("{} '{}' occurs twice", what, printable(name)));
  return name;
}

GgufType read_type(Cursor& cursor) {
  const size_t start = cursor.position();
  const auto number = cursor.read<uint32_t>("the value type");
  if (number >= kGgufTypeCount) cursor.reject(start, fmt::format("unknown value type {}", number));
  return static_cast<GgufType>(number);
}

void check_booleans(const Cursor& cursor, const GgufValue& value, size_t start) {
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto byte = std::to_integer<unsigned>(value.data[i]);
    if (byte > 1) cursor.reject(start + i, fmt::format("a boolean is {}, not 0 or 1", byte));
  }
}

GgufValue read_value(Cursor& cursor, std::string_view key) {
  cursor.enter(fmt::format("key '{}'", printable(key)));
  GgufValue value;
  value.key = key;
  value.type = value.element = read_type(cursor);
  if (value.type == GgufType::kArray) {
    const size_t start = cursor.position();
    value.element = read_type(cursor);
    if (value.element == GgufType::kArray) cursor.reject(start, "arrays of arrays are not supported");
    value.count = cursor.read<uint64_t>("the number of elements");
  }
  const size_t start = cursor.position();
  value.data = cursor.here();
  if (value.element == GgufType::kString) {
    for (uint64_t i = 0; i < value.count; ++i) cursor.read_string("a string");
    return value;
  }
  cursor.skip(value.count, size_of(value.element), "the value");
  if (value.element == GgufType::kBool) check_booleans(cursor, value, start);
  return value;
}

size_t read_alignment(const Cursor& cursor, std::span<const std::byte> image, const std::vector<GgufValue>& values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](const GgufValue& v) { return v.key == "general.alignment"; });
  if (found == values.end()) return kDefaultAlignment;
  const auto at = static_cast<size_t>(found->data - image.data());
  if (found->type != GgufType::kU32) {
    cursor.reject(at, fmt::format("key 'general.alignment' should be u32, found {}", name_of(found->type)));
  }
  uint32_t alignment = 0;
  std::memcpy(&alignment, found->data, sizeof alignment);
  if (!std::has_single_bit(alignment) || alignment < kMinAlignment) {
    cursor.reject(at, fmt::format("key 'general.alignment' is {}, expected a power of two of at least {}", alignment,
                                  kMinAlignment));
  }
  return alignment;
}

void read_shape(Cursor& cursor, GgufTensor& tensor) {
  const size_t start = cursor.position();
  const auto dims = cursor.read<uint32_t>("the number of dimensions");
  if (dims < 1 || dims > kMaxDims) cursor.reject(start, fmt::format("{} dimensions; 1 to 4 are supported", dims));
  tensor.dims = static_cast<int>(dims);
  int64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const size_t at = cursor.position();
    const auto length = cursor.read<int64_t>("the dimensions");
    if (length <= 0) cursor.reject(at, fmt::format("dimension {} has length {}", i, length));
    if (__builtin_mul_overflow(elements, length, &elements)) {
      cursor.reject(at, "the number of elements exceeds 63 bits");
    }
    tensor.shape[i] = length;
  }
}

DType read_dtype(Cursor& cursor) {
  const size_t start = cursor.position();
  const auto number = cursor.read<uint32_t>("the tensor type");
  if (const auto dtype = dtype_from_gguf(number)) return *dtype;
  const auto foreign = std::find_if(std::begin(kForeignTypes), std::end(kForeignTypes),
                                    [&](const ForeignType& type) { return type.number == number; });
  std::string supported;
  for (int i = 0; i < kDTypeCount; ++i) supported += fmt::format(" {}", name_of(static_cast<DType>(i)));
  if (foreign != std::end(kForeignTypes)) {
    cursor.refuse(start, fmt::format("type {} is not supported", foreign->name),
                  fmt::format("quantise the model to another type, such as q4_K_M; supported types are{}", supported));
  }
  cursor.refuse(start, fmt::format("unknown tensor type {}; supported types are{}", number, supported),
                "the file is damaged or has a newer format: download it again, or convert it to a supported type");
}

// Sets tensor.bytes. Counts blocks before bytes, so only the product of blocks and bytes per block can overflow. This
// product is checked.
void size_tensor(const Cursor& cursor, size_t at, GgufTensor& tensor) {
  const DTypeTraits& type = traits(tensor.dtype);
  if (tensor.shape[0] % type.block_elems != 0) {
    cursor.reject(at, fmt::format("row length {} is not a multiple of the {} elements of a {} block", tensor.shape[0],
                                  type.block_elems, type.name));
  }
  const int64_t elements = tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
  if (__builtin_mul_overflow(static_cast<size_t>(elements / type.block_elems), type.block_bytes, &tensor.bytes)) {
    cursor.reject(at, fmt::format("{} elements of {} need more than 2^64 bytes", elements, type.name));
  }
}

// Reads a tensor info. The offset in the result is still relative to the start of the tensor data.
GgufTensor read_tensor_info(Cursor& cursor, std::unordered_set<std::string_view>& seen) {
  GgufTensor tensor;
  tensor.name = read_name(cursor, "a tensor name", kMaxNameBytes, seen);
  cursor.enter(fmt::format("tensor '{}'", printable(tensor.name)));
  const size_t start = cursor.position();
  read_shape(cursor, tensor);
  tensor.dtype = read_dtype(cursor);
  size_tensor(cursor, start, tensor);
  tensor.offset = cursor.read<uint64_t>("the offset");
  return tensor;
}

// Converts the relative offset into an offset in the image. `data_start` is the aligned end of the tensor infos.
void place_tensor(Cursor& cursor, std::span<const std::byte> image, size_t alignment, size_t data_start,
                  GgufTensor& tensor) {
  cursor.enter(fmt::format("tensor '{}'", printable(tensor.name)));
  if (tensor.offset % alignment != 0) {
    cursor.reject(data_start, fmt::format("offset {} is not a multiple of the alignment {}", tensor.offset, alignment));
  }
  const size_t available = data_start <= image.size() ? image.size() - data_start : 0;
  if (tensor.offset > available || tensor.bytes > available - tensor.offset) {
    cursor.reject(data_start, fmt::format("{} bytes at offset {} exceed the tensor data of {} bytes", tensor.bytes,
                                          tensor.offset, available));
  }
  tensor.offset += data_start;
  tensor.data = image.data() + tensor.offset;
}

void check_overlaps(Cursor& cursor, const std::vector<GgufTensor>& tensors) {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->offset - order[i - 1]->offset >= order[i - 1]->bytes) continue;
    cursor.enter(fmt::format("tensor '{}'", printable(order[i]->name)));
    cursor.reject(order[i]->offset, fmt::format("overlaps tensor '{}'", printable(order[i - 1]->name)));
  }
}

}  // namespace

std::string_view name_of(GgufType type) {
  return kTypes.at(static_cast<size_t>(type)).name;
}
size_t size_of(GgufType type) {
  return kTypes.at(static_cast<size_t>(type)).bytes;
}

GgufContents parse_gguf(std::span<const std::byte> image, const std::string& path) {
  const std::string foreign = foreign_format(image);
  require<InvalidArgument>(foreign.empty(), "{}: {}", path, foreign);
  Cursor cursor(image, path);
  const Header header = read_header(cursor);
  GgufContents contents;
  contents.version = header.version;

  std::unordered_set<std::string_view> keys;
  for (uint64_t i = 0; i < header.keys; ++i) {
    contents.values.push_back(read_value(cursor, read_name(cursor, "a key", kMaxKeyBytes, keys)));
  }
  cursor.enter("");
  contents.alignment = read_alignment(cursor, image, contents.values);

  std::unordered_set<std::string_view> names;
  for (uint64_t i = 0; i < header.tensors; ++i) contents.tensors.push_back(read_tensor_info(cursor, names));

  // This sum cannot overflow, because the position is inside the image and the alignment is below 2^32.
  const size_t data_start = (cursor.position() + contents.alignment - 1) & ~(contents.alignment - 1);
  for (GgufTensor& tensor : contents.tensors) place_tensor(cursor, image, contents.alignment, data_start, tensor);
  check_overlaps(cursor, contents.tensors);
  return contents;
}

}  // namespace shoal::models
