// set_rows: rows converted to the cache's dtype and written in place. A block of threads writes one row of some heads;
// of equal ids the last wins, so a row that a later one overwrites is left out.
#include "devices/cuda/kernels/quantize.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/select.h"

namespace shoal::cuda {
namespace {

constexpr int kItem = 8;  // elements that a thread converts at once where the layout allows it
constexpr int kThreads = 128, kWarps = kThreads / 32;

struct RowsToSet {
  Operand cache, rows, ids;
  DType cache_dtype, rows_dtype, ids_dtype;
  int64_t count;  ///< of ids
  int64_t items;  ///< of a row, whatever a thread (a warp for blocks) writes at once
  int64_t heads;  ///< length of axis 2
  int64_t planes;
  Selection selection;

  __device__ int64_t id(int64_t i) const { return integer_at(ids_dtype, ids.at({i, 0, 0, 0})); }
  __device__ const std::byte* source(int64_t i, int64_t plane) const {
    return rows.at({0, i, plane % heads, plane / heads});
  }
  __device__ std::byte* target(int64_t row, int64_t plane) const {
    return cache.at({0, row, plane % heads, plane / heads});
  }
};

/// The cache's row for row i, -1 when it is not here or a later row goes there. All threads of a block call it with one
/// i and get one result.
__device__ int64_t row_to_write(const RowsToSet& set, int64_t i) {
  __shared__ int overwritten;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int64_t id = set.id(i), row = set.selection.local(id);
  if (thread == 0) overwritten = 0;
  __syncthreads();
  if (row >= 0) {
    for (int64_t later = i + 1 + thread; later < set.count; later += kThreads) {
      if (set.id(later) == id) overwritten = 1;
    }
  }
  __syncthreads();
  return overwritten ? -1 : row;
}

struct SetElement {
  static constexpr int kCount = 1;
  static __device__ void write(const RowsToSet& set, const std::byte* from, std::byte* to, int64_t item) {
    const float value = float_at(set.rows_dtype, from + item * set.rows.strides[0]);
    store_float(set.cache_dtype, value, to + item * set.cache.strides[0]);
  }
};
/// Of f32 rows without gaps.
struct SetEight {
  static constexpr int kCount = kItem;
  static __device__ void write(const RowsToSet& set, const std::byte* from, std::byte* to, int64_t item) {
    float values[kItem];
    load_floats<float>(from + item * kItem * sizeof(float), values);
    store_eight(set.cache_dtype, values, to + item * kItem * set.cache.strides[0]);
  }
};

template <class Item>
__global__ void set_rows_kernel(RowsToSet set) {
  let_next_start();
  wait_for_previous();
  const int64_t i = blockIdx.x, row = row_to_write(set, i);
  if (row < 0) return;
  const int64_t count = set.items * set.planes, step = static_cast<int64_t>(gridDim.y) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; k < count; k += step) {
    const int64_t plane = k / set.items;
    Item::write(set, set.source(i, plane), set.target(row, plane), k - plane * set.items);
  }
}

__global__ void set_blocks_kernel(RowsToSet set) {
  __shared__ QuantizeScratch scratch[kWarps];
  QuantizeScratch& s = scratch[threadIdx.y];
  let_next_start();
  wait_for_previous();
  const int64_t i = blockIdx.x, row = row_to_write(set, i);
  if (row < 0) return;
  const int64_t count = set.items * set.planes, step = static_cast<int64_t>(gridDim.y) * kWarps;
  for (int64_t k = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.y; k < count; k += step) {
    const int64_t plane = k / set.items, block = k - plane * set.items;
    const int64_t element = block * quants::kBlock + threadIdx.x;
    s.x[threadIdx.x] = float_at(set.rows_dtype, set.source(i, plane) + element * set.rows.strides[0]);
    __syncwarp();
    quantize_block(s, set.cache_dtype, set.target(row, plane) + block * set.cache.strides[0]);
    __syncwarp();
  }
}

/// Blocks along y, so that together with a block per row along x the device is busy.
unsigned chunks_of(const LaunchContext& context, const RowsToSet& set, int64_t per_block) {
  const int64_t needed = (set.items * set.planes + per_block - 1) / per_block;
  const int64_t most = std::max<int64_t>(std::max(context.gpu.processors, 1) * int64_t{16} / set.count, 1);
  return static_cast<unsigned>(std::min({needed, most, int64_t{65535}}));
}

template <class Item>
void launch_items(const LaunchContext& context, RowsToSet set) {
  set.items /= Item::kCount;
  const dim3 grid(static_cast<unsigned>(set.count), chunks_of(context, set, kThreads));
  launch_early(context, set_rows_kernel<Item>, grid, dim3(kThreads), 0, set);
}

bool takes_eight(const Tensor& cache, const Tensor& rows) {
  const auto bytes = static_cast<int64_t>(traits(cache.dtype).block_bytes);
  return rows.dtype == DType::kF32 && cache.shape[0] % kItem == 0 &&
         has_packs(operand_of(rows), rows.shape, sizeof(float), 4) &&
         has_packs(operand_of(cache), cache.shape, bytes, 16 / bytes);
}

void run_selection(const LaunchContext& context, const Tensor& cache, const Tensor& rows, RowsToSet set) {
  if (!traits(cache.dtype).is_quantized) {
    return takes_eight(cache, rows) ? launch_items<SetEight>(context, set) : launch_items<SetElement>(context, set);
  }
  set.items /= quants::kBlock;
  const dim3 grid(static_cast<unsigned>(set.count), chunks_of(context, set, kWarps));
  launch_early(context, set_blocks_kernel, grid, dim3(32, kWarps), 0, set);
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor &cache = *node.src[0], &rows = *node.src[1], &ids = *node.src[2];
  if (rows.empty()) return;
  RowsToSet set{operand_of(cache),
                operand_of(rows),
                operand_of(ids),
                cache.dtype,
                rows.dtype,
                ids.dtype,
                rows.shape[1],
                cache.shape[0],
                rows.shape[2],
                rows.shape[2] * rows.shape[3],
                {}};
  for_selections(std::get<SelectParams>(node.params), cache.shape[1], [&](const Selection& selection, bool) {
    set.selection = selection;
    run_selection(context, cache, rows, set);
  });
}

bool supports(const Tensor& node) {
  const Tensor& cache = *node.src[0];
  const DType ids = node.src[2]->dtype;
  return cache.is_row_contiguous() && (is_float(&cache) || is_written_block(cache.dtype)) && is_float(node.src[1]) &&
         (ids == DType::kI32 || ids == DType::kI64) && can_select(std::get<SelectParams>(node.params));
}

}  // namespace

const OpKernel kSetRowsKernel{run, supports, nullptr};

}  // namespace shoal::cuda
