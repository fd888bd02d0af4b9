// The op pad. The bits of elements are copied. New elements at the ends of a row are copies of elements inside the same
// row of the result, or the bits of the value.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// Index of the source element of element i of the result on an axis. -1 for a new element in mode kConstant.
int64_t source_index(const PadParams& params, const Tensor& x, int axis, int64_t i) {
  const int64_t length = x.shape[axis];
  i -= params.before[axis];
  if (i >= 0 && i < length) return i;
  if (params.mode == PadMode::kConstant) return -1;
  if (params.mode == PadMode::kEdge) return std::clamp<int64_t>(i, 0, length - 1);
  return i < 0 ? -i : 2 * (length - 1) - i;
}

template <class T>
void run_elements(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const auto& params = std::get<PadParams>(node.params);
  const int64_t length = x.shape[0], before = params.before[0];
  T value;
  traits(node.dtype).from_f32(&params.value, &value, 1);
  for_rows(ctx, node.shape, [&](RowIndex row) {
    T* to = reinterpret_cast<T*>(row_at(node, row));
    const RowIndex from{source_index(params, x, 1, row.i1), source_index(params, x, 2, row.i2),
                        source_index(params, x, 3, row.i3)};
    if (from.i1 < 0 || from.i2 < 0 || from.i3 < 0) {
      std::fill_n(to, node.shape[0], value);
      return;
    }
    copy_elements(x, row_at(x, from), 0, length, reinterpret_cast<std::byte*>(to + before));
    const auto add = [&](int64_t i) {
      const int64_t inside = source_index(params, x, 0, i);
      to[i] = inside < 0 ? value : to[before + inside];
    };
    for (int64_t i = 0; i < before; ++i) add(i);
    for (int64_t i = before + length; i < node.shape[0]; ++i) add(i);
  });
}

void run(const TeamContext& ctx, Tensor& node) {
  node.dtype == DType::kF32 ? run_elements<uint32_t>(ctx, node) : run_elements<uint16_t>(ctx, node);
}

bool supports(const Tensor& node) {
  return maps_floats(node) && node.src[0]->dtype == node.dtype;
}

}  // namespace

const OpKernel kPadKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
