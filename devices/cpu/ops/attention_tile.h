// A tile of attention consists of up to kAttentionRows rows that share one KV head. Each row is a (head, query) pair.
// The tile processes the KV rows in blocks and updates the soft-max after each block (Milakov and Gimelshein 2018,
// arXiv:1805.02867). Tiles have two forms (devices/cpu/kernels/attention.h), which give the same bits. The number of
// rows of the tile determines the form.
//
// A block can contain rows of several pages. The kernels then read the block piece by piece. A piece is a range of rows
// with a constant stride. Rows of a page that does not exist are hidden (kernels/attention.h).
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/ops/attention_partials.h"

namespace shoal::cpu {

class Tile {
 public:
  /// `scratch` points to shape.scratch_floats() floats and is 64-byte aligned.
  Tile(const Tensor& node, const AttentionShape& shape, QueryTiles& queries, int64_t index, float* scratch);
  int64_t rows() const { return heads_ * queries_; }
  int64_t head(int64_t row) const { return first_head_ + row / queries_; }
  int64_t query(int64_t row) const { return first_query_ + row % queries_; }
  int64_t batch() const { return batch_; }
  /// Returns the smallest range that contains all KV rows that at least one row of the tile sees.
  KvRange range() const { return range_; }
  /// Processes the visible KV rows of one segment.
  void run_segment(int64_t segment);
  /// Returns the result of a row for the most recent segment. The result is valid until the next segment.
  Partial partial(int64_t row) const;

 private:
  /// A block of KV rows. [first, last) contains the KV rows of the block that are in range().
  struct Block {
    int64_t begin, first, last;
    bool hidden;           ///< true if the node has a mask, if [first, last) exceeds the visible range of a row of the
                           ///< tile, or if a row of the block is missing
    bool missing = false;  ///< whether the pages of some KV rows do not exist
    int64_t count() const { return last - first; }
    /// Returns the position of `first` in the block.
    int64_t place() const { return first - begin; }
  };
  /// KV rows of a block that are adjacent in memory.
  struct Piece {
    int64_t row;    ///< index of the first row on the KV axis
    int64_t at;     ///< index of the first row in the block, counted from Block::first
    int64_t count;  ///< number of rows
  };
  /// The KV rows of a block.
  struct Read {
    const std::byte* converted;  ///< all rows of the block as f32, or nullptr if kernels read the pieces in place
    DType dtype;
  };
  void place(float* scratch);
  void load_queries();
  void run_rows(const Block& block);
  void run_lanes(const Block& block);
  void find_pieces(Block& block);
  void hide_missing(const Block& block, float* scores, int64_t row_stride, int64_t kv_stride) const;
  Read read(const Tensor& tensor, bool as_f32, float* scratch) const;
  KvRows rows_of(const Tensor& tensor, const Read& read, const Piece& piece) const;
  void soften(float* scores, int64_t n) const;
  void add_mask(int64_t row, const Block& block, float* scores, int64_t stride) const;
  void see(const Block& block, int64_t origin);

  const Tensor& node_;
  const AttentionShape& shape_;
  int64_t batch_, kv_head_, first_head_, heads_, first_query_, queries_;
  bool lanes_;
  KvRange range_, common_;  ///< KV rows that at least one row of the tile sees; KV rows that all rows see
  KvRange ranges_[kAttentionRows];
  Piece pieces_[kAttentionBlock];  ///< pieces of the current block, without missing rows
  int64_t piece_count_ = 0;
  bool loaded_ = false;  ///< whether the scratch contains the queries
  // Pointers into the scratch. The rows form stores scaled queries as [row][d padded] and sums as [row][e padded]. The
  // lanes form stores scaled queries as [d][kAttentionRows] and sums as [e][kAttentionRows].
  float *q_rows_, *q_lanes_, *k_, *v_, *scores_, *sum_rows_, *sum_lanes_;
  float *top_, *sum_, *keep_;
  int32_t *first_, *last_;  ///< visible range of each row in a block
};

}  // namespace shoal::cpu
