#include "devices/cpu/ops/attention_tile.h"

#include <algorithm>
#include <limits>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void scale_row(float* x, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

/// Whether each value row is the beginning of the corresponding key row. If true, converted key rows also serve as
/// value rows.
bool has_values_in_keys(const Tensor& node) {
  const Tensor &k = *node.src[1], &v = *node.src[2];
  return k.data == v.data && k.dtype == v.dtype && k.strides == v.strides && v.shape[0] <= k.shape[0];
}

const AttentionKernels::Rows& row_kernels(DType dtype) {
  return kernels().attention.rows[static_cast<size_t>(dtype)];
}

}  // namespace

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
  place(scratch);
  range_ = {shape.s, 0}, common_ = {0, shape.s};
  for (int64_t row = 0; row < rows(); ++row) {
    const KvRange range = ranges_[row] = row < queries_ ? visible(node, query(row), batch_) : ranges_[row - queries_];
    common_ = {std::max(common_.begin, range.begin), std::min(common_.end, range.end)};
    if (range.begin < range.end) range_ = {std::min(range_.begin, range.begin), std::max(range_.end, range.end)};
  }
}

void Tile::place(float* scratch) {
  const auto take = [&](int64_t floats) {
    float* taken = scratch;
    scratch += floats;
    return taken;
  };
  const int64_t rows = padded(shape_.tile_rows());
  top_ = take(kAttentionRows), sum_ = take(kAttentionRows), keep_ = take(kAttentionRows);
  first_ = reinterpret_cast<int32_t*>(take(kAttentionRows)), last_ = reinterpret_cast<int32_t*>(take(kAttentionRows));
  q_rows_ = take(rows * padded(shape_.d));
  sum_rows_ = take(rows * padded(shape_.e));
  scores_ = take(kAttentionBlock * kAttentionRows);
  k_ = take(kAttentionBlock * padded(shape_.d));
  v_ = take(kAttentionBlock * padded(shape_.e));
  q_lanes_ = scratch;
  sum_lanes_ = scratch + shape_.d * kAttentionRows;
}

void Tile::load_queries() {
  const Tensor& q = *node_.src[0];
  const float scale = std::get<AttentionParams>(node_.params).scale;
  const int64_t stride = padded(shape_.d), lanes = padded(rows());
  for (int64_t row = 0; row < rows(); ++row) {
    float* to = q_rows_ + row * stride;
    const float* from = cpu::load(q, broadcast_row_at(q, {query(row), head(row), batch_}), 0, shape_.d, to);
#pragma omp simd
    for (int64_t i = 0; i < shape_.d; ++i) to[i] = from[i] * scale;
  }
  if (!shape_.lanes()) return;
  std::fill(q_rows_ + rows() * stride, q_rows_ + lanes * stride, 0.0f);
  kernels().attention.transpose(q_rows_, stride, lanes, shape_.d, q_lanes_, kAttentionRows);
}

void Tile::run_segment(int64_t segment) {
  if (!loaded_) load_queries();
  loaded_ = true;
  std::fill_n(top_, kAttentionRows, kMinusInfinity);
  std::fill_n(sum_, kAttentionRows, 0.0f);
  const bool lanes = shape_.lanes();
  lanes ? std::fill_n(sum_lanes_, shape_.e * kAttentionRows, 0.0f)
        : std::fill_n(sum_rows_, rows() * padded(shape_.e), 0.0f);
  const int64_t begin = segment * shape_.segment_rows;
  const int64_t end = std::min(begin + shape_.segment_rows, range_.end);
  const bool masked = source(node_, AttentionSource::kMask) != nullptr;
  for (int64_t at = begin; at < end; at += kAttentionBlock) {
    Block block{at, std::max(at, range_.begin), std::min(at + kAttentionBlock, range_.end), masked};
    if (block.first >= block.last) continue;
    if (block.first < common_.begin || block.last > common_.end) block.hidden = true;
    lanes ? run_lanes(block) : run_rows(block);
  }
  if (lanes) {
    const int64_t columns = padded(rows());
    kernels().attention.transpose(sum_lanes_, kAttentionRows, shape_.e, columns, sum_rows_, padded(shape_.e));
  }
}

Partial Tile::partial(int64_t row) const {
  return {top_[row], sum_[row], sum_rows_ + row * padded(shape_.e)};
}

/// Returns the KV rows of a block. If a kernel can read the rows in place, they are not copied. Otherwise they are
/// converted to f32 in `scratch`.
Tile::Read Tile::read(const Tensor& tensor, const Block& block, bool as_f32, float* scratch) const {
  const RowIndex first{block.first, kv_head_, batch_};
  const int64_t length = tensor.shape[0];
  const bool usable = as_f32 ? tensor.dtype == DType::kF32 : row_kernels(tensor.dtype).scores != nullptr;
  if (usable && tensor.is_row_contiguous()) {
    return {{row_at(tensor, first), tensor.strides[1], block.count(), length}, tensor.dtype};
  }
  const int64_t stride = padded(length);
  for (int64_t j = 0; j < block.count(); ++j) {
    float* to = scratch + j * stride;
    const float* values = load(tensor, row_at(tensor, {block.first + j, kv_head_, batch_}), 0, length, to);
    if (values != to) std::copy_n(values, length, to);
  }
  const auto* data = reinterpret_cast<const std::byte*>(scratch);
  return {{data, stride * sizeof(float), block.count(), length}, DType::kF32};
}

void Tile::run_rows(const Block& block) {
  const AttentionKernels& kernel = kernels().attention;
  const Read keys = read(*node_.src[1], block, false, k_);
  row_kernels(keys.dtype).scores({keys.rows, q_rows_, padded(shape_.d), rows(), scores_ + block.place()});
  for (int64_t row = 0; row < rows(); ++row) {
    float* scores = scores_ + row * kAttentionBlock + block.place();
    soften(scores, block.count());
    add_mask(row, block, scores, 1);
  }
  see(block, block.begin);
  const bool hidden = block.hidden || block.place() > 0;
  kernel.row_soft_max({scores_, block.last - block.begin, rows(), hidden, first_, last_, top_, sum_, keep_});
  const Read values = read(*node_.src[2], block, false, v_);
  row_kernels(values.dtype)
      .sums({values.rows, scores_ + block.place(), keep_, rows(), block.hidden, sum_rows_, padded(shape_.e)});
}

void Tile::run_lanes(const Block& block) {
  const AttentionKernels& kernel = kernels().attention;
  const KvRows keys = read(*node_.src[1], block, true, k_).rows;
  kernel.lane_scores({keys, q_lanes_, rows(), scores_});
  soften(scores_, block.count() * kAttentionRows);
  for (int64_t row = 0; row < rows(); ++row) add_mask(row, block, scores_ + row, kAttentionRows);
  see(block, block.first);
  kernel.lane_soft_max({scores_, block.count(), rows(), block.hidden, first_, last_, top_, sum_, keep_});
  KvRows values = keys;
  values.length = shape_.e;
  if (!has_values_in_keys(node_)) values = read(*node_.src[2], block, true, v_).rows;
  kernel.lane_sums({values, scores_, keep_, rows(), block.hidden, sum_lanes_});
}

/// Computes the visible range of each row in a block, relative to `origin`. Lanes after the last row get the range of
/// the last row.
void Tile::see(const Block& block, int64_t origin) {
  if (!block.hidden && block.first == origin) return;
  for (int64_t row = 0; row < padded(rows()); ++row) {
    const KvRange& range = ranges_[std::min(row, rows() - 1)];
    first_[row] = static_cast<int32_t>(std::max(range.begin, block.first) - origin);
    last_[row] = static_cast<int32_t>(std::min(range.end, block.last) - origin);
  }
}

void Tile::soften(float* scores, int64_t n) const {
  const float cap = std::get<AttentionParams>(node_.params).softcap;
  if (!(cap > 0)) return;
  scale_row(scores, 1 / cap, n);
  kernels().rows.unary[static_cast<size_t>(UnaryKind::kTanh)](scores, scores, n);
  scale_row(scores, cap, n);
}

/// Adds the mask to the scores of a row. A mask of -infinity replaces the score, because the score may be NaN.
void Tile::add_mask(int64_t row, const Block& block, float* scores, int64_t stride) const {
  const Tensor* mask = source(node_, AttentionSource::kMask);
  if (!mask) return;
  float scratch[kAttentionBlock];
  const float* added =
      load(*mask, broadcast_row_at(*mask, {query(row), head(row), batch_}), block.first, block.count(), scratch);
  for (int64_t j = 0; j < block.count(); ++j) {
    float& score = scores[j * stride];
    score = added[j] == kMinusInfinity ? kMinusInfinity : score + added[j];
  }
}

}  // namespace shoal::cpu
