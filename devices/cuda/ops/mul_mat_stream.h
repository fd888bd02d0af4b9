// Products with one column, which are all products of a decoder's step. Rows of weights stream through shared memory,
// and reading them determines the time of a launch. A block stays on its multiprocessor for all its rows. A
// multiprocessor has room for two blocks. So a block of the next kernel starts while this block still works, and
// requests its first weights:
//
//   1. Every warp fills its ring with the first bytes of its rows.
//   2. wait_for_previous(): the column is ready.
//   3. The block's threads write the column to shared memory in the form that the weights' type needs. They copy it
//      from its record if the previous kernel has written one (column_record.h).
//   4. Warps process their rows. The ring continues across the ends of rows; sums are stored in shared memory.
//   5. The joined nodes (activation, addend) are applied, and results are stored.
//
// One launch handles up to three matrices of any types with one column (q, k and v), or the matrices of a token's
// experts (ExpertStream). docs/cuda_kernels.md lists instruction counts.
#pragma once

#include <climits>
#include <optional>
#include <span>

#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/select.h"

namespace shoal::cuda {

inline constexpr int kStreamThreads = 512;
inline constexpr int kStreamWarps = kStreamThreads / 32;
inline constexpr int kStreamParts = 3;
/// Largest number of rows per block. A gated row counts twice.
inline constexpr int kStreamResults = 2048;

/// A matrix, or two matrices with the same layout (gated), and the blocks first_block to last_block that compute its
/// rows. Each block has block_rows rows; the last block has the remaining rows. An item is a row; a gated row is two
/// items.
struct StreamPart {
  const std::byte* a[2] = {};  ///< gated: gate and up; otherwise twice the same matrix
  float* c = nullptr;
  const float* addend = nullptr;   ///< added to c; nullptr: no addend
  uint32_t row_stride = 0;         ///< stride of rows, in bytes
  int row_bytes = 0;               ///< bytes of a row, without the gap to the next row
  int row_step = 0, row_jump = 0;  ///< bytes to the warp's next row: from the start of its current row, and from the
                                   ///< last step of that row
  int first_block = INT_MAX, last_block = 0, block_rows = 0;
  int block_items = 0, last_items = 0;  ///< number of items per block, and in the last block
  int rows = 0;
  DType dtype = DType::kF32;
  int record_bytes = 0;
  const std::byte* record = nullptr;  ///< record of the column, in the form that this type needs
};

/// The argument of the kernels, passed by value.
struct Stream {
  StreamPart parts[kStreamParts];
  const float* x = nullptr;
  int k = 0;
  int gated = 0;  ///< if 1, the result is act(a[0] x) * (a[1] x)
  GluKind glu = GluKind::kSwiglu;
};

/// A group of consecutive rows of one expert.
struct StreamItem {
  const std::byte* row;
  int column;  ///< position of the slot's column in shared memory
  int result;  ///< position of the first row's result in shared memory
};

/// Products of one token with its experts' matrices, or with one matrix whose rows are short. Rows of up to half a step
/// share a step: each lane takes units of 64 elements, from several rows. (A row of 768 elements alone has only 12
/// units for 32 lanes.) A sum is stored for every four units; the sums of a row are added up at the end.
struct ExpertStream {
  static constexpr int kMostSlots = 32;
  StreamPart part;  ///< here, row_bytes is the number of bytes of a group of rows
  const float* x = nullptr;
  int k = 0;
  int gated = 0;
  GluKind glu = GluKind::kSwiglu;
  const int32_t* ids = nullptr;  ///< indexed by slot; nullptr: one slot, which uses the first matrix
  int ids_stride = 0, slots = 1;
  Selection here;                      ///< ids of this device's experts; results of other experts are zeros
  int64_t expert_stride = 0;           ///< in bytes
  int64_t x_stride = 0, c_stride = 0;  ///< strides of the slots, in elements
  const float* weights = nullptr;      ///< indexed by slot; if set, the result is the weighted sum of the slots
  int weights_stride = 0;
  bool waits = false;                              ///< whether the previous kernel writes the ids
  bool packed = false;                             ///< whether several rows share a step
  int group = 1;                                   ///< number of rows per item
  int quads = 1;                                   ///< number of sums per row
  int items_at = 0, rings_at = 0, columns_at = 0;  ///< offsets in shared memory; results are at offset 0
};

/// The kernels for a dtype of weights.
struct StreamKernel {
  void (*kernel)(Stream) = nullptr;
  void (*of_experts)(ExpertStream) = nullptr;
  size_t ring_bytes = 0;  ///< bytes of all rings of a block
  int step_elements = 0;
  size_t column_step_bytes = 0;  ///< bytes of a step of the column in shared memory
  bool has_four_groups = false;  ///< whether the column has the form with four groups (quantized_dot.h)
  size_t alignment = 0;          ///< alignment of rows, in bytes
};
#define SHOAL_QUANTIZED(id, ...) extern const StreamKernel kStream##id;
#include "graph/dtypes.def"
extern const StreamKernel kStreamF32, kStreamF16, kStreamBF16, kStreamMixed;

/// Whether stream_run() supports these products. At most kStreamParts products with one column are supported. Each must
/// have one matrix, which has the alignment of its type.
bool stream_supports(std::span<const JoinedProduct> products, const Tensor& b, const GpuTraits& gpu);
/// A product with `up` must be the only product. `glu` is its activation.
void stream_run(const LaunchContext& context, std::span<const JoinedProduct> products, const Tensor& b, GluKind glu);

/// Launch parameters of a kernel that calls stream_part() or stream_slots().
template <class Work>
struct StreamLaunch {
  Work stream;
  unsigned blocks = 0;
  size_t shared_bytes = 0;
  bool early = false;  ///< whether launch_early() may be used
};
/// Returns the launch parameters for a product without gate or addend that stream_supports() accepts. In all blocks
/// except the last, the number of rows is a multiple of four.
StreamLaunch<Stream> stream_launch(const LaunchContext& context, const JoinedProduct& product, const Tensor& b);
/// Returns the launch parameters for a product that stream_supports() accepts, or nullopt unless its rows are short and
/// fit in a block's shared memory. If the matrix has at least four rows, the number of rows is a multiple of four in
/// all blocks except the last.
std::optional<StreamLaunch<ExpertStream>> short_rows_launch(const LaunchContext& context, const JoinedProduct& product,
                                                            const Tensor& b);

/// The ids of one token, indexed by slot.
struct ExpertIds {
  const int32_t* ids = nullptr;
  int64_t stride = 0, slots = 0;  ///< `stride` is in elements
  Selection here;
};
/// mul_mat_id of one token. If product.weights is set, the result is the weighted sum over its slots.
bool stream_experts_supports(const JoinedProduct& product, const Tensor& x, int64_t slots, const GpuTraits& gpu);
void stream_experts_run(const LaunchContext& context, const JoinedProduct& product, const Tensor& x, GluKind glu,
                        const ExpertIds& ids);

/// The form in which weights of this type need the column.
ColumnForms stream_form(DType dtype);

}  // namespace shoal::cuda
