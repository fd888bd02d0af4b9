// A tile of attention: up to kAttentionRows (head, query) rows that share one KV head. It processes the KV rows in
// blocks and updates the soft-max after each block (Milakov and Gimelshein 2018, arXiv:1805.02867). Tiles have two
// forms (devices/cpu/kernels/attention.h). The choice depends only on the number of queries, so it is the same on every
// device.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/ops/attention_shape.h"

namespace shoal::cpu {

class Tile {
 public:
  /// `scratch` points to shape.scratch_floats() floats, 64-byte aligned.
  Tile(const Tensor& node, const AttentionShape& shape, int64_t index, float* scratch);
  int64_t rows() const { return heads_ * queries_; }
  int64_t head(int64_t row) const { return first_head_ + row / queries_; }
  int64_t query(int64_t row) const { return first_query_ + row % queries_; }
  int64_t batch() const { return batch_; }
  /// The smallest range with all KV rows that some row of the tile sees.
  KvRange range() const { return range_; }
  /// Runs the visible part of one segment.
  void run_segment(int64_t segment);
  /// The result of a row for the most recent segment; valid until the next segment.
  Partial partial(int64_t row) const;

 private:
  /// A block of KV rows. Each KV row in [first, last) is visible to some row of the tile.
  struct Block {
    int64_t begin, first, last;
    bool hidden;  ///< whether some row of the tile does not see all of [first, last)
    int64_t count() const { return last - first; }
    /// Position of `first` in the block.
    int64_t place() const { return first - begin; }
  };
  struct Read {
    KvRows rows;
    DType dtype;
  };
  void place(float* scratch);
  void load_queries();
  void run_rows(const Block& block);
  void run_lanes(const Block& block);
  Read read(const Tensor& tensor, const Block& block, bool as_f32, float* scratch) const;
  void soften(float* scores, int64_t n) const;
  void add_mask(int64_t row, const Block& block, float* scores, int64_t stride) const;
  void see(const Block& block, int64_t origin);

  const Tensor& node_;
  const AttentionShape& shape_;
  int64_t batch_, kv_head_, first_head_, heads_, first_query_, queries_;
  KvRange range_, common_;  ///< KV rows that some row of the tile sees; KV rows that all rows see
  KvRange ranges_[kAttentionRows];
  bool loaded_ = false;  ///< whether the queries are in the scratch
  // Pointers into the scratch. Scaled queries are stored as [row][d padded] or, for lanes, as [d][kAttentionRows]. Sums
  // are stored in the same way, with e instead of d.
  float *q_rows_, *q_lanes_, *k_, *v_, *scores_, *sum_rows_, *sum_lanes_;
  float *top_, *sum_, *keep_;
  int32_t *first_, *last_;  ///< each row's visible range in a block
};

}  // namespace shoal::cpu
