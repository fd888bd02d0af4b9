#include "tests/support/random_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "graph/ops/ops.h"
#include "graph/text.h"

namespace shoal::test {
namespace {

/// A float value of the graph. `exact`: bit-identical however it is sharded (no re-associated sum on its way), so that
/// ops with discrete results may use it. `magnitude`: rough largest absolute value.
struct Value {
  Tensor* tensor;
  bool exact;
  double magnitude;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : rng_(seed), f32_only_(seed % 2 == 0), graph_("random") { case_.seed = seed; }

  RandomCase run() {
    case_.ranks = pick(6) == 0 ? 1 + pick(16) : 1 + pick(5);
    const int target = 5 + pick(36);
    for (int i = 1 + pick(2); i > 0; --i) values_.push_back(fresh(random_shape()));
    for (int tries = 0; tries < 20 * target && nodes() < target; ++tries) step();
    while (graph_.nodes().empty()) step();
    mark_outputs();
    case_.graph = to_string(graph_);
    for (Tensor* leaf : weights_.tensors()) {
      auto layout = random_layout(rng_, *leaf, case_.ranks, inexact_.count(leaf) > 0);
      if (!layout.is_mirrored()) case_.layouts.emplace(leaf->name, std::move(layout));
    }
    return std::move(case_);
  }

 private:
  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  int nodes() const { return static_cast<int>(graph_.nodes().size()); }
  std::string name(std::string_view prefix) { return fmt::format("{}.{}", prefix, counter_++); }

  Shape random_shape() {
    static constexpr int64_t kInner[] = {1, 2, 3, 4, 5, 8, 32, 64}, kOuter[] = {1, 1, 2, 3, 4, 6};
    return {kInner[pick(8)], kOuter[pick(6)], kOuter[pick(6)], pick(3) == 0 ? kOuter[pick(6)] : 1};
  }

  /// The dtype, where values may be rounded to it.
  DType rounding(DType dtype) {
    if (f32_only_) return DType::kF32;
    if (dtype != DType::kF32) case_.tolerance = kRounded;
    return dtype;
  }

  DType random_float(bool quantised) {
    static constexpr DType kTypes[] = {DType::kF32,  DType::kF32,  DType::kF32,  DType::kF16,
                                       DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_1};
    return rounding(kTypes[pick(quantised ? 8 : 5)]);
  }

  /// A new f32 leaf: an input, or a weight (which gets a split state; inexact when that may be Partial).
  Value fresh(Shape shape, std::string_view prefix = "x") {
    if (prefix == "x" && pick(3) == 0) return {graph_.input(name(prefix), DType::kF32, shape), true, 1.0};
    Tensor* leaf = weights_.add(name(prefix == "x" ? "w" : prefix), DType::kF32, shape);
    const bool exact = prefix != "x" || pick(4) != 0;
    if (!exact) inexact_.insert(leaf);
    return {leaf, exact, prefix == "div" ? 2.0 : 1.0};
  }

  Tensor* ids(std::string_view kind, int64_t range, Shape shape) {
    return graph_.input(name(fmt::format("{}{}", kind, range)), DType::kI32, shape);
  }

  Value any() { return values_[pick(static_cast<int>(values_.size()))]; }
  void keep(Tensor* tensor, bool exact, double magnitude) {
    if (tensor->elements() > 4096) return;
    if (magnitude > 16) {
      tensor = scale(graph_, tensor, {static_cast<float>(1.0 / magnitude), 0.0f});
      magnitude = 1;
    }
    values_.push_back({tensor, exact, magnitude});
  }

  Tensor* dense(const Value& x) { return x.tensor->is_contiguous() ? x.tensor : contiguous(graph_, x.tensor); }

  /// Same shape as x, or with some axes 1.
  Value partner(const Value& x, std::string_view prefix = "x") {
    for (int tries = 0; tries < 4 && prefix == "x"; ++tries) {
      const Value other = any();
      if (same_shape(*other.tensor, *x.tensor)) return other;
    }
    Shape shape = x.tensor->shape;
    for (int64_t& length : shape) {
      if (pick(4) == 0) length = 1;
    }
    return fresh(shape, prefix);
  }

  void step() {
    using Maker = void (Generator::*)();
    static constexpr Maker kMakers[] = {
        &Generator::make_mul_mat,  &Generator::make_mul_mat,  &Generator::make_mul_mat, &Generator::make_pair_mat,
        &Generator::make_binary,   &Generator::make_binary,   &Generator::make_binary,  &Generator::make_unary,
        &Generator::make_scale,    &Generator::make_glu,      &Generator::make_glu,     &Generator::make_norm,
        &Generator::make_soft_max, &Generator::make_rope,     &Generator::make_reduce,  &Generator::make_discrete,
        &Generator::make_get_rows, &Generator::make_set_rows, &Generator::make_moe,     &Generator::make_attention,
        &Generator::make_cast,     &Generator::make_concat,   &Generator::make_repeat,  &Generator::make_reshape,
        &Generator::make_reshape,  &Generator::make_slice,    &Generator::make_slice,   &Generator::make_permute,
        &Generator::make_permute};
    (this->*kMakers[pick(static_cast<int>(std::size(kMakers)))])();
  }

  void make_mul_mat() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    const bool blocks = s[0] % 32 == 0;
    const int64_t c = s[2] % 2 == 0 && pick(2) ? s[2] / 2 : (pick(2) ? 1 : s[2]);
    const int64_t d = pick(2) ? 1 : s[3];
    const int64_t m[] = {1, 2, 3, 4, 6, 8, 32, 64};
    Tensor* w = weights_.add(name("w"), random_float(blocks), {s[0], m[pick(8)], c, d});
    keep(mul_mat(graph_, w, x.tensor), false, x.magnitude * std::max<double>(1, static_cast<double>(s[0]) / 4));
  }

  void make_pair_mat() {
    const Value a = any(), b = any();
    if (a.tensor->shape[0] != b.tensor->shape[0]) return;
    if (b.tensor->shape[2] % a.tensor->shape[2] != 0 || b.tensor->shape[3] % a.tensor->shape[3] != 0) return;
    const double k = static_cast<double>(a.tensor->shape[0]);
    keep(mul_mat(graph_, a.tensor, b.tensor), false, a.magnitude * b.magnitude * std::max(1.0, k / 2));
  }

  void make_binary() {
    const Value x = any();
    const int kind = pick(4);
    const Value y = partner(x, kind == 3 ? "div" : "x");
    const bool exact = x.exact && y.exact;
    switch (kind) {
      case 0:
        return keep(add(graph_, x.tensor, y.tensor), exact, x.magnitude + y.magnitude);
      case 1:
        return keep(sub(graph_, x.tensor, y.tensor), exact, x.magnitude + y.magnitude);
      case 2:
        return keep(mul(graph_, x.tensor, y.tensor), exact, x.magnitude * y.magnitude);
      default:
        return keep(div(graph_, x.tensor, y.tensor), exact, x.magnitude);
    }
  }

  void make_unary() {
    static constexpr UnaryKind kKinds[] = {UnaryKind::kNeg,  UnaryKind::kAbs,  UnaryKind::kTanh, UnaryKind::kRelu,
                                           UnaryKind::kSilu, UnaryKind::kGelu, UnaryKind::kSqr,  UnaryKind::kSigmoid};
    const Value x = any();
    const UnaryKind kind = kKinds[pick(8)];
    keep(unary(graph_, x.tensor, kind), x.exact, kind == UnaryKind::kSqr ? x.magnitude * x.magnitude : x.magnitude);
  }

  void make_scale() {
    const Value x = any();
    if (pick(3) == 0) return keep(clamp(graph_, x.tensor, {-0.5f, 0.75f}), x.exact, 1);
    keep(scale(graph_, x.tensor, {0.7f, pick(2) ? 0.25f : 0.0f}), x.exact, x.magnitude + 1);
  }

  void make_glu() {
    const Value x = any();
    const auto kind = static_cast<GluKind>(pick(static_cast<int>(GluKind::kCount)));
    if (x.tensor->shape[0] % 2 == 0 && pick(2)) {
      return keep(glu_fused(graph_, x.tensor, kind), x.exact, x.magnitude * x.magnitude);
    }
    const Value y = any();
    if (!same_shape(*x.tensor, *y.tensor)) return;
    keep(glu(graph_, x.tensor, y.tensor, kind), x.exact && y.exact, x.magnitude * y.magnitude);
  }

  void make_norm() {
    const Value x = any();
    // A row of few or equal elements has no spread to speak of: normalising it would only show noise.
    if (x.tensor->shape[0] < 4) return;
    keep(pick(3) ? rms_norm(graph_, x.tensor, {1e-2f}) : layer_norm(graph_, x.tensor, {1e-1f}), x.exact, 3);
  }

  void make_soft_max() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (x.magnitude > 8) return;
    Tensor* mask = pick(2) ? fresh({s[0], s[1], pick(2) ? 1 : s[2], 1}).tensor : nullptr;
    Tensor* sinks = pick(3) == 0 ? fresh({s[2], 1, 1, 1}).tensor : nullptr;
    const bool exact = x.exact && !is_inexact(mask) && !is_inexact(sinks);
    keep(soft_max(graph_, x.tensor, mask, sinks, {0.5f}), exact, 1);
  }

  bool is_inexact(Tensor* tensor) const { return tensor != nullptr && inexact_.count(tensor) > 0; }

  void make_rope() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (s[0] % 2 != 0) return;
    RopeParams params;
    params.dims = s[0] % 4 == 0 && pick(2) ? s[0] / 2 : s[0];
    params.mode = static_cast<RopeMode>(pick(2));
    keep(rope(graph_, x.tensor, ids("pos", 64, {s[2], 1, 1, 1}), nullptr, params), x.exact, 1.5 * x.magnitude);
  }

  void make_reduce() {
    const Value x = any();
    keep(sum_rows(graph_, x.tensor), false, x.magnitude * static_cast<double>(x.tensor->shape[0]));
  }

  void make_discrete() {
    const Value x = any();
    if (!x.exact) return;
    const int64_t length = x.tensor->shape[0];
    Tensor* found = nullptr;
    switch (pick(3)) {
      case 0:
        found = argmax(graph_, x.tensor);
        break;
      case 1:
        found = top_k(graph_, x.tensor, 1 + pick(static_cast<int>(length)));
        break;
      default:
        found = argsort(graph_, x.tensor, pick(2) == 0);
        break;
    }
    if (pick(2) && found->shape[2] == 1 && found->shape[3] == 1) {
      // Use the indices: rows of a table with as many rows.
      Tensor* table = weights_.add(name("table"), random_float(false), {4 + pick(5), length, 1, 1});
      Tensor* flat = reshape(graph_, found, {found->elements(), 1, 1, 1});
      return keep(get_rows(graph_, table, flat), true, 1);
    }
    keep(cast(graph_, found, DType::kF32), true, static_cast<double>(length));
  }

  void make_get_rows() {
    const int64_t rows = 1 + pick(9), x = pick(2) ? 32 : 1 + pick(6), count = 1 + pick(4);
    Tensor* table = weights_.add(name("table"), random_float(x == 32), {x, rows, 1, 1});
    const bool exact = pick(3) != 0 || table->dtype != DType::kF32;
    if (!exact) inexact_.insert(table);
    keep(get_rows(graph_, table, ids("ids", rows, {count, 1, 1, 1})), exact, 1);
  }

  void make_set_rows() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    const int64_t length = s[1] + pick(4);
    Tensor* cache = weights_.add(name("cache"), random_float(s[0] % 32 == 0), {s[0], length, s[2], s[3]}, Role::kCache);
    if (cache->dtype == DType::kF32) inexact_.insert(cache);
    Tensor* written = set_rows(graph_, cache, x.tensor, ids("slots", length, {s[1], 1, 1, 1}));
    if (pick(4) == 0) written = set_rows(graph_, written, fresh(s).tensor, ids("slots", length, {s[1], 1, 1, 1}));
    if (written->dtype == DType::kF32) return keep(written, false, x.magnitude + 1);
    keep(cast(graph_, written, DType::kF32), false, x.magnitude + 1);
  }

  void make_moe() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (s[3] != 1 || s[2] > 4) return;
    const int64_t experts = 2 + pick(4), used = s[1] == 1 ? 1 + pick(2) : s[1];
    Tensor* w = weights_.add(name("experts"), random_float(s[0] % 32 == 0), {s[0], 1 + pick(6), experts, 1});
    Tensor* chosen = ids("ids", experts, {used, s[2], 1, 1});
    keep(mul_mat_id(graph_, w, x.tensor, chosen), false,
         x.magnitude * std::max<double>(1, static_cast<double>(s[0]) / 4));
  }

  void make_attention() {
    const Value q = any();
    const Shape& s = q.tensor->shape;
    if (q.magnitude > 8) return;
    const int64_t rows = 2 + pick(6), value_size = s[0] % 32 == 0 ? s[0] : 1 + pick(4);
    const int64_t heads = s[2] % 2 == 0 && pick(2) ? s[2] / 2 : (pick(3) == 0 ? 1 : s[2]);
    static constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kQ8_0};
    const DType dtype = rounding(kTypes[pick(s[0] % 32 == 0 ? 3 : 2)]);
    Tensor* k = weights_.add(name("k"), dtype, {s[0], rows, heads, s[3]}, Role::kCache);
    Tensor* v = weights_.add(name("v"), dtype, {value_size, rows, heads, s[3]}, Role::kCache);
    AttentionParams params{0.3f, pick(3) ? 0.0f : 5.0f, pick(2) == 0, 0};
    if (params.causal && pick(3) == 0) params.window = 2;
    Tensor* positions = params.causal ? ids("pos", rows, {s[1], 1, 1, 1}) : nullptr;
    Tensor* mask = pick(3) == 0 ? fresh({rows, s[1], 1, 1}).tensor : nullptr;
    Tensor* sinks = pick(3) == 0 ? fresh({s[2], 1, 1, 1}).tensor : nullptr;
    keep(attention(graph_, q.tensor, k, v, positions, mask, sinks, params), false, 1);
  }

  void make_cast() {
    const Value x = any();
    if (pick(2)) return keep(contiguous(graph_, x.tensor), x.exact, x.magnitude);
    const DType dtype = random_float(x.tensor->shape[0] % 32 == 0);
    keep(cast(graph_, cast(graph_, x.tensor, dtype), DType::kF32), false, x.magnitude);
  }

  void make_concat() {
    const Value x = any();
    const int axis = pick(4);
    std::vector<Tensor*> sources{x.tensor};
    bool exact = x.exact;
    for (int more = 1 + pick(2); more > 0; --more) {
      Shape shape = x.tensor->shape;
      shape[axis] = 1 + pick(4);
      const Value y = pick(3) == 0 ? x : fresh(shape);
      exact &= y.exact;
      sources.push_back(y.tensor);
    }
    keep(concat(graph_, sources, axis), exact, x.magnitude + 1);
  }

  void make_repeat() {
    const Value x = any();
    Shape shape = x.tensor->shape;
    shape[pick(4)] *= 1 + pick(3);
    keep(repeat(graph_, x.tensor, shape), x.exact, x.magnitude);
  }

  void make_reshape() {
    const Value x = any();
    std::vector<int64_t> primes;
    int64_t rest = x.tensor->elements();
    for (int64_t p = 2; p <= rest; ++p) {
      for (; rest % p == 0; rest /= p) primes.push_back(p);
    }
    Shape shape{1, 1, 1, 1};
    if (pick(2)) {  // keep neighbours together: merge or cut one axis
      shape = x.tensor->shape;
      const int axis = pick(3);
      shape = {1, 1, 1, 1};
      int to = 0;
      for (int from = 0; from < 4; ++from) {
        shape[std::min(to, 3)] *= x.tensor->shape[from];
        if (from != axis) ++to;
      }
    } else {
      for (int64_t p : primes) shape[pick(4)] *= p;
    }
    keep(reshape(graph_, dense(x), shape), x.exact, x.magnitude);
  }

  void make_slice() {
    const Value x = any();
    const int axis = pick(4);
    const int64_t length = x.tensor->shape[axis];
    const int64_t begin = pick(static_cast<int>(length));
    keep(slice(graph_, x.tensor, {axis, begin, 1 + pick(static_cast<int>(length - begin))}), x.exact, x.magnitude);
  }

  void make_permute() {
    const Value x = any();
    std::array<int, 4> axes{0, 1, 2, 3};
    std::shuffle(axes.begin(), axes.end(), rng_);
    Tensor* moved = permute(graph_, x.tensor, axes);
    keep(axes[0] != 0 || pick(2) ? contiguous(graph_, moved) : moved, x.exact, x.magnitude);
  }

  void mark_outputs() {
    std::vector<Tensor*> used;
    for (Tensor* node : graph_.nodes()) used.insert(used.end(), node->src.begin(), node->src.end());
    for (Tensor* node : graph_.nodes()) {
      const bool last = std::find(used.begin(), used.end(), node) == used.end();
      if (last || pick(5) == 0) graph_.output(node);
    }
  }

  std::mt19937_64 rng_;
  const bool f32_only_;
  RandomCase case_;
  TensorContext weights_;
  Graph graph_;
  std::vector<Value> values_;
  std::set<Tensor*> inexact_;  ///< leaves that may be Partial
  int counter_ = 0;
};

std::vector<int64_t> integers(const Tensor& leaf, std::mt19937_64& rng) {
  const size_t digits = leaf.name.find_first_of("0123456789");
  const std::string kind = leaf.name.substr(0, digits);
  const int64_t range = std::stoll(leaf.name.substr(digits));
  std::vector<int64_t> values(static_cast<size_t>(leaf.elements()));
  if (kind == "slots") {
    std::vector<int64_t> all(static_cast<size_t>(range));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), rng);
    std::copy_n(all.begin(), std::min(all.size(), values.size()), values.begin());
    return values;
  }
  for (int64_t& value : values) value = static_cast<int64_t>(rng() % static_cast<uint64_t>(range));
  if (kind == "pos") std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

RandomCase random_case(uint64_t seed) {
  return Generator(seed).run();
}

std::string to_string(const RandomCase& one) {
  std::string text = fmt::format("seed {} on {} ranks\n{}", one.seed, one.ranks, one.graph);
  for (const auto& [name, layout] : one.layouts) text += fmt::format("  {}: {}\n", name, layout.to_string());
  return text;
}

meta::Layout random_layout(std::mt19937_64& rng, const Tensor& leaf, int ranks, bool allow_partial) {
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  const int64_t kind = pick(10);
  if (kind < 2) return meta::Layout::mirrored();
  if (kind < 5 && allow_partial) return meta::Layout::partial();
  const int axis = static_cast<int>(pick(4));
  const int64_t unit = axis == 0 ? traits(leaf.dtype).block_elems : 1;
  int64_t left = leaf.shape[axis] / unit;
  if (left < 2 && pick(4) != 0) return random_layout(rng, leaf, ranks, allow_partial);
  std::vector<meta::Run> runs;
  const bool shared = pick(6) == 0;
  int next = static_cast<int>(pick(ranks));
  while (left > 0) {
    const int64_t length = 1 + pick(std::max<int64_t>(1, std::min(left, 1 + 2 * leaf.shape[axis] / unit / ranks)));
    meta::Owners owners{next};
    if (shared && pick(2) == 0 && ranks > 1) owners.push_back((next + 1) % ranks);
    std::sort(owners.begin(), owners.end());
    runs.push_back({length * unit, owners});
    left -= length;
    next = pick(4) == 0 ? static_cast<int>(pick(ranks)) : (next + 1) % ranks;
  }
  return meta::Layout::split(axis, meta::Partition(ranks, std::move(runs)));
}

std::vector<std::byte> leaf_data(const Tensor& leaf, uint64_t seed) {
  std::mt19937_64 rng(seed ^ std::hash<std::string>()(leaf.name));
  std::vector<std::byte> bytes(leaf.bytes());
  const auto count = static_cast<size_t>(leaf.elements());
  if (leaf.dtype == DType::kI32) {
    const auto values = integers(leaf, rng);
    auto* out = reinterpret_cast<int32_t*>(bytes.data());
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(values[i]);
    return bytes;
  }
  std::vector<float> values(count);
  const bool positive = leaf.name.starts_with("div");
  for (float& value : values) {
    const float unit = static_cast<float>(rng() >> 40) / static_cast<float>(1 << 24);
    value = positive ? 1.0f + unit : 2.0f * unit - 1.0f;
  }
  traits(leaf.dtype).from_f32(values.data(), bytes.data(), leaf.elements());
  return bytes;
}

}  // namespace shoal::test
