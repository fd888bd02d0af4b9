// Products with one column. All products of a decode step have one column. Weights stream through shared memory, and
// their reads determine the time of a launch. A block stays on its multiprocessor for all its rows. A multiprocessor
// has room for two blocks. So a block of the next kernel starts before the current block ends, and the new block
// already requests its first weights. A block has these steps:
//
//   1. Every warp fills its ring buffer with the first bytes of its rows.
//   2. wait_for_previous() returns when the column is ready.
//   3. The block's threads write the column to shared memory in the form that the weights' type needs. If the previous
//      kernel has written a record of the column (column_record.h), the threads copy the record.
//   4. Warps process their rows and store the sums in shared memory. The ring buffer holds bytes of the next row before
//      the current row ends.
//   5. The block applies the joined nodes (activation, addend) and stores the results.
//
// One launch multiplies one column by up to three matrices of any types (q, k and v), or by the matrices of a token's
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
/// Largest number of rows per block. A row of a gated product counts as two rows.
inline constexpr int kStreamResults = 2048;

/// One matrix, or the two matrices of a gated product, which have the same layout. The blocks first_block to last_block
/// compute the rows. Each block has block_rows rows; the last block has the remaining rows. A row is one item; a row of
/// a gated product is two items.
struct StreamPart {
  const std::byte* a[2] = {};  ///< the gate and `up` matrices if gated; otherwise, both pointers are equal
  float* c = nullptr;
  const float* addend = nullptr;   ///< added to c; nullptr: no addend
  uint32_t row_stride = 0;         ///< stride of rows, in bytes
  int row_bytes = 0;               ///< bytes of a row without the gap after the row
  int row_step = 0, row_jump = 0;  ///< row_step: bytes from the start of the warp's current row to the start of its
                                   ///< next row; row_jump: bytes from the last step of the current row to the start of
                                   ///< the next row
  int first_block = INT_MAX, last_block = 0, block_rows = 0;
  int block_items = 0, last_items = 0;  ///< number of items per block; number of items of the last block
  int rows = 0;
  DType dtype = DType::kF32;
  int record_bytes = 0;
  const std::byte* record = nullptr;  ///< 8-bit copy of the column (column_record.h) in the form for this type
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
  int column;  ///< position of the slot's column (Weights::column_of()); 0 if all slots have the same column
  int result;  ///< index of the first row's sums in shared memory
};

/// Products of one token with its experts' matrices, or with one matrix whose rows are short. A row of 768 elements has
/// only 12 units of 64 elements for 32 lanes. So if a row has at most half the elements of a step, one step reads
/// several rows (packed). Each lane then takes one or two units of these rows. The kernel stores a sum for every four
/// units. At the end, the kernel adds up the sums of each row.
struct ExpertStream {
  static constexpr int kMostSlots = 32;
  StreamPart part;  ///< row_bytes of this part is the number of bytes of a group of rows
  const float* x = nullptr;
  int k = 0;
  int gated = 0;
  GluKind glu = GluKind::kSwiglu;
  const int32_t* ids = nullptr;  ///< expert id of each slot; nullptr: one slot, which uses the first matrix
  int ids_stride = 0, slots = 1;
  Selection here;                      ///< selects this device's experts; the results of other experts are zeros
  int64_t expert_stride = 0;           ///< stride of the experts' matrices, in bytes
  int64_t x_stride = 0, c_stride = 0;  ///< strides of the slots, in elements
  const float* weights = nullptr;      ///< weights of the slots, if the result is the weighted sum of the slots;
                                       ///< otherwise nullptr
  int weights_stride = 0;
  bool waits = false;                              ///< whether the previous kernel writes the ids
  bool packed = false;                             ///< whether a step reads several rows
  int group = 1;                                   ///< number of rows per item
  int quads = 1;                                   ///< number of sums per row
  int items_at = 0, rings_at = 0, columns_at = 0;  ///< offsets in shared memory, in bytes; the results have offset 0
};

/// The kernels for weights of one dtype.
struct StreamKernel {
  void (*kernel)(Stream) = nullptr;
  void (*of_experts)(ExpertStream) = nullptr;
  size_t ring_bytes = 0;  ///< bytes of all rings of a block
  int step_elements = 0;
  size_t column_step_bytes = 0;  ///< bytes of shared memory for one step of the column
  bool has_four_groups = false;  ///< whether the column has the form with four groups (quantized_dot.h)
  size_t alignment = 0;          ///< alignment of rows, in bytes
};
#define SHOAL_QUANTIZED(id, ...) extern const StreamKernel kStream##id;
#include "graph/dtypes.def"
extern const StreamKernel kStreamF32, kStreamF16, kStreamBF16, kStreamMixed;

/// Whether stream_run() supports these products. stream_run() supports at most kStreamParts products with one column.
/// `a` of each product must be one matrix with the alignment of its type (StreamKernel::alignment).
bool stream_supports(std::span<const JoinedProduct> products, const Tensor& b, const GpuTraits& gpu);
/// Runs the products. A product with `up` must be the only product, and `glu` is its activation.
void stream_run(const LaunchContext& context, std::span<const JoinedProduct> products, const Tensor& b, GluKind glu);

/// Launch parameters of a kernel that calls stream_part() or stream_slots().
template <class Work>
struct StreamLaunch {
  Work stream;
  unsigned blocks = 0;
  size_t shared_bytes = 0;
  bool early = false;  ///< whether launch_early() may launch the kernel
};
/// Returns the launch parameters for a product that stream_supports() accepts. The product must have no gate and no
/// addend. The number of rows of each block is a multiple of four, except in the last block.
StreamLaunch<Stream> stream_launch(const LaunchContext& context, const JoinedProduct& product, const Tensor& b);
/// Returns the launch parameters for a product that stream_supports() accepts. Returns nullopt if the rows are not
/// short or the data of the product do not fit in a block's shared memory. If the matrix has at least four rows, the
/// number of rows of each block is a multiple of four, except in the last block.
std::optional<StreamLaunch<ExpertStream>> short_rows_launch(const LaunchContext& context, const JoinedProduct& product,
                                                            const Tensor& b);

/// The expert ids of one token, indexed by slot.
struct ExpertIds {
  const int32_t* ids = nullptr;
  int64_t stride = 0, slots = 0;  ///< stride in elements, and number of slots
  Selection here;
};
/// mul_mat_id of one token. If product.weights is set, the result is the weighted sum over the slots.
bool stream_experts_supports(const JoinedProduct& product, const Tensor& x, int64_t slots, const GpuTraits& gpu);
void stream_experts_run(const LaunchContext& context, const JoinedProduct& product, const Tensor& x, GluKind glu,
                        const ExpertIds& ids);

/// Returns the form of the column for weights of this type.
ColumnForms stream_form(DType dtype);

}  // namespace shoal::cuda
