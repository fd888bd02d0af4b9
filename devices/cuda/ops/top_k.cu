// top_k for k of at most 256, and argmax, which is top_k with k = 1. For an empty row, argmax gives 0.
//
// Each element gets a distinct 64-bit key. A better element has a smaller key. Equal values are ordered by index, and
// NaN is worse than all numbers. Each block reduces its tile of a row to the k smallest keys of the tile. Further
// launches reduce these keys in the same way, until each row has only one tile.
//
// In a block, each thread holds several keys. The block first sorts the smallest key of each thread. The k-th of these
// keys is an upper bound of the tile's k smallest keys. Usually, only a few keys are at or below this bound. The block
// then sorts only these keys.
#include <algorithm>
#include <bit>

#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

using Key = unsigned long long;
constexpr Key kNoKey = ~Key{0};  ///< greater than the key of every element

constexpr int kSelectThreads = 256;  ///< number of threads per block; also the largest k
constexpr int kKeysPerThread = 16;
constexpr int64_t kSelectTile = int64_t{kSelectThreads} * kKeysPerThread;

__device__ __forceinline__ Key key_of(float value, int64_t index) {
  return static_cast<Key>(~order_of(value)) << 32 | static_cast<uint32_t>(index);
}
__device__ __forceinline__ int32_t index_of(Key key) {
  return key == kNoKey ? 0 : static_cast<int32_t>(static_cast<uint32_t>(key));
}

// --- operations of a block on keys in shared memory ---

/// Barrier between two steps of bitonic_sort. If both steps compare keys that are at most 32 positions apart, a barrier
/// of the warp is enough.
__device__ __forceinline__ void sync_step(uint32_t distance, uint32_t next_distance) {
  if (distance > kWarp || next_distance > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

/// Sorts keys[0, size) in ascending order. `size` is a power of two. The caller must synchronise the block before the
/// call. The function ends with a barrier.
__device__ void bitonic_sort(Key* keys, uint32_t size) {
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
      for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const uint32_t low = 2 * i - (i & (distance - 1)), high = low + distance;
        const Key a = keys[low], b = keys[high];
        const bool ascending = (low & run) == 0;
        if ((a > b) == ascending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      sync_step(distance, distance > 1 ? distance / 2 : run);
    }
  }
  __syncthreads();
}

__device__ __forceinline__ uint32_t power_of_two_from(uint32_t n) {
  return n <= 1 ? 1 : 1u << (32 - __clz(static_cast<int>(n - 1)));
}

// --- sources of keys ---

/// Computes keys from the elements of a tensor's rows.
template <class T>
struct Elements {
  View x;

  struct Row {
    FloatRow<T> elements;
    __device__ int64_t length() const { return elements.length; }
    __device__ Key operator[](int64_t i) const { return key_of(elements[i], i); }
    __device__ void load(int64_t at, Key (&keys)[kQuad]) const {
      float values[kQuad];
      elements.load(at, values);
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        keys[i] = at + i < elements.length ? key_of(values[i], at + i) : kNoKey;
      }
    }
  };
  __device__ Row row(int64_t number) const {
    return {FloatRow<T>(x, row_of(x, number))};
  }
};

/// Reads keys from the workspace. The keys of a row are contiguous.
struct Keys {
  const Key* keys;
  int64_t length_of_row;

  struct Row {
    const Key* keys;
    int64_t row_length;
    __device__ int64_t length() const { return row_length; }
    __device__ Key operator[](int64_t i) const { return keys[i]; }
    __device__ void load(int64_t at, Key (&to)[kQuad]) const {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) to[i] = at + i < row_length ? keys[at + i] : kNoKey;
    }
  };
  __device__ Row row(int64_t number) const {
    return {keys + number * length_of_row, length_of_row};
  }
};

/// Destination of a tile's k smallest keys. The last reduction stores indices. Earlier reductions store keys for the
/// next reduction.
struct Target {
  Key* keys;
  int32_t* indices;

  __device__ __forceinline__ void put(int64_t at, Key key) const {
    if (indices) {
      indices[at] = index_of(key);
    } else {
      keys[at] = key;
    }
  }
};

// --- selection ---

/// Finds the keys of a tile that may be among the tile's k smallest keys. Stores these keys in `keys`, in any order.
/// Returns the number of stored keys.
template <class Row>
__device__ uint32_t narrow(const Row& row, int64_t begin, uint32_t k, Key* keys) {
  __shared__ uint32_t count;
  Key own[kKeysPerThread / kQuad][kQuad];
  Key least = kNoKey;
#pragma unroll
  for (int i = 0; i < kKeysPerThread / kQuad; ++i) {
    row.load(begin + kQuad * (static_cast<int64_t>(threadIdx.x) + i * kSelectThreads), own[i]);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) least = own[i][j] < least ? own[i][j] : least;
  }
  keys[threadIdx.x] = least;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  bitonic_sort(keys, kSelectThreads);
  const Key bound = keys[k - 1];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kKeysPerThread / kQuad; ++i) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (own[i][j] <= bound && own[i][j] != kNoKey) keys[atomicAdd(&count, 1u)] = own[i][j];
    }
  }
  __syncthreads();
  return count;
}

/// Each block processes tile blockIdx.x % tiles of row blockIdx.x / tiles. The block writes the tile's k smallest keys
/// in order.
template <class Source>
__global__ void __launch_bounds__(kSelectThreads) select(Source source, uint32_t tiles, uint32_t k, Target target) {
  SHOAL_DYNAMIC_SHARED(Key, keys);
  let_next_start();
  wait_for_previous();
  const auto row = source.row(blockIdx.x / tiles);
  const int64_t begin = blockIdx.x % tiles * kSelectTile;
  const int64_t length = min(row.length() - begin, kSelectTile);
  uint32_t count;
  if (length <= blockDim.x) {
    count = static_cast<uint32_t>(length);
    if (threadIdx.x < count) keys[threadIdx.x] = row[begin + threadIdx.x];
  } else {
    count = narrow(row, begin, k, keys);
  }
  const uint32_t size = power_of_two_from(max(count, k));
  for (uint32_t i = count + threadIdx.x; i < size; i += blockDim.x) keys[i] = kNoKey;
  __syncthreads();
  bitonic_sort(keys, size);
  for (uint32_t i = threadIdx.x; i < k; i += blockDim.x) target.put(blockIdx.x * static_cast<int64_t>(k) + i, keys[i]);
}

/// Number of threads per block for rows of this length: one thread per key, up to kSelectThreads threads.
unsigned select_threads(int64_t length, int64_t k) {
  const auto wanted = static_cast<uint64_t>(std::max({length, k, int64_t{kWarp}}));
  return static_cast<unsigned>(std::min<uint64_t>(std::bit_ceil(wanted), kSelectThreads));
}

/// Queues one reduction of rows with `length` keys.
template <class Source>
void queue_select(const LaunchContext& context, const Source& source, int64_t length, int64_t rows, int64_t k,
                  Target target) {
  const int64_t tiles = std::max<int64_t>(divided_up(length, kSelectTile), 1);
  const unsigned threads = select_threads(length, k);
  const size_t shared = (length <= threads ? threads : kSelectTile) * sizeof(Key);
  launch_early(context, select<Source>, dim3(static_cast<unsigned>(tiles * rows)), dim3(threads), shared, source,
               static_cast<uint32_t>(tiles), static_cast<uint32_t>(k), target);
}

/// Number of keys of all rows after the first reduction, or 0 if one reduction is enough. Each later reduction leaves
/// at most this number of keys.
int64_t keys_after_first_cut(int64_t length, int64_t rows, int64_t k) {
  return length <= kSelectTile ? 0 : divided_up(length, kSelectTile) * k * rows;
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const int64_t k = node.shape[0], rows = node.rows();
  int64_t length = x.shape[0];
  Key* from = reinterpret_cast<Key*>(node.workspace);
  Key* to = from + keys_after_first_cut(length, rows, k);
  const auto target = [&](Key* keys) {
    return length <= kSelectTile ? Target{nullptr, reinterpret_cast<int32_t*>(node.data)} : Target{keys, nullptr};
  };
  with_float_type(x.dtype, [&](auto type) {
    queue_select(context, Elements<decltype(type)>{view_of(x)}, length, rows, k, target(from));
  });
  while (length > kSelectTile) {
    length = divided_up(length, kSelectTile) * k;
    queue_select(context, Keys{from, length}, length, rows, k, target(to));
    std::swap(from, to);
  }
}

size_t workspace(const Tensor& node, const GpuTraits&) {
  return 2 * static_cast<size_t>(keys_after_first_cut(node.src[0]->shape[0], node.rows(), node.shape[0])) * sizeof(Key);
}

/// Besides dtypes and layouts, this function checks that all blocks of a reduction fit in one grid.
bool supports(const Tensor& node) {
  const Tensor* x = node.src[0];
  return node.dtype == DType::kI32 && node.is_contiguous() && is_float(x) && node.shape[0] <= kSelectThreads &&
         x->shape[0] <= 0x7fffffff && rows_fit(node) &&
         divided_up(x->shape[0], kSelectTile) * node.rows() <= 0x7fffffff;
}

}  // namespace

const OpKernel kTopKKernel{run, supports, workspace};
const OpKernel kArgmaxKernel{run, supports, workspace};

}  // namespace shoal::cuda
