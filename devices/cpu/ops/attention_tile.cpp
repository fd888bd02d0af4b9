#include "devices/cpu/ops/attention_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/activations.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// From this many queries on keys are packed in panels.
constexpr int64_t kPanelQueries = 2;

enum Source { kQ, kK, kV, kPositions, kMask, kSinks };

const Tensor* source(const Tensor& node, size_t index) {
  return index < node.src.size() ? node.src[index] : nullptr;
}

int64_t blocks(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}
/// Floats rounded up to a cache line.
int64_t padded(int64_t floats) {
  return blocks(floats, 16) * 16;
}

KvRange unite(KvRange a, KvRange b) {
  if (b.begin >= b.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

void scale_row(float* x, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

AttentionShape::AttentionShape(const Tensor& node) {
  const Tensor &q = *node.src[kQ], &k = *node.src[kK], &v = *node.src[kV];
  d = q.shape[0], t = q.shape[1], h = q.shape[2], z = q.shape[3];
  e = v.shape[0], s = k.shape[1], kv_heads = k.shape[2];
  group = kv_heads > 0 ? h / kv_heads : 1;
  tile_heads = std::clamp<int64_t>(group, 1, kTileRows);
  tile_queries = std::clamp<int64_t>(kTileRows / tile_heads, 1, std::max<int64_t>(t, 1));
  head_tiles = blocks(group, tile_heads);
  query_tiles = blocks(t, tile_queries);
  tiles = z * kv_heads * head_tiles * query_tiles;
  segment_rows = std::max(kSegmentRows, blocks(blocks(s, kMaxSegments), kBlockRows) * kBlockRows);
  segments = blocks(s, segment_rows);
}

size_t AttentionShape::scratch_floats() const {
  const int64_t keys = padded(d) * kBlockRows, panel = kMaxPanelRows * padded(d), queries = padded(d) * kTileRows;
  return queries + keys + panel + padded(e) * (kTileRows + kBlockRows) + kTileRows * kBlockRows;
}

KvRange visible(const Tensor& node, int64_t query) {
  const auto& params = std::get<AttentionParams>(node.params);
  KvRange range{0, node.src[kK]->shape[1]};
  const Tensor* positions = source(node, kPositions);
  if (!positions) return range;
  const int64_t position = *reinterpret_cast<const int32_t*>(positions->data + query * positions->strides[0]);
  if (params.causal) range.end = std::min(range.end, position + 1);
  if (params.window > 0) range.begin = std::max<int64_t>(0, position - params.window + 1);
  return range;
}

KvRange visible(const Tensor& node) {
  KvRange all{node.src[kK]->shape[1], 0};
  for (int64_t query = 0; query < node.shape[2]; ++query) all = unite(all, visible(node, query));
  return all;
}

void merge(Partial& into, const Partial& from, int64_t e) {
  if (from.top == kMinusInfinity) return;
  if (into.top == kMinusInfinity) {
    into.top = from.top, into.sum = from.sum;
    std::memcpy(into.values, from.values, e * sizeof(float));
    return;
  }
  const float top = std::max(into.top, from.top);
  const float keep = std::exp(into.top - top), take = std::exp(from.top - top);
  into.top = top;
  into.sum = into.sum * keep + from.sum * take;
#pragma omp simd
  for (int64_t i = 0; i < e; ++i) into.values[i] = into.values[i] * keep + from.values[i] * take;
}

void finish(const Tensor& node, const Partial& partial, int64_t head, float* to) {
  const int64_t e = node.shape[0];
  if (partial.top == kMinusInfinity) {
    std::memset(to, 0, e * sizeof(float));
    return;
  }
  float keep = 1, sum = partial.sum;
  if (const Tensor* sinks = source(node, kSinks)) {
    const float sink = *reinterpret_cast<const float*>(sinks->data + head * sinks->strides[0]);
    const float top = std::max(partial.top, sink);
    keep = std::exp(partial.top - top);
    sum = sum * keep + std::exp(sink - top);
  }
  const float factor = keep / sum;
#pragma omp simd
  for (int64_t i = 0; i < e; ++i) to[i] = partial.values[i] * factor;
}

Tile::Tile(const Tensor& node, const AttentionShape& shape, int64_t index, float* scratch)
    : node_(node), shape_(shape) {
  const int64_t query_tile = index % shape.query_tiles, rest = index / shape.query_tiles;
  const int64_t head_tile = rest % shape.head_tiles, kv = rest / shape.head_tiles;
  kv_head_ = kv % shape.kv_heads;
  batch_ = kv / shape.kv_heads;
  const int64_t in_group = head_tile * shape.tile_heads;
  first_head_ = kv_head_ * shape.group + in_group;
  heads_ = std::min(shape.tile_heads, shape.group - in_group);
  first_query_ = query_tile * shape.tile_queries;
  queries_ = std::min(shape.tile_queries, shape.t - first_query_);

  q_scratch_ = scratch;
  k_scratch_ = q_scratch_ + kTileRows * padded(shape.d);
  panel_ = reinterpret_cast<std::byte*>(k_scratch_ + kBlockRows * padded(shape.d));
  v_scratch_ = k_scratch_ + (kBlockRows + kMaxPanelRows) * padded(shape.d);
  scores_ = v_scratch_ + kBlockRows * padded(shape.e);
  float* values = scores_ + kTileRows * kBlockRows;
  range_ = {shape.s, 0};
  for (int64_t row = 0; row < rows(); ++row) {
    partials_[row].values = values + row * padded(shape.e);
    ranges_[row] = visible(node, query(row));
    range_ = unite(range_, ranges_[row]);
  }
  load_queries();
}

void Tile::load_queries() {
  const Tensor& q = *node_.src[kQ];
  for (int64_t row = 0; row < rows(); ++row) {
    const std::byte* from = row_at(q, {query(row), head(row), batch_});
    q_[row] = reinterpret_cast<const std::byte*>(load(q, from, 0, shape_.d, q_scratch_ + row * padded(shape_.d)));
  }
}

const Partial* Tile::run_segment(int64_t segment) {
  for (int64_t row = 0; row < rows(); ++row) partials_[row].top = kMinusInfinity;
  const int64_t begin = segment * shape_.segment_rows;
  const int64_t end = std::min(begin + shape_.segment_rows, range_.end);
  for (int64_t block = begin; block < end; block += kBlockRows) {
    if (block + kBlockRows > range_.begin) run_block(block);
  }
  return partials_;
}

void Tile::run_block(int64_t block) {
  const Tensor& v = *node_.src[kV];
  const int64_t first = std::max(block, range_.begin), last = std::min(block + kBlockRows, range_.end);
  for (int64_t j = first; j < last; ++j) {
    const int64_t i = j - block;
    v_[i] = load(v, row_at(v, {j, kv_head_, batch_}), 0, shape_.e, v_scratch_ + i * padded(shape_.e));
  }
  load_keys(first, last);
  multiply(block, first, last);
  for (int64_t row = 0; row < rows(); ++row) {
    if (finish_scores(row, block)) weigh(row);
  }
}

/// Rows [first, last) of the keys: float types are multiplied as they are stored, others are converted.
void Tile::load_keys(int64_t first, int64_t last) {
  const Tensor& k = *node_.src[kK];
  if (traits(k.dtype).is_float && k.is_row_contiguous()) {
    key_kernels_ = &kernels().weights[static_cast<size_t>(k.dtype)];
    keys_ = row_at(k, {first, kv_head_, batch_});
    key_stride_ = k.strides[1];
    return;
  }
  key_kernels_ = &kernels().weights[static_cast<size_t>(DType::kF32)];
  keys_ = reinterpret_cast<const std::byte*>(k_scratch_);
  key_stride_ = padded(shape_.d) * sizeof(float);
  for (int64_t j = first; j < last; ++j) {
    float* to = k_scratch_ + (j - first) * padded(shape_.d);
    const float* values = load(k, row_at(k, {j, kv_head_, batch_}), 0, shape_.d, to);
    if (values != to) std::copy_n(values, shape_.d, to);
  }
}

/// Products of all rows with the keys [first, last). Which form is used depends on the number of queries alone: it is
/// the same on every device.
void Tile::multiply(int64_t block, int64_t first, int64_t last) {
  float* scores[kTileRows];
  for (int64_t row = 0; row < rows(); ++row) scores[row] = scores_ + row * kBlockRows + (first - block);
  if (shape_.t < kPanelQueries) {
    key_kernels_->dot({.a = keys_,
                       .a_stride = key_stride_,
                       .rows = last - first,
                       .k = shape_.d,
                       .b = q_,
                       .c = scores,
                       .columns = rows()});
    return;
  }
  const int64_t panel_rows = kernels().panel_rows;
  for (int64_t i = 0; i < last - first; i += panel_rows) {
    const int64_t n = std::min(panel_rows, last - first - i);
    key_kernels_->exact_panels.from_rows(keys_ + i * key_stride_, key_stride_, n, shape_.d, panel_);
    key_kernels_->exact_panels.multiply({.panel = panel_,
                            .rows = n,
                            .k = shape_.d,
                            .k_total = shape_.d,
                            .b = q_,
                            .c = scores,
                            .columns = rows(),
                            .c_row = i});
  }
}

/// Turns products of a row with a block into scores; what it does not see gets -infinity. False when it sees nothing.
bool Tile::finish_scores(int64_t row, int64_t block) {
  const auto& params = std::get<AttentionParams>(node_.params);
  const int64_t first = std::clamp<int64_t>(ranges_[row].begin - block, 0, kBlockRows);
  const int64_t last = std::clamp<int64_t>(ranges_[row].end - block, 0, kBlockRows);
  if (first >= last) return false;
  const int64_t n = last - first;
  float* scores = scores_ + row * kBlockRows;
  std::fill_n(scores, first, kMinusInfinity);
  std::fill_n(scores + last, kBlockRows - last, kMinusInfinity);
  scale_row(scores + first, params.scale, n);
  if (params.softcap > 0) {
    scale_row(scores + first, 1 / params.softcap, n);
    activation_for(UnaryKind::kTanh)(scores + first, scores + first, n);
    scale_row(scores + first, params.softcap, n);
  }
  if (const Tensor* mask = source(node_, kMask)) {
    float scratch[kBlockRows];
    const float* added = load(*mask, row_at(*mask, {query(row), 0, 0}), block + first, n, scratch);
    for (int64_t i = 0; i < n; ++i) {
      scores[first + i] = added[i] == kMinusInfinity ? kMinusInfinity : scores[first + i] + added[i];
    }
  }
  return true;
}

/// Takes a scored block into the row's partial. Always the whole block, so that the order of the sums depends on
/// nothing but the place in the KV axis; KV rows with weight 0 are not read, they may hold anything.
void Tile::weigh(int64_t row) {
  Partial& partial = partials_[row];
  float* scores = scores_ + row * kBlockRows;
  const float top = std::max(partial.top, kernels().vector.max(scores, kBlockRows));
  if (top == kMinusInfinity) return;
  if (partial.top == kMinusInfinity) {
    partial.sum = 0;
    std::memset(partial.values, 0, shape_.e * sizeof(float));
  } else if (partial.top != top) {
    const float keep = std::exp(partial.top - top);
    partial.sum *= keep;
    scale_row(partial.values, keep, shape_.e);
  }
  partial.top = top;
  const VectorKernels& vector = kernels().vector;
  partial.sum += vector.exp(scores, top, scores, kBlockRows);
  const float* values[kBlockRows];
  int64_t count = 0;
  for (int64_t i = 0; i < kBlockRows; ++i) {
    if (scores[i] == 0.0f) continue;
    scores[count] = scores[i];
    values[count++] = v_[i];
  }
  vector.weighted_sum(scores, values, count, partial.values, shape_.e);
}

}  // namespace shoal::cpu
