#include "devices/cpu/unpacked.h"

#include "devices/buffer.h"
#include "devices/cpu/packed_buffer.h"

namespace shoal::cpu {
namespace {

bool is_unreadable(const Tensor& node, size_t i) {
  return node.src[i] != nullptr && is_packed(*node.src[i]) && !reads_packed(node, i);
}

/// The whole storage of the first source, which is packed, into the memory of the node.
void unpack(const TeamContext&, Tensor& node) {
  const Tensor& packed = *node.src[0];
  packed.buffer->get(packed, node.data, 0, packed.bytes());
}

}  // namespace

Tensor& UnpackedSources::copy_of(const Tensor& tensor) {
  return tensors_.emplace_back(tensor);
}

/// A step's node that makes the storage of `source` in its own memory.
Tensor* UnpackedSources::unpacked(const Tensor& source) {
  Tensor& node = copy_of(*source.storage());
  node.data = memory_.emplace_back(node.bytes()).data();
  node.buffer = nullptr;
  node.src = {const_cast<Tensor*>(source.storage())};
  return &node;
}

void UnpackedSources::insert_into(std::vector<Step>& steps) {
  tensors_.clear();
  memory_.clear();
  std::vector<Step> all;
  for (const Step& step : steps) {
    Step changed = step;
    for (size_t i = 0; i < step.node->src.size(); ++i) {
      if (!is_unreadable(*step.node, i)) continue;
      if (changed.node == step.node) changed.node = &copy_of(*step.node);
      const Tensor& source = *step.node->src[i];
      Tensor* storage = unpacked(source);
      storage->id = step.node->id;  // the same segment of the plan
      all.push_back({unpack, storage, nullptr, true, true});
      Tensor& view = copy_of(source);
      view.data = storage->data + source.view_offset;
      view.buffer = nullptr;
      changed.node->src[i] = &view;
    }
    all.push_back(changed);
  }
  steps = std::move(all);
}

}  // namespace shoal::cpu
