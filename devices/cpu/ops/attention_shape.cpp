#include "devices/cpu/ops/attention_shape.h"

#include <algorithm>
#include <bit>

namespace shoal::cpu {
namespace {

constexpr int64_t kMaxLanes = 16;  ///< maximum number of f32 lanes of any instruction set

int64_t blocks(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}

/// Minimum number of rows for the lanes form. This form reads KV rows of f32, which is worthwhile if many rows use
/// them. In the rows form, each row reads blocks of coded integers anew. The queries of long heads fill the caches, so
/// the lanes form is slower.
int64_t lane_rows_of(DType keys, int64_t d) {
  if (traits(keys).is_quantized) return keys == DType::kQ8_0 ? 16 : 8;
  return d <= 256 ? 16 : kAttentionRows + 1;
}

}  // namespace

const Tensor* source(const Tensor& node, AttentionSource which) {
  const auto index = static_cast<size_t>(which);
  return index < node.src.size() ? node.src[index] : nullptr;
}

int64_t padded(int64_t floats) {
  return blocks(floats, kMaxLanes) * kMaxLanes;
}

AttentionShape::AttentionShape(const Tensor& node) {
  const Tensor &q = *node.src[0], &k = *node.src[1], &v = *node.src[2];
  d = q.shape[0], t = q.shape[1], h = q.shape[2], z = k.shape[3];
  e = v.shape[0], s = k.shape[1], kv_heads = k.shape[2];
  const Tensor* table = source(node, AttentionSource::kTable);
  page = table == nullptr || s == 0 ? 0 : std::get<AttentionParams>(node.params).page;
  pages = page > 0 ? s / page : 0;
  if (table != nullptr) s = table->shape[0] * page;
  group = kv_heads > 0 ? h / kv_heads : 1;
  tile_heads = std::clamp<int64_t>(group, 1, kAttentionRows);
  tile_queries = std::clamp<int64_t>(kAttentionRows / tile_heads, 1, std::max<int64_t>(t, 1));
  head_tiles = blocks(group, tile_heads);
  query_tiles = blocks(t, tile_queries);
  same_queries = z * kv_heads * head_tiles;
  lane_rows = lane_rows_of(k.dtype, d);
  segments = blocks(s, kSegmentRows);
  span_level = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(blocks(segments, kMaxSpans), 1) - 1));
  spans = blocks(s, span_rows());
}

size_t AttentionShape::scratch_floats() const {
  const int64_t row = padded(d) + padded(e);
  const int64_t lane_floats = lanes() ? (d + e) * kAttentionRows : 0;
  return padded(tile_rows()) * row + lane_floats + kAttentionBlock * (row + kAttentionRows) + 5 * kAttentionRows;
}

QueryTiles::QueryTiles(const Tensor& node, const AttentionShape& shape)
    : node_(node), t_(shape.t), tile_queries_(shape.tile_queries) {
  for (int64_t first = 0; first < t_;) {
    const Queries run = run_at(first);
    count_ += blocks(run.count, tile_queries_);
    first += run.count;
  }
  run_ = run_at(0);
}

QueryTiles::Queries QueryTiles::run_at(int64_t first) const {
  int64_t end = first;
  if (source(node_, AttentionSource::kSequences) == nullptr) {
    end = t_;
  } else {
    while (end < t_ && sequence_of(node_, end) == sequence_of(node_, first)) ++end;
  }
  return {first, end - first};
}

QueryTiles::Queries QueryTiles::find(int64_t index) {
  if (index < index_of_run_) run_ = run_at(0), index_of_run_ = 0;
  for (int64_t tiles; index >= index_of_run_ + (tiles = blocks(run_.count, tile_queries_)); index_of_run_ += tiles) {
    run_ = run_at(run_.first + run_.count);
  }
  const int64_t begin = (index - index_of_run_) * tile_queries_;
  return {run_.first + begin, std::min(tile_queries_, run_.count - begin)};
}

int64_t sequence_of(const Tensor& node, int64_t query) {
  const Tensor& sequences = *source(node, AttentionSource::kSequences);
  return *reinterpret_cast<const int32_t*>(sequences.data + query * sequences.strides[0]);
}

KvRange visible(const Tensor& node, const AttentionShape& shape, int64_t query, int64_t batch) {
  const auto& params = std::get<AttentionParams>(node.params);
  KvRange range{0, shape.s};
  if (const Tensor* table = source(node, AttentionSource::kTable)) {
    const int64_t sequence = sequence_of(node, query);
    if (sequence < 0 || sequence >= table->shape[1]) return {};
  }
  const Tensor* positions = source(node, AttentionSource::kPositions);
  if (!positions) return range;
  const std::byte* at = positions->data + query * positions->strides[0];
  if (positions->shape[1] > 1) at += batch * positions->strides[1];
  const int64_t position = *reinterpret_cast<const int32_t*>(at);
  if (params.causal) range.end = std::min(range.end, position + 1);
  if (params.window > 0) range.begin = std::max<int64_t>(0, position - params.window + 1);
  return range;
}

KvRange unite(KvRange a, KvRange b) {
  if (a.begin >= a.end) return b;
  if (b.begin >= b.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace shoal::cpu
