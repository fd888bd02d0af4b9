// The op contiguous. If rows of the source have no gaps, they are copied whole. A transposed source is copied in square
// tiles, so that both the source and the result stay in the cache.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr int64_t kTile = 32;

/// Copies a tile through a local array. The source is contiguous along axis 1. Without the local array, cache lines of
/// the source whose distance is a power of two would evict each other.
template <class T>
void copy_tile(const std::byte* from, const Tensor& x, int64_t columns, int64_t rows, std::byte* to, size_t to_stride) {
  T tile[kTile][kTile];
  for (int64_t column = 0; column < columns; ++column) {
    const std::byte* line = from + column * x.strides[0];
    for (int64_t row = 0; row < rows; ++row) tile[column][row] = *reinterpret_cast<const T*>(line + row * x.strides[1]);
  }
  for (int64_t row = 0; row < rows; ++row) {
    T* out = reinterpret_cast<T*>(to + row * to_stride);
    for (int64_t column = 0; column < columns; ++column) out[column] = tile[column][row];
  }
}

template <class T>
void run_transposed(const TeamContext& ctx, const Tensor& x, Tensor& node) {
  const int64_t tiles = (node.shape[1] + kTile - 1) / kTile;
  for_rows(ctx, {1, tiles, node.shape[2], node.shape[3]}, [&](RowIndex index) {
    const RowIndex first{index.i1 * kTile, index.i2, index.i3};
    const int64_t rows = std::min(kTile, node.shape[1] - first.i1);
    for (int64_t begin = 0; begin < node.shape[0]; begin += kTile) {
      const int64_t columns = std::min(kTile, node.shape[0] - begin);
      copy_tile<T>(row_at(x, first) + begin * x.strides[0], x, columns, rows, row_at(node, first) + begin * sizeof(T),
                   node.strides[1]);
    }
  });
}

void run_transposed(const TeamContext& ctx, const Tensor& x, Tensor& node) {
  switch (traits(node.dtype).block_bytes) {
    case 2:
      return run_transposed<uint16_t>(ctx, x, node);
    case 4:
      return run_transposed<uint32_t>(ctx, x, node);
    default:
      return run_transposed<uint64_t>(ctx, x, node);
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const DTypeTraits& type = traits(node.dtype);
  if (!x.is_row_contiguous() && x.strides[1] < x.strides[0]) return run_transposed(ctx, x, node);
  for_pieces(ctx, flat_shape(node, x), [&](RowIndex row, int64_t begin, int64_t n) {
    copy_elements(x, row_at(x, row), begin, n, row_at(node, row) + begin / type.block_elems * type.block_bytes);
  });
}

bool supports(const Tensor& node) {
  return is_readable(node.src[0]) && node.src[0]->dtype == node.dtype && node.is_contiguous();
}

}  // namespace

const OpKernel kContiguousKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
