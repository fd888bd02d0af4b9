// contiguous: rows without gaps are copied whole; a transposed source is copied in square tiles, so that both
// sides stay in the cache.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr int64_t kTile = 32;

/// Rows [first, first + count) of one (i2, i3) plane; elements of the source are next to each other along axis 1.
void copy_tiles(const Tensor& x, Tensor& node, RowIndex first, int64_t count) {
  const size_t element = node.strides[0];
  for (int64_t begin = 0; begin < node.shape[0]; begin += kTile) {
    const int64_t n = std::min(kTile, node.shape[0] - begin);
    for (int64_t i = 0; i < count; ++i) {
      const RowIndex row{first.i1 + i, first.i2, first.i3};
      copy_elements(x, row_at(x, row), begin, n, row_at(node, row) + begin * element);
    }
  }
}

void run_transposed(const TeamContext& ctx, const Tensor& x, Tensor& node) {
  const int64_t tiles = (node.shape[1] + kTile - 1) / kTile;
  const Shape walk{1, tiles, node.shape[2], node.shape[3]};
  for_rows(ctx, walk, [&](RowIndex tile) {
    const int64_t first = tile.i1 * kTile;
    copy_tiles(x, node, {first, tile.i2, tile.i3}, std::min(kTile, node.shape[1] - first));
  });
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
