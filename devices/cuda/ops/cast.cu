// cast: any dtype to any other by way of f32; integers among themselves exactly, equal dtypes as they are.
// contiguous: a copy; a transposed source goes through shared memory, so that both sides are accessed in rows.
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/quantize.h"
#include "devices/cuda/ops/copy.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

constexpr int kItem = 8;  // elements that a thread converts at once

// --- to plain dtypes ---

template <class From, class To>
struct CastInteger {
  Operand to, from;
  __device__ void operator()(const Index& i) const {
    store_as<To>(to.at(i), static_cast<To>(element_at<From>(from.at(i))));
  }
};

/// One element of any layout; rows of quantised sources have no gaps.
template <class To>
struct CastElement {
  Operand to, from;
  DType dtype;
  bool quantized;
  __device__ void operator()(const Index& i) const {
    const float value =
        quantized ? quantized_at(dtype, from.at({0, i.i1, i.i2, i.i3}), i.i0) : float_at(dtype, from.at(i));
    store_as<To>(to.at(i), from_float<To>(value));
  }
};

template <class From, class To>
struct CastEight {
  Operand to, from;
  __device__ void operator()(const Index& i) const {
    float values[kItem];
    load_floats<From>(from.at(i), values);
    store_floats<To>(values, to.at(i));
  }
};

/// Eight elements of quantised rows; `to` has strides of elements.
template <DType kFrom>
struct CastFromBlocks {
  Operand to, from;
  DType dtype;
  __device__ void operator()(const Index& i) const {
    using Format = Quantized<kFrom>;
    const auto* blocks = reinterpret_cast<const typename Format::Block*>(from.at({0, i.i1, i.i2, i.i3}));
    const int64_t element = i.i0 * kItem;
    float values[kItem];
    values_at<Format>(blocks[element / Format::kElements], static_cast<int>(element % Format::kElements), values);
    std::byte* target = to.at({element, i.i1, i.i2, i.i3});
    switch (dtype) {
      case DType::kF32:
        return store_floats<float>(values, target);
      case DType::kF16:
        return store_floats<__half>(values, target);
      case DType::kBF16:
        return store_floats<__nv_bfloat16>(values, target);
      case DType::kI32:
        return store_floats<int32_t>(values, target);
      default:
        return store_floats<int64_t>(values, target);
    }
  }
};

void cast_integers(const LaunchContext& context, const Tensor& x, const Tensor& node) {
  Shape shape = node.shape;
  Operand to = operand_of(node), from = operand_of(x);
  join_axes(shape, {&to, &from});
  if (node.dtype == DType::kI64) {
    walk(context, shape, CastInteger<int32_t, int64_t>{to, from});
  } else {
    walk(context, shape, CastInteger<int64_t, int32_t>{to, from});
  }
}

void cast_elements(const LaunchContext& context, const Tensor& x, const Tensor& node) {
  Shape shape = node.shape;
  Operand to = operand_of(node), from = operand_of(x);
  const bool quantized = traits(x.dtype).is_quantized;
  if (!quantized) join_axes(shape, {&to, &from});
  with_plain(node.dtype, [&](auto type) {
    using To = typename ElementOf<decltype(type)::value>::Type;
    walk(context, shape, CastElement<To>{to, from, x.dtype, quantized});
  });
}

void cast_from_blocks(const LaunchContext& context, const Tensor& x, const Tensor& node) {
  const Operand to = operand_of(node), from = operand_of(x);
  const auto bytes = static_cast<int64_t>(traits(node.dtype).block_bytes);
  if (!has_packs(to, node.shape, bytes, 16 / bytes)) return cast_elements(context, x, node);
  Shape shape = node.shape;
  shape[0] /= kItem;
  with_quantized(x.dtype, [&](auto type) {
    walk(context, shape, CastFromBlocks<decltype(type)::value>{to, from, node.dtype});
  });
}

void cast_floats(const LaunchContext& context, const Tensor& x, const Tensor& node) {
  Shape shape = node.shape;
  Operand to = operand_of(node), from = operand_of(x);
  join_axes(shape, {&to, &from});
  const auto fits = [&](const Operand& operand, DType dtype) {
    const auto bytes = static_cast<int64_t>(traits(dtype).block_bytes);
    return has_packs(operand, shape, bytes, 16 / bytes);
  };
  if (shape[0] % kItem != 0 || !fits(to, node.dtype) || !fits(from, x.dtype)) return cast_elements(context, x, node);
  shape[0] /= kItem;
  to.strides[0] *= kItem;
  from.strides[0] *= kItem;
  with_float(x.dtype, [&](auto from_type) {
    with_float(node.dtype, [&](auto to_type) {
      if constexpr (decltype(from_type)::value != decltype(to_type)::value) {
        using From = typename ElementOf<decltype(from_type)::value>::Type;
        using To = typename ElementOf<decltype(to_type)::value>::Type;
        walk(context, shape, CastEight<From, To>{to, from});
      }
    });
  });
}

// --- to quantised dtypes ---

struct QuantizeRows {
  Operand to, from;
  DType dtype;
  bool quantized;  ///< the source
  WalkShape blocks;
};

constexpr int kWarps = 4;

/// A warp for each block of the result.
template <DType kTo>
__global__ void quantize_kernel(QuantizeRows rows) {
  using Format = Quantized<kTo>;
  __shared__ QuantizeScratch scratch[kWarps];
  QuantizeScratch& s = scratch[threadIdx.y];
  let_next_start();
  wait_for_previous();
  const int64_t count = rows.blocks.n0 * rows.blocks.rows, step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < count; item += step) {
    const int64_t row = item / rows.blocks.n0, block = item - row * rows.blocks.n0;
    const Index index = row_index(rows.blocks, row);
    const std::byte* from = rows.from.at(index);
    for (int i = static_cast<int>(threadIdx.x); i < Format::kElements; i += 32) {
      const int64_t element = block * Format::kElements + i;
      s.x[i] = rows.quantized ? quantized_at(rows.dtype, from, element)
                              : float_at(rows.dtype, from + element * rows.from.strides[0]);
    }
    __syncwarp();
    quantize_block(s, reinterpret_cast<typename Format::Block*>(rows.to.at(index))[block]);
    __syncwarp();
  }
}

void cast_to_blocks(const LaunchContext& context, const Tensor& x, const Tensor& node) {
  Shape shape = node.shape;
  shape[0] /= traits(node.dtype).block_elems;
  const QuantizeRows rows{operand_of(node), operand_of(x), x.dtype, traits(x.dtype).is_quantized, walk_shape(shape)};
  const int64_t needed = (rows.blocks.n0 * rows.blocks.rows + kWarps - 1) / kWarps;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(needed, std::max(context.gpu.processors, 1) * 64));
  with_quantized_target(node.dtype, [&](auto type) {
    launch_early(context, quantize_kernel<decltype(type)::value>, dim3(grid), dim3(32, kWarps), 0, rows);
  });
}

// --- contiguous ---

constexpr int kTile = 32, kTileRows = 8;

struct Transposition {
  Operand to, from;
  int64_t n0, n1, n2, tiles0, tiles1, tiles;
};

/// Elements of the source are next to each other along axis 1, those of the result along axis 0.
template <class Unit>
__global__ void transpose_kernel(Transposition t) {
  __shared__ Unit tile[kTile][kTile + 1];
  let_next_start();
  wait_for_previous();
  const int x = static_cast<int>(threadIdx.x);
  for (int64_t i = blockIdx.x; i < t.tiles; i += gridDim.x) {
    const int64_t first0 = i % t.tiles0 * kTile, first1 = i / t.tiles0 % t.tiles1 * kTile;
    const int64_t plane = i / t.tiles0 / t.tiles1, i2 = plane % t.n2, i3 = plane / t.n2;
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
      const Index index{first0 + y, first1 + x, i2, i3};
      if (index.i0 < t.n0 && index.i1 < t.n1) tile[y][x] = element_at<Unit>(t.from.at(index));
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

void run_contiguous(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  if (!is_transposed(x)) return copy_to(context, x, node.data, node.strides);
  const auto tiles_of = [](int64_t n) { return (n + kTile - 1) / kTile; };
  Transposition t{operand_of(node), operand_of(x),        x.shape[0],           x.shape[1],
                  x.shape[2],       tiles_of(x.shape[0]), tiles_of(x.shape[1]), 0};
  t.tiles = t.tiles0 * t.tiles1 * x.shape[2] * x.shape[3];
  const auto grid = static_cast<unsigned>(std::min<int64_t>(t.tiles, std::max(context.gpu.processors, 1) * 64));
  switch (traits(node.dtype).block_bytes) {
    case 2:
      return launch_early(context, transpose_kernel<uint16_t>, dim3(grid), dim3(kTile, kTileRows), 0, t);
    case 4:
      return launch_early(context, transpose_kernel<uint32_t>, dim3(grid), dim3(kTile, kTileRows), 0, t);
    default:
      return launch_early(context, transpose_kernel<uint64_t>, dim3(grid), dim3(kTile, kTileRows), 0, t);
  }
}

bool supports_contiguous(const Tensor& node) {
  return is_readable(node.src[0]) && node.src[0]->dtype == node.dtype && node.is_contiguous();
}

// --- cast ---

bool is_integer(DType dtype) {
  return dtype == DType::kI32 || dtype == DType::kI64;
}

void run_cast(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const DTypeTraits &from = traits(x.dtype), &to = traits(node.dtype);
  if (x.dtype == node.dtype) return run_contiguous(context, node);
  if (to.is_quantized) return cast_to_blocks(context, x, node);
  if (from.is_quantized) return cast_from_blocks(context, x, node);
  if (from.is_float && to.is_float) return cast_floats(context, x, node);
  if (is_integer(x.dtype) && is_integer(node.dtype)) return cast_integers(context, x, node);
  cast_elements(context, x, node);
}

bool supports_cast(const Tensor& node) {
  return is_readable(node.src[0]) && node.is_contiguous() && !traits(node.dtype).is_coded;
}

}  // namespace

const OpKernel kCastKernel{run_cast, supports_cast, nullptr};
const OpKernel kContiguousKernel{run_contiguous, supports_contiguous, nullptr};

}  // namespace shoal::cuda
