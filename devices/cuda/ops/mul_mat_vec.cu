#include "devices/cuda/ops/mul_mat_vec.h"

#include <algorithm>
#include <array>
#include <climits>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/quantized_column.h"
#include "devices/cuda/kernels/quantized_dot.h"
#include "devices/cuda/ops/mul_mat_vec_job.h"

namespace shoal::cuda {
namespace {

constexpr int kPrepareThreads = 256;

/// Rows of b, in f32, f16 or bf16 with any strides.
struct FloatRows {
  View view;
  DType dtype;
  bool by_vectors;  ///< whether rows are f32 without gaps and aligned to 16 bytes
  int k;
};

/// Loads kCount elements of row `row` from element `first` on. Elements past the end of the row are 0.
template <int kCount>
__device__ inline void load(const FloatRows& b, int64_t row, int first, float (&to)[kCount]) {
  const int64_t i1 = row % b.view.shape[1], rest = row / b.view.shape[1];
  const std::byte* from = row_at(b.view, i1, rest % b.view.shape[2], rest / b.view.shape[2]);
  if (b.by_vectors && first + kCount <= b.k) return load_floats<float>(from + 4 * static_cast<int64_t>(first), to);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    to[i] = first + i < b.k ? float_at(b.dtype, from + (first + i) * b.view.strides[0]) : 0.0f;
}

/// Converts rows of b to records (quantized_dot.h), eight elements per thread. An incomplete step is filled with zeros.
template <int kGroups>
__global__ void quantize_columns(FloatRows b, std::byte* to, int64_t stride, int steps) {
  const int64_t eight = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
  const int in_row = steps * (kStepElements / 8);
  const int64_t row = eight / in_row;
  const int first = static_cast<int>(eight % in_row) * 8;
  float x[8];
  load(b, row, first, x);
  std::byte* const record =
      to + row * stride + static_cast<int64_t>(first / kStepElements) * column_step_bytes(kGroups);
  store_part<kGroups>(record, first % kStepElements, quantize_part(x));
}

/// Converts rows of b to f32, four elements per thread.
__global__ void convert_columns(FloatRows b, std::byte* to, int64_t stride, int64_t rows) {
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
  const int quads = (b.k + 3) / 4;
  if (quad >= rows * quads) return;
  float x[4];
  load(b, quad / quads, static_cast<int>(quad % quads) * 4, x);
  store_floats<float>(x, to + quad / quads * stride + quad % quads * 16);
}

/// Kernel for weights in f32, f16 or bf16 with any strides. A warp computes two rows of one column.
constexpr int kElementRows = 2;
__global__ void element_vec(Product p, int64_t element_stride, DType dtype) {
  const WarpPlace<kElementRows> at(p);
  const Job job = job_of(p, at.job, 1);
  if (job.count == 0) return;
  if (job.matrix < 0) return store_zeros(p, at, job);
  uint32_t x[1];
  find_columns(p, at.job, job, at.lane, x);
  const float* const column = reinterpret_cast<const float*>(p.x) + 4 * static_cast<int64_t>(x[0]);
  float sums[kElementRows] = {};
#pragma unroll
  for (int r = 0; r < kElementRows; ++r) {
    const std::byte* const row = at.row_of(p, job.matrix, r);
#pragma unroll 1
    for (int i = at.lane; i < p.k; i += kWarp) {
      sums[r] = fmaf(float_at(dtype, row + i * element_stride), column[i], sums[r]);
    }
  }
  finish<kElementRows, 1>(p, at, job, sums);
}

constexpr std::array kKernels = std::to_array<const VecKernels*>({
    &kVecF32,
    &kVecF16,
    &kVecBF16,
    nullptr,
    nullptr,
#define SHOAL_QUANTIZED(id, ...) &kVec##id,
#include "graph/dtypes.def"
});
static_assert(kKernels.size() == kDTypeCount, "one entry per dtype, in the order of the enumeration");

int groups_of(DType dtype) {
  switch (dtype) {
#define SHOAL_QUANTIZED(id, ...) \
  case DType::k##id:             \
    return DotFormat<DType::k##id>::kGroups;
#include "graph/dtypes.def"
    default:
      return 2;
  }
}
int64_t column_stride(const Tensor& a) {
  const int64_t k = a.shape[0];
  if (traits(a.dtype).is_quantized) return divided_up(k, kStepElements) * column_step_bytes(groups_of(a.dtype));
  return (k + 3) / 4 * 16;
}

bool starts_at_multiples(const Tensor& tensor, size_t alignment) {
  const bool rows = std::all_of(tensor.strides.begin() + 1, tensor.strides.end(),
                                [&](size_t stride) { return stride % alignment == 0; });
  return rows && reinterpret_cast<uintptr_t>(tensor.data) % alignment == 0;
}
/// Whether one stride gives the address of each row: row i begins at byte i * strides[1].
bool has_even_rows(const Tensor& b) {
  const auto follows = [&](int axis, int64_t rows) {
    return b.shape[axis] == 1 || b.strides[axis] == rows * b.strides[1];
  };
  return follows(2, b.shape[1]) && follows(3, b.shape[1] * b.shape[2]);
}

/// Whether kernels can read a plain float tensor in vectors of 16 bytes. Quantised tensors need no check. Buffers and
/// strides align blocks of 256 elements, and blocks of 32 elements may have any address.
bool has_vectors(const Tensor& a) {
  const int64_t elements = 16 / static_cast<int64_t>(traits(a.dtype).block_bytes);
  return a.is_row_contiguous() && a.shape[0] % elements == 0 && starts_at_multiples(a, 16);
}

/// Returns the number of warps that compute the same rows, each for a part of k. The number is the smallest power of
/// two that gives each multiprocessor 16 warps. kVecWarps and `pieces` limit this number.
int split_of(const Product& p, int64_t row_blocks_of_one, int64_t pieces, const GpuTraits& gpu) {
  const int64_t wanted = static_cast<int64_t>(gpu.processors) * 16;
  int split = 1;
  while (split < kVecWarps && 2 * split <= pieces && row_blocks_of_one * p.jobs * split < wanted) split *= 2;
  return split;
}

}  // namespace

bool supports_product(const Tensor& node) {
  const Tensor* a = node.src[0];
  const Tensor* b = node.src[1];
  const DTypeTraits& type = traits(a->dtype);
  if (!type.is_float && !(type.is_quantized && a->is_row_contiguous())) return false;
  // Kernels use 32-bit integers for the numbers of elements, rows and columns. The offsets of prepared columns, in
  // vectors of 16 bytes, are also 32-bit integers.
  const int64_t longest = std::max({a->shape[0], a->shape[1], node.rows(), a->shape[2] * a->shape[3]});
  return traits(b->dtype).is_float && node.dtype == DType::kF32 && node.is_row_contiguous() && longest < INT_MAX / 2 &&
         columns_bytes(*a, *b) / 16 < UINT32_MAX && node.elements() / kVecWarps < INT_MAX;
}

size_t columns_bytes(const Tensor& a, const Tensor& b) {
  return static_cast<size_t>(column_stride(a) * b.rows());
}

PreparedColumns prepare_columns(const LaunchContext& context, const Tensor& a, const Tensor& b, std::byte* memory) {
  const int64_t stride = column_stride(a), rows = b.rows();
  const bool vectors = b.dtype == DType::kF32 && b.strides[0] == sizeof(float) && starts_at_multiples(b, 16);
  const bool quantized = traits(a.dtype).is_quantized;
  if (!quantized && vectors && has_even_rows(b) && b.shape[0] % 4 == 0) {
    return {b.data, static_cast<int64_t>(b.strides[1])};
  }
  if (rows == 0 || stride == 0) return {memory, stride};
  const FloatRows from{view_of(b), b.dtype, vectors, static_cast<int>(b.shape[0])};
  const dim3 threads(kPrepareThreads);
  if (quantized) {
    const int steps = static_cast<int>(divided_up(b.shape[0], kStepElements));
    const auto blocks = static_cast<unsigned>(divided_up(rows * steps * (kStepElements / 8), kPrepareThreads));
    const auto kernel = groups_of(a.dtype) == 4 ? quantize_columns<4> : quantize_columns<2>;
    launch(context.stream, kernel, dim3(blocks), threads, 0, from, memory, stride, steps);
  } else {
    const auto blocks = static_cast<unsigned>(divided_up(rows * ((b.shape[0] + 3) / 4), kPrepareThreads));
    launch(context.stream, convert_columns, dim3(blocks), threads, 0, from, memory, stride, rows);
  }
  return {memory, stride};
}

bool same_columns(const Tensor& a, const Tensor& other) {
  const bool quantized = traits(a.dtype).is_quantized;
  return quantized == traits(other.dtype).is_quantized && (!quantized || groups_of(a.dtype) == groups_of(other.dtype));
}

Product product_of(const Tensor& a, const Tensor& c, PreparedColumns columns) {
  Product p;
  p.a = a.data;
  p.row_stride = static_cast<int64_t>(a.strides[1]);
  p.matrices2 = static_cast<int>(std::max<int64_t>(a.shape[2], 1));
  p.m = static_cast<int>(a.shape[1]);
  p.k = static_cast<int>(a.shape[0]);
  p.x = columns.data;
  p.x_stride = columns.stride;
  p.c = c.data;
  for (int i = 0; i < 2; ++i) p.matrix_strides[i] = static_cast<int64_t>(a.strides[2 + i]);
  for (int i = 0; i < 3; ++i) p.c_strides[i] = static_cast<int64_t>(c.strides[1 + i]);
  return p;
}

void set_batches(Product& p, const Tensor& a, const Tensor& b, int columns) {
  p.columns_of = ColumnsOf::kBatches;
  p.n = static_cast<int>(b.shape[1]);
  p.b2 = static_cast<int>(b.shape[2]);
  const int64_t matrices = a.shape[2] * a.shape[3];
  for (int i = 0; i < 2 && matrices > 0; ++i) p.shared[i] = static_cast<int>(b.shape[2 + i] / a.shape[2 + i]);
  const int64_t per_matrix = static_cast<int64_t>(p.n) * p.shared[0] * p.shared[1];
  p.chunks = static_cast<int>((per_matrix + columns - 1) / columns);
  p.jobs = static_cast<int>(matrices * p.chunks);
}

VecKernel vec_kernel(const Tensor& a, const Tensor* up, int64_t columns) {
  const VecKernels& kernels = *kKernels[static_cast<size_t>(a.dtype)];
  if (!traits(a.dtype).is_quantized && !(has_vectors(a) && (!up || has_vectors(*up)))) return {};
  return columns <= 2 ? kernels.two : kernels.eight;
}

void multiply(const LaunchContext& context, const Tensor& a, Product p, const VecKernel& kernel) {
  if (p.jobs == 0 || p.m == 0) return;
  const int rows = kernel.kernel ? kernel.rows : kElementRows, results = p.up ? rows / 2 : rows;
  const int64_t teams = (p.m + results - 1) / results;
  const bool quantized = traits(a.dtype).is_quantized;
  const int64_t pieces =
      quantized ? divided_up(p.k, kStepElements) : p.k * static_cast<int64_t>(traits(a.dtype).block_bytes) / 2048;
  p.split = kernel.kernel ? split_of(p, teams, pieces, context.gpu) : 1;
  const int64_t blocks = (teams + kVecWarps / p.split - 1) / (kVecWarps / p.split) * p.jobs;
  const dim3 grid(static_cast<unsigned>(blocks)), threads(kVecThreads);
  if (kernel.kernel) {
    launch(context.stream, kernel.kernel, grid, threads, kernel.shared_bytes, p);
  } else {
    launch(context.stream, element_vec, grid, threads, 0, p, static_cast<int64_t>(a.strides[0]), a.dtype);
  }
}

}  // namespace shoal::cuda
