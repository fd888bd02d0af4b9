#include "devices/cpu/ops/attention_tile.h"

#include <algorithm>
#include <array>
#include <limits>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// The factors of sums for all pieces of a block except the first one.
constexpr auto kOnes = [] {
  std::array<float, kAttentionRows> ones{};
  ones.fill(1.0f);
  return ones;
}();

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

Tile::Tile(const Tensor& node, const AttentionShape& shape, QueryTiles& queries, int64_t index, float* scratch)
    : node_(node), shape_(shape) {
  const int64_t query_tile = index % queries.count(), rest = index / queries.count();
  const int64_t head_tile = rest % shape.head_tiles, kv = rest / shape.head_tiles;
  kv_head_ = kv % shape.kv_heads;
  batch_ = kv / shape.kv_heads;
  const int64_t in_group = head_tile * shape.tile_heads;
  first_head_ = kv_head_ * shape.group + in_group;
  heads_ = std::min(shape.tile_heads, shape.group - in_group);
  const QueryTiles::Queries own = queries.find(query_tile);
  first_query_ = own.first, queries_ = own.count;
  lanes_ = rows() >= shape.lane_rows;
  place(scratch);
  range_ = {shape.s, 0}, common_ = {0, shape.s};
  for (int64_t row = 0; row < rows(); ++row) {
    const KvRange range = ranges_[row] =
        row < queries_ ? visible(node, shape, query(row), batch_) : ranges_[row - queries_];
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
  if (!lanes_) return;
  std::fill(q_rows_ + rows() * stride, q_rows_ + lanes * stride, 0.0f);
  kernels().attention.pack_queries(q_rows_, stride, lanes, shape_.d, q_lanes_);
}

void Tile::run_segment(int64_t segment) {
  if (!loaded_) load_queries();
  loaded_ = true;
  std::fill_n(top_, kAttentionRows, kMinusInfinity);
  std::fill_n(sum_, kAttentionRows, 0.0f);
  lanes_ ? std::fill_n(sum_lanes_, shape_.e * kAttentionRows, 0.0f)
         : std::fill_n(sum_rows_, rows() * padded(shape_.e), 0.0f);
  const int64_t begin = segment * kSegmentRows;
  const int64_t end = std::min(begin + kSegmentRows, range_.end);
  const bool masked = source(node_, AttentionSource::kMask) != nullptr;
  for (int64_t at = begin; at < end; at += kAttentionBlock) {
    Block block{at, std::max(at, range_.begin), std::min(at + kAttentionBlock, range_.end), masked};
    if (block.first >= block.last) continue;
    if (block.first < common_.begin || block.last > common_.end) block.hidden = true;
    find_pieces(block);
    lanes_ ? run_lanes(block) : run_rows(block);
  }
  if (lanes_) {
    const int64_t columns = padded(rows());
    kernels().attention.transpose(sum_lanes_, kAttentionRows, shape_.e, columns, sum_rows_, padded(shape_.e));
  }
}

Partial Tile::partial(int64_t row) const {
  return {top_[row], sum_[row], sum_rows_ + row * padded(shape_.e)};
}

/// Finds the pieces of a block. Pages that are adjacent in memory form one piece.
void Tile::find_pieces(Block& block) {
  const Tensor* table = source(node_, AttentionSource::kTable);
  piece_count_ = 0;
  if (table == nullptr) {
    pieces_[piece_count_++] = {block.first, 0, block.count()};
    return;
  }
  const std::byte* column = table->data + sequence_of(node_, first_query_) * table->strides[1];
  int64_t next = -1;  // row of the KV axis behind the last piece
  for (int64_t row = block.first, count; row < block.last; row += count) {
    const int64_t in_page = row % shape_.page;
    count = std::min(shape_.page - in_page, block.last - row);
    const int64_t page = *reinterpret_cast<const int32_t*>(column + row / shape_.page * table->strides[0]);
    if (page < 0 || page >= shape_.pages) {
      block.missing = block.hidden = true;
      next = -1;
      continue;
    }
    const int64_t begin = page * shape_.page + in_page;
    if (begin == next) {
      pieces_[piece_count_ - 1].count += count;
    } else {
      pieces_[piece_count_++] = {begin, row - block.first, count};
    }
    next = begin + count;
  }
}

/// Sets the scores of KV rows outside the pieces to -infinity.
void Tile::hide_missing(const Block& block, float* scores, int64_t row_stride, int64_t kv_stride) const {
  if (!block.missing) return;
  int64_t at = 0;
  for (int64_t i = 0; i <= piece_count_; ++i) {
    for (const int64_t end = i < piece_count_ ? pieces_[i].at : block.count(); at < end; ++at) {
      for (int64_t row = 0; row < rows(); ++row) scores[row * row_stride + at * kv_stride] = kMinusInfinity;
    }
    if (i < piece_count_) at += pieces_[i].count;
  }
}

/// If a kernel can read the rows of the block in place, they are not copied. Otherwise they are converted to f32 in
/// `scratch`.
Tile::Read Tile::read(const Tensor& tensor, bool as_f32, float* scratch) const {
  const int64_t length = tensor.shape[0];
  const bool usable = as_f32 ? tensor.dtype == DType::kF32 : row_kernels(tensor.dtype).scores != nullptr;
  if (usable && tensor.is_row_contiguous()) return {nullptr, tensor.dtype};
  for (int64_t i = 0; i < piece_count_; ++i) {
    for (int64_t j = 0; j < pieces_[i].count; ++j) {
      float* to = scratch + (pieces_[i].at + j) * padded(length);
      const float* values = load(tensor, row_at(tensor, {pieces_[i].row + j, kv_head_, batch_}), 0, length, to);
      if (values != to) std::copy_n(values, length, to);
    }
  }
  return {reinterpret_cast<const std::byte*>(scratch), DType::kF32};
}

KvRows Tile::rows_of(const Tensor& tensor, const Read& read, const Piece& piece) const {
  const int64_t length = tensor.shape[0];
  if (read.converted == nullptr) {
    return {row_at(tensor, {piece.row, kv_head_, batch_}), tensor.strides[1], piece.count, length};
  }
  const size_t stride = padded(length) * sizeof(float);
  return {read.converted + piece.at * stride, stride, piece.count, length};
}

void Tile::run_rows(const Block& block) {
  const AttentionKernels& kernel = kernels().attention;
  const Tensor &k = *node_.src[1], &v = *node_.src[2];
  float* first_scores = scores_ + block.place();
  const Read keys = read(k, false, k_);
  for (int64_t i = 0; i < piece_count_; ++i) {
    row_kernels(keys.dtype)
        .scores({rows_of(k, keys, pieces_[i]), q_rows_, padded(shape_.d), rows(), first_scores + pieces_[i].at});
  }
  for (int64_t row = 0; row < rows(); ++row) {
    float* scores = first_scores + row * kAttentionBlock;
    soften(scores, block.count());
    add_mask(row, block, scores, 1);
  }
  hide_missing(block, first_scores, kAttentionBlock, 1);
  see(block, block.begin);
  const bool hidden = block.hidden || block.place() > 0;
  kernel.row_soft_max({scores_, block.last - block.begin, rows(), hidden, first_, last_, top_, sum_, keep_});
  const Read values = read(v, false, v_);
  for (int64_t i = 0; i < piece_count_; ++i) {
    row_kernels(values.dtype)
        .sums({rows_of(v, values, pieces_[i]), first_scores + pieces_[i].at, i == 0 ? keep_ : kOnes.data(), rows(),
               block.hidden, sum_rows_, padded(shape_.e)});
  }
}

void Tile::run_lanes(const Block& block) {
  const AttentionKernels& kernel = kernels().attention;
  const Tensor &k = *node_.src[1], &v = *node_.src[2];
  const Read keys = read(k, true, k_);
  for (int64_t i = 0; i < piece_count_; ++i) {
    kernel.lane_scores({rows_of(k, keys, pieces_[i]), q_lanes_, rows(), scores_ + pieces_[i].at * kAttentionRows});
  }
  soften(scores_, block.count() * kAttentionRows);
  for (int64_t row = 0; row < rows(); ++row) add_mask(row, block, scores_ + row, kAttentionRows);
  hide_missing(block, scores_, 1, kAttentionRows);
  see(block, block.first);
  kernel.lane_soft_max({scores_, block.count(), rows(), block.hidden, first_, last_, top_, sum_, keep_, block.place()});
  const bool shared = has_values_in_keys(node_);
  const Read values = shared ? keys : read(v, true, v_);
  for (int64_t i = 0; i < piece_count_; ++i) {
    KvRows piece = rows_of(shared ? k : v, values, pieces_[i]);
    piece.length = shape_.e;
    kernel.lane_sums({piece, scores_ + pieces_[i].at * kAttentionRows, i == 0 ? keep_ : kOnes.data(), rows(),
                      block.hidden, sum_lanes_});
  }
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
