// mul_mat_id: the device reads the ids. If there are few (expert slot, token) pairs, each pair is multiplied separately
// by its expert's matrix. If there are many pairs, the pairs are first sorted by expert, so that a kernel multiplies
// several columns by one matrix. This kernel supports up to eight columns. If the average number of pairs per expert
// exceeds eight, tiles on tensor cores are used instead. The results of pairs whose expert is on another device are
// zeros.
#include <algorithm>
#include <bit>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/mul_mat_stream.h"
#include "devices/cuda/ops/mul_mat_tiles.h"
#include "devices/cuda/ops/mul_mat_vec.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/select.h"

namespace shoal::cuda {
namespace {

constexpr int kSelectThreads = 256;
constexpr int kGroupThreads = 1024;
/// If the average number of pairs per expert exceeds kPairsToSort, pairs are sorted. The sort counts pairs in shared
/// memory, whose size limits the number of experts.
constexpr int64_t kPairsToSort = 4;
constexpr int64_t kMostExperts = 4096;

/// Writes for each pair the index of its expert among this device's experts. If the expert is on another device, the
/// index is -1. If several launches are needed, later launches replace only indices that are -1.
__global__ void select_experts(View ids, Selection selection, bool is_first, int slots, int pairs, int32_t* to) {
  const int pair = static_cast<int>(blockIdx.x) * kSelectThreads + static_cast<int>(threadIdx.x);
  if (pair >= pairs) return;
  const int64_t slot = pair % slots, token = pair / slots;
  const int32_t id = load_as<int32_t>(ids.data + slot * ids.strides[0] + token * ids.strides[1]);
  if (is_first || to[pair] < 0) to[pair] = static_cast<int32_t>(selection.local(id));
}

/// One block sorts the pairs by expert (counting sort). Pairs whose expert is on another device come last. A group has
/// up to 1 << shift pairs.
__global__ void group_pairs(const int32_t* experts, int pairs, int count, int shift, ColumnGroup* groups,
                            int32_t* order, int32_t* group_count) {
  SHOAL_DYNAMIC_SHARED(int, counts);
  int* const next = counts + count + 1;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), size = 1 << shift;
  for (int e = thread; e <= count; e += threads) counts[e] = 0;
  __syncthreads();
  for (int i = thread; i < pairs; i += threads) atomicAdd(&counts[experts[i] < 0 ? count : experts[i]], 1);
  __syncthreads();
  for (int e = thread; e <= count; e += threads) {
    int first = 0, group = 0;
    for (int i = 0; i < e; ++i) {
      first += counts[i];
      group += (counts[i] + size - 1) >> shift;
    }
    next[e] = first;
    for (int i = 0; i < counts[e]; i += size) {
      groups[group++] = {e == count ? -1 : e, first + i, counts[e] - i < size ? counts[e] - i : size};
    }
    if (e == count) *group_count = group;
  }
  __syncthreads();
  for (int i = thread; i < pairs; i += threads) order[atomicAdd(&next[experts[i] < 0 ? count : experts[i]], 1)] = i;
}

int64_t pairs_of(const Tensor& node) {
  return node.shape[1] * node.shape[2];
}
/// Whether run() sorts the pairs. Only shapes are known here, so the decision uses the average number of pairs per
/// expert.
bool is_sorted(const Tensor& node) {
  const int64_t experts = node.src[0]->shape[2];
  return node.shape[2] > 1 && experts <= kMostExperts && pairs_of(node) > kPairsToSort * experts;
}

/// Whether the kernels of mul_mat_tiles.h compute the node. These kernels are used if the average number of pairs per
/// expert exceeds kVecColumns.
bool uses_tiles(const Tensor& node) {
  return is_sorted(node) && pairs_of(node) > kVecColumns * node.src[0]->shape[2] && mul_mat_tiles_can_join(node);
}

/// Layout of the node's workspace.
struct Memory {
  Memory(const Tensor& node, const GpuTraits& gpu, std::byte* workspace) {
    const auto pairs = static_cast<size_t>(pairs_of(node));
    size_t offset = 0;
    const auto take = [&](size_t size) {
      const auto at = reinterpret_cast<uintptr_t>(workspace) + offset;  // `workspace` is nullptr if only the size is
                                                                        // computed
      offset += (size + 255) / 256 * 256;
      return reinterpret_cast<std::byte*>(at);
    };
    const size_t vectors = columns_bytes(*node.src[0], *node.src[1]);
    columns = take(std::max(vectors, uses_tiles(node) ? mul_mat_tiles_groups(node, gpu).bytes : 0));
    experts = reinterpret_cast<int32_t*>(take(pairs * sizeof(int32_t)));
    if (is_sorted(node)) {
      order = reinterpret_cast<int32_t*>(take(pairs * sizeof(int32_t)));
      groups = reinterpret_cast<ColumnGroup*>(take(pairs * sizeof(ColumnGroup)));
      group_count = reinterpret_cast<int32_t*>(take(sizeof(int32_t)));
    }
    bytes = offset;
  }
  std::byte* columns;
  int32_t *experts, *order = nullptr, *group_count = nullptr;
  ColumnGroup* groups = nullptr;
  size_t bytes;
};

void select(const LaunchContext& context, const Tensor& node, const Memory& memory) {
  const int64_t pairs = pairs_of(node);
  const auto blocks = static_cast<unsigned>((pairs + kSelectThreads - 1) / kSelectThreads);
  for_selections(std::get<SelectParams>(node.params), node.src[0]->shape[2], [&](const Selection& some, bool is_first) {
    launch(context.stream, select_experts, dim3(blocks), dim3(kSelectThreads), 0, view_of(*node.src[2]), some, is_first,
           static_cast<int>(node.shape[1]), static_cast<int>(pairs), memory.experts);
  });
}

/// Sorts the pairs into groups of at most `columns` pairs. `columns` is a power of two.
void group(const LaunchContext& context, const Tensor& node, const Memory& memory, int columns) {
  const int64_t pairs = pairs_of(node), experts = node.src[0]->shape[2];
  const int shift = std::countr_zero(static_cast<unsigned>(columns));
  const size_t shared = 2 * static_cast<size_t>(experts + 1) * sizeof(int);
  launch(context.stream, group_pairs, dim3(1), dim3(kGroupThreads), shared, memory.experts, static_cast<int>(pairs),
         static_cast<int>(experts), shift, memory.groups, memory.order, memory.group_count);
}

void run_tiles(const LaunchContext& context, const Tensor& node, const JoinedProduct& joined, GluKind glu,
               const Memory& memory) {
  const TileGroups tiles = mul_mat_tiles_groups(node, context.gpu);
  group(context, node, memory, tiles.columns);
  const SortedPairs pairs{memory.groups, memory.group_count, memory.order};
  mul_mat_tiles_run_groups(context, node, joined, glu, pairs, memory.columns);
}

/// Sorts the pairs, and stores the groups of pairs in `product`.
void set_groups(const LaunchContext& context, const Tensor& node, const Memory& memory, int columns, Product& product) {
  group(context, node, memory, columns);
  product.columns_of = ColumnsOf::kGroups;
  product.groups = memory.groups;
  product.order = memory.order;
  product.group_count = memory.group_count;
  // Each expert may have one incomplete group. One more incomplete group may contain the pairs whose expert is on
  // another device.
  const int64_t pairs = pairs_of(node);
  product.jobs = static_cast<int>(std::min(pairs, pairs / columns + node.src[0]->shape[2] + 1));
}

bool streams(const Tensor& node, const JoinedProduct& joined, const GpuTraits& gpu) {
  return node.shape[2] == 1 && stream_experts_supports(joined, *node.src[1], node.shape[1], gpu);
}

/// Runs the node for one token. If this device has few ranges of expert ids, the kernel of the product looks up the
/// experts. Otherwise, select() looks up the experts before this kernel runs.
void run_token(const LaunchContext& context, const Tensor& node, const JoinedProduct& joined, GluKind glu,
               const Memory& memory) {
  const Tensor& ids = *node.src[2];
  const auto& params = std::get<SelectParams>(node.params);
  ExpertIds found{reinterpret_cast<const int32_t*>(ids.data), static_cast<int64_t>(ids.strides[0] / sizeof(int32_t)),
                  node.shape[1], all_rows(joined.a->shape[2])};
  if (params.ranges.size() > Selection::kMost) {
    select(context, node, memory);
    found.ids = memory.experts, found.stride = 1;
  } else {
    for_selections(params, found.here.rows, [&](const Selection& here, bool) { found.here = here; });
  }
  stream_experts_run(context, joined, *node.src[1], glu, found);
}

/// Runs the joined product, or the node alone, with the node's workspace.
void run_joined(const LaunchContext& context, const Tensor& node, const JoinedProduct& joined, GluKind glu = {}) {
  const Tensor& experts = *joined.a;
  const Tensor& x = *node.src[1];
  const Memory memory(node, context.gpu, node.workspace);
  const int64_t pairs = pairs_of(node);
  if (streams(node, joined, context.gpu)) return run_token(context, node, joined, glu, memory);
  select(context, node, memory);
  if (uses_tiles(node)) return run_tiles(context, node, joined, glu, memory);
  const PreparedColumns columns = prepare_columns(context, experts, x, memory.columns);
  const bool sorted = is_sorted(node);
  const VecKernel kernel = vec_kernel(experts, joined.up, sorted ? kVecColumns : 1);
  Product product = product_of(experts, *joined.out, columns);
  if (joined.up) product.up = joined.up->data;
  product.glu = glu;
  product.slots = static_cast<int>(node.shape[1]);
  product.x_slots = static_cast<int>(x.shape[1]);
  if (sorted && kernel.kernel) {
    set_groups(context, node, memory, kernel.columns, product);
  } else {
    product.columns_of = ColumnsOf::kPairs;
    product.experts = memory.experts;
    product.jobs = static_cast<int>(pairs);
  }
  multiply(context, experts, product, kernel);
}

void run(const LaunchContext& context, Tensor& node) {
  run_joined(context, node, {.a = node.src[0], .out = &node});
}

bool supports(const Tensor& node) {
  return supports_product(node) && node.src[2]->dtype == DType::kI32;
}

size_t workspace(const Tensor& node, const GpuTraits& gpu) {
  return Memory(node, gpu, nullptr).bytes;
}

}  // namespace

const OpKernel kMulMatIdKernel{run, supports, workspace};

bool mul_mat_id_glu_supports(const Tensor& gate, const Tensor& up, const Tensor& out) {
  const Tensor &a = *gate.src[0], &b = *up.src[0];
  const bool alike = a.dtype == b.dtype && same_shape(a, b) && a.strides == b.strides;
  const bool same_columns = gate.src[1] == up.src[1] && gate.src[2] == up.src[2] && gate.params == up.params;
  if (!alike || !same_columns || !supports(gate) || !supports(up)) return false;
  const bool plain = out.dtype == DType::kF32 && out.is_row_contiguous() && same_shape(out, gate);
  return plain && uses_tiles(gate) == uses_tiles(up);
}

void mul_mat_id_glu_run(const LaunchContext& context, const Tensor& gate, const Tensor& up, GluKind kind, Tensor& out) {
  run_joined(context, gate, {.a = gate.src[0], .up = up.src[0], .out = &out}, kind);
}

bool mul_mat_id_sum_supports(const Tensor& node, const Tensor& weights, const Tensor& out, const GpuTraits& gpu) {
  const bool by_slot = weights.dtype == DType::kF32 && weights.shape[0] == 1 && weights.shape[1] == node.shape[1];
  const bool is_row = out.dtype == DType::kF32 && out.is_contiguous() && out.elements() == node.shape[0];
  return by_slot && is_row && supports(node) && streams(node, {.a = node.src[0], .out = &node}, gpu);
}

void mul_mat_id_sum_run(const LaunchContext& context, const Tensor& node, const Tensor& weights, Tensor& out) {
  run_joined(context, node, {.a = node.src[0], .weights = &weights, .out = &out});
}

}  // namespace shoal::cuda
