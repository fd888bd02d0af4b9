#include "devices/cpu/ops/mul_mat_product.h"

#include <algorithm>

#include "devices/cpu/claims.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/packed_buffer.h"

namespace shoal::cpu {
namespace {

// kRowUnit rows of a matrix and kColumnTile columns are processed at a time. With these numbers, reused data stays in a
// cache of half a megabyte. If matrices have few rows, kSmallRowUnit rows are processed at a time, so that every part
// has work.
constexpr int64_t kRowUnit = 64;
constexpr int64_t kSmallRowUnit = 16;
constexpr int64_t kColumnTile = 96;
constexpr int64_t kUnitsPerPart = 4;

/// For each kind of columns, the maximum number of elements of a row in a panel.
constexpr int64_t kSteps[kColumnKinds] = {kFloatBlock, 2048, 1024};
static_assert(kSteps[0] % kPanelStep == 0 && kSteps[1] % kPanelStep == 0 && kSteps[2] % kPanelStep == 0);

// With fewer columns than kFewColumns, panels are small and stay in the first-level cache, because each panel is read
// only a few times. If packed groups are panels, such products read the groups in place. With more columns, copies of
// groups are faster: groups at distances of powers of two would evict each other from the caches.
constexpr int64_t kFewColumns = 24;
constexpr int64_t kFewPanels = 4;
constexpr int64_t kFewSteps[kColumnKinds] = {kFloatBlock, 512, 256};

size_t rounded_up(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

const WeightKernels& kernels_for(const Tensor& a, const ProductShape& shape) {
  // Rows with gaps are first copied to f32 rows without gaps. The kernels read the copies.
  return kernels().weights[static_cast<size_t>(shape.gathered ? DType::kF32 : a.dtype)];
}

size_t gather_bytes(const ProductShape& shape) {
  return shape.gathered ? static_cast<size_t>(kernels().panel_rows * shape.k_step) * sizeof(float) : 0;
}

/// Rows [begin, begin + rows) of one matrix, and the columns by which the matrix is multiplied.
struct Job {
  const Tensor& a;
  const ProductShape& shape;
  const std::byte* matrix;
  bool packed;
  size_t stride;  ///< bytes between rows, or between packed groups
  const std::byte* const* b;
  float* const* c;
  int64_t columns, begin, rows;

  /// Returns the address of row `row`. If rows are packed, `row` must be the first row of a group, and the function
  /// returns the address of the group.
  const std::byte* at(int64_t row) const {
    return matrix + static_cast<size_t>(packed ? row / kernels().panel_rows : row) * stride;
  }
  DotArgs args() const { return {at(begin), stride, rows, shape.k, b, c, columns, begin}; }
};

/// Makes a panel of elements [k_begin, k_begin + k) of rows [row, row + rows).
void make_panel(const Job& job, int64_t row, int64_t rows, int64_t k_begin, int64_t k, std::byte* panel,
                float* gathered) {
  const PanelKernels& kernels = kernels_for(job.a, job.shape).panels;
  const std::byte* from = job.at(row);
  if (job.packed) return kernels.from_packed(from, k_begin, k, panel);
  const DTypeTraits& type = traits(job.a.dtype);
  size_t stride = job.stride;
  if (job.shape.gathered) {
    const auto length = static_cast<size_t>(k);
    for (int64_t i = 0; i < rows; ++i) {
      const float* values = load(job.a, from + i * stride, k_begin, k, gathered + i * length);
      if (values != gathered + i * length) std::copy_n(values, k, gathered + i * length);
    }
    from = reinterpret_cast<const std::byte*>(gathered);
    stride = length * sizeof(float);
  } else {
    from += k_begin / type.block_elems * type.block_bytes;
  }
  kernels.from_rows(from, stride, rows, k, panel);
}

/// Adds the products of outliers to the result. Panels do not process outliers.
void add_outliers(const Job& job) {
  const PanelKernels& weights = kernels_for(job.a, job.shape).panels;
  if (weights.add_outliers == nullptr) return;
  (job.packed ? weights.add_packed_outliers : weights.add_outliers)(job.args());
}

/// Panels of consecutive rows, and the number of bytes between panels.
struct Panels {
  const std::byte* first;
  size_t stride;
};

/// Returns panels of elements [k_begin, k_begin + k) of rows [row, row + rows).
Panels panels_of(const Job& job, int64_t row, int64_t rows, int64_t k_begin, int64_t k, std::byte* scratch) {
  const PanelKernels& weights = kernels_for(job.a, job.shape).panels;
  const int64_t panel_rows = kernels().panel_rows;
  if (job.packed && weights.is_packed && job.columns < kFewColumns) {
    return {job.at(row) + static_cast<size_t>(panel_rows * k_begin) * sizeof(float), job.stride};
  }
  auto* gathered = reinterpret_cast<float*>(scratch);
  std::byte* panels = scratch + gather_bytes(job.shape);
  const size_t bytes = weights.bytes(k);
  for (int64_t i = 0; i < rows; i += panel_rows) {
    make_panel(job, row + i, std::min(panel_rows, rows - i), k_begin, k, panels + i / panel_rows * bytes, gathered);
  }
  return {panels, bytes};
}

/// Multiplies rows [row, row + rows) by all columns. Panels have at most `step` elements of a row.
void multiply_panels(const Job& job, int64_t row, int64_t rows, int64_t step, std::byte* scratch) {
  const PanelKernels& weights = kernels_for(job.a, job.shape).panels;
  for (int64_t k_begin = 0; k_begin < job.shape.k; k_begin += step) {
    const int64_t k = std::min(step, job.shape.k - k_begin);
    const Panels panels = panels_of(job, row, rows, k_begin, k, scratch);
    for (int64_t column = 0; column < job.columns; column += kColumnTile) {
      const int64_t columns = std::min(kColumnTile, job.columns - column);
      weights.multiply({panels.first, panels.stride, rows, k_begin, k, job.shape.k, job.b + column, job.c + column,
                        columns, row, k_begin > 0});
    }
  }
}

void run_panels(const Job& job, std::byte* scratch) {
  const bool few = job.columns < kFewColumns;
  const int64_t rows = few ? kFewPanels * kernels().panel_rows : job.rows;
  const int64_t few_step = std::min(job.shape.k_step, kFewSteps[static_cast<size_t>(job.shape.kind)]);
  for (int64_t row = 0; row < job.rows; row += rows) {
    multiply_panels(job, job.begin + row, std::min(rows, job.rows - row), few ? few_step : job.shape.k_step, scratch);
  }
  add_outliers(job);
}

/// Converts the elements that the job has computed to the dtype of the result. `wide` and the result have the same
/// order of elements.
void make_narrow(const Job& job, const float* wide) {
  const Tensor& node = *job.shape.narrow;
  for (int64_t column = 0; column < job.columns; ++column) {
    const float* from = job.c[column] + job.begin;
    convert(node.dtype, from, node.data + static_cast<size_t>(from - wide) * traits(node.dtype).block_bytes, job.rows);
  }
}

/// Returns a row as f32, either in place or in scratch.
const float* row_as_f32(const Tensor& tensor, int64_t row, float* scratch) {
  return load(tensor, row_at(tensor, row_index(tensor.shape, row)), 0, tensor.shape[0], scratch);
}

}  // namespace

ProductShape::ProductShape(const Tensor& node, int64_t matrices, int64_t columns)
    : m(node.shape[0]),
      k(node.src[0]->shape[0]),
      matrices(matrices),
      columns(columns),
      gathered(!node.src[0]->is_row_contiguous()),
      kind(kernels_for(*node.src[0], *this).columns),
      narrow(node.dtype == DType::kF32 ? nullptr : &node) {
  converted = kind != Columns::kFloats || !is_direct(*node.src[1]);
  k_step = std::min(std::max<int64_t>(k, 1), kSteps[static_cast<size_t>(kind)]);
  column_bytes = kernels().columns[static_cast<size_t>(kind)].bytes(k);
}

ProductMemory::ProductMemory(const ProductShape& shape, int64_t b_rows, int parts, std::byte* workspace, int copies,
                             int copy) {
  const auto columns = static_cast<size_t>(shape.columns);
  size_t offset = 0;
  const auto take = [&](size_t size) {
    const auto at = reinterpret_cast<uintptr_t>(workspace) + offset;  // workspace is nullptr if only the sizes are
                                                                      // needed
    offset += rounded_up(size);
    return reinterpret_cast<std::byte*>(at);
  };
  const auto take_copies = [&](size_t size) {
    std::byte* const own = take(rounded_up(size) * static_cast<size_t>(copies));
    return own + rounded_up(size) * static_cast<size_t>(copy);
  };
  converted = take_copies(shape.converted ? static_cast<size_t>(b_rows) * shape.column_bytes : 0);
  b = reinterpret_cast<const std::byte**>(take_copies(columns * sizeof(*b)));
  c = reinterpret_cast<float**>(take_copies(columns * sizeof(*c)));
  first = reinterpret_cast<int64_t*>(take_copies(static_cast<size_t>(shape.matrices + 1) * sizeof(*first)));
  // While a row of `b` is converted, the scratch contains this row. Later, the scratch contains panels.
  constexpr DType kLargest[kColumnKinds] = {DType::kF32, DType::kQ2_K, DType::kF16};
  const auto& largest = kernels().weights[static_cast<size_t>(kLargest[static_cast<size_t>(shape.kind)])];
  const size_t panel = largest.panels.bytes(std::max(shape.k_step, kPanelStep));
  const size_t panels = panel * static_cast<size_t>(kRowUnit / kernels().panel_rows);
  scratch_bytes = rounded_up(std::max(gather_bytes(shape) + panels, static_cast<size_t>(shape.k) * sizeof(float)));
  scratch = take(scratch_bytes * static_cast<size_t>(parts));
  wide =
      reinterpret_cast<float*>(take(shape.narrow ? static_cast<size_t>(shape.narrow->elements()) * sizeof(float) : 0));
  bytes = offset;
}

void convert_columns(const Tensor& b, std::pair<int64_t, int64_t> rows, int part, const ProductShape& shape,
                     const ProductMemory& memory) {
  if (!shape.converted) return;
  auto* scratch = reinterpret_cast<float*>(memory.scratch + memory.scratch_bytes * static_cast<size_t>(part));
  for (int64_t row = rows.first; row < rows.second; ++row) {
    std::byte* to = memory.converted + static_cast<size_t>(row) * shape.column_bytes;
    if (shape.kind == Columns::kFloats) {
      row_as_f32(b, row, reinterpret_cast<float*>(to));
    } else {
      kernels().columns[static_cast<size_t>(shape.kind)].convert(row_as_f32(b, row, scratch), to, shape.k);
    }
  }
}

const std::byte* column_at(const Tensor& b, int64_t row, const ProductShape& shape, const ProductMemory& memory) {
  if (shape.converted) return memory.converted + static_cast<size_t>(row) * shape.column_bytes;
  return row_at(b, row_index(b.shape, row));
}

void multiply(const TeamContext& ctx, const Tensor& a, const ProductShape& shape, const ProductMemory& memory) {
  const int64_t all_rows = shape.m * shape.matrices;
  const int64_t unit = all_rows >= kRowUnit * kUnitsPerPart * ctx.parts ? kRowUnit : kSmallRowUnit;
  const PackedMatrices packed = packed_matrices(a).value_or(PackedMatrices{});
  const bool is_packed = packed.group_bytes > 0;
  // Consecutive units belong to different matrices. So each part gets units of matrices with many columns and units of
  // matrices with few columns.
  const int64_t units = (shape.m + unit - 1) / unit * shape.matrices;
  for_shared(ctx, units, [&](int64_t i) {
    const int64_t matrix = i % shape.matrices, row = i / shape.matrices * unit;
    const int64_t first = memory.first[matrix], columns = memory.first[matrix + 1] - first;
    const std::byte* at = is_packed ? packed.first + static_cast<size_t>(matrix) * packed.matrix_bytes
                                    : row_at(a, {0, matrix % a.shape[2], matrix / a.shape[2]});
    const Job job{a,
                  shape,
                  at,
                  is_packed,
                  is_packed ? packed.group_bytes : a.strides[1],
                  memory.b + first,
                  memory.c + first,
                  columns,
                  row,
                  std::min(unit, shape.m - row)};
    if (columns == 0) return;
    const WeightKernels& kernels = kernels_for(a, shape);
    if (columns <= (is_packed ? kernels.packed.dot_columns : kernels.dot_columns)) {
      (is_packed ? kernels.packed.dot : kernels.dot)(job.args());
    } else {
      run_panels(job, memory.scratch + memory.scratch_bytes * static_cast<size_t>(ctx.part));
    }
    if (shape.narrow != nullptr) make_narrow(job, memory.wide);
  });
}

bool supports_product(const Tensor& node) {
  const Tensor* a = node.src[0];
  const Tensor* b = node.src[1];
  const DTypeTraits& type = traits(a->dtype);
  return (type.is_float || (type.is_quantized && a->is_row_contiguous())) && is_float(b) &&
         (node.dtype == DType::kF32 ? node.is_row_contiguous() : is_float_result(node));
}

}  // namespace shoal::cpu
