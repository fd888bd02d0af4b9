#include "devices/cpu/unpacked.h"

#include "devices/cpu/packed_buffer.h"

namespace shoal::cpu {
namespace {

bool is_unreadable(const Tensor& node, size_t i) {
  return node.src[i] != nullptr && is_packed(*node.src[i]) && !reads_packed(node, i);
}

/// Unpacks the node's source, which is a packed weight, into the node's memory.
void unpack(const TeamContext& ctx, Tensor& node) {
  const auto [begin, end] = share(ctx, node.rows());
  unpack_rows(*node.src[0], begin, end, node.data);
}

}  // namespace

Tensor& UnpackedSources::copy_of(const Tensor& tensor) {
  return tensors_.emplace_back(tensor);
}

size_t UnpackedSources::bytes() const {
  size_t bytes = 0;
  for (const auto& memory : memory_) bytes += memory.size();
  return bytes;
}

void UnpackedSources::insert_into(std::vector<Step>& steps) {
  tensors_.clear();
  memory_.clear();
  unpacked_.clear();
  std::vector<Step> all;
  for (const Step& step : steps) {
    Step changed = step;
    for (size_t i = 0; i < step.node->src.size(); ++i) {
      if (!is_unreadable(*step.node, i)) continue;
      if (changed.node == step.node) changed.node = &copy_of(*step.node);
      const Tensor& source = *step.node->src[i];
      Tensor*& storage = unpacked_[source.storage()];
      if (storage == nullptr) {
        storage = &copy_of(*source.storage());
        storage->data = memory_.emplace_back(storage->bytes()).data();
        storage->buffer = nullptr;
        storage->src = {const_cast<Tensor*>(source.storage())};
        storage->id = step.node->id;  // so that the step is in the node's segment of the plan
        all.push_back({unpack, storage});
      }
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
