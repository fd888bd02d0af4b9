#include "tests/support/gguf_writer.h"

#include <fstream>

#include "tests/support/encoders.h"

namespace shoal::test {
namespace {

uint64_t padded(uint64_t size, uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

}  // namespace

GgufWriter& GgufWriter::add_raw(const std::string& key, uint32_t type, const Bytes& value) {
  append(keys_, key);
  append(keys_, type);
  keys_.insert(keys_.end(), value.begin(), value.end());
  ++keys_added_;
  return *this;
}

GgufWriter& GgufWriter::add_tensor(const GgufTensorSpec& tensor) {
  tensors_.push_back(tensor);
  return *this;
}

GgufWriter& GgufWriter::add_tensor(const std::string& name, DType dtype, const std::vector<int64_t>& dims,
                                   std::span<const float> values) {
  GgufTensorSpec tensor{name, traits(dtype).gguf_type, dims, {}, {}, {}};
  tensor.data.resize(bytes_for(dtype, static_cast<int64_t>(values.size())));
  from_f32(dtype, values.data(), tensor.data.data(), static_cast<int64_t>(values.size()));
  return add_tensor(tensor);
}

Bytes GgufWriter::image() const {
  Bytes image, data;
  append(image, magic);
  append(image, version);
  append(image, tensor_count.value_or(tensors_.size()));
  append(image, key_count.value_or(keys_added_));
  image.insert(image.end(), keys_.begin(), keys_.end());
  for (const GgufTensorSpec& tensor : tensors_) {
    append(image, tensor.name);
    append(image, tensor.dim_count.value_or(static_cast<uint32_t>(tensor.dims.size())));
    for (const int64_t length : tensor.dims) append(image, length);
    append(image, tensor.type);
    data.resize(padded(data.size(), alignment));
    append(image, tensor.offset.value_or(data.size()));
    data.insert(data.end(), tensor.data.begin(), tensor.data.end());
  }
  if (!tensors_.empty()) image.resize(padded(image.size(), alignment));
  image.insert(image.end(), data.begin(), data.end());
  return image;
}

void GgufWriter::write(const std::string& path) const {
  write_file(path, image());
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file;
  file.exceptions(std::ios::failbit | std::ios::badbit);
  file.open(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace shoal::test
