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

/// Cycles that a plan takes. Tiles come in rounds of one for each multiprocessor (where two of its blocks run at the
/// same time, they share its tensor cores). The sums of parts of k are written and read again, some 20 bytes a cycle
/// and multiprocessor.
double cost_of(const Tensor& node, const TilePlan& plan, const GpuTraits& gpu) {
  const double processors = std::max(gpu.processors, 1);
  const int64_t tiles = divided_up(node.shape[0], kTileRows) * divided_up(node.shape[1], plan.kernel->columns) *
                        node.shape[2] * node.shape[3];
  const auto rounds = static_cast<double>(divided_up(tiles * plan.splits, std::max(gpu.processors, 1)));
  const double work = rounds * plan.steps_per_split * plan.kernel->step_cycles;
  if (plan.splits == 1) return work;
  return work + 2.0 * plan.splits * static_cast<double>(node.elements()) * sizeof(float) / (processors * 20);
}

/// Looks for a plan that takes fewer cycles than `cost`.
void improve(TilePlan& best, double& cost, const Tensor& node, const TileKernels& kernels, const GpuTraits& gpu) {
  const auto steps = static_cast<int>(divided_up(node.src[0]->shape[0], kTileStep));
  for (const TileKernel& kernel : kernels.kernels) {
    const bool last = &kernel == &kernels.kernels.back();
    if (kernel.shared_bytes > gpu.shared_bytes_per_block && !last) continue;
    for (int splits = 1; splits <= kLargestSplit; ++splits) {
      const auto groups = static_cast<int>(divided_up(divided_up(steps, splits), kernels.steps_per_group));
      TilePlan plan{&kernel, kernels.brain, kernels.terms};
      plan.steps_per_split = groups * kernels.steps_per_group;
      plan.splits = static_cast<int>(divided_up(steps, plan.steps_per_split));
      if (plan.splits != splits || (splits > 1 && plan.steps_per_split < kFewestSteps)) continue;
      const double cost_of_plan = cost_of(node, plan, gpu);
      if (cost_of_plan >= cost) continue;
      best = plan;
      cost = cost_of_plan;
    }
  }
}

TilePlan plan_for(const Tensor& node, const Kernels& kernels, const GpuTraits& gpu) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  TilePlan best;
  double cost = std::numeric_limits<double>::infinity();
  if (kHasWgmma && gpu.compute_capability == 90) improve(best, cost, node, *kernels.warpgroups, gpu);
  improve(best, cost, node, *kernels.warps, gpu);
  const int64_t steps = divided_up(a.shape[0], kTileStep);
  best.k_padded = steps * kTileStep;
  best.scales_at = rounded_up(static_cast<size_t>(b.rows() * best.terms * best.k_padded) * sizeof(uint16_t));
  best.parts_at = best.scales_at + rounded_up(static_cast<size_t>(b.rows()) * sizeof(float));
  const auto elements = static_cast<size_t>(node.elements());
  best.bytes = best.parts_at + (best.splits > 1 ? static_cast<size_t>(best.splits) * elements * sizeof(float) : 0);
  return best;
}

struct ColumnKernels {
  void (*to_halves)(View, uint16_t*, float*, int);
  void (*to_brain)(View, uint16_t*, int);
  void (*to_two_terms)(View, uint16_t*, int);
};
template <class B>
constexpr ColumnKernels kColumnKernels{columns_to_halves<B>, columns_to_brain<B, 1>, columns_to_brain<B, 2>};

const ColumnKernels& column_kernels(DType dtype) {
  constexpr const ColumnKernels* kKernels[] = {&kColumnKernels<float>, &kColumnKernels<__half>,
                                               &kColumnKernels<__nv_bfloat16>};
  static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kBF16) == 2);
  return *kKernels[static_cast<int>(dtype)];
}

void convert_columns(const LaunchContext& context, const Tensor& node, const TilePlan& plan) {
  const Tensor& b = *node.src[1];
  const ColumnKernels& kernels = column_kernels(b.dtype);
  auto* to = reinterpret_cast<uint16_t*>(node.workspace);
  const dim3 grid(static_cast<unsigned>(b.rows())), block(kColumnThreads);
  const int k_padded = static_cast<int>(plan.k_padded);
  if (!plan.brain) {
    auto* scales = reinterpret_cast<float*>(node.workspace + plan.scales_at);
    launch(context.stream, kernels.to_halves, grid, block, 0, view_of(b), to, scales, k_padded);
  } else if (plan.terms == 1) {
    launch(context.stream, kernels.to_brain, grid, block, 0, view_of(b), to, k_padded);
  } else {
    launch(context.stream, kernels.to_two_terms, grid, block, 0, view_of(b), to, k_padded);
  }
}

/// c = the sum of the parts of k, in their order. One block: kColumnThreads rows of one column.
__global__ void add_splits(const float* parts, int64_t split_stride, int splits, View c) {
  const int64_t blocks = (c.shape[0] + kColumnThreads - 1) / kColumnThreads;
  const int64_t index = blockIdx.x / blocks;
  const int64_t m = blockIdx.x % blocks * kColumnThreads + threadIdx.x;
  if (m >= c.shape[0]) return;
  std::byte* column = row_at(c, index % c.shape[1], index / c.shape[1] % c.shape[2], index / c.shape[1] / c.shape[2]);
  const float* from = parts + index * c.shape[0] + m;
  float sum = from[0];
  for (int i = 1; i < splits; ++i) sum += from[i * split_stride];
  reinterpret_cast<float*>(column)[m] = sum;
}

TileProduct product_of(const Tensor& node, const TilePlan& plan) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  TileProduct p;
  p.a = a.data;
  p.b = reinterpret_cast<const uint16_t*>(node.workspace);
  if (!plan.brain) p.b_scales = reinterpret_cast<const float*>(node.workspace + plan.scales_at);
  p.m = static_cast<int>(node.shape[0]);
  p.n = static_cast<int>(node.shape[1]);
  p.k = static_cast<int>(a.shape[0]);
  p.k_padded = static_cast<int>(plan.k_padded);
  for (int i = 0; i < 3; ++i) p.a_strides[i] = static_cast<int64_t>(a.strides[i + 1]);
  if (plan.splits > 1) {
    p.c = reinterpret_cast<float*>(node.workspace + plan.parts_at);
    p.c_strides[0] = node.shape[0];
    p.c_strides[1] = node.shape[0] * node.shape[1];
    p.c_strides[2] = p.c_strides[1] * node.shape[2];
    p.split_stride = node.elements();
  } else {
    p.c = reinterpret_cast<float*>(node.data);
    for (int i = 0; i < 3; ++i) p.c_strides[i] = static_cast<int64_t>(node.strides[i + 1] / sizeof(float));
  }
  p.batches2 = static_cast<int>(node.shape[2]);
  p.shared2 = static_cast<int>(b.shape[2] / a.shape[2]);
  p.shared3 = static_cast<int>(b.shape[3] / a.shape[3]);
  p.row_tiles = static_cast<int>(divided_up(node.shape[0], kTileRows));
  p.column_tiles = static_cast<int>(divided_up(node.shape[1], plan.kernel->columns));
  p.splits = plan.splits;
  p.steps_per_split = plan.steps_per_split;
  return p;
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
  return kernels == nullptr ? 0 : plan_for(node, *kernels, gpu).bytes;
}

TileChoice mul_mat_tiles_choice(const Tensor& node, const GpuTraits& gpu) {
  const Kernels* kernels = node.empty() ? nullptr : kernels_for(node);
  if (kernels == nullptr) return {};
  const TilePlan plan = plan_for(node, *kernels, gpu);
  return {plan.kernel->threads == kWgmmaThreads, plan.kernel->columns, plan.splits};
}

void mul_mat_tiles_run(const LaunchContext& context, Tensor& node) {
  if (node.empty()) return;
  const Kernels* kernels = kernels_for(node);
  const bool plain = !traits(node.src[0]->dtype).is_quantized;
  if (kernels == nullptr || (plain && reinterpret_cast<uintptr_t>(node.src[0]->data) % kChunkBytes != 0)) {
    mul_mat_float_tiles(context, node);
    return;
  }
  const TilePlan plan = plan_for(node, *kernels, context.gpu);
  const TileProduct product = product_of(node, plan);
  convert_columns(context, node, plan);
  const int64_t blocks =
      static_cast<int64_t>(product.row_tiles) * product.column_tiles * plan.splits * node.shape[2] * node.shape[3];
  launch(context.stream, plan.kernel->kernel, dim3(static_cast<unsigned>(blocks)),
         dim3(static_cast<unsigned>(plan.kernel->threads)), plan.kernel->shared_bytes, product);
  if (plan.splits == 1) return;
  const int64_t sums = divided_up(node.shape[0], kColumnThreads) * node.rows();
  launch(context.stream, add_splits, dim3(static_cast<unsigned>(sums)), dim3(kColumnThreads), 0, product.c,
         product.split_stride, plan.splits, view_of(node));
}

}  // namespace shoal::cuda
