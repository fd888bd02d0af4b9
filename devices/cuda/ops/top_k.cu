// top_k and argsort. Elements become keys of 64 bits, all different, whose ascending order is the one wanted: equal
// values come by index, NaN counts as less than everything.
//
// top_k with a small k: blocks cut their part of a row down to its first k keys, again and again until one block has
// done the last cut. A block's threads each hold some keys; the k-th of their least ones is a bound that all of the
// first k keys keep to and hardly any others, so only few keys are sorted.
//
// argsort, and top_k with a large k: blocks sort tiles, then runs are merged in pairs: a key's place in the merged run
// is its place in its own run plus the number of lesser keys in the other.
#include <algorithm>
#include <bit>

#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

using Key = unsigned long long;
constexpr Key kNoKey = ~Key{0};  ///< after all keys

constexpr int kSelectThreads = 256;  ///< also the largest k that is selected
constexpr int kKeysPerThread = 16;
constexpr int64_t kSelectTile = int64_t{kSelectThreads} * kKeysPerThread;
constexpr int64_t kSortTile = 2048;
constexpr int kSortThreads = 512;
constexpr int kMergeThreads = 256;
/// Rows are sorted in batches whose keys take about this much, or one at a time.
constexpr int64_t kSortBytes = int64_t{64} << 20;

__device__ __forceinline__ Key key_of(float value, int64_t index, bool descending) {
  const uint32_t order = order_of(value);
  return static_cast<Key>(descending ? ~order : order) << 32 | static_cast<uint32_t>(index);
}
__device__ __forceinline__ int32_t index_of(Key key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key));
}

// --- what a block does with keys in shared memory ---

/// Between steps of bitonic_sort: those of up to 32 keys' distance stay within what a warp works on.
__device__ __forceinline__ void sync_step(uint32_t distance, uint32_t next_distance) {
  if (distance > kWarp || next_distance > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

/// Sorts keys[0, size), ascending; size is a power of two. Between two synchronisations of the block.
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

// --- where keys come from ---

/// The elements of rows of a tensor.
template <class T>
struct Elements {
  View x;
  int64_t first_row;
  bool descending;

  struct Row {
    FloatRow<T> elements;
    bool descending;
    __device__ int64_t length() const { return elements.length; }
    __device__ Key operator[](int64_t i) const { return key_of(elements[i], i, descending); }
    __device__ void load(int64_t at, Key (&keys)[kQuad]) const {
      float values[kQuad];
      elements.load(at, values);
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        keys[i] = at + i < elements.length ? key_of(values[i], at + i, descending) : kNoKey;
      }
    }
  };
  __device__ Row row(int64_t number) const {
    return {FloatRow<T>(x, row_of(x, first_row + number)), descending};
  }
};

/// Keys in the workspace, one row after the other.
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

/// Where a block's keys go: k for each tile, as keys for the next step, or, being the last, as indices.
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

/// Leaves in keys[0, result) the keys of a tile that may be among its first k, in any order.
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

/// Block: tile blockIdx.x % tiles of row blockIdx.x / tiles. Writes the tile's first k keys in order.
template <class Source>
__global__ void __launch_bounds__(kSelectThreads) select(Source source, uint32_t tiles, uint32_t k, Target target) {
  SHOAL_DYNAMIC_SHARED(Key, keys);
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

/// Threads for rows of a length: one for each key as long as they are few.
unsigned select_threads(int64_t length, int64_t k) {
  const auto wanted = static_cast<uint64_t>(std::max({length, k, int64_t{kWarp}}));
  return static_cast<unsigned>(std::min<uint64_t>(std::bit_ceil(wanted), kSelectThreads));
}

/// Queues one cut of rows of `length` keys.
template <class Source>
void queue_select(const LaunchContext& context, const Source& source, int64_t length, int64_t rows, int64_t k,
                  Target target) {
  const int64_t tiles = divided_up(length, kSelectTile);
  const unsigned threads = select_threads(length, k);
  const size_t shared = (length <= threads ? threads : kSelectTile) * sizeof(Key);
  launch(context.stream, select<Source>, dim3(static_cast<unsigned>(tiles * rows)), dim3(threads), shared, source,
         static_cast<uint32_t>(tiles), static_cast<uint32_t>(k), target);
}

/// Keys after the first cut, of all rows; the second cut leaves at most as many.
int64_t keys_after_first_cut(int64_t length, int64_t rows, int64_t k) {
  return length <= kSelectTile ? 0 : divided_up(length, kSelectTile) * k * rows;
}

void run_select(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const int64_t k = node.shape[0], rows = node.rows();
  int64_t length = x.shape[0];
  Key* from = reinterpret_cast<Key*>(node.workspace);
  Key* to = from + keys_after_first_cut(length, rows, k);
  const auto target = [&](Key* keys) {
    return length <= kSelectTile ? Target{nullptr, reinterpret_cast<int32_t*>(node.data)} : Target{keys, nullptr};
  };
  with_float_type(x.dtype, [&](auto type) {
    queue_select(context, Elements<decltype(type)>{view_of(x), 0, true}, length, rows, k, target(from));
  });
  while (length > kSelectTile) {
    length = divided_up(length, kSelectTile) * k;
    queue_select(context, Keys{from, length}, length, rows, k, target(to));
    std::swap(from, to);
  }
}

// --- sorting ---

/// Block: tile blockIdx.x % tiles of row blockIdx.x / tiles, sorted. A row's first `kept` are put.
template <class T>
__global__ void __launch_bounds__(kSortThreads)
    sort_tiles(Elements<T> source, uint32_t tiles, int64_t kept, Target target) {
  SHOAL_DYNAMIC_SHARED(Key, keys);
  const auto row = source.row(blockIdx.x / tiles);
  const int64_t begin = blockIdx.x % tiles * kSortTile;
  const auto length = static_cast<uint32_t>(min(row.length() - begin, kSortTile));
  const uint32_t size = power_of_two_from(length);
  for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) keys[i] = i < length ? row[begin + i] : kNoKey;
  __syncthreads();
  bitonic_sort(keys, size);
  const int64_t to = blockIdx.x / tiles * kept + begin;
  for (uint32_t i = threadIdx.x; i < length && begin + i < kept; i += blockDim.x) target.put(to + i, keys[i]);
}

/// How many of sorted keys[0, length) come before a key that is not among them.
__device__ __forceinline__ int64_t count_before(const Key* keys, int64_t length, Key key) {
  int64_t low = 0, high = length;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Merges neighbouring runs of `run` keys in rows of `length`. Block: kMergeThreads keys of a row. A row's first
/// `kept` are put.
__global__ void __launch_bounds__(kMergeThreads)
    merge_runs(Keys source, uint32_t blocks_per_row, int64_t run, int64_t kept, Target target) {
  const uint32_t number = blockIdx.x / blocks_per_row;
  const auto row = source.row(number);
  const int64_t i = static_cast<int64_t>(blockIdx.x % blocks_per_row) * kMergeThreads + threadIdx.x;
  if (i >= row.length()) return;
  const int64_t own = i / run * run, pair = i / (2 * run) * (2 * run);
  const int64_t other = own == pair ? min(own + run, row.length()) : pair;
  const int64_t other_length = min(run, row.length() - other);
  const Key key = row[i];
  const int64_t to = pair + (i - own) + count_before(row.keys + other, other_length, key);
  if (to < kept) target.put(number * kept + to, key);
}

struct SortBatches {
  int64_t tiles, rows_per_batch;
};
SortBatches sort_batches(int64_t length, int64_t rows) {
  const int64_t fitting = std::max<int64_t>(1, kSortBytes / (2 * static_cast<int64_t>(sizeof(Key)) * length));
  return {divided_up(length, kSortTile), std::min(fitting, rows)};
}

/// Sorts rows [first, first + rows) of x; the first `kept` indices of each go to the node.
template <class T>
void queue_sort(const LaunchContext& context, Tensor& node, bool descending, int64_t first, int64_t rows) {
  const Tensor& x = *node.src[0];
  const int64_t length = x.shape[0], kept = node.shape[0], tiles = divided_up(length, kSortTile);
  const Target result{nullptr, reinterpret_cast<int32_t*>(node.data) + first * kept};
  Key* from = reinterpret_cast<Key*>(node.workspace);
  Key* to = from + rows * length;
  const bool one_tile = tiles == 1;
  const auto size = std::bit_ceil(static_cast<uint64_t>(std::min(length, kSortTile)));
  const auto threads = static_cast<unsigned>(std::clamp<uint64_t>(size / 2, kWarp, kSortThreads));
  launch(context.stream, sort_tiles<T>, dim3(static_cast<unsigned>(tiles * rows)), dim3(threads), size * sizeof(Key),
         Elements<T>{view_of(x), first, descending}, static_cast<uint32_t>(tiles), one_tile ? kept : length,
         one_tile ? result : Target{from, nullptr});
  const int64_t blocks = divided_up(length, kMergeThreads);
  for (int64_t run = kSortTile; run < length; run *= 2) {
    const bool last = 2 * run >= length;
    launch(context.stream, merge_runs, dim3(static_cast<unsigned>(blocks * rows)), dim3(kMergeThreads), 0,
           Keys{from, length}, static_cast<uint32_t>(blocks), run, last ? kept : length,
           last ? result : Target{to, nullptr});
    std::swap(from, to);
  }
}

void run_sort(const LaunchContext& context, Tensor& node, bool descending) {
  const Tensor& x = *node.src[0];
  const int64_t batch = sort_batches(x.shape[0], node.rows()).rows_per_batch;
  with_float_type(x.dtype, [&](auto type) {
    for (int64_t first = 0; first < node.rows(); first += batch) {
      queue_sort<decltype(type)>(context, node, descending, first, std::min(batch, node.rows() - first));
    }
  });
}

size_t sort_workspace(const Tensor& node) {
  const int64_t length = node.src[0]->shape[0];
  if (length <= kSortTile) return 0;
  return static_cast<size_t>(2 * length * sort_batches(length, node.rows()).rows_per_batch) * sizeof(Key);
}

// --- the ops ---

bool is_selected(const Tensor& node) {
  return node.shape[0] <= kSelectThreads;
}

void run_top_k(const LaunchContext& context, Tensor& node) {
  if (is_selected(node)) {
    run_select(context, node);
  } else {
    run_sort(context, node, true);
  }
}

size_t top_k_workspace(const Tensor& node, const GpuTraits&) {
  if (!is_selected(node)) return sort_workspace(node);
  return 2 * static_cast<size_t>(keys_after_first_cut(node.src[0]->shape[0], node.rows(), node.shape[0])) * sizeof(Key);
}

void run_argsort(const LaunchContext& context, Tensor& node) {
  run_sort(context, node, std::get<ArgsortParams>(node.params).descending);
}

size_t argsort_workspace(const Tensor& node, const GpuTraits&) {
  return sort_workspace(node);
}

/// The blocks of a cut are one grid.
bool supports(const Tensor& node) {
  const Tensor* x = node.src[0];
  return node.dtype == DType::kI32 && node.is_contiguous() && is_float(x) && node.shape[0] <= x->shape[0] &&
         x->shape[0] <= 0x7fffffff && rows_fit(node) &&
         divided_up(x->shape[0], kSelectTile) * node.rows() <= 0x7fffffff;
}

}  // namespace

const OpKernel kTopKKernel{run_top_k, supports, top_k_workspace};
const OpKernel kArgsortKernel{run_argsort, supports, argsort_workspace};

}  // namespace shoal::cuda
