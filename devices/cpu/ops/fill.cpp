// The op fill. It writes one value to every element.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  float values[kChunk];
  std::fill_n(values, kChunk, std::get<FillParams>(node.params).value);
  const DTypeTraits& type = traits(node.dtype);
  for_pieces(ctx, {node.elements(), 1, 1, 1}, [&](RowIndex, int64_t begin, int64_t n) {
    type.from_f32(values, node.data + begin * type.block_bytes, n);
  });
}

bool supports(const Tensor& node) {
  return node.is_contiguous() && !traits(node.dtype).is_quantized;
}

}  // namespace

const OpKernel kFillKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
