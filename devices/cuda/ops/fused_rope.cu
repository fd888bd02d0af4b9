// A warp reads one head of a token, rotates the head, and writes the head to its destinations. All heads of a block
// belong to the same token. So the block computes the token's cosines, sines and cache row only once.
#include "devices/cuda/ops/fused.h"

#include <algorithm>

#include "devices/cuda/kernels/quantize.h"
#include "devices/cuda/ops/rotation.h"
#include "devices/cuda/ops/select.h"

namespace shoal::cuda {
namespace {

using Nodes = std::span<Tensor* const>;

constexpr int kRows = 8;  ///< number of heads per block
constexpr int kThreads = 32 * kRows;
constexpr int64_t kMostDims = 2 * kThreads;  ///< largest number of rotated dimensions; each thread computes the cosine
                                             ///< and sine of one pair of dimensions
constexpr int64_t kMostColumns = 1024;       ///< largest head, in elements; heads must fit in shared memory
constexpr int kMostParts = 3;                ///< one part each for queries, keys and values
constexpr size_t kMostNodes = 4;

/// A tensor of heads, and the addresses to which the heads are written.
struct Part {
  const std::byte* from = nullptr;  ///< source of the heads, in f32; elements of a head are contiguous
  int64_t from_head = 0, from_token = 0;
  int columns = 0, heads = 0;
  int offset = 0;              ///< index of the first rotated element
  float* result = nullptr;     ///< rotated heads [columns, heads, tokens]; nullptr: the heads are not rotated
  std::byte* cache = nullptr;  ///< nullptr: the heads are not written to a cache
  int64_t cache_head = 0, cache_row = 0;
  DType cache_dtype = DType::kF32;
};

struct Work {
  Part parts[kMostParts];
  int count = 0;  ///< number of parts
  int heads = 0;  ///< number of heads of all parts
  int64_t tokens = 0;
  Rotation rotation{};  ///< rotation of all parts with a result
  const std::byte* ids = nullptr;
  int64_t id_stride = 0;
  DType ids_dtype = DType::kI32;
  Selection selection;  ///< selection of the rows of all caches
};

/// Whether a later token selects the same cache row as this token. If several tokens select one row, only the last of
/// these tokens writes the row. All threads of the block must call this function.
__device__ bool is_overwritten(const Work& work, int64_t token, int64_t id) {
  bool found = false;
  for (int64_t later = token + 1 + threadIdx.x; later < work.tokens; later += kThreads) {
    found = found || integer_at(work.ids_dtype, work.ids + later * work.id_stride) == id;
  }
  return __syncthreads_or(found) != 0;
}

/// Returns the token's row in the caches, or -1 if the token writes no row. All threads of the block must call this
/// function. The function contains a barrier. After this barrier, all threads see the earlier writes of all threads to
/// shared memory.
__device__ int64_t cache_row(const Work& work, int64_t token) {
  if (work.ids == nullptr) {
    __syncthreads();
    return -1;
  }
  const int64_t id = integer_at(work.ids_dtype, work.ids + token * work.id_stride);
  return is_overwritten(work, token, id) ? -1 : work.selection.local(id);
}

template <class T>
__device__ void store_elements(const float* head, int columns, int lane, std::byte* to) {
  for (int i = lane; i < columns; i += 32) reinterpret_cast<T*>(to)[i] = from_float<T>(head[i]);
}

__device__ void store_head(const float* head, int columns, int lane, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) return store_elements<float>(head, columns, lane, to);
  if (dtype == DType::kF16) return store_elements<__half>(head, columns, lane, to);
  if (dtype == DType::kBF16) return store_elements<__nv_bfloat16>(head, columns, lane, to);
  auto* const blocks = reinterpret_cast<quants::BlockQ8_0*>(to);
  for (int block = 0; block < columns / 32; ++block) quantizing::quantize(head[block * 32 + lane], blocks[block]);
}

__global__ void __launch_bounds__(kThreads) rope_set_rows(const Work work, int pitch) {
  SHOAL_DYNAMIC_SHARED(float, staged);
  __shared__ float2 turns[kThreads];
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int groups = (work.heads + kRows - 1) / kRows;
  const int64_t token = blockIdx.x / groups;
  int head = static_cast<int>(blockIdx.x) % groups * kRows + thread / 32, which = 0;
  const bool exists = head < work.heads;
  while (exists && head >= work.parts[which].heads) head -= work.parts[which++].heads;
  const Part& part = work.parts[which];
  float* const row = staged + thread / 32 * pitch;

  const int pairs = static_cast<int>(work.rotation.dims / 2);
  if (!work.rotation.is_constant) wait_for_previous();
  const double of_pair = thread < pairs ? frequency(work.rotation, thread) : 0;
  wait_for_previous();
  if (exists) {
    const auto* from = reinterpret_cast<const float*>(part.from + head * part.from_head + token * part.from_token);
    for (int i = lane; i < part.columns; i += 32) row[i] = from[i];
  }
  if (thread < pairs) {
    turns[thread] = direction(of_pair * position_of(work.rotation, token), work.rotation.magnitude);
  }
  const int64_t to_row = cache_row(work, token);
  if (!exists) return;

  if (part.result != nullptr) {
    for (int pair = lane; pair < pairs; pair += 32) {
      const PairPlace at = place_of(work.rotation, pair);
      float &low = row[part.offset + at.low], &high = row[part.offset + at.high];
      const float2 result = rotated(low, high, turns[pair]);
      low = result.x;
      high = result.y;
    }
    __syncwarp();
    float* const to = part.result + (token * part.heads + head) * part.columns;
    for (int i = lane; i < part.columns; i += 32) to[i] = row[i];
  }
  if (part.cache == nullptr || to_row < 0) return;
  store_head(row, part.columns, lane, part.cache_dtype, part.cache + to_row * part.cache_row + head * part.cache_head);
}

// --- choice of the fused nodes ---

int64_t stride(const Tensor& tensor, int axis) {
  return static_cast<int64_t>(tensor.strides[axis]);
}
bool is_dense_f32(const Tensor& x) {
  return x.dtype == DType::kF32 && x.strides[0] == sizeof(float) && x.shape[3] == 1 && x.shape[0] <= kMostColumns;
}
RopeParams without_offset(const Tensor& node) {
  RopeParams params = std::get<RopeParams>(node.params);
  params.offset = 0;
  return params;
}
bool is_same_row(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.strides[0] == b.strides[0];
}

/// Collects compatible nodes as parts (Part) of one Work.
class Collector {
 public:
  /// Adds a node. Returns false if the node is not compatible with the earlier nodes. If add() has returned false, the
  /// caller must not use the work.
  bool add(const Tensor& node) {
    if (node.op == Op::kRope) return add_rope(node);
    return node.op == Op::kSetRows && add_set_rows(node);
  }
  const Work& work() const { return work_; }

 private:
  bool add_rope(const Tensor& node) {
    const Tensor& x = *node.src[0];
    if (!is_dense_f32(x) || std::get<RopeParams>(node.params).dims > kMostDims) return false;
    if (!add_part(x, x.shape[1], x.shape[2], stride(x, 1), stride(x, 2)) || !has_same_rotation(node)) return false;
    Part& part = work_.parts[work_.count - 1];
    part.result = reinterpret_cast<float*>(node.data);
    part.offset = static_cast<int>(std::get<RopeParams>(node.params).offset);
    return true;
  }

  bool has_same_rotation(const Tensor& node) {
    if (rope_ == nullptr) {
      rope_ = &node;
      work_.rotation = rotation_of(node);
      return true;
    }
    const Tensor *factors = factors_of(node), *others = factors_of(*rope_);
    const bool same_factors = factors && others ? is_same_row(*factors, *others) : factors == others;
    return same_factors && is_same_row(*node.src[1], *rope_->src[1]) && without_offset(node) == without_offset(*rope_);
  }

  bool add_set_rows(const Tensor& node) {
    const Tensor &cache = *node.src[0], &rows = *node.src[1];
    const bool known = traits(cache.dtype).is_float || cache.dtype == DType::kQ8_0;
    if (!known || !is_dense_f32(rows) || node.src[2]->rows() != 1 || !has_same_ids(node)) return false;
    Part* part = part_with_result(rows);
    if (part == nullptr) {
      if (is_result(rows)) return false;
      if (!add_part(rows, rows.shape[2], rows.shape[1], stride(rows, 2), stride(rows, 1))) return false;
      part = &work_.parts[work_.count - 1];
    }
    part->cache = cache.data;
    part->cache_dtype = cache.dtype;
    part->cache_row = stride(cache, 1), part->cache_head = stride(cache, 2);
    return true;
  }

  bool has_same_ids(const Tensor& node) {
    const auto& select = std::get<SelectParams>(node.params);
    const Tensor& ids = *node.src[2];
    if (set_rows_ != nullptr) {
      return is_same_row(ids, *set_rows_->src[2]) && select == std::get<SelectParams>(set_rows_->params) &&
             node.src[0]->shape[1] == set_rows_->src[0]->shape[1];
    }
    if (select.ranges.size() > Selection::kMost) return false;
    set_rows_ = &node;
    work_.ids = ids.data, work_.id_stride = stride(ids, 0), work_.ids_dtype = ids.dtype;
    for_selections(select, node.src[0]->shape[1], [&](const Selection& all, bool) { work_.selection = all; });
    return true;
  }

  bool add_part(const Tensor& from, int64_t heads, int64_t tokens, int64_t from_head, int64_t from_token) {
    if (from.empty() || work_.count == kMostParts || (work_.count > 0 && work_.tokens != tokens)) return false;
    if ((work_.heads + heads) * tokens > 0x7fffffff - kRows) return false;
    work_.parts[work_.count++] = {from.data, from_head, from_token, static_cast<int>(from.shape[0]),
                                  static_cast<int>(heads)};
    work_.heads += static_cast<int>(heads);
    work_.tokens = tokens;
    return true;
  }

  /// Whether the memory of `rows` overlaps a result of the launch.
  bool is_result(const Tensor& rows) const {
    return std::any_of(work_.parts, work_.parts + work_.count, [&](const Part& part) {
      const auto* begin = reinterpret_cast<const std::byte*>(part.result);
      const auto* end = reinterpret_cast<const std::byte*>(part.result + part.columns * part.heads * work_.tokens);
      return part.result != nullptr && rows.data < end && begin < rows.data + rows.span_bytes();
    });
  }

  /// Returns the part whose rotated heads are `rows`, or nullptr.
  Part* part_with_result(const Tensor& rows) {
    const auto is = [&](const Part& part) {
      const auto bytes = static_cast<int64_t>(sizeof(float)) * part.columns;
      return reinterpret_cast<std::byte*>(part.result) == rows.data && part.cache == nullptr &&
             part.columns == rows.shape[0] && part.heads == rows.shape[2] && work_.tokens == rows.shape[1] &&
             (part.heads == 1 || stride(rows, 2) == bytes) &&
             (work_.tokens == 1 || stride(rows, 1) == bytes * part.heads);
    };
    Part* const end = work_.parts + work_.count;
    Part* const found = std::find_if(work_.parts, end, is);
    return found == end ? nullptr : found;
  }

  Work work_;
  const Tensor* rope_ = nullptr;
  const Tensor* set_rows_ = nullptr;
};

const Tensor& written_by(const Tensor& node) {
  return node.op == Op::kSetRows ? *node.src[0] : node;
}

/// Whether the result of `rope` has the same memory and layout as its source x.
bool is_in_place(const Tensor& rope, const Tensor& x) {
  bool same = rope.data == x.data && same_shape(rope, x);
  for (int axis = 1; axis < kMaxDims; ++axis) {
    same = same && (x.shape[axis] == 1 || x.strides[axis] == rope.strides[axis]);
  }
  return same;
}

/// Whether `reader` may read its source with this index while `writer` runs. A set_rows node reads rotated heads from
/// shared memory, not from the result of the rope node. So the rope node may write its result at the same time.
bool may_read(const Tensor& reader, size_t source, const Tensor& writer) {
  const Tensor* read = reader.src[source];
  if (read == nullptr || !overlap(*read, written_by(writer))) return true;
  if (reader.op == Op::kSetRows) return source == 0 || (source == 1 && read->storage() == &writer);
  return &reader == &writer && source == 0 && is_in_place(writer, *read);
}

/// Whether the nodes can run at the same time: no node writes memory that another node writes or reads (may_read()).
/// This condition is necessary because the blocks of the launch run in any order.
bool are_apart(Nodes nodes) {
  for (const Tensor* writer : nodes) {
    for (const Tensor* other : nodes) {
      if (other != writer && overlap(written_by(*writer), written_by(*other))) return false;
      for (size_t source = 0; source < other->src.size(); ++source) {
        if (!may_read(*other, source, *writer)) return false;
      }
    }
  }
  return true;
}

}  // namespace

size_t count_rope_set_rows(Nodes nodes) {
  size_t count = 0;
  Collector collector;
  while (count < std::min(nodes.size(), kMostNodes) && collector.add(*nodes[count])) ++count;
  while (count > 1 && !are_apart(nodes.first(count))) --count;
  return count;
}

void rope_set_rows_run(const LaunchContext& context, Nodes nodes) {
  Collector collector;
  int pitch = 0;
  for (const Tensor* node : nodes) collector.add(*node);
  const Work& work = collector.work();
  for (int i = 0; i < work.count; ++i) pitch = std::max(pitch, work.parts[i].columns);
  const dim3 grid(static_cast<unsigned>((work.heads + kRows - 1) / kRows * work.tokens));
  launch_early(context, rope_set_rows, grid, dim3(kThreads), kRows * sizeof(float) * static_cast<size_t>(pitch), work,
               pitch);
}

}  // namespace shoal::cuda
