// The attention op. The parts of the node (devices/cpu/op_kernel.h) take tiles of (head, query) rows in rounds. Each
// part takes one tile per round. In every second round, the parts take tiles in reverse order, because causal tiles
// differ in length.
//
// If there are too few tiles for all parts, the KV segments of a tile are divided among the parts. Each part stores
// partial results in the workspace (prepare()). Then run() merges these results in the order of segments. A single part
// also merges partial results in this order.
#include <algorithm>
#include <limits>

#include "devices/cpu/ops/attention_tile.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

bool splits_kv(const AttentionShape& shape, int64_t tiles, int parts) {
  return shape.segments > 1 && tiles < 2 * parts;
}

/// The tiles of a node. The number of tiles depends on the sequences of the queries.
struct Tiles {
  explicit Tiles(const Tensor& node)
      : shape(node), queries(node, shape), count(shape.z * shape.kv_heads * shape.head_tiles * queries.count()) {}
  AttentionShape shape;
  QueryTiles queries;
  int64_t count;
};

/// Number of floats per part: the scratch of a Tile, and merged values for each row of the tile.
int64_t part_floats(const AttentionShape& shape) {
  return (static_cast<int64_t>(shape.scratch_floats()) + shape.tile_rows() * shape.e + 15) / 16 * 16;
}
/// Number of floats of a partial result in the workspace. A partial result consists of top, sum and values.
int64_t partial_floats(const AttentionShape& shape) {
  return shape.e + 2;
}

float* result_row(Tensor& node, const Tile& tile, int64_t row) {
  return reinterpret_cast<float*>(row_at(node, {tile.head(row), tile.query(row), tile.batch()}));
}

void run_whole_tiles(const TeamContext& ctx, Tensor& node, Tiles& tiles, float* scratch) {
  const AttentionShape& shape = tiles.shape;
  float* values = scratch + shape.scratch_floats();
  for (int64_t round = 0; round * ctx.parts < tiles.count; ++round) {
    const int64_t index = round * ctx.parts + (round % 2 ? ctx.parts - 1 - ctx.part : ctx.part);
    if (index >= tiles.count) continue;
    Tile tile(node, shape, tiles.queries, index, scratch);
    Partial merged[kAttentionRows];
    for (int64_t row = 0; row < tile.rows(); ++row) merged[row] = {kMinusInfinity, 0, values + row * shape.e};
    const KvRange range = tile.range();
    for (int64_t i = range.begin / shape.segment_rows; i * shape.segment_rows < range.end; ++i) {
      tile.run_segment(i);
      for (int64_t row = 0; row < tile.rows(); ++row) merge(merged[row], tile.partial(row), shape.e);
    }
    for (int64_t row = 0; row < tile.rows(); ++row) {
      finish(node, merged[row], tile.head(row), result_row(node, tile, row));
    }
  }
}

/// The KV segments that at least one query sees. The range is empty if the parts take whole tiles. Each (tile, segment)
/// pair is one unit of work.
struct Split {
  int64_t first = 0, count = 0;  ///< number of the first segment; number of segments
  float* partials = nullptr;     ///< top, sum and values at [tile][segment - first][row]
  float* at(const AttentionShape& shape, int64_t tile, int64_t segment, int64_t row) const {
    return partials + ((tile * count + segment - first) * shape.tile_rows() + row) * partial_floats(shape);
  }
};

/// First phase: processes the (tile, segment) pairs of this part.
void run_segments(const TeamContext& ctx, const Tensor& node, Tiles& tiles, const Split& split, float* scratch) {
  const AttentionShape& shape = tiles.shape;
  for (int64_t item = ctx.part; item < tiles.count * split.count; item += ctx.parts) {
    const int64_t index = item / split.count, segment = split.first + item % split.count;
    Tile tile(node, shape, tiles.queries, index, scratch);
    tile.run_segment(segment);
    for (int64_t row = 0; row < tile.rows(); ++row) {
      const Partial from = tile.partial(row);
      float* to = split.at(shape, index, segment, row);
      to[0] = from.top, to[1] = from.sum;
      if (from.sum != 0) std::copy_n(from.values, shape.e, to + 2);
    }
  }
}

/// Second phase: merges the partial results of this part's tiles.
void merge_segments(const TeamContext& ctx, Tensor& node, Tiles& tiles, const Split& split, float* scratch) {
  const AttentionShape& shape = tiles.shape;
  float* values = scratch + shape.scratch_floats();
  for (int64_t index = ctx.part; index < tiles.count; index += ctx.parts) {
    const Tile tile(node, shape, tiles.queries, index, scratch);
    for (int64_t row = 0; row < tile.rows(); ++row) {
      Partial merged{kMinusInfinity, 0, values};
      for (int64_t segment = split.first; segment < split.first + split.count; ++segment) {
        float* from = split.at(shape, index, segment, row);
        merge(merged, {from[0], from[1], from + 2}, shape.e);
      }
      finish(node, merged, tile.head(row), result_row(node, tile, row));
    }
  }
}

float* scratch_of(const TeamContext& ctx, const AttentionShape& shape) {
  return reinterpret_cast<float*>(ctx.workspace) + ctx.part * part_floats(shape);
}

/// Returns an empty range of segments if the parts take whole tiles. Each run computes the range again, because the KV
/// rows that queries see may change.
Split split_of(const TeamContext& ctx, const Tensor& node, const Tiles& tiles) {
  const AttentionShape& shape = tiles.shape;
  if (!splits_kv(shape, tiles.count, ctx.parts)) return {};
  const KvRange range = visible(node, shape);
  const int64_t first = range.begin / shape.segment_rows;
  const int64_t end = (range.end + shape.segment_rows - 1) / shape.segment_rows;
  if (end - first < 2) return {};
  return {first, end - first, reinterpret_cast<float*>(ctx.workspace) + ctx.parts * part_floats(shape)};
}

void prepare(const TeamContext& ctx, Tensor& node) {
  Tiles tiles(node);
  run_segments(ctx, node, tiles, split_of(ctx, node, tiles), scratch_of(ctx, tiles.shape));
}

bool prepares(const Tensor& node, int parts) {
  const AttentionShape shape(node);
  return splits_kv(shape, shape.min_tiles, parts);
}

void run(const TeamContext& ctx, Tensor& node) {
  Tiles tiles(node);
  const Split split = split_of(ctx, node, tiles);
  float* scratch = scratch_of(ctx, tiles.shape);
  if (split.count == 0) return run_whole_tiles(ctx, node, tiles, scratch);
  merge_segments(ctx, node, tiles, split, scratch);
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
  if (splits_kv(shape, shape.min_tiles, parts)) {
    const int64_t tiles = std::min<int64_t>(shape.max_tiles, 2 * parts - 1);
    floats += tiles * shape.segments * shape.tile_rows() * partial_floats(shape);
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
