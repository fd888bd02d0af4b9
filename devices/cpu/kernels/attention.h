// The inner loops of attention, on one block of KV rows at a time. They come in two forms, for a tile of up to
// kAttentionRows rows (a query of a head) that share a KV head:
//
//   rows:  few queries. KV rows are read as they are stored and each is used for all rows while it is in registers:
//          memory is the limit.
//   lanes: many queries, side by side in the lanes of vectors; scores and sums lie transposed, [KV row][row] and
//          [element][row], so that nothing of the soft-max crosses lanes. KV rows are f32.
//
// In both an element of a row is made by the same operations in the same order whatever the other rows of the call
// are: sums over KV rows go one by one in their order. A weight that is *hidden* (minus zero: the row does not see the
// KV row) leaves the sums as they are, whatever the KV row holds. Example: weights 0.5 and hidden, values 2 and NaN:
// the sum is 1.
//
// No inline functions here, as in kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/dtype.h"

namespace shoal::cpu {

inline constexpr int64_t kAttentionBlock = 64;  ///< most KV rows of a block
inline constexpr int64_t kAttentionRows = 64;   ///< most rows of a tile

/// KV rows at a constant distance.
struct KvRows {
  const std::byte* data = nullptr;
  size_t stride = 0;   ///< bytes
  int64_t count = 0;   ///< at most kAttentionBlock
  int64_t length = 0;  ///< elements of each
};

/// scores[row * kAttentionBlock + j] = q of the row times KV row j.
struct RowScores {
  KvRows keys;
  const float* q = nullptr;
  int64_t q_stride = 0;  ///< floats
  int64_t rows = 0;
  float* scores = nullptr;
};

/// sums of row = keep[row] * sums of row + sum over j of weights[row * kAttentionBlock + j] * KV row j.
struct RowSums {
  KvRows values;
  const float* weights = nullptr;
  const float* keep = nullptr;
  int64_t rows = 0;
  bool hidden = false;  ///< some weights may be hidden
  float* sums = nullptr;
  int64_t sums_stride = 0;  ///< floats
};

/// Takes a block of scores into running soft-maxes and turns them into weights, exp(score - new top). keep becomes
/// exp(old top - new top): what a row has so far is to be multiplied by it. The sum of a row in rows depends on where
/// its scores lie in the block, so that is to be fixed.
struct BlockSoftMax {
  float* scores = nullptr;         ///< [row][kAttentionBlock] of rows, [KV row][kAttentionRows] of lanes
  int64_t count = 0;               ///< KV rows
  int64_t rows = 0;                ///< lanes: in whole vectors, there is room for that
  bool hidden = false;             ///< of a row only KV rows [first, last) count, and scores of -infinity do not
  const int32_t* first = nullptr;  ///< per row
  const int32_t* last = nullptr;
  float* top = nullptr;  ///< per row: the largest score; NaN do not count
  float* sum = nullptr;  ///< per row: sum of exp(score - top), NaN from the first NaN on; 0: only -infinity was seen
  float* keep = nullptr;
};

/// scores[j * kAttentionRows + row] = q[i * kAttentionRows + row] times KV row j, over i.
struct LaneScores {
  KvRows keys;
  const float* q = nullptr;
  int64_t rows = 0;
  float* scores = nullptr;
};

/// sums[i * kAttentionRows + row] = keep[row] * the same + sum over j of weights[j * kAttentionRows + row] * element i
/// of KV row j.
struct LaneSums {
  KvRows values;
  const float* weights = nullptr;
  const float* keep = nullptr;
  int64_t rows = 0;
  bool hidden = false;
  float* sums = nullptr;
};

struct AttentionKernels {
  struct Rows {
    void (*scores)(const RowScores& args) = nullptr;
    void (*sums)(const RowSums& args) = nullptr;
  };
  Rows rows[kDTypeCount];  ///< by dtype of the KV rows; nullptr: to be converted to f32 before
  void (*row_soft_max)(const BlockSoftMax& args) = nullptr;
  void (*lane_scores)(const LaneScores& args) = nullptr;
  void (*lane_sums)(const LaneSums& args) = nullptr;
  void (*lane_soft_max)(const BlockSoftMax& args) = nullptr;
  /// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < columns.
  void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                    int64_t to_stride) = nullptr;
};

}  // namespace shoal::cpu
