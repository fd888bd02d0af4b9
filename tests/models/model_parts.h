// Divides a model file into parts (models/gguf/parts.h).
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "models/gguf/gguf.h"
#include "tests/support/gguf_writer.h"

namespace shoal::models {

/// Returns the bytes of a value in the file. For an array, the bytes begin with the element type and the number of
/// elements.
inline test::Bytes value_bytes(const GgufValue& value) {
  const std::byte* end = value.data;
  for (uint64_t i = 0; value.element == GgufType::kString && i < value.count; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, end, sizeof length);
    end += sizeof length + length;
  }
  if (value.element != GgufType::kString) end += value.count * size_of(value.element);
  test::Bytes bytes;
  if (value.type == GgufType::kArray) {
    test::append(bytes, static_cast<uint32_t>(value.element));
    test::append(bytes, value.count);
  }
  bytes.insert(bytes.end(), value.data, end);
  return bytes;
}

/// The keys of a part: its number, the number of parts, and the number of tensors of the model.
struct PartKeys {
  uint16_t number = 0, count = 0;
  int32_t tensors = 0;
};

/// Writes the tensors of `whole` into parts PREFIX-00001-of-0000N.gguf and so on. Part i gets sizes[i] tensors. Returns
/// the paths of the parts. `edit` may change the keys of a part.
inline std::vector<std::string> write_parts(const GgufFile& whole, const std::string& prefix,
                                            const std::vector<size_t>& sizes,
                                            const std::function<void(PartKeys&)>& edit = {}) {
  std::vector<std::string> paths;
  size_t next = 0;
  for (size_t part = 0; part < sizes.size(); ++part) {
    test::GgufWriter writer;
    for (const GgufValue& value : whole.values()) {
      if (part == 0) writer.add_raw(std::string(value.key), static_cast<uint32_t>(value.type), value_bytes(value));
    }
    PartKeys keys{static_cast<uint16_t>(part), static_cast<uint16_t>(sizes.size()),
                  static_cast<int32_t>(whole.tensors().size())};
    if (edit) edit(keys);
    writer.add("split.no", keys.number).add("split.count", keys.count).add("split.tensors.count", keys.tensors);
    for (size_t i = 0; i < sizes[part]; ++i) {
      const GgufTensor& tensor = whole.tensors()[next++];
      test::GgufTensorSpec spec{tensor.name, traits(tensor.dtype).gguf_type, {}, {}, {}, {}};
      spec.dims.assign(tensor.shape.begin(), tensor.shape.begin() + tensor.dims);
      spec.data.assign(tensor.data, tensor.data + tensor.bytes);
      writer.add_tensor(spec);
    }
    paths.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", prefix, part + 1, sizes.size()));
    writer.write(paths.back());
  }
  return paths;
}

}  // namespace shoal::models
