#include "devices/cuda/ops/mul_mat_tiles.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "devices/cuda/kernels/tile_columns.h"
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {
namespace {

constexpr int kLargestSplit = 32;
/// Smallest number of steps in a part of k. A part with fewer steps does not fill the pipeline of copies.
constexpr int kFewestSteps = 4;

/// Whether this build has kernels with wgmma, the warpgroup instructions of compute capability 9.0 (cmake/cuda.cmake).
#if defined(SHOAL_CUDA_WGMMA) || defined(SHOAL_CUDA_EMULATED)
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif
bool has_wgmma(const GpuTraits& gpu) {
  return kHasWgmma && gpu.compute_capability == 90 && !gpu.off.wgmma;
}

/// The kernels for a dtype. `warps` uses mma.sync, which all GPUs support. `warpgroups` uses wgmma.
struct Kernels {
  const TileKernels *warps = nullptr, *warpgroups = nullptr;
};
constexpr Kernels kBF16Kernels{&kTilesBF16, &kWgmmaBF16};
constexpr auto kTable = std::to_array<Kernels>({
    {},
    {&kTilesF16, &kWgmmaF16},
    {&kTilesBF16TwoTerms, &kWgmmaBF16TwoTerms},
    {},
    {},
#define SHOAL_QUANTIZED(id, ...) {&kTiles##id, &kWgmma##id},
#include "graph/dtypes.def"
});
static_assert(kTable.size() == kDTypeCount, "one entry per dtype, in the order of the enumeration");

size_t rounded_up(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/// Returns the kernels for the node, or nullptr if the node needs the f32 kernel.
const Kernels* kernels_for(const Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const Kernels* kernels = &kTable[static_cast<size_t>(a.dtype)];
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

/// The tiles of a product and the layout of its workspace.
struct TilePlan {
  const TileKernel* kernel = nullptr;
  bool brain = false;
  int terms = 1;
  int splits = 1, steps_per_split = 1;
  int64_t k_padded = 0;
  size_t scales_at = 0, parts_at = 0, bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  ///< estimated time, in cycles
};

JoinedProduct product_alone(const Tensor& node) {
  return {.a = node.src[0], .out = &node, .node = &node};
}

/// The products that one launch computes. These products have the same b, and their matrices have the same type.
struct Wanted {
  std::span<const JoinedProduct> products;
  const GpuTraits& gpu;
  size_t most_bytes = std::numeric_limits<size_t>::max();  ///< largest allowed workspace of a plan that divides k into
                                                           ///< parts, in bytes

  const Tensor& node() const { return *products[0].node; }
  bool gated() const { return products[0].up != nullptr; }
  int64_t steps() const { return divided_up(node().src[0]->shape[0], kTileStep); }
  int64_t row_tiles(const JoinedProduct& one) const {
    return divided_up(one.node->shape[0], gated() ? kTileRows / 2 : kTileRows);
  }
  /// Number of sums that each part of k produces for a product.
  int64_t sums(const JoinedProduct& one) const { return one.node->elements() * (gated() ? 2 : 1); }
  int64_t all_row_tiles() const {
    int64_t all = 0;
    for (const JoinedProduct& one : products) all += row_tiles(one);
    return all;
  }
  int64_t all_sums() const {
    int64_t all = 0;
    for (const JoinedProduct& one : products) all += sums(one);
    return all;
  }
};

/// Estimates the cycles of a plan. Tiles run in rounds of one tile per multiprocessor. Two blocks on a multiprocessor
/// do not shorten a round, because they use the same tensor cores. If k is divided into parts, the tiles write their
/// sums, and a second launch reads these sums. Each multiprocessor writes and reads about 20 bytes per cycle.
double cost_of(const Wanted& wanted, const TilePlan& plan) {
  constexpr double kLaunchCycles = 2000;
  const int processors = std::max(wanted.gpu.processors, 1);
  const Tensor& node = wanted.node();
  const int64_t tiles =
      wanted.all_row_tiles() * divided_up(node.shape[1], plan.kernel->columns) * node.shape[2] * node.shape[3];
  const auto rounds = static_cast<double>(divided_up(tiles * plan.splits, processors));
  const double work = kLaunchCycles + rounds * plan.steps_per_split * plan.kernel->step_cycles;
  if (plan.splits == 1) return work;
  const double bytes = 2.0 * plan.splits * static_cast<double>(wanted.all_sums()) * sizeof(float);
  return work + kLaunchCycles + bytes / (processors * 20.0);
}

/// Sets the layout of the workspace: the converted columns, their scales, then the sums of the parts of k.
void place_columns(TilePlan& plan, int64_t count, int64_t steps) {
  const auto columns = static_cast<size_t>(count);
  plan.k_padded = steps * kTileStep;
  plan.scales_at =
      rounded_up(columns * static_cast<size_t>(plan.terms) * static_cast<size_t>(plan.k_padded) * sizeof(uint16_t));
  plan.bytes = plan.parts_at = plan.scales_at + rounded_up(columns * sizeof(float));
}

/// Calls f(kernels, kernel) for each kernel whose instructions and shared memory the GPU supports. Every GPU supports
/// the kernel that uses mma.sync and the narrowest tiles.
template <class F>
void for_kernels(const Tensor& node, const GpuTraits& gpu, const F& f) {
  const Kernels& kernels = *kernels_for(node);
  for (const TileKernels* set : {kernels.warpgroups, kernels.warps}) {
    if (set == kernels.warpgroups && !has_wgmma(gpu)) continue;
    for (const TileKernel& kernel : set->kernels) {
      const bool last = &kernel == &set->kernels.back();
      if (kernel.shared_bytes <= gpu.shared_bytes_per_block || last) f(*set, kernel);
    }
  }
}

/// Returns the plan with the fewest estimated cycles.
TilePlan plan_for(const Wanted& wanted) {
  const auto steps = static_cast<int>(wanted.steps());
  TilePlan best;
  for_kernels(wanted.node(), wanted.gpu, [&](const TileKernels& kernels, const TileKernel& kernel) {
    for (int splits = 1; splits <= kLargestSplit; ++splits) {
      const auto groups = static_cast<int>(divided_up(divided_up(steps, splits), kernels.steps_per_group));
      TilePlan plan{&kernel, kernels.brain, kernels.terms};
      plan.steps_per_split = groups * kernels.steps_per_group;
      plan.splits = static_cast<int>(divided_up(steps, plan.steps_per_split));
      if (plan.splits != splits || (splits > 1 && plan.steps_per_split < kFewestSteps)) continue;
      place_columns(plan, wanted.node().src[1]->rows(), steps);
      if (splits > 1) plan.bytes += static_cast<size_t>(splits * wanted.all_sums()) * sizeof(float);
      plan.cost = cost_of(wanted, plan);
      if (plan.cost >= best.cost || (splits > 1 && plan.bytes > wanted.most_bytes)) continue;
      best = plan;
    }
  });
  return best;
}
TilePlan plan_alone(const Tensor& node, const GpuTraits& gpu) {
  const JoinedProduct one = product_alone(node);
  return plan_for({{&one, 1}, gpu});
}

void convert_columns(const LaunchContext& context, const Tensor& b, const TilePlan& plan, std::byte* workspace,
                     int64_t count, ColumnOrder order = {}) {
  auto* const to = reinterpret_cast<uint16_t*>(workspace);
  auto* const scales = reinterpret_cast<float*>(workspace + plan.scales_at);
  with_float_type(b.dtype, [&](auto type) {
    using B = decltype(type);
    const auto kernel = !plan.brain       ? columns_to_halves<B>
                        : plan.terms == 1 ? columns_to_bf16<B, 1>
                                          : columns_to_bf16<B, 2>;
    launch_early(context, kernel, dim3(static_cast<unsigned>(count)), dim3(kColumnThreads), 0, view_of(b), order, to,
                 scales, static_cast<int>(plan.k_padded));
  });
}

/// Adds up the sums of the parts of k in order, applies joined nodes, and stores the results in c. Each block computes
/// kColumnThreads rows of one column of a product. blockIdx.y is the index of the product's matrix.
__global__ void add_splits(const TileProduct p) {
  let_next_start();
  wait_for_previous();
  const TileMatrix& matrix = p.matrices[blockIdx.y];
  const unsigned blocks = (matrix.m + kColumnThreads - 1) / kColumnThreads, index = blockIdx.x / blocks;
  const int row = static_cast<int>(blockIdx.x % blocks * kColumnThreads + threadIdx.x), n = p.n;
  const unsigned batch = index / n, i2 = batch % p.batches2, i3 = batch / p.batches2;
  if (row >= matrix.m || index >= p.rows) return;
  const float* from =
      p.sums + matrix.sums_at + static_cast<int64_t>(index) * matrix.m * (p.up == nullptr ? 1 : 2) + row;
  const auto sum_of = [&](const float* part) {
    float sum = *part;
    for (unsigned i = 1; i < p.splits; ++i) sum += part[i * p.split_stride];
    return sum;
  };
  const float sum = sum_of(from), up = p.up == nullptr ? 0 : sum_of(from + matrix.m);
  const int column = static_cast<int>(index % n);
  float* to = matrix.c + column * matrix.c_strides[0] + i2 * matrix.c_strides[1] + i3 * matrix.c_strides[2];
  to[row] = joined(p, matrix, sum, up, row, column, batch);
}

TileMatrix matrix_of(const JoinedProduct& product) {
  const Tensor &a = *product.a, &out = *product.out;
  TileMatrix matrix;
  matrix.a = a.data;
  matrix.c = reinterpret_cast<float*>(out.data);
  matrix.m = static_cast<int>(a.shape[1]);
  if (product.addend != nullptr) matrix.addend = reinterpret_cast<const float*>(product.addend->data);
  for (int i = 0; i < 3; ++i) {
    matrix.a_strides[i] = static_cast<int64_t>(a.strides[i + 1]);
    matrix.c_strides[i] = static_cast<int64_t>(out.strides[i + 1] / sizeof(float));
    if (product.addend != nullptr && product.addend->shape[i + 1] != 1) {
      matrix.addend_strides[i] = static_cast<int64_t>(product.addend->strides[i + 1] / sizeof(float));
    }
  }
  return matrix;
}

/// Sets the columns, and all fields that do not depend on how the matrices are divided into tiles.
TileProduct product_of(const JoinedProduct& first, const TilePlan& plan, std::byte* workspace, GluKind glu) {
  TileProduct p;
  p.b = reinterpret_cast<const uint16_t*>(workspace);
  if (!plan.brain) p.b_scales = reinterpret_cast<const float*>(workspace + plan.scales_at);
  p.k = static_cast<int>(first.a->shape[0]);
  p.k_padded = static_cast<int>(plan.k_padded);
  if (first.up != nullptr) p.up = first.up->data;
  p.glu = glu;
  p.steps_per_split = plan.steps_per_split;
  return p;
}

void launch_tiles(const LaunchContext& context, const TilePlan& plan, int64_t blocks, const TileProduct& product) {
  launch_early(context, plan.kernel->kernel, dim3(static_cast<unsigned>(blocks)),
               dim3(static_cast<unsigned>(plan.kernel->threads)), plan.kernel->shared_bytes, product);
}

/// Runs the products. The workspace must already contain the converted columns.
void multiply(const LaunchContext& context, const Wanted& wanted, const TilePlan& plan, std::byte* workspace,
              GluKind glu) {
  const Tensor &node = wanted.node(), &b = *node.src[1];
  TileProduct p = product_of(wanted.products[0], plan, workspace, glu);
  p.is_constant = std::all_of(wanted.products.begin(), wanted.products.end(), has_constant_weights);
  p.sums = reinterpret_cast<float*>(workspace + plan.parts_at);
  p.split_stride = wanted.all_sums();
  p.n = static_cast<int>(node.shape[1]);
  p.rows = static_cast<unsigned>(node.rows());
  p.batches2 = static_cast<unsigned>(node.shape[2]);
  p.column_tiles = static_cast<unsigned>(divided_up(node.shape[1], plan.kernel->columns));
  p.splits = static_cast<unsigned>(plan.splits);
  int64_t blocks = 0, sums_at = 0, most_rows = 0;
  for (size_t i = 0; i < wanted.products.size(); ++i) {
    const JoinedProduct& one = wanted.products[i];
    TileMatrix& matrix = p.matrices[i] = matrix_of(one);
    matrix.shared2 = static_cast<unsigned>(b.shape[2] / one.a->shape[2]);
    matrix.shared3 = static_cast<unsigned>(b.shape[3] / one.a->shape[3]);
    matrix.row_tiles = static_cast<unsigned>(wanted.row_tiles(one));
    matrix.first_block = static_cast<unsigned>(blocks);
    matrix.sums_at = sums_at;
    blocks += wanted.row_tiles(one) * p.column_tiles * plan.splits * node.shape[2] * node.shape[3];
    sums_at += wanted.sums(one);
    most_rows = std::max(most_rows, one.node->shape[0]);
  }
  launch_tiles(context, plan, blocks, p);
  if (plan.splits == 1) return;
  const int64_t columns = divided_up(most_rows, kColumnThreads) * node.rows();
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(wanted.products.size()));
  launch_early(context, add_splits, grid, dim3(kColumnThreads), 0, p);
}

/// Returns the kernels for the node, or nullptr if the node needs the f32 kernel. All other kernels require rows of
/// floats to be aligned to 16 bytes.
const Kernels* kernels_for_data(const Tensor& node) {
  const Tensor& a = *node.src[0];
  const bool aligned = traits(a.dtype).is_quantized || reinterpret_cast<uintptr_t>(a.data) % kChunkBytes == 0;
  return aligned ? kernels_for(node) : nullptr;
}

bool overlaps(const Tensor& tensor, const std::byte* begin, const std::byte* end) {
  return tensor.data < end && begin < tensor.data + tensor.span_bytes();
}

/// Number of (expert slot, token) pairs of a mul_mat_id. Each pair is one column.
int64_t pairs_of(const Tensor& node) {
  return node.shape[1] * node.shape[2];
}
int64_t most_groups(const Tensor& node, int columns) {
  return std::min(pairs_of(node), pairs_of(node) / columns + node.src[0]->shape[2] + 1);
}

/// Returns a plan for mul_mat_id. The plan does not divide k. The tile width minimises the estimated cycles of all
/// groups.
TilePlan group_plan(const Tensor& node, const GpuTraits& gpu) {
  TilePlan best;
  for_kernels(node, gpu, [&](const TileKernels& kernels, const TileKernel& kernel) {
    const double cost = static_cast<double>(most_groups(node, kernel.columns)) * kernel.step_cycles;
    if (cost >= best.cost) return;
    best = {&kernel, kernels.brain, kernels.terms};
    best.cost = cost;
  });
  best.steps_per_split = static_cast<int>(divided_up(node.src[0]->shape[0], kTileStep));
  place_columns(best, pairs_of(node), best.steps_per_split);
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
  return node.empty() || kernels_for(node) == nullptr ? 0 : plan_alone(node, gpu).bytes;
}

TileChoice mul_mat_tiles_choice(const Tensor& node, const GpuTraits& gpu) {
  if (node.empty() || kernels_for(node) == nullptr) return {};
  const TilePlan plan = plan_alone(node, gpu);
  return {plan.kernel->threads == kWgmmaThreads, plan.kernel->columns, plan.splits};
}

void mul_mat_tiles_run(const LaunchContext& context, Tensor& node) {
  if (node.empty()) return;
  if (kernels_for_data(node) == nullptr) return mul_mat_float_tiles(context, node);
  const JoinedProduct one = product_alone(node);
  mul_mat_tiles_run_joined(context, {&one, 1});
}

bool mul_mat_tiles_can_join(const Tensor& node) {
  return !node.empty() && mul_mat_tiles_supports(node) && kernels_for_data(node) != nullptr;
}

bool mul_mat_tiles_same_columns(const Tensor& node, const Tensor& other) {
  const TileKernels &kernels = *kernels_for(node)->warps, &others = *kernels_for(other)->warps;
  return kernels.brain == others.brain && kernels.terms == others.terms;
}

void mul_mat_tiles_run_joined(const LaunchContext& context, std::span<const JoinedProduct> products, GluKind glu) {
  const Tensor& last = *products.back().node;
  const TilePlan own = plan_alone(last, context.gpu);
  // The sums of parts of k in the workspace must not overlap a tensor of any product.
  const std::byte* const workspace = last.workspace;
  const auto is_on_parts = [&](const Tensor* tensor) {
    return tensor != nullptr && overlaps(*tensor, workspace + own.parts_at, workspace + own.bytes);
  };
  const bool has_room = std::none_of(products.begin(), products.end(), [&](const JoinedProduct& one) {
    return is_on_parts(one.out) || is_on_parts(one.a) || is_on_parts(one.addend);
  });
  const auto wanted_of = [&](std::span<const JoinedProduct> some) {
    return Wanted{some, context.gpu, has_room ? own.bytes : 0};
  };
  convert_columns(context, *last.src[1], own, last.workspace, last.src[1]->rows());
  std::vector<JoinedProduct> left(products.begin(), products.end());
  while (!left.empty()) {
    const auto others = std::stable_partition(
        left.begin(), left.end(),
        [kernels = kernels_for(*left[0].node)](const JoinedProduct& one) { return kernels_for(*one.node) == kernels; });
    const auto count = std::min<std::ptrdiff_t>(others - left.begin(), kTileMatrices);
    std::span<const JoinedProduct> alike(left.begin(), left.begin() + count);
    TilePlan plan = plan_for(wanted_of(alike));
    double apart = 0;
    for (const JoinedProduct& one : alike) apart += plan_for(wanted_of({&one, 1})).cost;
    if (apart < plan.cost) {
      alike = alike.first(1);
      plan = plan_for(wanted_of(alike));
    }
    multiply(context, wanted_of(alike), plan, last.workspace, glu);
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(alike.size()));
  }
}

TileGroups mul_mat_tiles_groups(const Tensor& node, const GpuTraits& gpu) {
  const TilePlan plan = group_plan(node, gpu);
  return {plan.kernel->columns, plan.bytes};
}

void mul_mat_tiles_run_groups(const LaunchContext& context, const Tensor& node, const JoinedProduct& product,
                              GluKind glu, const SortedPairs& pairs, std::byte* workspace) {
  const TilePlan plan = group_plan(node, context.gpu);
  convert_columns(context, *node.src[1], plan, workspace, pairs_of(node),
                  {pairs.order, static_cast<int>(node.shape[1])});
  TileProduct p = product_of(product, plan, workspace, glu);
  p.n = static_cast<int>(pairs_of(node));
  p.column_tiles = static_cast<unsigned>(most_groups(node, plan.kernel->columns));
  p.groups = pairs.groups;
  p.group_count = pairs.group_count;
  p.order = pairs.order;
  p.slots = static_cast<int>(node.shape[1]);
  TileMatrix& matrix = p.matrices[0] = matrix_of(product);
  matrix.row_tiles = static_cast<unsigned>(divided_up(node.shape[0], product.up ? kTileRows / 2 : kTileRows));
  matrix.first_block = 0;
  launch_tiles(context, plan, static_cast<int64_t>(matrix.row_tiles) * p.column_tiles, p);
}

}  // namespace shoal::cuda
