// Copies without a change of dtype. `contiguous` copies a transposed source through shared memory, so the reads and the
// writes are both contiguous. `concat` copies each source to its range of the result.
#include "devices/cuda/ops/copy.h"

#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

template <class Unit>
struct CopyUnit {
  Operand to, from;
  __device__ void operator()(const Index& i) const { store_as<Unit>(to.at(i), load_as<Unit>(from.at(i))); }
};

// --- contiguous ---

constexpr int kTile = 32, kTileRows = 8;

struct Transposition {
  Operand to, from;
  int64_t n0, n1, n2, tiles0, tiles1, tiles;
};

/// Transposes axes 0 and 1. Neighbours along axis 1 are adjacent in the source. Neighbours along axis 0 are adjacent in
/// the result.
template <class Unit>
__global__ void transpose_kernel(Transposition t) {
  __shared__ Unit tile[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x);
  let_next_start();
  wait_for_previous();
#pragma unroll 1
  for (int64_t i = blockIdx.x; i < t.tiles; i += gridDim.x) {
    const int64_t first0 = i % t.tiles0 * kTile, first1 = i / t.tiles0 % t.tiles1 * kTile;
    const int64_t plane = i / t.tiles0 / t.tiles1, i2 = plane % t.n2, i3 = plane / t.n2;
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
      const Index index{first0 + y, first1 + x, i2, i3};
      if (index.i0 < t.n0 && index.i1 < t.n1) tile[y][x] = load_as<Unit>(t.from.at(index));
    }
    __syncthreads();
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
      const Index index{first0 + x, first1 + y, i2, i3};
      if (index.i0 < t.n0 && index.i1 < t.n1) store_as<Unit>(t.to.at(index), tile[x][y]);
    }
    __syncthreads();
  }
}

bool is_transposed(const Tensor& x) {
  return !x.is_row_contiguous() && x.shape[1] > 1 && x.strides[1] == traits(x.dtype).block_bytes;
}

bool supports_contiguous(const Tensor& node) {
  return is_readable(node.src[0]) && node.src[0]->dtype == node.dtype && node.is_contiguous();
}

// --- concat ---

void run_concat(const LaunchContext& context, Tensor& node) {
  const int axis = std::get<ConcatParams>(node.params).axis;
  std::byte* to = node.data;
  for (const Tensor* source : node.src) {
    copy_to(context, *source, to, node.strides);
    const int64_t steps = axis == 0 ? shape_in_bytes(*source, source->shape)[0] : source->shape[axis];
    to += axis == 0 ? steps : steps * static_cast<int64_t>(node.strides[axis]);
  }
}

bool supports_concat(const Tensor& node) {
  for (const Tensor* source : node.src) {
    if (!is_readable(source) || source->dtype != node.dtype) return false;
  }
  return node.is_contiguous();
}

}  // namespace

void copy_to(const LaunchContext& context, const Tensor& tensor, std::byte* data, const Strides& strides) {
  Operand to{data, {}}, from = operand_of(tensor);
  for (int i = 1; i < kMaxDims; ++i) to.strides[i] = static_cast<int64_t>(strides[i]);
  Shape shape = tensor.shape;
  int64_t unit = static_cast<int64_t>(traits(tensor.dtype).block_bytes);
  to.strides[0] = unit;
  if (tensor.is_row_contiguous()) {
    shape = shape_in_bytes(tensor, shape);
    to.strides[0] = from.strides[0] = 1;
    join_axes(shape, {&to, &from});
    unit = widest_unit(shape, {&to, &from});
    shape[0] /= unit;
    to.strides[0] = from.strides[0] = unit;
  }
  join_axes(shape, {&to, &from});
  with_unit(unit, [&](auto zero) { walk(context, shape, CopyUnit<decltype(zero)>{to, from}); });
}

void run_contiguous(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  if (!is_transposed(x)) return copy_to(context, x, node.data, node.strides);
  const auto tiles_of = [](int64_t n) { return (n + kTile - 1) / kTile; };
  Transposition t{operand_of(node), operand_of(x),        x.shape[0],           x.shape[1],
                  x.shape[2],       tiles_of(x.shape[0]), tiles_of(x.shape[1]), 0};
  t.tiles = t.tiles0 * t.tiles1 * x.shape[2] * x.shape[3];
  const auto grid = static_cast<unsigned>(std::min<int64_t>(t.tiles, std::max(context.gpu.processors, 1) * 64));
  const size_t bytes = traits(node.dtype).block_bytes;
  const auto kernel = bytes == 2   ? transpose_kernel<uint16_t>
                      : bytes == 4 ? transpose_kernel<uint32_t>
                                   : transpose_kernel<uint64_t>;
  launch_early(context, kernel, dim3(grid), dim3(kTile, kTileRows), 0, t);
}

const OpKernel kContiguousKernel{run_contiguous, supports_contiguous, nullptr};
const OpKernel kConcatKernel{run_concat, supports_concat, nullptr};

}  // namespace shoal::cuda
