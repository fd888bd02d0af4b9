// rope: a block takes a position, a tile of the pairs and some heads. It computes the tile's cosines and sines once, in
// shared memory, and rotates the pairs of its heads by them; the elements that stay are copied by blocks of their
// own. Frequencies are computed while the kernel before this one ends.
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/rotation.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPairs = 128;   ///< per tile, one for a thread at most
constexpr int kCopied = 256;  ///< elements per tile of those that are not rotated
constexpr int kRows = 8;      ///< rows (heads, batches) per block

/// What a block does: a tile of rows (head, position, batch) that share the position.
struct Part {
  uint32_t tile, position, first, rows;  ///< rows: number head + heads * batch

  __device__ Part(const View& x, uint32_t tiles) {
    const auto all = static_cast<uint32_t>(x.shape[1] * x.shape[3]);
    const uint32_t groups = (all + kRows - 1) / kRows, number = blockIdx.x / tiles, group = number % groups;
    tile = blockIdx.x % tiles;
    position = number / groups;
    first = group * kRows;
    rows = min(all - first, static_cast<uint32_t>(kRows));
  }
};

template <class T>
__device__ __forceinline__ void rotate_pair(const FloatRow<T>& row, float* out, const Rotation& r, int64_t pair,
                                            int64_t offset, float2 turn) {
  const PairPlace at = place_of(r, pair);
  const int64_t low = offset + at.low, high = offset + at.high;
  const float2 result = turned(row[low], row[high], turn);
  out[low] = result.x;
  out[high] = result.y;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    rope(View x, float* to, Rotation r, int64_t offset, uint32_t pair_tiles, uint32_t tiles) {
  __shared__ float2 turns[kPairs];
  let_next_start();
  const Part part(x, tiles);
  const int64_t pairs = r.dims / 2, first_pair = static_cast<int64_t>(part.tile) * kPairs;
  const bool copies = part.tile >= pair_tiles;
  const int64_t first_copied = (static_cast<int64_t>(part.tile) - pair_tiles) * kCopied;  // of those that stay
  const int64_t width = copies ? min(static_cast<int64_t>(kCopied), x.shape[0] - r.dims - first_copied)
                               : min(static_cast<int64_t>(kPairs), pairs - first_pair);
  const bool turns_pair = !copies && threadIdx.x < width;
  if (!r.is_constant) wait_for_previous();
  const double of_pair = turns_pair ? frequency(r, first_pair + threadIdx.x) : 0;
  wait_for_previous();
  if (turns_pair) turns[threadIdx.x] = direction(of_pair * position_of(r, part.position), r.magnitude);
  __syncthreads();
  const auto columns = static_cast<uint32_t>(width), heads = static_cast<uint32_t>(x.shape[1]);
  for (uint32_t i = threadIdx.x; i < part.rows * columns; i += kThreads) {
    const uint32_t column = i % columns;
    const uint32_t number = part.first + i / columns, batch = number / heads, head = number - batch * heads;
    const FloatRow<T> row(x, row_at(x, head, part.position, batch));
    float* const out = to + ((batch * x.shape[2] + part.position) * heads + head) * x.shape[0];
    if (copies) {
      const int64_t stays = first_copied + column, at = stays < offset ? stays : stays + r.dims;
      out[at] = row[at];
    } else {
      rotate_pair(row, out, r, first_pair + column, offset, turns[column]);
    }
  }
}

/// Blocks for the pairs and for what is only copied, of one position and group of rows.
struct Tiles {
  int64_t pairs, copies, groups;
};
Tiles tiles_of(const Tensor& node) {
  const int64_t dims = std::get<RopeParams>(node.params).dims;
  return {(dims / 2 + kPairs - 1) / kPairs, (node.shape[0] - dims + kCopied - 1) / kCopied,
          (node.shape[1] * node.shape[3] + kRows - 1) / kRows * node.shape[2]};
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const Tiles tiles = tiles_of(node);
  const bool in_place =
      x.dtype == DType::kF32 && x.is_contiguous() && x.data == node.data;  // then nothing needs copying
  const int64_t per_group = tiles.pairs + (in_place ? 0 : tiles.copies);
  if (per_group == 0) return;
  const dim3 grid(static_cast<unsigned>(per_group * tiles.groups));
  with_float_type(x.dtype, [&](auto type) {
    launch_early(context, rope<decltype(type)>, grid, dim3(kThreads), 0, view_of(x),
                 reinterpret_cast<float*>(node.data), rotation_of(node), std::get<RopeParams>(node.params).offset,
                 static_cast<uint32_t>(tiles.pairs), static_cast<uint32_t>(per_group));
  });
}

bool supports(const Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor* factors = factors_of(node);
  if (node.dtype != DType::kF32 || !node.is_contiguous() || !is_float(node.src[0])) return false;
  if (node.src[1]->dtype != DType::kI32 || (factors && factors->dtype != DType::kF32)) return false;
  if (p.dims % 2 != 0 || p.offset + p.dims > node.shape[0] || p.mode >= RopeMode::kCount) return false;
  const Tiles tiles = tiles_of(node);
  return rows_fit(node) && (tiles.pairs + tiles.copies) * tiles.groups <= 0x7fffffff;
}

}  // namespace

const OpKernel kRopeKernel{run, supports, nullptr};

}  // namespace shoal::cuda
