// The op attention. This file chooses a kernel and divides the rows of each KV head among blocks. If K, V and the head
// sizes allow it, the kernel runs on tensor cores. Otherwise, the kernel uses plain arithmetic. docs/cuda_kernels.md
// explains the design.
#include "devices/cuda/ops/attention.h"

#include <algorithm>
#include <limits>

#include "devices/cuda/kernels/attention_rows.h"
#include "devices/cuda/kernels/attention_slice_stage.h"
#include "devices/cuda/ops/fused.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

using attention::Arguments;
using attention::Kernel;

constexpr int64_t kTileColumns = 256;  // largest head for attention_tiles, in elements
constexpr int64_t kLatentColumns = 576, kLatentValues = 512;
constexpr int64_t kFewRows = 16;           // if a KV head has at most this number of query rows, a block of
                                           // attention_tiles takes 16 rows instead of 64
constexpr size_t kMostShared = 96 * 1024;  // largest shared memory of a block of the plain kernel, in bytes; every GPU
                                           // supports blocks of this size
constexpr int64_t kPlainBlocks = 4;        // number of blocks of the plain kernel per multiprocessor
constexpr int64_t kPagedWaves = 8;         // number of blocks per place on a multiprocessor, with pages; sequences have
                                           // different lengths, so smaller shares balance the work
constexpr size_t kPartialBytes = 64 * 1024 * 1024;  // memory for partial results that every node may use

enum Index { kQ, kK, kV, kPositions, kMask, kSinks, kTable, kSequences };

const Tensor* source(const Tensor& node, size_t index) {
  return index < node.src.size() ? node.src[index] : nullptr;
}

int64_t rows_per_kv_head(const Tensor& node) {
  const int64_t kv_heads = node.src[kK]->shape[2];
  return kv_heads > 0 ? node.src[kQ]->shape[1] * node.src[kQ]->shape[2] / kv_heads : 0;
}
/// Number of KV rows of a sequence.
int64_t rows_of_sequence(const Tensor& node) {
  const Tensor* table = source(node, kTable);
  return table != nullptr ? table->shape[0] * std::get<AttentionParams>(node.params).page : node.src[kK]->shape[1];
}

/// The division of a node among blocks. Each combination of (KV head, row tile, batch, part) can be divided further
/// into splits: blocks that share the segments of the KV rows. The division does not change the bits of the result.
struct Plan {
  int64_t tile_rows = 0, row_tiles = 0, splits = 1;
  bool more = false;                       // Arguments::more
  int64_t segments = 0, partial_rows = 0;  // partial_rows: Arguments::partial_rows
  int64_t bytes = 0;                       // memory for partial results
};

Plan cut(const Tensor& node, const Kernel& kernel, const GpuTraits& gpu) {
  const Tensor &q = *node.src[kQ], &k = *node.src[kK], &v = *node.src[kV];
  const int64_t kv_heads = std::max<int64_t>(k.shape[2], 1), rows = q.shape[1] * q.shape[2] / kv_heads;
  const auto tiles_of = [&](int64_t count) { return (count + kernel.rows - 1) / kernel.rows; };
  const Tensor* const table = source(node, kTable);
  Plan plan{kernel.rows, tiles_of(rows)};
  if (table != nullptr) {  // tokens of a sequence are usually consecutive, and one run can contain padding
    const int64_t most = q.shape[1] * tiles_of(q.shape[2] / kv_heads);
    plan.row_tiles = std::min(most, rows / kernel.rows + std::min(q.shape[1], table->shape[1] + 1));
    plan.more = plan.row_tiles < most;
  }
  const int64_t heads = kv_heads * k.shape[3], groups = plan.row_tiles * heads * kernel.parts;
  const int64_t key_tiles = (rows_of_sequence(node) + attention::kKeys - 1) / attention::kKeys;
  if (groups == 0 || groups > kCounters || key_tiles == 0) return plan;
  if (table == nullptr && groups >= gpu.processors) return plan;

  plan.segments = attention::segment_of(static_cast<int>(key_tiles - 1)) + 1;
  const int64_t each = heads * plan.segments * (v.shape[0] + 2 * kernel.parts) * static_cast<int64_t>(sizeof(float));
  const auto most_bytes = static_cast<int64_t>(std::max(kPartialBytes, (k.bytes() + v.bytes()) / 8));
  plan.partial_rows = std::min(rows, most_bytes / each);
  if (plan.segments == 1 || plan.partial_rows < (table == nullptr ? rows : 1)) return plan;
  const int64_t wanted = gpu.processors * kernel.blocks_per_processor * (table == nullptr ? 1 : kPagedWaves) / groups;
  plan.splits = std::clamp<int64_t>(wanted, 1, plan.segments);
  if (plan.splits > 1) plan.bytes = plan.partial_rows * each;
  return plan;
}

// --- tensor cores ---

/// Whether kernels can copy the rows of K or V: as 16-bit floats in vectors of 16 bytes, or as q8_0.
bool can_be_copied(const Tensor& kv) {
  if (kv.strides[1] > std::numeric_limits<int32_t>::max()) return false;
  if (kv.dtype == DType::kQ8_0) return true;
  if (kv.dtype != DType::kF16 && kv.dtype != DType::kBF16) return false;
  const bool aligned = kv.strides[1] % 16 == 0 && kv.strides[2] % 16 == 0 && kv.strides[3] % 16 == 0;
  return kv.shape[0] % 8 == 0 && kv.strides[0] == 2 && aligned && reinterpret_cast<uintptr_t>(kv.data) % 16 == 0;
}

bool have_columns(const Tensor& k, const Tensor& v, int64_t most) {
  return std::min(k.shape[0], v.shape[0]) >= 1 && std::max(k.shape[0], v.shape[0]) <= most;
}

/// If blocks of 64 rows do not fit into the GPU's shared memory, all nodes use blocks of 16 rows.
Kernel tile_kernel(const Tensor& node, const GpuTraits& gpu) {
  const Tensor &k = *node.src[kK], &v = *node.src[kV];
  if (!can_be_copied(k) || !can_be_copied(v) || !have_columns(k, v, kTileColumns)) return {};
  const int columns = static_cast<int>(std::max(k.shape[0], v.shape[0]));
  const Kernel many = attention::tiles(k.dtype, v.dtype, columns, false);
  if (rows_per_kv_head(node) > kFewRows && many.shared_bytes <= gpu.shared_bytes_per_block) return many;
  return attention::tiles(k.dtype, v.dtype, columns, true);
}

Kernel slice_kernel(const Tensor& node) {
  const Tensor &k = *node.src[kK], &v = *node.src[kV];
  if (!can_be_copied(k) || !can_be_copied(v) || !have_columns(k, v, attention::kSliceMostKeys)) return {};
  return attention::slices(k.dtype, v.dtype, static_cast<int>(k.shape[0]), static_cast<int>(v.shape[0]));
}

/// Returns the kernel for nodes whose values are the first elements of the keys. This function checks only shapes,
/// dtypes and strides.
Kernel latent_kernel(const Tensor& node) {
  const Tensor &k = *node.src[kK], &v = *node.src[kV];
  const bool is_16_bit = k.dtype == DType::kF16 || k.dtype == DType::kBF16;
  if (!is_16_bit || v.dtype != k.dtype || !can_be_copied(k) || v.shape[0] % 8 != 0) return {};
  if (!have_columns(k, v, kLatentColumns) || v.shape[0] > std::min(kLatentValues, k.shape[0])) return {};
  return attention::latent(k.dtype);
}
bool are_values_in_keys(const Tensor& node) {
  const Tensor &k = *node.src[kK], &v = *node.src[kV];
  return k.data == v.data && k.strides == v.strides;
}

// --- plain arithmetic ---

Kernel rows_kernel(const Tensor& node) {
  const int64_t d = node.src[kK]->shape[0], e = node.src[kV]->shape[0];
  const size_t bytes = attention::RowsLayout<4>::bytes(d, e);
  if (rows_per_kv_head(node) > 1 && bytes <= kMostShared) {
    return {attention::attention_rows<4>, bytes, 4, kPlainBlocks};
  }
  return {attention::attention_rows<1>, attention::RowsLayout<1>::bytes(d, e), 1, kPlainBlocks};
}

// --- the op ---

struct Chosen {
  attention::Choice choice;
  Kernel kernel;
};
/// Whether heads or batches have masks of their own. Only the plain kernel supports such masks.
bool has_own_masks(const Tensor& node) {
  const Tensor* mask = source(node, kMask);
  return mask != nullptr && mask->shape[2] * mask->shape[3] > 1;
}
/// The number of queries does not affect the order of operations: the choice depends on the number of queries only
/// between kernels that give the same bits.
Chosen chosen(const Tensor& node, const GpuTraits& gpu) {
  if (has_own_masks(node)) return {attention::Choice::kRows, rows_kernel(node)};
  const auto runs = [&](const Kernel& kernel) {
    return kernel.kernel != nullptr && kernel.shared_bytes <= gpu.shared_bytes_per_block;
  };
  if (const Kernel tiles = tile_kernel(node, gpu); runs(tiles)) return {attention::Choice::kTiles, tiles};
  if (const Kernel latent = latent_kernel(node); runs(latent) && are_values_in_keys(node)) {
    return {attention::Choice::kLatent, latent};
  }
  if (const Kernel slices = slice_kernel(node); runs(slices)) return {attention::Choice::kSlices, slices};
  return {attention::Choice::kRows, rows_kernel(node)};
}

attention::Source view(const Tensor& tensor) {
  const auto stride = [&](int axis) { return static_cast<int64_t>(tensor.strides[axis]); };
  return {tensor.data, tensor.data + tensor.span_bytes(), tensor.dtype, stride(0), stride(1), stride(2), stride(3)};
}

Arguments arguments(const LaunchContext& context, const Tensor& node, const Plan& plan) {
  const auto& params = std::get<AttentionParams>(node.params);
  const Tensor &q = *node.src[kQ], &k = *node.src[kK], &v = *node.src[kV];
  Arguments a;
  a.q = view(q), a.k = view(k), a.v = view(v);
  if (q.shape[3] == 1) a.q.batch = 0;
  a.has_lse = params.parts > 0;
  if (const Tensor* positions = source(node, kPositions)) {
    a.positions = positions->data, a.position_stride = static_cast<int64_t>(positions->strides[0]);
    if (positions->shape[1] > 1) a.position_batch = static_cast<int64_t>(positions->strides[1]);
  }
  if (const Tensor* mask = source(node, kMask)) {
    a.mask = mask->data, a.mask_f16 = mask->dtype == DType::kF16;
    a.mask_element = static_cast<int64_t>(mask->strides[0]), a.mask_row = static_cast<int64_t>(mask->strides[1]);
    if (mask->shape[2] > 1) a.mask_head = static_cast<int64_t>(mask->strides[2]);
    if (mask->shape[3] > 1) a.mask_batch = static_cast<int64_t>(mask->strides[3]);
  }
  if (const Tensor* table = source(node, kTable)) {
    const Tensor& sequences = *source(node, kSequences);
    a.pages = {.size = static_cast<int>(params.page),
               .count = static_cast<int>(k.shape[1] / params.page),
               .table = table->data,
               .entry_stride = static_cast<int64_t>(table->strides[0]),
               .table_stride = static_cast<int64_t>(table->strides[1]),
               .sequences = sequences.data,
               .sequence_stride = static_cast<int64_t>(sequences.strides[0]),
               .sequence_count = static_cast<int>(table->shape[1])};
  }
  if (const Tensor* sinks = source(node, kSinks)) {
    a.sinks = sinks->data, a.sink_stride = static_cast<int64_t>(sinks->strides[0]);
  }
  a.result = reinterpret_cast<float*>(node.data), a.partials = reinterpret_cast<float*>(node.workspace);
  a.record = context.record(context.writes);
  a.counters = context.counters;
  a.scale = params.scale, a.softcap = params.softcap, a.causal = params.causal, a.window = params.window;
  a.d = static_cast<int>(k.shape[0]), a.e = static_cast<int>(v.shape[0]),
  a.s = static_cast<int>(rows_of_sequence(node));
  a.t = static_cast<int>(q.shape[1]), a.group = static_cast<int>(q.shape[2] / k.shape[2]);
  a.kv_heads = static_cast<int>(k.shape[2]), a.batches = static_cast<int>(k.shape[3]);
  a.tile_rows = static_cast<int>(plan.tile_rows), a.row_tiles = static_cast<int>(plan.row_tiles), a.more = plan.more;
  a.splits = static_cast<int>(plan.splits), a.segments = static_cast<int>(plan.segments);
  a.partial_rows = static_cast<int>(plan.partial_rows);
  return a;
}

void run(const LaunchContext& context, Tensor& node) {
  const Kernel kernel = chosen(node, context.gpu).kernel;
  const Plan plan = cut(node, kernel, context.gpu);
  const Arguments a = arguments(context, node, plan);
  const auto blocks = static_cast<unsigned>(plan.row_tiles * a.kv_heads * a.batches * plan.splits);
  launch_early(context, kernel.kernel, dim3(blocks, static_cast<unsigned>(kernel.parts)),
               dim3(static_cast<unsigned>(kernel.threads)), kernel.shared_bytes, a);
}

/// Whether 32-bit integers can count the keys and rows, and kMostShared bytes are enough for the plain kernel.
bool is_small_enough(const Tensor& node) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const Tensor &q = *node.src[kQ], &k = *node.src[kK], &v = *node.src[kV];
  const size_t shared = attention::RowsLayout<1>::bytes(k.shape[0], v.shape[0]);
  const Tensor* table = source(node, kTable);
  return std::max(k.shape[1], rows_of_sequence(node)) <= kMost - 4 * attention::kKeys && shared <= kMostShared &&
         q.shape[1] * q.shape[2] * k.shape[3] <= kMost && (table == nullptr || table->shape[1] < kMost);
}

bool supports(const Tensor& node) {
  const Tensor *q = node.src[kQ], *k = node.src[kK], *v = node.src[kV];
  const Tensor *positions = source(node, kPositions), *mask = source(node, kMask), *sinks = source(node, kSinks);
  const Tensor *table = source(node, kTable), *sequences = source(node, kSequences);
  const auto& params = std::get<AttentionParams>(node.params);
  const auto readable = [](const Tensor& kv) {
    if (traits(kv.dtype).block_elems == quants::kBlock) return kv.is_row_contiguous();
    return kv.dtype == DType::kF32 || kv.dtype == DType::kF16 || kv.dtype == DType::kBF16;
  };
  if (node.dtype != DType::kF32 || !node.is_contiguous() || q->dtype != DType::kF32) return false;
  if (!readable(*k) || !readable(*v) || !is_small_enough(node)) return false;
  if ((params.causal || params.window > 0) && !positions) return false;
  return (!positions || positions->dtype == DType::kI32) &&
         (!mask || mask->dtype == DType::kF32 || mask->dtype == DType::kF16) &&
         (!sinks || sinks->dtype == DType::kF32) && (!table || table->dtype == DType::kI32) &&
         (!sequences || sequences->dtype == DType::kI32);
}

/// Returns the size in bytes of the workspace for partial results. This size is enough for each kernel that run() may
/// choose. The choice also depends on addresses, which are not known yet.
size_t workspace(const Tensor& node, const GpuTraits& gpu) {
  int64_t bytes = 0;
  for (const Kernel& kernel : {tile_kernel(node, gpu), latent_kernel(node), slice_kernel(node), rows_kernel(node)}) {
    if (kernel.kernel != nullptr) bytes = std::max(bytes, cut(node, kernel, gpu).bytes);
  }
  return static_cast<size_t>(bytes);
}

}  // namespace

attention::Choice attention::choice(const Tensor& node, const GpuTraits& gpu) {
  return chosen(node, gpu).choice;
}

const OpKernel kAttentionKernel{run, supports, workspace};

bool attention_records(const Tensor& node) {
  const bool one_query = node.shape[2] * node.shape[3] == 1;
  const bool has_lse = std::get<AttentionParams>(node.params).parts > 0;
  return one_query && !has_lse && node.shape[0] % 32 == 0;
}

}  // namespace shoal::cuda
