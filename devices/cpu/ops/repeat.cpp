// The op repeat. The rows of the result repeat the rows of the source. Along axis 0, the first tile is copied from the
// source, and the other tiles are copied from the first tile.
#include <cstring>

#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// Fills `total` bytes with copies of the first `done` bytes, by repeated doubling.
void tile_bytes(std::byte* to, size_t done, size_t total) {
  while (done < total) {
    const size_t n = std::min(done, total - done);
    std::memcpy(to + done, to, n);
    done += n;
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const DTypeTraits& type = traits(node.dtype);
  const size_t source_bytes = x.shape[0] / type.block_elems * type.block_bytes;
  const size_t row_bytes = node.shape[0] / type.block_elems * type.block_bytes;
  for_rows(ctx, node.shape, [&](RowIndex row) {
    const RowIndex from{row.i1 % x.shape[1], row.i2 % x.shape[2], row.i3 % x.shape[3]};
    std::byte* to = row_at(node, row);
    copy_elements(x, row_at(x, from), 0, x.shape[0], to);
    tile_bytes(to, source_bytes, row_bytes);
  });
}

bool supports(const Tensor& node) {
  return is_readable(node.src[0]) && node.src[0]->dtype == node.dtype && node.is_contiguous();
}

}  // namespace

const OpKernel kRepeatKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
