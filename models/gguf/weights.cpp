#include "models/gguf/weights.h"

#include "base/error.h"
#include "devices/buffer.h"

namespace shoal::models {

void load_tensors(const GgufFile& file, std::span<Tensor* const> tensors) {
  for (const Tensor* tensor : tensors) {
    const GgufTensor& stored = file.tensor(tensor->name);
    require<InvalidArgument>(
        stored.dtype == tensor->dtype && stored.shape == tensor->shape,
        "{}: tensor '{}' is {} {}, the graph needs {} {}; convert the graph and the weights together", file.path(),
        tensor->name, name_of(stored.dtype), to_string(stored.shape), name_of(tensor->dtype), to_string(tensor->shape));
  }
  for (Tensor* tensor : tensors) {
    const GgufTensor& stored = file.tensor(tensor->name);
    file.fetch(stored, 0, stored.bytes);
    tensor_set(*tensor, stored.data, 0, stored.bytes);
  }
}

}  // namespace shoal::models
