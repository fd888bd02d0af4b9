// The inside of attention: a tile is up to kAttentionRows (head, query) rows that share one KV head. It walks the KV
// rows in blocks with a soft-max that is updated as blocks come (Milakov and Gimelshein 2018, arXiv:1805.02867), in one
// of two forms (devices/cpu/kernels/attention.h). Which one depends on the number of queries alone: it is the same on
// every device.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/ops/attention_shape.h"

namespace shoal::cpu {

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
  /// Walks the visible part of one segment.
  void run_segment(int64_t segment);
  /// What a row got from the last segment; valid until the next.
  Partial partial(int64_t row) const;

 private:
  /// A block of KV rows of which some row sees [first, last).
  struct Block {
    int64_t begin, first, last;
    bool hidden;  ///< in part, from some rows
    int64_t count() const { return last - first; }
    /// Where first is in the block.
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
  KvRange range_, common_;  ///< seen by some row, by all rows
  KvRange ranges_[kAttentionRows];
  bool loaded_ = false;  ///< the queries
  // In the scratch. Queries, scaled, are [row][d padded] or, in lanes, [d][kAttentionRows]; sums likewise with e.
  float *q_rows_, *q_lanes_, *k_, *v_, *scores_, *sum_rows_, *sum_lanes_;
  float *top_, *sum_, *keep_;
  int32_t *first_, *last_;  ///< what each row sees of a block
};

}  // namespace shoal::cpu
