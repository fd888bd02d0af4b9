// The inner loops of attention. Each call processes one block of KV rows. A tile consists of up to kAttentionRows rows
// (one row per query and head) that share one KV head. The loops have two forms:
//
//   rows:  few queries. Each KV row is read in its stored type. While the KV row is in registers, up to 8 rows of the
//          tile use it. Memory bandwidth limits the speed.
//   lanes: many queries, one per vector lane. Scores and sums are stored transposed, [KV row][row] and
//          [element][row], so that the soft-max needs no operation across lanes. KV rows are f32.
//
// The operations on an element of a row, and their order, do not depend on the other rows of the call, and are the same
// in both forms. Weighted KV rows are added one by one, in order.
//
// A weight of minus zero marks a *hidden* KV row. A row of the tile does not attend to a KV row that is hidden for this
// row. A hidden KV row does not change the sums of the tile's row, even if the KV row contains NaN. Example: two KV
// rows have the weights 0.5 and minus zero. If their values are 2 and NaN, the sum is 1.
//
// This header has no inline functions, for the reason in kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/dtype.h"

namespace shoal::cpu {

inline constexpr int64_t kAttentionBlock = 64;  ///< maximum number of KV rows in a block
inline constexpr int64_t kAttentionRows = 64;   ///< maximum number of rows in a tile

/// KV rows with a constant stride.
struct KvRows {
  const std::byte* data = nullptr;
  size_t stride = 0;   ///< bytes from one KV row to the next
  int64_t count = 0;   ///< number of KV rows, at most kAttentionBlock
  int64_t length = 0;  ///< number of elements in each KV row
};

/// scores[row * kAttentionBlock + j] = dot product of the row's q and KV row j.
struct RowScores {
  KvRows keys;
  const float* q = nullptr;
  int64_t q_stride = 0;  ///< in floats
  int64_t rows = 0;
  float* scores = nullptr;
};

/// For each row: sums = keep[row] * sums + sum over j of weights[row * kAttentionBlock + j] * KV row j.
struct RowSums {
  KvRows values;
  const float* weights = nullptr;
  const float* keep = nullptr;
  int64_t rows = 0;
  bool hidden = false;  ///< whether weights may be minus zero
  float* sums = nullptr;
  int64_t sums_stride = 0;  ///< in floats
};

/// Adds a block of scores to running soft-maxes and replaces each score by its weight, exp(score - new top). The top of
/// a row is its largest score. `keep` becomes exp(old top - new top), the factor for the row's previous sums. The
/// rounding of a row's sum depends on the positions of its scores in the block. In the rows form, these are the indices
/// of the scores. In the lanes form, `place` is the position of the first score. Callers must keep the positions fixed.
struct BlockSoftMax {
  float* scores = nullptr;         ///< rows form: [row][kAttentionBlock]; lanes form: [KV row][kAttentionRows]
  int64_t count = 0;               ///< number of KV rows
  int64_t rows = 0;                ///< number of rows; in the lanes form, arrays are padded to whole vectors
  bool hidden = false;             ///< if true, KV rows outside [first, last) and scores of -infinity are hidden
  const int32_t* first = nullptr;  ///< one index per row; KV rows are counted from the start of the block
  const int32_t* last = nullptr;
  float* top = nullptr;  ///< for each row, the largest score that is not NaN
  float* sum = nullptr;  ///< for each row, the sum of exp(score - top); 0 if all scores are -infinity; NaN if a score
                         ///< is NaN
  float* keep = nullptr;
  int64_t place = 0;  ///< lanes form: position of the first KV row in the block
};

/// scores[j * kAttentionRows + row] = dot product of the row's q and KV row j. AttentionKernels::pack_queries makes q.
struct LaneScores {
  KvRows keys;
  const float* q = nullptr;
  int64_t rows = 0;
  float* scores = nullptr;
};

/// For each element i, sums[i * kAttentionRows + row] = keep[row] * sums[i * kAttentionRows + row] + sum over j of
/// weights[j * kAttentionRows + row] * element i of KV row j.
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
  Rows rows[kDTypeCount];  ///< indexed by the dtype of the KV rows; if a function is nullptr, callers first convert the
                           ///< KV rows to f32
  void (*row_soft_max)(const BlockSoftMax& args) = nullptr;
  void (*lane_scores)(const LaneScores& args) = nullptr;
  void (*lane_sums)(const LaneSums& args) = nullptr;
  void (*lane_soft_max)(const BlockSoftMax& args) = nullptr;
  /// Packs queries for lane_scores. `rows` is a multiple of the number of lanes. `to` points to rows * columns floats.
  void (*pack_queries)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to) = nullptr;
  /// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < columns.
  void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                    int64_t to_stride) = nullptr;
};

}  // namespace shoal::cpu
