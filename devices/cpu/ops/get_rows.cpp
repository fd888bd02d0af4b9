// The op get_rows. It copies rows of a table and converts them to f32. i32 rows are not converted. Rows are divided
// into pieces of at most kChunk elements, so that even a few long rows give work to all threads. Packed rows are
// unpacked one piece at a time.
#include <cstring>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/packed_buffer.h"
#include "graph/ops/select.h"

namespace shoal::cpu {
namespace {

/// Loads elements [begin, begin + n) of a row of a packed matrix. The groups of the matrix begin at `groups`.
void load_packed(const Tensor& table, const PackedMatrices& packed, const std::byte* groups, int64_t row, int64_t begin,
                 int64_t n, float* to) {
  const WeightKernels& weights = kernels().weights[static_cast<size_t>(table.dtype)];
  const int64_t panel = kernels().panel_rows;
  std::byte elements[kChunk * sizeof(float)];
  weights.packed.unpack(groups + static_cast<size_t>(row / panel) * packed.group_bytes, row % panel, begin, n,
                        elements);
  weights.to_f32(elements, to, n);
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& table = *node.src[0];
  const std::optional<PackedMatrices> packed = packed_matrices(table);
  const Tensor& ids = *node.src[1];
  const auto& params = std::get<SelectParams>(node.params);
  for_pieces(ctx, node.shape, [&](RowIndex row, int64_t begin, int64_t n) {
    std::byte* to = row_at(node, row) + begin * sizeof(float);
    const int64_t index = local_index(params, table.shape[1], index_at(ids, row.i1, row.i2, row.i3));
    if (index < 0) {
      std::memset(to, 0, n * sizeof(float));
      return;
    }
    if (packed) {
      const std::byte* matrix =
          packed->first + static_cast<size_t>(row.i3 * table.shape[2] + row.i2) * packed->matrix_bytes;
      return load_packed(table, *packed, matrix, index, begin, n, reinterpret_cast<float*>(to));
    }
    const std::byte* from = row_at(table, {index, row.i2, row.i3});
    if (table.dtype == node.dtype) {
      copy_elements(table, from, begin, n, to);
    } else {
      load(table, from, begin, n, reinterpret_cast<float*>(to));
    }
  });
}

bool supports(const Tensor& node) {
  const Tensor& table = *node.src[0];
  const DType ids = node.src[1]->dtype;
  return is_readable(&table) && node.is_contiguous() && (ids == DType::kI32 || ids == DType::kI64) &&
         (node.dtype == DType::kF32 || (node.dtype == DType::kI32 && table.dtype == DType::kI32));
}

}  // namespace

const OpKernel kGetRowsKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
