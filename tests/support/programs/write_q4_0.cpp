// Creates tiny-kjv-5m-q4_0.gguf from two files of data/models. data/models describes the new file but does not contain
// it.
//
//   write_q4_0 tiny-kjv-5m-f16.gguf tiny-kjv-5m-q4_k_m.gguf tiny-kjv-5m-q4_0.gguf
//
// The Q4_K_M file provides the metadata, the order of the tensors, and the Q6_K and F32 tensors, which llama.cpp's Q4_0
// file also contains. All other tensors are quantised from the F16 file, as llama.cpp quantises them. The reference
// outputs were made with llama.cpp's Q4_0 file. So the program writes the result only if its bytes equal the bytes of
// that file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/dtype.h"
#include "models/gguf/gguf.h"
#include "tests/support/gguf_writer.h"

namespace shoal::test {
namespace {

using models::GgufFile;
using models::GgufTensor;
using models::GgufType;
using models::GgufValue;

constexpr size_t kSize = 3056192;
constexpr uint64_t kDigest = 0xfc5e37e243a16a5a;  // FNV-1a
constexpr uint32_t kFileType = 2;                 // number of the file type "mostly Q4_0"

uint64_t digest(std::span<const std::byte> bytes) {
  uint64_t value = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) value = (value ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return value;
}

/// Returns a value as the bytes that add_raw() expects.
Bytes raw(const GgufValue& value) {
  Bytes bytes;
  if (value.type == GgufType::kArray) {
    append(bytes, static_cast<uint32_t>(value.element));
    append(bytes, value.count);
  }
  const std::byte* end = value.data;
  for (uint64_t i = 0; i < value.count; ++i) {
    uint64_t size = models::size_of(value.element);
    if (value.element == GgufType::kString) {
      std::memcpy(&size, end, sizeof(size));
      size += sizeof(size);
    }
    end += size;
  }
  bytes.insert(bytes.end(), value.data, end);
  return bytes;
}

/// Quantises a block as llama.cpp does. The result differs from the result of traits().from_f32 in two points:
/// - The first value with the largest magnitude always becomes -8.
/// - The values are divided by the scale before the scale is rounded to f16.
void append_q4_0(Bytes& bytes, std::span<const float, 32> values) {
  const float most =
      *std::max_element(values.begin(), values.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float scale = most / -8, factor = scale != 0 ? 1 / scale : 0;
  append(bytes, f32_to_f16(scale));
  const auto level = [&](float value) { return std::min(static_cast<int>(value * factor + 8.5F), 15); };
  for (size_t i = 0; i < 16; ++i) append(bytes, static_cast<uint8_t>(level(values[i]) | level(values[i + 16]) << 4));
}

Bytes quantised(const GgufTensor& tensor, const GgufFile& file) {
  require<InvalidArgument>(tensor.dtype == DType::kF16 && tensor.shape[0] % 32 == 0,
                           "{}: {} should be f16 with rows of whole blocks of 32, found {} with rows of {}",
                           file.path(), tensor.name, traits(tensor.dtype).name, tensor.shape[0]);
  std::vector<float> values(tensor.bytes / sizeof(uint16_t));
  traits(DType::kF16).to_f32(tensor.data, values.data(), static_cast<int64_t>(values.size()));
  Bytes bytes;
  for (size_t i = 0; i < values.size(); i += 32) append_q4_0(bytes, std::span<const float, 32>(&values[i], 32));
  return bytes;
}

GgufTensorSpec make_tensor(const GgufTensor& like, const GgufFile& f16) {
  const bool kept = like.dtype == DType::kF32 || like.name == "output.weight";
  const DType dtype = kept ? like.dtype : DType::kQ4_0;
  GgufTensorSpec tensor{like.name, traits(dtype).gguf_type, {}, {}, {}, {}};
  tensor.dims.assign(like.shape.begin(), like.shape.begin() + like.dims);
  tensor.data = kept ? Bytes(like.data, like.data + like.bytes) : quantised(f16.tensor(like.name), f16);
  return tensor;
}

Bytes make(const GgufFile& f16, const GgufFile& q4_k_m) {
  GgufWriter writer;
  for (const GgufValue& value : q4_k_m.values()) {
    if (value.key == "general.file_type") {
      writer.add(std::string(value.key), kFileType);
    } else {
      writer.add_raw(std::string(value.key), static_cast<uint32_t>(value.type), raw(value));
    }
  }
  for (const GgufTensor& tensor : q4_k_m.tensors()) writer.add_tensor(make_tensor(tensor, f16));
  return writer.image();
}

/// Writes a file with another name, then renames it to `path`. So `path` never contains an incomplete file.
void write(const std::string& path, const Bytes& bytes) {
  const std::string part = path + ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  require<InvalidArgument>(!file.fail(), "cannot write {}; check that its folder exists and has space", part);
  std::filesystem::rename(part, path);
}

void run(std::span<char*> arguments) {
  require<InvalidArgument>(arguments.size() == 4,
                           "expected 3 files: the F16 file, the Q4_K_M file and the output file");
  const Bytes bytes = make(GgufFile(arguments[1]), GgufFile(arguments[2]));
  require<InvalidArgument>(
      bytes.size() == kSize && digest(bytes) == kDigest,
      "{} would have {} bytes with the digest {:#x}, not {} with {:#x}: {} or {} is not the file of data/models, or "
      "this compiler rounds differently",
      arguments[3], bytes.size(), digest(bytes), kSize, kDigest, arguments[1], arguments[2]);
  write(arguments[3], bytes);
}

}  // namespace
}  // namespace shoal::test

int main(int argc, char** argv) {
  try {
    shoal::test::run({argv, static_cast<size_t>(argc)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: write_q4_0: {}\n", error.what());
    return 1;
  }
  return 0;
}
