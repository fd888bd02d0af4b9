// The attention op. The parts of the node (devices/cpu/op_kernel.h) share tiles of (head, query) rows.
//
// If a tile has a large share of the work, the parts divide its KV rows into spans. Each part stores the partial
// results of its spans in the workspace (prepare()). Then run() merges these results. The division changes no bit of a
// result.
#include <algorithm>
#include <limits>

#include "devices/cpu/claims.h"
#include "devices/cpu/ops/attention_partials.h"
#include "devices/cpu/ops/attention_tile.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// Number of floats per part: the scratch of a Tile and of a PartialTree.
int64_t part_floats(const AttentionShape& shape) {
  return padded(shape.scratch_floats() + PartialTree::floats(shape, shape.tile_rows()));
}

/// Whether the KV rows of a tile may be divided among `parts` parts. Tiles with the same queries have the same length.
/// So if there are at least two of these tiles per part, no tile has a large share of the work.
bool may_divide(const Tensor& node, const AttentionShape& shape, int parts) {
  const bool has_sequences = source(node, AttentionSource::kTable) != nullptr;
  const int64_t similar = shape.same_queries * (has_sequences ? 1 : shape.query_tiles);
  return parts > 1 && shape.spans > 1 && similar < 2 * parts;
}

/// Maximum number of tiles whose KV rows are divided.
int64_t max_divided(const AttentionShape& shape, int parts) {
  return std::min<int64_t>(shape.same_queries * shape.t, 2 * parts - 1);
}

struct Spans {
  int64_t first = 0, count = 0;
};

/// The tiles in one call of a part. Their number and their lengths depend on the positions and sequences of queries.
class Tiles {
 public:
  Tiles(const TeamContext& ctx, Tensor& node) : ctx_(ctx), node_(node), shape_(node), queries_(node, shape_) {
    if (!may_divide(node, shape_, ctx.parts)) return;
    int64_t all = 0;
    for_queries([&](int64_t, int64_t, Spans spans) { all += spans.count; });
    // At most 2 * parts - 1 tiles have more spans than this limit.
    limit_ = std::max<int64_t>(all * (shape_.same_queries / shape_.z) / (2 * ctx.parts), 1);
  }

  /// Computes the spans of this part. The parts divide the spans of all divided tiles.
  void prepare() {
    int64_t count = 0, before = 0;
    for_divided([&](int64_t, int64_t, Spans spans) { count += spans.count; });
    const auto [begin, end] = share(ctx_, count);
    for_divided([&, begin = begin, end = end](int64_t place, int64_t index, Spans spans) {
      const int64_t first = std::max(begin - before, int64_t{0}), last = std::min(end - before, spans.count);
      before += spans.count;
      if (first >= last) return;
      Tile tile(node_, shape_, queries_, index, scratch());
      for (int64_t i = first; i < last; ++i) {
        const int64_t segment = (spans.first + i) << shape_.span_level;
        const PartialRows results = run_segments(tile, segment, segment + (int64_t{1} << shape_.span_level));
        const PartialRows stored = results_of(place, i);
        for (int64_t row = 0; row < tile.rows(); ++row) stored.clear(row), stored.merge(row, results[row]);
      }
    });
  }

  /// Merges the results of divided tiles. The parts divide the rows of these tiles.
  void merge_spans() {
    int64_t item = 0;
    for_divided([&](int64_t place, int64_t index, Spans spans) {
      const Tile tile(node_, shape_, queries_, index, scratch());
      for (int64_t row = 0; row < tile.rows(); ++row) {
        if (item++ % ctx_.parts != ctx_.part) continue;
        PartialTree tree(shape_, 1, shape_.span_level, tree_scratch());
        for (int64_t i = 0; i < spans.count; ++i) {
          tree.add(spans.first + i, [&](int64_t) { return results_of(place, i)[row]; });
        }
        finish_row(tile, row, tree.finish()[0]);
      }
    });
  }

  /// Computes the other tiles.
  void run_whole() {
    for_shared(ctx_, shape_.same_queries * queries_.count(), [&](int64_t index) {
      Tile tile(node_, shape_, queries_, index, scratch());
      if (spans_of(tile.range()).count > limit_) return;
      const PartialRows results = run_segments(tile, 0, shape_.segments);
      for (int64_t row = 0; row < tile.rows(); ++row) finish_row(tile, row, results[row]);
    });
  }

 private:
  Spans spans_of(KvRange range) const {
    if (range.begin >= range.end) return {};
    const int64_t rows = shape_.span_rows(), first = range.begin / rows;
    return {first, (range.end + rows - 1) / rows - first};
  }

  /// Calls f(batch, index of the queries, spans).
  template <class F>
  void for_queries(F&& f) {
    for (int64_t batch = 0; batch < shape_.z; ++batch) {
      for (int64_t i = 0; i < queries_.count(); ++i) {
        const QueryTiles::Queries queries = queries_.find(i);
        KvRange range;
        for (int64_t query = queries.first; query < queries.first + queries.count; ++query) {
          range = unite(range, visible(node_, shape_, query, batch));
        }
        f(batch, i, spans_of(range));
      }
    }
  }

  /// Calls f(place, index of the tile, spans) for each divided tile. `place` counts the divided tiles.
  template <class F>
  void for_divided(F&& f) {
    if (limit_ == kNoLimit) return;
    const int64_t same = shape_.same_queries / shape_.z;
    int64_t place = 0;
    for_queries([&](int64_t batch, int64_t i, Spans spans) {
      if (spans.count <= limit_) return;
      for (int64_t n = batch * same; n < (batch + 1) * same; ++n) f(place++, n * queries_.count() + i, spans);
    });
  }

  /// Returns the merged results of segments [begin, end) for the rows of a tile.
  PartialRows run_segments(Tile& tile, int64_t begin, int64_t end) const {
    PartialTree tree(shape_, tile.rows(), 0, tree_scratch());
    const KvRange range = tile.range();
    for (int64_t i = std::max(begin, range.begin / kSegmentRows); i < end && i * kSegmentRows < range.end; ++i) {
      tile.run_segment(i);
      tree.add(i, [&](int64_t row) { return tile.partial(row); });
    }
    return tree.finish();
  }

  void finish_row(const Tile& tile, int64_t row, const Partial& result) const {
    std::byte* to = row_at(node_, {tile.head(row), tile.query(row), tile.batch()});
    finish(node_, result, tile.head(row), reinterpret_cast<float*>(to));
  }

  float* workspace(int64_t floats) const { return reinterpret_cast<float*>(ctx_.workspace) + floats; }
  float* scratch() const { return workspace(ctx_.part * part_floats(shape_)); }
  float* tree_scratch() const { return scratch() + shape_.scratch_floats(); }
  /// The results of a span, counted from the tile's first span.
  PartialRows results_of(int64_t place, int64_t span) const {
    const int64_t before = (place * shape_.spans + span) * shape_.tile_rows() * PartialRows::floats(shape_.e);
    return {workspace(ctx_.parts * part_floats(shape_) + before), shape_.e};
  }

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const TeamContext& ctx_;
  Tensor& node_;
  const AttentionShape shape_;
  QueryTiles queries_;
  int64_t limit_ = kNoLimit;  ///< tiles with more spans are divided
};

void prepare(const TeamContext& ctx, Tensor& node) {
  Tiles(ctx, node).prepare();
}

bool prepares(const Tensor& node, int parts) {
  return may_divide(node, AttentionShape(node), parts);
}

void run(const TeamContext& ctx, Tensor& node) {
  Tiles tiles(ctx, node);
  tiles.merge_spans();
  tiles.run_whole();
}

bool supports(const Tensor& node) {
  const Tensor *q = node.src[0], *k = node.src[1], *v = node.src[2];
  const Tensor *positions = source(node, AttentionSource::kPositions), *mask = source(node, AttentionSource::kMask),
               *sinks = source(node, AttentionSource::kSinks), *table = source(node, AttentionSource::kTable),
               *sequences = source(node, AttentionSource::kSequences);
  const auto& params = std::get<AttentionParams>(node.params);
  if (node.dtype != DType::kF32 || !node.is_contiguous() || !is_float(q) || !is_readable(k) || !is_readable(v)) {
    return false;
  }
  if ((params.causal || params.window > 0) && !positions) return false;
  if ((table == nullptr) != (sequences == nullptr)) return false;
  if (table && (table->dtype != DType::kI32 || sequences->dtype != DType::kI32 || mask)) return false;
  return (!positions || positions->dtype == DType::kI32) && (!mask || is_float(mask)) &&
         (!sinks || sinks->dtype == DType::kF32);
}

size_t workspace(const Tensor& node, int parts) {
  const AttentionShape shape(node);
  int64_t floats = parts * part_floats(shape);
  if (may_divide(node, shape, parts)) {
    floats += max_divided(shape, parts) * shape.spans * shape.tile_rows() * PartialRows::floats(shape.e);
  }
  return floats * sizeof(float);
}

int64_t work(const Tensor& node) {
  const AttentionShape shape(node);
  return shape.t * shape.h * shape.z * shape.s * (shape.d + shape.e);
}

}  // namespace

const OpKernel kAttentionKernel{run, supports, workspace, work, nullptr, prepare, prepares};

}  // namespace shoal::cpu
