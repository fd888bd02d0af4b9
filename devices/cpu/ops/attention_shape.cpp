#include "devices/cpu/ops/attention_shape.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace shoal::cpu {
namespace {

constexpr int64_t kMaxLanes = 16;  ///< maximum number of f32 lanes of any instruction set
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int64_t blocks(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}

KvRange unite(KvRange a, KvRange b) {
  if (b.begin >= b.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
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
  group = kv_heads > 0 ? h / kv_heads : 1;
  tile_heads = std::clamp<int64_t>(group, 1, kAttentionRows);
  tile_queries = std::clamp<int64_t>(kAttentionRows / tile_heads, 1, std::max<int64_t>(t, 1));
  head_tiles = blocks(group, tile_heads);
  query_tiles = blocks(t, tile_queries);
  tiles = z * kv_heads * head_tiles * query_tiles;
  segment_rows = std::max(kSegmentRows, blocks(blocks(s, kMaxSegments), kAttentionBlock) * kAttentionBlock);
  segments = blocks(s, segment_rows);
}

size_t AttentionShape::scratch_floats() const {
  const int64_t row = padded(d) + padded(e);
  const int64_t lane_floats = lanes() ? (d + e) * kAttentionRows : 0;
  return padded(tile_rows()) * row + lane_floats + kAttentionBlock * (row + kAttentionRows) + 5 * kAttentionRows;
}

KvRange visible(const Tensor& node, int64_t query, int64_t batch) {
  const auto& params = std::get<AttentionParams>(node.params);
  KvRange range{0, source(node, AttentionSource::kK)->shape[1]};
  const Tensor* positions = source(node, AttentionSource::kPositions);
  if (!positions) return range;
  const std::byte* at = positions->data + query * positions->strides[0];
  if (positions->shape[1] > 1) at += batch * positions->strides[1];
  const int64_t position = *reinterpret_cast<const int32_t*>(at);
  if (params.causal) range.end = std::min(range.end, position + 1);
  if (params.window > 0) range.begin = std::max<int64_t>(0, position - params.window + 1);
  return range;
}

KvRange visible(const Tensor& node) {
  KvRange all{source(node, AttentionSource::kK)->shape[1], 0};
  for (int64_t batch = 0; batch < node.shape[3]; ++batch) {
    for (int64_t query = 0; query < node.shape[2]; ++query) all = unite(all, visible(node, query, batch));
  }
  return all;
}

void merge(Partial& into, const Partial& from, int64_t e) {
  if (from.sum == 0) return;
  if (into.sum == 0) {
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
  const int64_t e = source(node, AttentionSource::kV)->shape[0];
  const Tensor* sinks = source(node, AttentionSource::kSinks);
  const float sink =
      sinks == nullptr ? kMinusInfinity : *reinterpret_cast<const float*>(sinks->data + head * sinks->strides[0]);
  const bool has_lse = node.shape[0] > e;
  if (partial.sum == 0) {
    std::memset(to, 0, e * sizeof(float));
    if (has_lse) to[e] = sink;
    return;
  }
  float keep = 1, sum = partial.sum, top = partial.top;
  if (sinks != nullptr) {
    top = std::max(top, sink);
    keep = std::exp(partial.top - top);
    sum = sum * keep + std::exp(sink - top);
  }
  if (has_lse) to[e] = top + std::log(sum);
  const float factor = keep / sum;
#pragma omp simd
  for (int64_t i = 0; i < e; ++i) to[i] = partial.values[i] * factor;
}

}  // namespace shoal::cpu
