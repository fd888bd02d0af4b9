#include "devices/cuda/ops/mul_mat_tiles.h"

#include <algorithm>
#include <array>
#include <limits>

#include "devices/cuda/kernels/tile_columns.h"
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {
namespace {

constexpr int kLargestSplit = 32;
/// A part of k is at least this many steps: less does not fill the pipeline of copies.
constexpr int kFewestSteps = 4;

/// The build for compute capability 9.0 may have the instructions of warpgroups, or not (cmake/cuda.cmake).
#if defined(SHOAL_CUDA_WGMMA) || defined(SHOAL_CUDA_EMULATED)
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif
bool has_wgmma(const GpuTraits& gpu) {
  return kHasWgmma && gpu.compute_capability == 90 && !gpu.off.wgmma;
}

/// By instructions of warps, which all GPUs have, and by those of warpgroups.
struct Kernels {
  const TileKernels *warps = nullptr, *warpgroups = nullptr;
};
struct Entry {
  DType dtype;
  Kernels kernels;
};
constexpr Kernels kBF16Kernels{&kTilesBF16, &kWgmmaBF16};
constexpr auto kTable = std::to_array<Entry>({
    {DType::kF32, {}},
    {DType::kF16, {&kTilesF16, &kWgmmaF16}},
    {DType::kBF16, {&kTilesBF16TwoTerms, &kWgmmaBF16TwoTerms}},
    {DType::kI32, {}},
    {DType::kI64, {}},
#define SHOAL_QUANTIZED(id, ...) {DType::k##id, {&kTiles##id, &kWgmma##id}},
#include "graph/dtypes.def"
});
static_assert(kTable.size() == kDTypeCount);

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
size_t rounded_up(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/// nullptr: f32.
const Kernels* kernels_for(const Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const Kernels* kernels = &kTable[static_cast<size_t>(a.dtype)].kernels;
  if (kernels->warps == nullptr || a.shape[0] == 0) return nullptr;
  for (const int64_t count : {a.shape[0], a.shape[1], node.rows(), b.rows()}) {
    if (count > std::numeric_limits<int32_t>::max() / 2) return nullptr;
  }
  if (traits(a.dtype).is_quantized) return kernels;
  bool aligned = a.is_row_contiguous() && a.shape[0] % 8 == 0;
  for (int i = 1; i < kMaxDims; ++i) aligned = aligned && (a.shape[i] == 1 || a.strides[i] % kChunkBytes == 0);
  if (!aligned || (a.view_base != nullptr && a.view_offset % kChunkBytes != 0)) return nullptr;
  return a.dtype == DType::kBF16 && b.dtype == DType::kBF16 ? &kBF16Kernels : kernels;
}

/// Which tiles a product is made of, and where its workspace has what.
struct TilePlan {
  const TileKernel* kernel = nullptr;
  bool brain = false;
  int terms = 1;
  int splits = 1, steps_per_split = 1;
  int64_t k_padded = 0;
  size_t scales_at = 0, parts_at = 0, bytes = 0;
};

/// What a plan is made for.
struct Wanted {
  const Tensor& node;
  bool gated = false;  ///< with a second matrix
  const GpuTraits& gpu;
  size_t most_bytes = std::numeric_limits<size_t>::max();  ///< of workspace, for what has parts of k

  int64_t steps() const { return divided_up(node.src[0]->shape[0], kTileStep); }
  int64_t row_tiles() const { return divided_up(node.shape[0], gated ? kTileRows / 2 : kTileRows); }
  /// That a part of k has.
  int64_t sums() const { return node.elements() * (gated ? 2 : 1); }
};

/// Cycles that a plan takes. Tiles come in rounds of one for each multiprocessor (where two of its blocks run at the
/// same time, they share its tensor cores). The sums of parts of k are written and read again, some 20 bytes a cycle
/// and multiprocessor.
double cost_of(const Wanted& wanted, const TilePlan& plan) {
  const int processors = std::max(wanted.gpu.processors, 1);
  const Tensor& node = wanted.node;
  const int64_t tiles =
      wanted.row_tiles() * divided_up(node.shape[1], plan.kernel->columns) * node.shape[2] * node.shape[3];
  const auto rounds = static_cast<double>(divided_up(tiles * plan.splits, processors));
  const double work = rounds * plan.steps_per_split * plan.kernel->step_cycles;
  if (plan.splits == 1) return work;
  return work + 2.0 * plan.splits * static_cast<double>(wanted.sums()) * sizeof(float) / (processors * 20.0);
}

void place_workspace(TilePlan& plan, const Wanted& wanted) {
  const auto columns = static_cast<size_t>(wanted.node.src[1]->rows());
  plan.k_padded = wanted.steps() * kTileStep;
  plan.scales_at =
      rounded_up(columns * static_cast<size_t>(plan.terms) * static_cast<size_t>(plan.k_padded) * sizeof(uint16_t));
  plan.parts_at = plan.scales_at + rounded_up(columns * sizeof(float));
  const auto sums = static_cast<size_t>(wanted.sums());
  plan.bytes = plan.parts_at + (plan.splits > 1 ? static_cast<size_t>(plan.splits) * sums * sizeof(float) : 0);
}

/// Looks for a plan that takes fewer cycles than `cost`.
void improve(TilePlan& best, double& cost, const Wanted& wanted, const TileKernels& kernels) {
  const auto steps = static_cast<int>(wanted.steps());
  for (const TileKernel& kernel : kernels.kernels) {
    const bool last = &kernel == &kernels.kernels.back();
    if (kernel.shared_bytes > wanted.gpu.shared_bytes_per_block && !last) continue;
    for (int splits = 1; splits <= kLargestSplit; ++splits) {
      const auto groups = static_cast<int>(divided_up(divided_up(steps, splits), kernels.steps_per_group));
      TilePlan plan{&kernel, kernels.brain, kernels.terms};
      plan.steps_per_split = groups * kernels.steps_per_group;
      plan.splits = static_cast<int>(divided_up(steps, plan.steps_per_split));
      if (plan.splits != splits || (splits > 1 && plan.steps_per_split < kFewestSteps)) continue;
      place_workspace(plan, wanted);
      const double cost_of_plan = cost_of(wanted, plan);
      if (cost_of_plan >= cost || (splits > 1 && plan.bytes > wanted.most_bytes)) continue;
      best = plan;
      cost = cost_of_plan;
    }
  }
}

TilePlan plan_for(const Wanted& wanted, const Kernels& kernels) {
  TilePlan best;
  double cost = std::numeric_limits<double>::infinity();
  if (has_wgmma(wanted.gpu)) improve(best, cost, wanted, *kernels.warpgroups);
  improve(best, cost, wanted, *kernels.warps);
  return best;
}

struct ColumnKernels {
  void (*to_halves)(View, ColumnOrder, uint16_t*, float*, int);
  void (*to_brain)(View, ColumnOrder, uint16_t*, int);
  void (*to_two_terms)(View, ColumnOrder, uint16_t*, int);
};
template <class B>
constexpr ColumnKernels kColumnKernels{columns_to_halves<B>, columns_to_brain<B, 1>, columns_to_brain<B, 2>};

const ColumnKernels& column_kernels(DType dtype) {
  constexpr const ColumnKernels* kKernels[] = {&kColumnKernels<float>, &kColumnKernels<__half>,
                                               &kColumnKernels<__nv_bfloat16>};
  static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kBF16) == 2);
  return *kKernels[static_cast<int>(dtype)];
}

void convert_columns(const LaunchContext& context, const Tensor& b, const TilePlan& plan, std::byte* workspace,
                     int64_t count, ColumnOrder order = {}) {
  const ColumnKernels& kernels = column_kernels(b.dtype);
  auto* to = reinterpret_cast<uint16_t*>(workspace);
  const dim3 grid(static_cast<unsigned>(count)), block(kColumnThreads);
  const int k_padded = static_cast<int>(plan.k_padded);
  if (!plan.brain) {
    auto* scales = reinterpret_cast<float*>(workspace + plan.scales_at);
    launch(context.stream, kernels.to_halves, grid, block, 0, view_of(b), order, to, scales, k_padded);
  } else if (plan.terms == 1) {
    launch(context.stream, kernels.to_brain, grid, block, 0, view_of(b), order, to, k_padded);
  } else {
    launch(context.stream, kernels.to_two_terms, grid, block, 0, view_of(b), order, to, k_padded);
  }
}

/// c = the sum of the parts of k, in their order, and what is joined to it. One block: kColumnThreads rows of one
/// column.
__global__ void add_splits(const TileProduct p, View c) {
  const int blocks = (p.m + kColumnThreads - 1) / kColumnThreads;
  const int index = static_cast<int>(blockIdx.x) / blocks,
            row = static_cast<int>(blockIdx.x) % blocks * kColumnThreads + static_cast<int>(threadIdx.x);
  if (row >= p.m) return;
  const int column = index % p.n, batch = index / p.n;
  const float* from = p.c + index * p.c_strides[0] + row;
  const auto sum_of = [&](const float* part) {
    float sum = *part;
    for (int i = 1; i < p.splits; ++i) sum += part[i * p.split_stride];
    return sum;
  };
  const float sum = sum_of(from), up = p.up == nullptr ? 0 : sum_of(from + p.m);
  auto* to = reinterpret_cast<float*>(row_at(c, column, batch % p.batches2, batch / p.batches2));
  to[row] = joined(p, sum, up, row, column, batch);
}

TileProduct product_of(const Wanted& wanted, const TilePlan& plan, std::byte* workspace, const TileJoin& join,
                       const Tensor& out) {
  const Tensor& node = wanted.node;
  const Tensor &a = *node.src[0], &b = *node.src[1];
  TileProduct p;
  p.a = a.data;
  p.b = reinterpret_cast<const uint16_t*>(workspace);
  if (!plan.brain) p.b_scales = reinterpret_cast<const float*>(workspace + plan.scales_at);
  p.m = static_cast<int>(node.shape[0]);
  p.n = static_cast<int>(node.shape[1]);
  p.k = static_cast<int>(a.shape[0]);
  p.k_padded = static_cast<int>(plan.k_padded);
  for (int i = 0; i < 3; ++i) p.a_strides[i] = static_cast<int64_t>(a.strides[i + 1]);
  if (join.up != nullptr) p.up = join.up->data;
  p.glu = join.glu;
  if (join.addend != nullptr) {
    p.addend = reinterpret_cast<const float*>(join.addend->data);
    for (int i = 0; i < 3; ++i) {
      const bool same = join.addend->shape[i + 1] == 1;
      p.addend_strides[i] = same ? 0 : static_cast<int64_t>(join.addend->strides[i + 1] / sizeof(float));
    }
  }
  if (plan.splits > 1) {
    p.c = reinterpret_cast<float*>(workspace + plan.parts_at);
    p.split_stride = wanted.sums();
    p.c_strides[0] = node.shape[0] * (wanted.gated ? 2 : 1);
    p.c_strides[1] = p.c_strides[0] * node.shape[1];
    p.c_strides[2] = p.c_strides[1] * node.shape[2];
  } else {
    p.c = reinterpret_cast<float*>(out.data);
    for (int i = 0; i < 3; ++i) p.c_strides[i] = static_cast<int64_t>(out.strides[i + 1] / sizeof(float));
  }
  p.batches2 = static_cast<int>(node.shape[2]);
  p.shared2 = static_cast<int>(b.shape[2] / a.shape[2]);
  p.shared3 = static_cast<int>(b.shape[3] / a.shape[3]);
  p.row_tiles = static_cast<int>(wanted.row_tiles());
  p.column_tiles = static_cast<int>(divided_up(node.shape[1], plan.kernel->columns));
  p.splits = plan.splits;
  p.steps_per_split = plan.steps_per_split;
  return p;
}

/// The product by columns that are in the workspace already.
void multiply(const LaunchContext& context, const Wanted& wanted, const TilePlan& plan, std::byte* workspace,
              const TileJoin& join, const Tensor& out) {
  const Tensor& node = wanted.node;
  const TileProduct product = product_of(wanted, plan, workspace, join, out);
  const int64_t blocks =
      static_cast<int64_t>(product.row_tiles) * product.column_tiles * plan.splits * node.shape[2] * node.shape[3];
  launch(context.stream, plan.kernel->kernel, dim3(static_cast<unsigned>(blocks)),
         dim3(static_cast<unsigned>(plan.kernel->threads)), plan.kernel->shared_bytes, product);
  if (plan.splits == 1) return;
  const int64_t sums = divided_up(node.shape[0], kColumnThreads) * node.rows();
  launch(context.stream, add_splits, dim3(static_cast<unsigned>(sums)), dim3(kColumnThreads), 0, product, view_of(out));
}

/// Rows of floats are read 16 bytes at a time. nullptr: f32.
const Kernels* kernels_for_data(const Tensor& node) {
  const Tensor& a = *node.src[0];
  const bool aligned = traits(a.dtype).is_quantized || reinterpret_cast<uintptr_t>(a.data) % kChunkBytes == 0;
  return aligned ? kernels_for(node) : nullptr;
}

bool overlaps(const Tensor& tensor, const std::byte* begin, const std::byte* end) {
  return tensor.data < end && begin < tensor.data + tensor.span_bytes();
}

/// Pairs of mul_mat_id, each of which has a column of its own.
int64_t pairs_of(const Tensor& node) {
  return node.shape[1] * node.shape[2];
}
int64_t most_groups(const Tensor& node, int columns) {
  return std::min(pairs_of(node), pairs_of(node) / columns + node.src[0]->shape[2] + 1);
}

/// For mul_mat_id: tiles of k as a whole, of the columns for which the groups of all experts take the fewest cycles.
TilePlan group_plan(const Tensor& node, const GpuTraits& gpu) {
  const Kernels& kernels = *kernels_for(node);
  TilePlan best;
  double cost = std::numeric_limits<double>::infinity();
  for (const TileKernels* set : {kernels.warpgroups, kernels.warps}) {
    if (set == kernels.warpgroups && !has_wgmma(gpu)) continue;
    for (const TileKernel& kernel : set->kernels) {
      const bool last = &kernel == &set->kernels.back();
      if (kernel.shared_bytes > gpu.shared_bytes_per_block && !last) continue;
      const double cost_of_plan = static_cast<double>(most_groups(node, kernel.columns)) * kernel.step_cycles;
      if (cost_of_plan >= cost) continue;
      best = {&kernel, set->brain, set->terms};
      cost = cost_of_plan;
    }
  }
  const auto columns = static_cast<size_t>(pairs_of(node));
  best.k_padded = divided_up(node.src[0]->shape[0], kTileStep) * kTileStep;
  best.steps_per_split = static_cast<int>(best.k_padded / kTileStep);
  best.scales_at =
      rounded_up(columns * static_cast<size_t>(best.terms) * static_cast<size_t>(best.k_padded) * sizeof(uint16_t));
  best.bytes = best.scales_at + rounded_up(columns * sizeof(float));
  return best;
}

}  // namespace

bool mul_mat_tiles_supports(const Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const DTypeTraits& type = traits(a.dtype);
  return (type.is_float || (type.is_quantized && a.is_row_contiguous())) && traits(b.dtype).is_float &&
         node.dtype == DType::kF32 && node.is_row_contiguous();
}

size_t mul_mat_tiles_workspace(const Tensor& node, const GpuTraits& gpu) {
  const Kernels* kernels = node.empty() ? nullptr : kernels_for(node);
  return kernels == nullptr ? 0 : plan_for({node, false, gpu}, *kernels).bytes;
}

TileChoice mul_mat_tiles_choice(const Tensor& node, const GpuTraits& gpu) {
  const Kernels* kernels = node.empty() ? nullptr : kernels_for(node);
  if (kernels == nullptr) return {};
  const TilePlan plan = plan_for({node, false, gpu}, *kernels);
  return {plan.kernel->threads == kWgmmaThreads, plan.kernel->columns, plan.splits};
}

void mul_mat_tiles_run(const LaunchContext& context, Tensor& node) {
  if (node.empty()) return;
  if (kernels_for_data(node) == nullptr) {
    mul_mat_float_tiles(context, node);
  } else {
    mul_mat_tiles_run_joined(context, node, {}, node);
  }
}

bool mul_mat_tiles_can_join(const Tensor& node) {
  return !node.empty() && mul_mat_tiles_supports(node) && kernels_for_data(node) != nullptr;
}

void mul_mat_tiles_run_joined(const LaunchContext& context, const Tensor& node, const TileJoin& join,
                              const Tensor& out) {
  const Kernels& kernels = *kernels_for(node);
  const TilePlan own = plan_for({node, false, context.gpu}, kernels);
  Wanted wanted{node, join.up != nullptr, context.gpu, own.bytes};
  const std::byte* const workspace = node.workspace;
  if (overlaps(out, workspace + own.parts_at, workspace + own.bytes)) wanted.most_bytes = 0;
  const TilePlan plan = plan_for(wanted, kernels);
  convert_columns(context, *node.src[1], plan, node.workspace, node.src[1]->rows());
  multiply(context, wanted, plan, node.workspace, join, out);
}

bool mul_mat_tiles_same_columns(const Tensor& node, const Tensor& other) {
  const TileKernels &kernels = *kernels_for(node)->warps, &others = *kernels_for(other)->warps;
  return kernels.brain == others.brain && kernels.terms == others.terms;
}

void mul_mat_tiles_run_many(const LaunchContext& context, std::span<const JoinedProduct> products) {
  const auto plan_of = [&](const Tensor& node) { return plan_for({node, false, context.gpu}, *kernels_for(node)); };
  const Tensor& last = *products.back().node;
  const TilePlan last_plan = plan_of(last);
  const std::byte* const parts = last.workspace + last_plan.parts_at;
  // Parts of k must have room where nothing lies that is still read, or read later.
  const auto can_share = [&](const JoinedProduct& one) {
    const TilePlan plan = plan_of(*one.node);
    const std::byte* const end = last.workspace + plan.bytes;
    const auto is_there = [&](const Tensor* tensor) { return tensor != nullptr && overlaps(*tensor, parts, end); };
    return plan.bytes <= last_plan.bytes &&
           std::none_of(products.begin(), products.end(), [&](const JoinedProduct& any) {
             return plan.splits > 1 && (is_there(any.out) || is_there(any.a) || is_there(any.addend));
           });
  };
  // All or none: the workspace of a product is its own at its turn only.
  const bool shared = std::all_of(products.begin(), products.end(), can_share);
  if (shared) convert_columns(context, *last.src[1], last_plan, last.workspace, last.src[1]->rows());
  for (const JoinedProduct& one : products) {
    const TileJoin join{.addend = one.addend};
    if (shared) {
      multiply(context, {*one.node, false, context.gpu}, plan_of(*one.node), last.workspace, join, *one.out);
    } else {
      mul_mat_tiles_run_joined(context, *one.node, join, *one.out);
    }
  }
}

bool mul_mat_tiles_can_group(const Tensor& node) {
  return mul_mat_tiles_supports(node) && kernels_for_data(node) != nullptr;
}

TileGroups mul_mat_tiles_groups(const Tensor& node, const GpuTraits& gpu) {
  const TilePlan plan = group_plan(node, gpu);
  return {plan.kernel->columns, plan.bytes};
}

void mul_mat_tiles_run_groups(const LaunchContext& context, const Tensor& node, const JoinedProduct& product,
                              GluKind glu, const SortedPairs& pairs, std::byte* workspace) {
  const Tensor &experts = *product.a, &out = *product.out;
  const TilePlan plan = group_plan(node, context.gpu);
  convert_columns(context, *node.src[1], plan, workspace, pairs_of(node),
                  {pairs.order, static_cast<int>(node.shape[1])});
  TileProduct p;
  p.a = experts.data;
  p.b = reinterpret_cast<const uint16_t*>(workspace);
  if (!plan.brain) p.b_scales = reinterpret_cast<const float*>(workspace + plan.scales_at);
  if (product.up) p.up = product.up->data;
  p.glu = glu;
  p.c = reinterpret_cast<float*>(out.data);
  for (int i = 0; i < 3; ++i) {
    p.a_strides[i] = static_cast<int64_t>(experts.strides[i + 1]);
    p.c_strides[i] = static_cast<int64_t>(out.strides[i + 1] / sizeof(float));
  }
  p.m = static_cast<int>(node.shape[0]);
  p.n = static_cast<int>(pairs_of(node));
  p.k = static_cast<int>(experts.shape[0]);
  p.k_padded = static_cast<int>(plan.k_padded);
  p.row_tiles = static_cast<int>(divided_up(node.shape[0], product.up ? kTileRows / 2 : kTileRows));
  p.column_tiles = static_cast<int>(most_groups(node, plan.kernel->columns));
  p.steps_per_split = plan.steps_per_split;
  p.groups = pairs.groups;
  p.group_count = pairs.group_count;
  p.order = pairs.order;
  p.slots = static_cast<int>(node.shape[1]);
  const int64_t blocks = static_cast<int64_t>(p.row_tiles) * p.column_tiles;
  launch(context.stream, plan.kernel->kernel, dim3(static_cast<unsigned>(blocks)),
         dim3(static_cast<unsigned>(plan.kernel->threads)), plan.kernel->shared_bytes, p);
}

}  // namespace shoal::cuda
