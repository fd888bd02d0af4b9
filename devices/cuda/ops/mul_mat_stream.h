// Products with one column, which is all of a decoder's step: rows of weights stream through shared memory, and a
// launch takes as long as reading them does. A block stays on its multiprocessor for all its rows. Two have room there,
// so that the next kernel's block comes in while this one still works, and asks for its first weights:
//
//   1. every warp fills its ring with the first bytes of its rows
//   2. wait_for_previous(): the column is there
//   3. the block's threads put the column into shared memory, in the form that the weights' type is multiplied with:
//      from its record where the kernel in front has left one (column_record.h)
//   4. warps go through their rows; the ring goes on over the end of a row, sums wait in shared memory
//   5. results are stored, with what is joined to them
//
// One launch takes up to three matrices of any types with one column (q, k and v), or those of a token's experts
// (ExpertStream). docs/cuda_kernels.md has the figures.
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
/// Rows of a block, gated ones twice.
inline constexpr int kStreamResults = 2048;

/// A matrix, or two that are laid out alike, and its blocks from first_block to last_block, each with block_rows rows,
/// the last one with what is left. Items are rows, gated ones twice.
struct StreamPart {
  const std::byte* a[2] = {};  ///< gated: gate and up, else twice the matrix
  float* c = nullptr;
  const float* addend = nullptr;   ///< added to c, or nullptr
  uint32_t row_stride = 0;         ///< bytes from one row to the next
  int row_bytes = 0;               ///< of which are the row's
  int row_step = 0, row_jump = 0;  ///< bytes from a warp's row to its next, and to there from the row's last step
  int first_block = INT_MAX, last_block = 0, block_rows = 0;
  int block_items = 0, last_items = 0;  ///< of a block, and of the last
  int rows = 0;
  DType dtype = DType::kF32;
  int record_bytes = 0;
  const std::byte* record = nullptr;  ///< of the column, in the form for this type
};

/// Everything that a kernel knows; passed by value.
struct Stream {
  StreamPart parts[kStreamParts];
  const float* x = nullptr;
  int k = 0;
  int gated = 0;  ///< 1: act(a[0] x) * (a[1] x)
  GluKind glu = GluKind::kSwiglu;
};

/// A group of rows that follow each other, of one expert.
struct StreamItem {
  const std::byte* row;
  int column;  ///< place of the slot's column in shared memory
  int result;  ///< of the first row, in shared memory
};

/// Products of one token with its experts' matrices, or with one matrix whose rows are short. Rows of up to half a step
/// share it: lanes have units of 64 elements of several rows, whose sums by four wait for the end.
struct ExpertStream {
  static constexpr int kMostSlots = 32;
  StreamPart part;  ///< row_bytes: of a group of rows
  const float* x = nullptr;
  int k = 0;
  int gated = 0;
  GluKind glu = GluKind::kSwiglu;
  const int32_t* ids = nullptr;  ///< by slot; nullptr: one slot, the first matrix
  int ids_stride = 0, slots = 1;
  Selection here;                      ///< ids whose experts are here; others' results are zeros
  int64_t expert_stride = 0;           ///< bytes
  int64_t x_stride = 0, c_stride = 0;  ///< elements, from slot to slot
  const float* weights = nullptr;      ///< by slot: the result is the slots' sum by these
  int weights_stride = 0;
  bool waits = false;                              ///< for the ids
  bool packed = false;                             ///< rows share steps
  int group = 1;                                   ///< rows of an item
  int quads = 1;                                   ///< sums of a row
  int items_at = 0, rings_at = 0, columns_at = 0;  ///< in shared memory, behind the results
};

/// The kernels of a dtype of weights.
struct StreamKernel {
  void (*kernel)(Stream) = nullptr;
  void (*of_experts)(ExpertStream) = nullptr;
  size_t ring_bytes = 0;  ///< of a block
  int step_elements = 0;
  size_t column_step_bytes = 0;  ///< in shared memory, of a step
  bool has_four_groups = false;  ///< the column's form (quantized_dot.h)
  size_t alignment = 0;          ///< of rows
};
#define SHOAL_QUANTIZED(id, ...) extern const StreamKernel kStream##id;
#include "graph/dtypes.def"
extern const StreamKernel kStreamF32, kStreamF16, kStreamBF16, kStreamMixed;

/// One column and one matrix each, at the types' alignment, in this many products.
bool stream_supports(std::span<const JoinedProduct> products, const Tensor& b, const GpuTraits& gpu);
/// The activation is that of the product with `up`, which is the only one then.
void stream_run(const LaunchContext& context, std::span<const JoinedProduct> products, const Tensor& b, GluKind glu);

/// The launch of a kernel that calls stream_part() or stream_slots().
template <class Work>
struct StreamLaunch {
  Work stream;
  unsigned blocks = 0;
  size_t shared_bytes = 0;
  bool early = false;  ///< launch_early() may be used
};
/// For a product without gate or addend that stream_supports() takes. All blocks but the last have multiples of four
/// rows.
StreamLaunch<Stream> stream_launch(const LaunchContext& context, const JoinedProduct& product, const Tensor& b);
/// For a product that stream_supports() takes, if its rows are short and a block has the shared memory. All blocks but
/// the last have multiples of four rows, if there are four.
std::optional<StreamLaunch<ExpertStream>> short_rows_launch(const LaunchContext& context, const JoinedProduct& product,
                                                            const Tensor& b);

/// The ids of one token, by slot.
struct ExpertIds {
  const int32_t* ids = nullptr;
  int64_t stride = 0, slots = 0;  ///< elements
  Selection here;
};
/// mul_mat_id of one token; with product.weights the weighted sum of its slots.
bool stream_experts_supports(const JoinedProduct& product, const Tensor& x, int64_t slots, const GpuTraits& gpu);
void stream_experts_run(const LaunchContext& context, const JoinedProduct& product, const Tensor& x, GluKind glu,
                        const ExpertIds& ids);

/// The form of a column that weights of this type take.
ColumnForms stream_form(DType dtype);

}  // namespace shoal::cuda
