// The inside of attention: a tile is up to kTileRows (head, query) rows that share one KV head. It walks the KV rows
// in blocks, converting each block once for all its rows, with a soft-max that is updated as blocks come (Milakov
// and Gimelshein 2018, arXiv:1805.02867).
//
// KV rows are cut in segments at fixed places; a segment gives a Partial per row (largest score m, sum l of
// exp(score - m), and the values weighted alike), and partials are merged in the order of segments. So one
// thread walking all segments and several threads with some each give the same bits. Example: scores 1, 3 | 2 in
// two segments: m = 3, l = e^-2 + 1 and m = 2, l = 1; merged: m = 3, l = e^-2 + 1 + e^-1.
#pragma once

#include <cstdint>

#include "devices/cpu/kernels/kernels.h"
#include "graph/tensor.h"

namespace shoal::cpu {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kBlockRows = 64;     ///< KV rows per block
inline constexpr int64_t kMaxPanelRows = 16;  ///< of any instruction set
inline constexpr int64_t kSegmentRows = 512;  ///< KV rows per segment, more when there would be too many
inline constexpr int64_t kMaxSegments = 32;

/// What is constant over a node, from its shapes and parameters.
struct AttentionShape {
  explicit AttentionShape(const Tensor& node);
  int64_t d, e, s, t, h, z;
  int64_t kv_heads, group;                 ///< group: query heads per KV head
  int64_t tile_heads, tile_queries;        ///< heads and queries of a tile
  int64_t head_tiles, query_tiles, tiles;  ///< tiles per KV head's group, per batch of queries, of the node
  int64_t segment_rows, segments;
  /// Most rows that a tile of this node has.
  int64_t tile_rows() const { return tile_heads * tile_queries; }
  /// Floats of scratch that a Tile needs.
  size_t scratch_floats() const;
};

/// Rows [begin, end) of the KV axis.
struct KvRange {
  int64_t begin = 0, end = 0;
};
/// The KV rows that a query may see; nothing outside is read for it.
KvRange visible(const Tensor& node, int64_t query);
/// The KV rows that any of the node's queries may see.
KvRange visible(const Tensor& node);

/// Running soft-max of one row. `values` are e weighted sums.
struct Partial {
  float top = 0;  ///< -infinity: nothing seen yet, the rest is unset
  float sum = 0;
  float* values = nullptr;
};
/// Takes `from` into `into`.
void merge(Partial& into, const Partial& from, int64_t e);
/// Writes the result row: values / sum with the head's sink; zeros when nothing was seen.
void finish(const Tensor& node, const Partial& partial, int64_t head, float* to);

class Tile {
 public:
  /// scratch: shape.scratch_floats() floats, 64-byte aligned.
  Tile(const Tensor& node, const AttentionShape& shape, int64_t index, float* scratch);
  int64_t rows() const { return heads_ * queries_; }
  int64_t head(int64_t row) const { return first_head_ + row / queries_; }
  int64_t query(int64_t row) const { return first_query_ + row % queries_; }
  int64_t batch() const { return batch_; }
  /// KV rows that some row sees.
  KvRange range() const { return range_; }
  /// The partial of each row over the visible part of one segment; valid until the next call.
  const Partial* run_segment(int64_t segment);

 private:
  void load_queries();
  void run_block(int64_t block);
  void load_keys(int64_t first, int64_t last);
  void multiply(int64_t block, int64_t first, int64_t last);
  bool finish_scores(int64_t row, int64_t block);
  void weigh(int64_t row);

  const Tensor& node_;
  const AttentionShape& shape_;
  int64_t batch_, kv_head_, first_head_, heads_, first_query_, queries_;
  KvRange range_, ranges_[kTileRows];
  const std::byte* q_[kTileRows];  ///< f32
  const float* v_[kBlockRows];
  const WeightKernels* key_kernels_;  ///< how to multiply key rows
  const std::byte* keys_;             ///< the block's live key rows
  size_t key_stride_;
  float *q_scratch_, *k_scratch_, *v_scratch_, *scores_;  ///< scores_: kBlockRows per row
  std::byte* panel_;                                      ///< of keys, in k_scratch_
  Partial partials_[kTileRows];
};

}  // namespace shoal::cpu
