// The op concat. It copies every source to the source's position in the result.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const int axis = std::get<ConcatParams>(node.params).axis;
  const DTypeTraits& type = traits(node.dtype);
  std::byte* base = node.data;
  for (const Tensor* source : node.src) {
    for_pieces(ctx, source->shape, [&](RowIndex row, int64_t begin, int64_t n) {
      std::byte* to = base + row.i1 * node.strides[1] + row.i2 * node.strides[2] + row.i3 * node.strides[3];
      const std::byte* from = row_at(*source, row);
      copy_elements(*source, from, begin, n, to + begin / type.block_elems * type.block_bytes);
    });
    const int64_t steps = axis == 0 ? source->shape[0] / type.block_elems : source->shape[axis];
    base += steps * node.strides[axis];
  }
}

bool supports(const Tensor& node) {
  for (const Tensor* source : node.src) {
    if (!is_readable(source) || source->dtype != node.dtype) return false;
  }
  return node.is_contiguous();
}

}  // namespace

const OpKernel kConcatKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
