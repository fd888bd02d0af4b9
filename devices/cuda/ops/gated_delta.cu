// gated_delta: the columns of a state are independent of each other (graph/ops/ops.h). A block computes several columns
// of a head, for the tokens of one sequence. Eight lanes hold a column in registers for all tokens, so the state is
// read once and written once. The block copies the tokens' keys, queries and other inputs to shared memory in tiles.
// The next tile is copied while the current tile is used.
#include <algorithm>
#include <bit>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/reduce.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/state_tokens.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 8;  ///< number of lanes per column
constexpr int kColumns = kThreads / kLanes;
constexpr int kTileTokens = 16;
constexpr int kQuad = 4;
constexpr int kStep = kLanes * kQuad;  ///< total number of elements if each lane of a column holds one quad (four
                                       ///< elements)
constexpr int64_t kMostSize = 256;

struct Delta {
  View q, k, v, decay, beta, state;
  StateTokens batch;
  float* to;
  uint32_t size, heads, tokens, column_tiles;
  bool tiled, quads_of_keys, quads_of_state;  ///< quads_of_keys: whether rows of keys and queries can be read in
                                              ///< aligned quads; quads_of_state: whether rows of the state can be read
                                              ///< in aligned quads

  __device__ int64_t key_head(uint32_t head) const {
    const auto key_heads = static_cast<uint32_t>(q.shape[1]);
    return tiled ? head % key_heads : head / (heads / key_heads);
  }
};

/// A tile of tokens in shared memory. Rows of keys and queries are padded with zeros, so that each lane reads whole
/// quads.
struct Tile {
  float *k, *q, *v, *factor, *beta;
  int32_t* position;  ///< of a token of the sequence; -1 for other tokens

  __host__ __device__ static int floats(int padded, int tokens) { return tokens * (2 * padded + kColumns + 3); }
  __device__ Tile(float* at, int padded, int tokens)
      : k(at),
        q(k + tokens * padded),
        v(q + tokens * padded),
        factor(v + tokens * kColumns),
        beta(factor + tokens),
        position(reinterpret_cast<int32_t*>(beta + tokens)) {}
};

/// Copies a row of keys or queries to shared memory. All lanes of a warp must call this function.
__device__ __forceinline__ void stage_row(const std::byte* from, float* to, int size, int padded, bool by_quads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (by_quads) {
    for (int at = kQuad * lane; at < size; at += kQuad * kWarp) copy_async_16(to + at, from + at * sizeof(float));
  } else {
    for (int at = lane; at < size; at += kWarp) to[at] = load_as<float>(from + at * sizeof(float));
  }
  for (int at = size + lane; at < padded; at += kWarp) to[at] = 0;
}

__device__ __forceinline__ void stage(const Delta& delta, const Tile& tile, int sequence, uint32_t head,
                                      uint32_t first_column, uint32_t first, int count, int padded) {
  const int64_t key_head = delta.key_head(head);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, size = static_cast<int>(delta.size);
  for (int row = warp; row < 2 * count; row += kThreads / kWarp) {
    const int token = row / 2;
    const View& view = row % 2 == 0 ? delta.k : delta.q;
    float* const to = row % 2 == 0 ? tile.k : tile.q;
    stage_row(row_at(view, key_head, first + token, 0), to + token * padded, size, padded, delta.quads_of_keys);
  }
  for (int i = threadIdx.x; i < count * kColumns; i += kThreads) {
    const uint32_t token = first + i / kColumns, column = first_column + i % kColumns;
    tile.v[i] = column < delta.size ? load_as<float>(row_at(delta.v, head, token, 0) + column * sizeof(float)) : 0.0f;
  }
  if (const int i = threadIdx.x; i < count) {
    const uint32_t token = first + i;
    const auto share = [=](const View& view) {
      return load_as<float>(view.data + head * view.strides[0] + token * view.strides[1]);
    };
    tile.factor[i] = expf(share(delta.decay));
    tile.beta[i] = share(delta.beta);
    tile.position[i] = delta.batch.sequence_of(token) == sequence ? delta.batch.positions[token] : -1;
  }
}

/// Returns the sum of `value` over the lanes of a column. Each of these lanes gets the same sum.
__device__ __forceinline__ float column_sum(float value) {
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
  return value;
}

/// The elements of a column that one lane holds. The distance between consecutive quads of a lane is kStep elements.
template <int kQuads>
struct Column {
  float4 quads[kQuads];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) quads[i] = float4{0, 0, 0, 0};
  }
  __device__ void load(const std::byte* from, int lane, int size, bool by_quads) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int at = i * kStep + lane * kQuad;
      const std::byte* const quad = from + at * sizeof(float);
      if (by_quads && at < size) {
        quads[i] = load_as<float4>(quad);
      } else if (!by_quads) {
        float values[kQuad];
        for (int e = 0; e < kQuad; ++e) values[e] = at + e < size ? load_as<float>(quad + e * sizeof(float)) : 0.0f;
        quads[i] = float4{values[0], values[1], values[2], values[3]};
      }
    }
  }
  __device__ void store(float* to, int lane, int size, bool by_quads) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int at = i * kStep + lane * kQuad;
      if (by_quads && at < size) {
        store_as<float4>(to + at, quads[i]);
      } else if (!by_quads) {
        const float values[kQuad] = {quads[i].x, quads[i].y, quads[i].z, quads[i].w};
        for (int e = 0; e < kQuad; ++e) {
          if (at + e < size) to[at + e] = values[e];
        }
      }
    }
  }
  __device__ float times(const float* row) const {
    float4 sums{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4 with = load_as<float4>(row + i * kStep);
      sums.x += quads[i].x * with.x;
      sums.y += quads[i].y * with.y;
      sums.z += quads[i].z * with.z;
      sums.w += quads[i].w * with.w;
    }
    return column_sum((sums.x + sums.y) + (sums.z + sums.w));
  }
  __device__ void change(float factor, const float* k, float error) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4 row = load_as<float4>(k + i * kStep);
      quads[i].x = factor * quads[i].x + row.x * error;
      quads[i].y = factor * quads[i].y + row.y * error;
      quads[i].z = factor * quads[i].z + row.z * error;
      quads[i].w = factor * quads[i].w + row.w * error;
    }
  }
};

/// Processes the tokens of a tile. The results replace the values (v) in the tile.
template <int kQuads>
__device__ __forceinline__ void go_through(Column<kQuads>& column, const Tile& tile, int count, int number, int lane) {
  constexpr int kPadded = kQuads * kStep;
  for (int token = 0; token < count; ++token) {
    float result = 0;
    const int32_t position = tile.position[token];
    if (position == 0) column.clear();
    float* const value = tile.v + token * kColumns + number;
    if (position >= 0) {
      const float* const k = tile.k + token * kPadded + lane * kQuad;
      const float factor = tile.factor[token];
      const float error = tile.beta[token] * (*value - factor * column.times(k));
      column.change(factor, k, error);
      result = column.times(tile.q + token * kPadded + lane * kQuad);
    }
    if (lane == 0) *value = result;
  }
}

/// Zeroes the results of padding, and of tokens whose sequence does not exist.
__device__ __forceinline__ void clear_others(const Delta& delta, uint32_t first_column, float* result) {
  for (uint32_t i = threadIdx.x; i < delta.tokens * kColumns; i += kThreads) {
    const uint32_t token = i / kColumns, column = first_column + i % kColumns;
    if (column >= delta.size || delta.batch.sequence_of(token) != kNoSequence) continue;
    result[static_cast<int64_t>(token) * delta.size + column] = 0;
  }
}

template <int kQuads>
__global__ void __launch_bounds__(kThreads) gated_delta(Delta delta, int tile_tokens) {
  constexpr int kPadded = kQuads * kStep;
  SHOAL_DYNAMIC_SHARED(float, shared);
  const int size = static_cast<int>(delta.size), number = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint32_t place = blockIdx.x / delta.column_tiles, first_column = blockIdx.x % delta.column_tiles * kColumns;
  const uint32_t head = place % delta.heads, mine = first_column + number;
  const int sequence = static_cast<int>(place / delta.heads);
  const int64_t row = size, rows_of_head = delta.tokens + delta.batch.sequence_count() * size;
  float* const result = delta.to + head * rows_of_head * row;
  let_next_start();
  wait_for_previous();
  const TokenRange range = delta.batch.range_of(sequence);
  if (sequence == 0 && range.others) clear_others(delta, first_column, result);
  if (sequence >= delta.batch.sequence_count()) return;
  const auto tile_at = [&](uint32_t first) {
    const uint32_t buffer = (first - range.first) / tile_tokens % 2;
    return Tile(shared + buffer * Tile::floats(kPadded, tile_tokens), kPadded, tile_tokens);
  };
  const auto count_at = [&](uint32_t first) {
    return static_cast<int>(min(range.end - first, static_cast<uint32_t>(tile_tokens)));
  };
  const auto stage_at = [&](uint32_t first) {
    if (first < range.end) {
      stage(delta, tile_at(first), sequence, head, first_column, first, count_at(first), kPadded);
    }
    copy_async_commit();
  };
  stage_at(range.first);
  Column<kQuads> column;
  column.clear();
  const int64_t slot =
      range.first >= range.end && delta.batch.clears_unused() ? kNoSlot : delta.batch.slot_of(sequence);
  if (mine < delta.size && slot != kNoSlot) {
    column.load(row_at(delta.state, slot * size + mine, head, 0), lane, size, delta.quads_of_state);
  }
  for (uint32_t first = range.first; first < range.end; first += tile_tokens) {
    stage_at(first + tile_tokens);
    copy_async_wait<1>();
    __syncthreads();
    const Tile tile = tile_at(first);
    const int count = count_at(first);
    go_through<kQuads>(column, tile, count, number, lane);
    __syncthreads();
    for (int i = threadIdx.x; i < count * kColumns; i += kThreads) {
      const uint32_t of = first_column + i % kColumns;
      if (of < delta.size && tile.position[i / kColumns] >= 0) result[(first + i / kColumns) * row + of] = tile.v[i];
    }
    __syncthreads();  // after this barrier, a later tile may overwrite this tile's buffer
  }
  if (mine >= delta.size) return;
  const int64_t to = delta.tokens + static_cast<int64_t>(sequence) * size + mine;
  column.store(result + to * row, lane, size, delta.quads_of_state);
}

/// Whether rows of the tensor are aligned to 16 bytes and consist of whole quads.
bool has_quads(const Tensor& tensor) {
  return tensor.shape[0] % kQuad == 0 && reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 &&
         tensor.strides[1] % 16 == 0 && tensor.strides[2] % 16 == 0;
}

int64_t column_tiles(const Tensor& node) {
  return (node.shape[0] + kColumns - 1) / kColumns;
}

/// Without sequences, the blocks of the first sequence still write the results of padding.
int64_t blocks_of(const Tensor& node) {
  const int64_t sequences = node.shape[0] == 0 ? 0 : (node.shape[1] - node.src[6]->shape[0]) / node.shape[0];
  return column_tiles(node) * node.shape[2] * std::max<int64_t>(sequences, 1);
}

void run(const LaunchContext& context, Tensor& node) {
  const auto& src = node.src;
  const Delta delta{view_of(*src[0]),
                    view_of(*src[1]),
                    view_of(*src[2]),
                    view_of(*src[3]),
                    view_of(*src[4]),
                    view_of(*src[5]),
                    state_tokens_of(node, 6, *src[5], node.shape[0]),
                    reinterpret_cast<float*>(node.data),
                    static_cast<uint32_t>(node.shape[0]),
                    static_cast<uint32_t>(node.shape[2]),
                    static_cast<uint32_t>(src[6]->shape[0]),
                    static_cast<uint32_t>(column_tiles(node)),
                    std::get<GatedDeltaParams>(node.params).tiled,
                    has_quads(*src[0]) && has_quads(*src[1]),
                    has_quads(*src[5]) && has_quads(node)};
  const auto quads = std::bit_ceil(std::max<uint32_t>((delta.size + kStep - 1) / kStep, 1));
  const auto kernel = quads == 1   ? gated_delta<1>
                      : quads == 2 ? gated_delta<2>
                      : quads == 4 ? gated_delta<4>
                                   : gated_delta<8>;
  const int tile_tokens = std::clamp(static_cast<int>(delta.tokens), 1, kTileTokens);
  const int tiles = delta.tokens > kTileTokens ? 2 : 1;
  const size_t shared = static_cast<size_t>(tiles * Tile::floats(static_cast<int>(quads) * kStep, tile_tokens)) * 4;
  launch_early(context, kernel, dim3(static_cast<unsigned>(blocks_of(node))), dim3(kThreads), shared, delta,
               tile_tokens);
}

bool supports(const Tensor& node) {
  for (const int source : {0, 1, 2, 5}) {
    if (node.src[source]->dtype != DType::kF32 || !node.src[source]->is_row_contiguous()) return false;
  }
  for (const int source : {3, 4}) {
    if (node.src[source]->dtype != DType::kF32) return false;
  }
  if (node.dtype != DType::kF32 || !node.is_contiguous() || !has_integer_tokens(node, 6)) return false;
  return node.shape[0] <= kMostSize && node.shape[1] <= 0x7fffffff / kColumns && blocks_of(node) <= 0x7fffffff;
}

}  // namespace

const OpKernel kGatedDeltaKernel{run, supports, nullptr};

}  // namespace shoal::cuda
