#include "tests/support/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "base/error.h"
#include "devices/allocate.h"
#include "tests/support/encoders.h"
#include "tests/support/poison.h"

namespace shoal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
std::vector<std::byte> encode_as(const Values& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

template <class T>
Values decode_as(const std::vector<std::byte>& bytes, int64_t elements) {
  std::vector<T> plain(elements);
  if (elements > 0) std::memcpy(plain.data(), bytes.data(), elements * sizeof(T));
  return {plain.begin(), plain.end()};
}

/// Whether the encoder of the dtype searches for the best codes. The search may take a long time. All encoders of
/// 256-element blocks search.
bool is_searched(DType dtype) {
  return traits(dtype).is_quantized && traits(dtype).block_elems == 256;
}

/// Like from_f32(), but uses a cache of encoded blocks, because tests encode the same blocks repeatedly.
void encode_searched(DType dtype, const std::vector<float>& values, std::byte* bytes) {
  constexpr size_t kMost = 10000;
  thread_local std::map<DType, std::unordered_map<std::string, std::vector<std::byte>>> known_of;
  const DTypeTraits& t = traits(dtype);
  auto& known = known_of[dtype];
  for (size_t at = 0; at < values.size(); at += t.block_elems, bytes += t.block_bytes) {
    const std::string key(reinterpret_cast<const char*>(values.data() + at), t.block_elems * sizeof(float));
    if (known.size() >= kMost) known.clear();
    std::vector<std::byte>& block = known[key];
    if (block.empty()) {
      block.resize(t.block_bytes);
      from_f32(dtype, values.data() + at, block.data(), t.block_elems);
    }
    std::copy(block.begin(), block.end(), bytes);
  }
}

/// Random numbers that do not depend on the standard library.
class Random {
 public:
  Random(uint64_t seed, std::string_view name) : engine_(seed) {
    uint64_t hash = 14695981039346656037ULL;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    engine_.seed(seed ^ hash);
  }
  double between(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11) * 0x1p-53);
  }
  /// A random integer in [low, high).
  int64_t integer(int64_t low, int64_t high) {
    return high > low ? low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low)) : low;
  }

 private:
  std::mt19937_64 engine_;
};

enum class Use {
  kPlain,
  kFactor,
  kIds,
  kSlots,
  kPositions,
  kTexts,
  kSequences,
  kPlaces,
  kRows,
  kRuns,
  kMask,
  kWeight,
  kDecay,
  kShare
};

/// The use of a leaf and the constraints on its values.
struct Asked {
  Use use = Use::kPlain;
  int64_t limit = std::numeric_limits<int64_t>::max();  ///< exclusive upper limit of ids and positions
  double scale = 1;
};

/// Returns the leaf or node from which `tensor` is derived by views, copies and casts. Ids may be sliced before their
/// use.
const Tensor* origin(const Tensor* tensor) {
  while (tensor && (is_view(tensor->op) || tensor->op == Op::kContiguous || tensor->op == Op::kCast)) {
    tensor = tensor->src[0];
  }
  return tensor;
}

/// Exclusive upper limit of the ids of a node. Without ranges, the limit is the length of source 0 along `axis`. With
/// ranges, the limit is two more than the end of the last range. So some ids are in no range.
int64_t index_limit(const Tensor& node, int axis) {
  const auto& ranges = std::get<SelectParams>(node.params).ranges;
  int64_t limit = ranges.empty() ? node.src[0]->shape[axis] : 2;
  for (const IndexRange& range : ranges) limit = std::max(limit, range.begin + range.length + 2);
  return limit;
}

/// The constraints on source `i` of an op with a state. The source `first` has the positions, and the next two sources
/// belong to StateSlots. A slot of `state` has `rows` rows.
std::optional<Asked> role_in_batch(const Tensor& node, int first, int i, const Tensor& state, int64_t rows) {
  if (i == first) return Asked{Use::kTexts};
  if (i == first + 1) return Asked{Use::kSequences, node.src[first + 2] ? node.src[first + 2]->shape[0] : 1};
  if (i == first + 2) return Asked{Use::kPlaces, rows == 0 ? 1 : state.shape[1] / rows};
  return std::nullopt;
}

/// The constraints of a node on the values of source i. Most sources have no constraints.
std::optional<Asked> role_of_source(const Tensor& node, size_t i) {
  const int64_t no_limit = std::numeric_limits<int64_t>::max();
  if (node.op == Op::kGetRows && i == 1) return Asked{Use::kIds, index_limit(node, 1)};
  if (node.op == Op::kMulMatId && i == 2) return Asked{Use::kIds, index_limit(node, 2)};
  if (node.op == Op::kSetRows && i == 2) return Asked{Use::kSlots, index_limit(node, 1)};
  if (node.op == Op::kRope && i == 1) return Asked{Use::kPositions, no_limit};
  if (node.op == Op::kRope && i == 2) return Asked{Use::kFactor, no_limit};
  if (node.op == Op::kWhere && i == 0) return Asked{Use::kIds, 2};
  if (node.op == Op::kCompare && node.src[i]->dtype == DType::kI32) return Asked{Use::kIds, 4};
  if (node.op == Op::kDiv && i == 1) return Asked{Use::kFactor, no_limit};
  if (node.op == Op::kAttention && node.src[6] != nullptr) {
    const int64_t page = std::get<AttentionParams>(node.params).page;
    if (i == 3) return Asked{Use::kRows, node.src[6]->shape[0] * page};
    if (i == 6) return Asked{Use::kIds, node.src[1]->shape[1] / page};
    if (i == 7) return Asked{Use::kRuns, node.src[6]->shape[1]};
  }
  if (node.op == Op::kAttention && i == 3) return Asked{Use::kPositions, node.src[1]->shape[1]};
  if (node.op == Op::kAttention && i == 4) return Asked{Use::kMask, no_limit};
  if (node.op == Op::kSoftMax && i == 1) return Asked{Use::kMask, no_limit};
  if (node.op == Op::kCausalConv && i >= 3) {
    return role_in_batch(node, 3, static_cast<int>(i), *node.src[2], node.src[1]->shape[0] - 1);
  }
  if (node.op == Op::kGatedDelta && i < 2) {  // norm 1, so that the state does not grow
    return Asked{Use::kWeight, no_limit, std::sqrt(3.0 / std::max<double>(1, node.src[0]->shape[0]))};
  }
  if (node.op == Op::kGatedDelta && i == 3) return Asked{Use::kDecay, no_limit};
  if (node.op == Op::kGatedDelta && i == 4) return Asked{Use::kShare, no_limit};
  if (node.op == Op::kGatedDelta && i >= 6) {
    return role_in_batch(node, 6, static_cast<int>(i), *node.src[5], node.src[0]->shape[0]);
  }
  const bool product = node.op == Op::kMulMat || node.op == Op::kMulMatId;
  if (product && i == 0)
    return Asked{Use::kWeight, no_limit, std::sqrt(3.0 / std::max<double>(1, node.src[0]->shape[0]))};
  return std::nullopt;
}

std::unordered_map<const Tensor*, Asked> find_roles(const Graph& graph) {
  std::unordered_map<const Tensor*, Asked> roles;
  for (const Tensor* node : graph.nodes()) {
    for (size_t i = 0; i < node->src.size(); ++i) {
      const Tensor* leaf = origin(node->src[i]);
      const auto role = role_of_source(*node, i);
      if (!leaf || !leaf->is_leaf() || !role) continue;
      const auto [known, is_new] = roles.emplace(leaf, *role);
      if (!is_new) known->second.limit = std::min(known->second.limit, role->limit);
    }
  }
  return roles;
}

/// Integers in [0, limit). The integers of each of the `rows` rows are distinct.
Values distinct(Random& random, int64_t count, int64_t rows, int64_t limit) {
  Values values;
  std::vector<int64_t> all(std::max(limit, count));
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    for (int64_t i = 0; i < count; ++i) std::swap(all[i], all[random.integer(i, static_cast<int64_t>(all.size()))]);
    values.insert(values.end(), all.begin(), all.begin() + count);
  }
  return values;
}

Values ascending(Random& random, int64_t count, int64_t limit) {
  const int64_t first = random.integer(0, std::min<int64_t>(limit - count, 1000) + 1);
  Values values(count);
  for (int64_t i = 0; i < count; ++i)
    values[i] = static_cast<double>(std::min(std::max<int64_t>(first, 0) + i, limit - 1));
  return values;
}

/// Positions of consecutive tokens. The first tokens continue a sequence. A later token may start a new sequence at
/// position 0. Some tokens are padding with negative positions. Half of the results end with padding.
Values texts(Random& random, int64_t count) {
  Values values(count);
  int64_t position = random.integer(1, 100);
  const int64_t end = random.integer(0, 2) == 0 ? count - random.integer(0, count / 2 + 1) : count;
  for (int64_t i = 0; i < count; ++i) {
    const bool begins = i > 0 && random.integer(0, 12) == 0;
    const bool is_padding = i >= end || (i > 0 && random.integer(0, 12) == 0);
    if (begins) position = 0;
    values[i] = is_padding ? -static_cast<double>(random.integer(1, 3)) : static_cast<double>(position++);
  }
  return values;
}

/// The sequences of consecutive tokens. Sequences are in random order, and some sequences have no tokens.
Values sequences(Random& random, int64_t count, int64_t limit) {
  const Values order = distinct(random, limit, 1, limit);
  Values values(count);
  for (int64_t i = 0, at = random.integer(0, 2); i < count && limit > 0; ++i) {
    values[i] = order[std::min(at, limit - 1)];
    if (random.integer(0, count / limit + 1) == 0) ++at;
  }
  return values;
}

/// Sequences of the queries of a batch. Consecutive queries often have the same sequence. Some numbers are outside
/// [0, limit).
Values runs(Random& random, int64_t count, int64_t limit) {
  Values values(count);
  for (int64_t i = 0; i < count;) {
    const int64_t end = std::min(count, i + random.integer(1, 30)), sequence = random.integer(0, limit);
    const bool is_outside = random.integer(0, 8) == 0;
    for (; i < end; ++i) values[i] = static_cast<double>(!is_outside ? sequence : sequence % 2 == 0 ? -1 : limit);
  }
  return values;
}

/// Values in [-scale, scale]. The values consist of a few repeated blocks, so that only a few blocks have to be
/// encoded.
Values drawn_blocks(Random& random, int64_t elements, double scale) {
  constexpr int64_t kBlock = 256, kBlocks = 32;
  static const Values blocks = [] {
    Random fixed(1, "blocks");
    Values values(kBlocks * kBlock);
    for (double& value : values) value = fixed.between(-1, 1);
    return values;
  }();
  Values values(elements);
  for (int64_t at = 0; at < elements; at += kBlock) {
    const double* block = blocks.data() + random.integer(0, kBlocks) * kBlock;
    std::transform(block, block + kBlock, values.begin() + at, [&](double value) { return value * scale; });
  }
  return values;
}

Values random_values(const Tensor& leaf, const Asked& role, uint64_t seed) {
  Random random(seed, leaf.name);
  if (role.use == Use::kSlots) return distinct(random, leaf.shape[0], leaf.rows(), role.limit);
  if (role.use == Use::kPositions) return ascending(random, leaf.elements(), role.limit);
  if (role.use == Use::kTexts) return texts(random, leaf.elements());
  if (role.use == Use::kSequences) return sequences(random, leaf.elements(), role.limit);
  if (role.use == Use::kRuns) return runs(random, leaf.elements(), role.limit);
  if (is_searched(leaf.dtype)) return drawn_blocks(random, leaf.elements(), role.scale);
  Values values(leaf.elements());
  for (double& value : values) {
    switch (role.use) {
      case Use::kIds:
        value = static_cast<double>(random.integer(0, role.limit));
        break;
      case Use::kPlaces:
        value = static_cast<double>(random.integer(0, role.limit));
        if (random.integer(0, 4) == 0) value = random.integer(0, 2) == 0 ? -1.0 : static_cast<double>(role.limit);
        break;
      case Use::kRows:  // -1 marks padding
        value = static_cast<double>(random.integer(-1, role.limit));
        break;
      case Use::kFactor:
        value = random.between(1, 3);
        break;
      case Use::kDecay:
        value = random.between(-1, 0);
        break;
      case Use::kShare:
        value = random.between(0, 1);
        break;
      case Use::kMask:
        value = random.integer(0, 4) == 0 ? -kInfinity : random.between(-2, 2);
        break;
      default:
        value = traits(leaf.dtype).is_float || traits(leaf.dtype).is_quantized
                    ? random.between(-1, 1) * role.scale
                    : static_cast<double>(random.integer(-100, 101));
    }
  }
  return values;
}

}  // namespace

std::vector<std::byte> encode(DType dtype, const Values& values) {
  if (dtype == DType::kI32) return encode_as<int32_t>(values);
  if (dtype == DType::kI64) return encode_as<int64_t>(values);
  const std::vector<float> floats(values.begin(), values.end());
  std::vector<std::byte> bytes(bytes_for(dtype, static_cast<int64_t>(values.size())));
  if (is_searched(dtype)) {
    encode_searched(dtype, floats, bytes.data());
  } else {
    from_f32(dtype, floats.data(), bytes.data(), static_cast<int64_t>(values.size()));
  }
  return bytes;
}

Values decode(DType dtype, const std::vector<std::byte>& bytes, int64_t elements) {
  if (dtype == DType::kI32) return decode_as<int32_t>(bytes, elements);
  if (dtype == DType::kI64) return decode_as<int64_t>(bytes, elements);
  std::vector<float> floats(elements);
  traits(dtype).to_f32(bytes.data(), floats.data(), elements);
  return {floats.begin(), floats.end()};
}

Values rounded(DType dtype, const Values& values) {
  return decode(dtype, encode(dtype, values), static_cast<int64_t>(values.size()));
}

void write_values(Tensor& tensor, const Values& values) {
  const std::vector<std::byte> bytes = encode(tensor.dtype, values);
  check(bytes.size() == tensor.bytes(), "{} has {} bytes, got {}", tensor.name, tensor.bytes(), bytes.size());
  if (!bytes.empty()) tensor_set(tensor, bytes.data(), 0, bytes.size());
}

Values read_values(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  if (!bytes.empty()) tensor_get(tensor, bytes.data(), 0, bytes.size());
  return decode(tensor.dtype, bytes, tensor.elements());
}

TensorValues random_leaves(const Graph& graph, uint64_t seed) {
  const auto roles = find_roles(graph);
  TensorValues leaves;
  for (const Tensor* leaf : graph.leaves()) {
    const auto role = roles.find(leaf);
    leaves[leaf] = rounded(leaf->dtype, random_values(*leaf, role == roles.end() ? Asked{} : role->second, seed));
  }
  return leaves;
}

GraphRun::GraphRun(Backend& backend, Graph& graph, TensorValues& leaves, BufferType* weights)
    : backend_(backend), graph_(graph) {
  for (Tensor* leaf : graph.leaves()) {
    if (leaf->is_persistent() && !leaf->buffer) placed_.push_back(leaf);
  }
  const auto caches = std::stable_partition(
      placed_.begin(), placed_.end(), [&](Tensor* leaf) { return weights != nullptr && leaf->role == Role::kWeight; });
  if (weights != nullptr) weights_ = allocate_tensors({placed_.begin(), caches}, *weights, Usage::kWeights);
  memory_ = allocate_tensors({caches, placed_.end()}, backend.device().buffer_type(), Usage::kWeights);
  plan_ = backend.create_plan(graph);
  poison(graph, *plan_);
  for (Tensor* leaf : graph.leaves()) {
    write_values(*leaf, leaves.at(leaf));
    if (traits(leaf->dtype).is_quantized) leaves[leaf] = read_values(*leaf);
  }
}

GraphRun::~GraphRun() {
  plan_.reset();
  memory_.reset();
  weights_.reset();
  const auto unplace = [](Tensor* tensor) { tensor->buffer = nullptr, tensor->data = nullptr; };
  for (Tensor* leaf : placed_) unplace(leaf);
  for (Tensor* node : graph_.nodes()) {  // views of the leaves
    if (std::find(placed_.begin(), placed_.end(), node->storage()) != placed_.end()) unplace(node);
  }
}

void GraphRun::run() {
  backend_.compute_async(*plan_);
  backend_.synchronize();
}

TensorValues GraphRun::results() const {
  TensorValues results;
  for (const Tensor* node : graph_.nodes()) {
    if (node->is_output) results[node] = read_values(*node);
  }
  for (const Tensor* leaf : graph_.leaves()) {
    if (leaf->role == Role::kCache) results[leaf] = read_values(*leaf);
  }
  return results;
}

TensorValues run_graph(Backend& backend, Graph& graph, TensorValues& leaves) {
  GraphRun once(backend, graph, leaves);
  once.run();
  return once.results();
}

Difference compare(const Values& got, const Values& expected) {
  Difference result;
  double squares = 0, differences = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double want = expected[i], have = got[i];
    if (have == want || (std::isnan(have) && std::isnan(want))) {
      if (std::isfinite(want)) squares += want * want;
      continue;
    }
    double off = std::fabs(have - want);
    if (!std::isfinite(off)) off = kInfinity;
    squares += std::isfinite(want) ? want * want : 0;
    differences += off * off;
    if (off > result.max_abs) result.max_abs = off, result.worst = i;
  }
  result.nmse = differences == 0 ? 0 : differences / (squares > 0 ? squares : 1);
  return result;
}

::testing::AssertionResult close_to(const Values& got, const Values& expected, const Tolerance& tolerance) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure() << "expected " << expected.size() << " values, got " << got.size();
  }
  const Difference off = compare(got, expected);
  if (off.nmse <= tolerance.nmse && off.max_abs <= tolerance.max_abs) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "NMSE " << off.nmse << " (allowed " << tolerance.nmse
                                       << "), largest difference " << off.max_abs << " at " << off.worst
                                       << ": expected " << expected[off.worst] << ", got " << got[off.worst];
}

}  // namespace shoal::test
