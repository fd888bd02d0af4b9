// set_rows: rows are converted to the cache's dtype and written in place. Each block of threads writes some or all
// elements of one row. A row has elements in several heads. If several ids are equal, only the row of the last of these
// ids is written.
#include "devices/cuda/ops/conversion.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/select.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

struct RowsToSet {
  Operand cache, rows, ids;
  DType ids_dtype;
  Conversion<false> convert;
  int64_t count;  ///< number of ids
  int64_t items;  ///< number of items per row; a warp writes a quantised block, and a thread writes any other item
  int64_t heads;  ///< length of axis 2
  int64_t planes;
  Selection selection;

  __device__ int64_t id(int64_t i) const { return integer_at(ids_dtype, ids.at({i, 0, 0, 0})); }
};

/// Returns the cache row to which row i is written. Returns -1 if the cache row is on another device or a later row
/// overwrites it. All threads of a block must call this function with the same i. All threads get the same result.
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

/// Writes the rows. If kBlocks is true, an item is a quantised block, and a warp writes each item. Otherwise, a thread
/// writes each item.
template <bool kBlocks>
__global__ void set_rows_kernel(RowsToSet set) {
  __shared__ QuantizeScratch scratch[kBlocks ? kWarps : 1];
  let_next_start();
  wait_for_previous();
  const int64_t i = blockIdx.x, row = row_to_write(set, i);
  if (row < 0) return;
  constexpr int kItems = kBlocks ? kWarps : kThreads;
  const int64_t count = set.items * set.planes, step = static_cast<int64_t>(gridDim.y) * kItems;
  for (int64_t k = static_cast<int64_t>(blockIdx.y) * kItems + (kBlocks ? threadIdx.y : threadIdx.x); k < count;
       k += step) {
    const int64_t plane = k / set.items, item = k - plane * set.items, i2 = plane % set.heads, i3 = plane / set.heads;
    const std::byte* const from = set.rows.at({0, i, i2, i3});
    std::byte* const to = set.cache.at({0, row, i2, i3});
    if constexpr (kBlocks) {
      set.convert.make_block(scratch[threadIdx.y], from, to, item);
    } else {
      set.convert(from, to, item);
    }
  }
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor &cache = *node.src[0], &rows = *node.src[1], &ids = *node.src[2];
  if (rows.empty()) return;
  const Operand to = operand_of(cache), from = operand_of(rows);
  const Conversion<false> convert = conversion_of<false>(to, cache.dtype, cache.shape, from, rows.dtype, rows.shape);
  const bool blocks = traits(cache.dtype).is_quantized;
  RowsToSet set{to,
                from,
                operand_of(ids),
                ids.dtype,
                convert,
                rows.shape[1],
                cache.shape[0] / (blocks          ? quants::kBlock
                                  : convert.eight ? Conversion<>::kItem
                                                  : 1),
                rows.shape[2],
                rows.shape[2] * rows.shape[3],
                {}};
  // Along x, the grid has one block per row. `most` limits the number of blocks along y, so that the grid has at most
  // about 16 blocks per multiprocessor.
  const int64_t of_block = blocks ? kWarps : kThreads, needed = (set.items * set.planes + of_block - 1) / of_block;
  const int64_t most = std::max<int64_t>(std::max(context.gpu.processors, 1) * int64_t{16} / set.count, 1);
  const dim3 grid(static_cast<unsigned>(set.count), static_cast<unsigned>(std::min({needed, most, int64_t{65535}})));
  for_selections(std::get<SelectParams>(node.params), cache.shape[1], [&](const Selection& selection, bool) {
    set.selection = selection;
    launch_early(context, blocks ? set_rows_kernel<true> : set_rows_kernel<false>, grid,
                 blocks ? dim3(32, kWarps) : dim3(kThreads), 0, set);
  });
}

bool supports(const Tensor& node) {
  const Tensor& cache = *node.src[0];
  const DType ids = node.src[2]->dtype;
  return cache.is_row_contiguous() && (is_float(&cache) || traits(cache.dtype).block_elems == quants::kBlock) &&
         is_float(node.src[1]) && (ids == DType::kI32 || ids == DType::kI64) &&
         can_select(std::get<SelectParams>(node.params));
}

}  // namespace

const OpKernel kSetRowsKernel{run, supports, nullptr};

}  // namespace shoal::cuda
