// set_rows and set_slice: rows are converted to the cache's dtype and written in place. In set_rows, each block of
// threads writes some or all elements of one row. A row has elements in several planes: one for each head and batch. If
// several ids are equal, only the row of the last of these ids is written. If planes have ids of their own, each block
// writes elements of only one plane.
#include "devices/cuda/ops/conversion.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/select.h"
#include "graph/ops/select.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

struct RowsToSet {
  Operand cache, rows, ids;
  DType ids_dtype;
  Conversion<false> convert;
  int64_t count;   ///< number of ids
  int64_t items;   ///< number of items per row; a warp writes a quantised block, and a thread writes any other item
  int64_t heads;   ///< length of axis 2
  int64_t planes;  ///< number of planes per block; the first plane of a block is blockIdx.z * planes
  Selection selection;

  __device__ int64_t first_plane() const { return static_cast<int64_t>(blockIdx.z) * planes; }
  /// The ids of the block's planes.
  __device__ const std::byte* own_ids() const {
    if (gridDim.z == 1) return ids.data;
    return ids.at({0, first_plane() % heads, first_plane() / heads, 0});
  }
  __device__ int64_t id(const std::byte* own, int64_t i) const {
    return integer_at(ids_dtype, own + i * ids.strides[0]);
  }
};

/// Returns the cache row to which row i is written. Returns -1 if the cache row is on another device or a later row
/// overwrites it. All threads of a block must call this function with the same i. All threads get the same result.
__device__ int64_t row_to_write(const RowsToSet& set, int64_t i) {
  __shared__ int overwritten;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const std::byte* const own = set.own_ids();
  const int64_t id = set.id(own, i), row = set.selection.local(id);
  if (thread == 0) overwritten = 0;
  __syncthreads();
  if (row >= 0) {
    for (int64_t later = i + 1 + thread; later < set.count; later += kThreads) {
      if (set.id(own, later) == id) overwritten = 1;
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
  const int64_t first_plane = set.first_plane();
  const int64_t count = set.items * set.planes, step = static_cast<int64_t>(gridDim.y) * kItems;
  for (int64_t k = static_cast<int64_t>(blockIdx.y) * kItems + (kBlocks ? threadIdx.y : threadIdx.x); k < count;
       k += step) {
    const int64_t index = k / set.items, item = k - index * set.items, plane = first_plane + index;
    const int64_t i2 = plane % set.heads, i3 = plane / set.heads;
    const std::byte* const from = set.rows.at({0, i, i2, i3});
    std::byte* const to = set.cache.at({0, row, i2, i3});
    if constexpr (kBlocks) {
      set.convert.make_block(scratch[threadIdx.y], from, to, item);
    } else {
      set.convert(from, to, item);
    }
  }
}

bool has_own_ids(const Tensor& node) {
  return node.src[2]->rows() > 1;
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor &cache = *node.src[0], &rows = *node.src[1], &ids = *node.src[2];
  if (rows.empty()) return;
  const Operand to = operand_of(cache), from = operand_of(rows);
  const Conversion<false> convert = conversion_of<false>(to, cache.dtype, cache.shape, from, rows.dtype, rows.shape);
  const bool blocks = traits(cache.dtype).is_quantized;
  const int64_t planes = rows.shape[2] * rows.shape[3];
  Operand of_ids = operand_of(ids);
  for (const int axis : {1, 2}) {
    if (ids.shape[axis] == 1) of_ids.strides[axis] = 0;
  }
  RowsToSet set{to,
                from,
                of_ids,
                ids.dtype,
                convert,
                rows.shape[1],
                cache.shape[0] / (blocks          ? quants::kBlock
                                  : convert.eight ? Conversion<>::kItem
                                                  : 1),
                rows.shape[2],
                has_own_ids(node) ? 1 : planes,
                {}};
  // Along x, the grid has one block per row. `most` limits the number of blocks along y, so that the grid has at most
  // about 16 blocks per multiprocessor.
  const int64_t of_block = blocks ? kWarps : kThreads, needed = (set.items * set.planes + of_block - 1) / of_block;
  const int64_t most = std::max<int64_t>(std::max(context.gpu.processors, 1) * int64_t{16} / set.count, 1);
  const dim3 grid(static_cast<unsigned>(set.count), static_cast<unsigned>(std::min({needed, most, int64_t{65535}})),
                  static_cast<unsigned>(planes / set.planes));
  for_selections(std::get<SelectParams>(node.params), cache.shape[1], [&](const Selection& selection, bool) {
    set.selection = selection;
    launch_early(context, blocks ? set_rows_kernel<true> : set_rows_kernel<false>, grid,
                 blocks ? dim3(32, kWarps) : dim3(kThreads), 0, set);
  });
}

bool is_writable(const Tensor& node) {
  const Tensor& cache = *node.src[0];
  return cache.is_row_contiguous() && (is_float(&cache) || traits(cache.dtype).block_elems == quants::kBlock) &&
         is_float(node.src[1]);
}

bool supports(const Tensor& node) {
  const Tensor &rows = *node.src[1], &ids = *node.src[2];
  const bool grid_fits = !has_own_ids(node) || rows.shape[2] * rows.shape[3] <= 65535;
  return is_writable(node) && (ids.dtype == DType::kI32 || ids.dtype == DType::kI64) && grid_fits &&
         can_select(std::get<SelectParams>(node.params));
}

void run_slice(const LaunchContext& context, Tensor& node) {
  const Tensor &cache = *node.src[0], &x = *node.src[1];
  const auto& params = std::get<SetSliceParams>(node.params);
  const int64_t block = params.axis == 0 ? traits(cache.dtype).block_elems : 1;
  for_written_runs(params, x.shape[params.axis], [&](const WrittenRun& run) {
    Shape shape = x.shape;
    shape[params.axis] = run.length;
    Operand to = operand_of(cache), from = operand_of(x);
    to.data += run.to / block * to.strides[params.axis];
    from.data += run.from * from.strides[params.axis];
    if (shape[0] * shape[1] * shape[2] * shape[3] > 0) {
      convert_elements(context, shape, to, cache.dtype, from, x.dtype);
    }
  });
}

bool supports_slice(const Tensor& node) {
  const auto& params = std::get<SetSliceParams>(node.params);
  const int64_t block = params.axis == 0 ? traits(node.dtype).block_elems : 1;
  return is_writable(node) && can_write_runs(params, node.src[1]->shape[params.axis], block);
}

}  // namespace

const OpKernel kSetRowsKernel{run, supports, nullptr};
const OpKernel kSetSliceKernel{run_slice, supports_slice, nullptr};

}  // namespace shoal::cuda
