// repeat: repeats the source along its axes. fill: sets all elements to one value.
#include <cstring>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/copy.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// `shape` is the source's shape. Its axis 0 counts units of sizeof(Unit) bytes.
template <class Unit>
struct RepeatUnit {
  Operand to, from;
  int64_t shape[kMaxDims];

  __device__ static int64_t modulo(int64_t i, int64_t n) {
    if (i < n) return i;
    return i <= 0x7fffffff ? static_cast<uint32_t>(i) % static_cast<uint32_t>(n) : i % n;
  }
  __device__ void operator()(const Index& i) const {
    const Index source{modulo(i.i0, shape[0]), modulo(i.i1, shape[1]), modulo(i.i2, shape[2]), modulo(i.i3, shape[3])};
    store_as<Unit>(to.at(i), load_as<Unit>(from.at(source)));
  }
};

void run_repeat(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  Operand to = operand_of(node), from = operand_of(x);
  Shape shape = node.shape, tile = x.shape;
  int64_t unit = static_cast<int64_t>(traits(node.dtype).block_bytes);
  to.strides[0] = unit;
  if (x.is_row_contiguous()) {
    shape = shape_in_bytes(node, shape);
    tile = shape_in_bytes(x, tile);
    to.strides[0] = from.strides[0] = 1;
    unit = std::min(widest_unit(tile, {&from}), widest_unit(shape, {&to}));
    shape[0] /= unit;
    tile[0] /= unit;
    to.strides[0] = from.strides[0] = unit;
  }
  with_unit(unit, [&](auto zero) {
    walk(context, shape, RepeatUnit<decltype(zero)>{to, from, {tile[0], tile[1], tile[2], tile[3]}});
  });
}

bool supports_repeat(const Tensor& node) {
  return is_readable(node.src[0]) && node.src[0]->dtype == node.dtype && node.is_contiguous();
}

template <class Unit>
struct FillUnit {
  std::byte* to;
  Unit value;
  __device__ void operator()(const Index& i) const { store_as(to + i.i0 * sizeof(Unit), value); }
};

void run_fill(const LaunchContext& context, Tensor& node) {
  const DTypeTraits& type = traits(node.dtype);
  const float value = std::get<FillParams>(node.params).value;
  std::byte pattern[16];
  for (size_t i = 0; i < sizeof(pattern); i += type.block_bytes) type.from_f32(&value, pattern + i, 1);
  const Operand to{node.data, {1, 0, 0, 0}};
  const int64_t bytes = static_cast<int64_t>(node.bytes());
  const bool whole = has_packs(to, {bytes, 1, 1, 1}, 1, sizeof(pattern));
  with_unit(whole ? 16 : static_cast<int64_t>(type.block_bytes), [&](auto unit) {
    std::memcpy(&unit, pattern, sizeof(unit));
    walk(context, {bytes / static_cast<int64_t>(sizeof(unit)), 1, 1, 1}, FillUnit<decltype(unit)>{node.data, unit});
  });
}

bool supports_fill(const Tensor& node) {
  return node.is_contiguous() && !traits(node.dtype).is_quantized;
}

}  // namespace

const OpKernel kRepeatKernel{run_repeat, supports_repeat, nullptr};
const OpKernel kFillKernel{run_fill, supports_fill, nullptr};

}  // namespace shoal::cuda
