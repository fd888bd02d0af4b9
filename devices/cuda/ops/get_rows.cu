// get_rows: a row of the result is a row of the table, converted to f32 (or copied: i32). A thread makes eight elements
// where the layout allows it.
#include "devices/cuda/kernels/dequantize.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/select.h"

namespace shoal::cuda {
namespace {

constexpr int kItem = 8;  // elements

struct RowsOf {
  Operand to, table, ids;
  DType table_dtype, ids_dtype;
  bool writes_zeros;  ///< for indices that are not here
  Selection selection;

  /// Row of the table for row i of the result, -1 when there is none.
  __device__ int64_t row(const Index& i) const {
    const Index id{i.i1, i.i2, i.i3, 0};
    return selection.local(integer_at(ids_dtype, ids.at(id)));
  }
  __device__ const std::byte* table_row(int64_t row, const Index& i) const { return table.at({0, row, i.i2, i.i3}); }
};

struct GetRows {
  RowsOf rows;
  bool quantized, copies;  ///< the table; it has the result's dtype
  bool eight;              ///< elements at a time, of rows without gaps

  __device__ void operator()(const Index& i) const {
    const int64_t row = rows.row(i), first = eight ? i.i0 * kItem : i.i0;
    if (row < 0 && !rows.writes_zeros) return;
    std::byte* const to = rows.to.at({first, i.i1, i.i2, i.i3});
    float values[kItem] = {};
    if (row >= 0) {
      const std::byte* from = rows.table_row(row, i);
      const std::byte* element = from + first * rows.table.strides[0];
      if (eight || quantized) {
        load_eight(rows.table_dtype, from, first / kItem * kItem, values);
        if (!eight) values[0] = pick(values, first % kItem);
      } else if (copies) {
        return store_as<uint32_t>(to, element_at<uint32_t>(element));
      } else {
        values[0] = float_at(rows.table_dtype, element);
      }
    }
    eight ? store_floats<float>(values, to) : store_as<float>(to, values[0]);
  }
};

/// Whether rows of the table can be read, and those of the result written, eight elements at a time.
bool takes_eight(const Tensor& node) {
  const Tensor& table = *node.src[0];
  if (node.dtype != DType::kF32 || !has_packs(operand_of(node), node.shape, sizeof(float), 4)) return false;
  if (node.shape[0] % kItem != 0) return false;
  if (traits(table.dtype).is_quantized) return true;
  const auto bytes = static_cast<int64_t>(traits(table.dtype).block_bytes);
  return traits(table.dtype).is_float && has_packs(operand_of(table), table.shape, bytes, 16 / bytes);
}

void run_selection(const LaunchContext& context, const Tensor& node, const RowsOf& rows) {
  Shape shape = node.shape;
  const bool eight = takes_eight(node);
  if (eight) shape[0] /= kItem;
  walk(context, shape, GetRows{rows, traits(rows.table_dtype).is_quantized, rows.table_dtype == node.dtype, eight});
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor &table = *node.src[0], &ids = *node.src[1];
  RowsOf rows{operand_of(node), operand_of(table), operand_of(ids), table.dtype, ids.dtype, true, {}};
  for_selections(std::get<SelectParams>(node.params), table.shape[1], [&](const Selection& selection, bool is_first) {
    rows.selection = selection;
    rows.writes_zeros = is_first;
    run_selection(context, node, rows);
  });
}

bool supports(const Tensor& node) {
  const Tensor& table = *node.src[0];
  const DType ids = node.src[1]->dtype;
  return is_readable(&table) && node.is_contiguous() && (ids == DType::kI32 || ids == DType::kI64) &&
         (node.dtype == DType::kF32 || (node.dtype == DType::kI32 && table.dtype == DType::kI32)) &&
         can_select(std::get<SelectParams>(node.params));
}

}  // namespace

const OpKernel kGetRowsKernel{run, supports, nullptr};

}  // namespace shoal::cuda
