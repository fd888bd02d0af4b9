#include "tests/support/integer_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "graph/text.h"

namespace shoal::test {
namespace {

constexpr int kMostRanks = 4;
/// Largest absolute value of a leaf, or of an addend of a Partial leaf.
constexpr int64_t kLeafBound = 4 + 3 * (kMostRanks - 1);
/// Largest absolute value of cache rows. A bf16 cache rounds some whole numbers above 256, and an f16 cache some whole
/// numbers above 2048. The rounded values are also whole numbers.
constexpr int64_t kCacheBound = 4096;
constexpr int64_t kExperts = 5;
/// Largest absolute value that a node may cast to f16 or bf16, or multiply by an f16 or bf16 weight.
constexpr int64_t kHalfBound = 128;
/// Larger values are clamped before other ops use them. f32 sums of whole numbers are exact up to 2^24.
constexpr int64_t kBound = 1 << 22;

struct Value {
  Tensor* tensor;
  int64_t bound;  ///< largest absolute value of the tensor's elements and of their addends
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : rng_(seed * 0x9E3779B97F4A7C15ULL + 1), graph_("whole") {
    case_.seed = seed;
    case_.tolerance = 0;
    case_.whole = true;
  }

  RandomCase run() {
    case_.ranks = 1 + pick(kMostRanks);
    width_ = std::array{2, 4, 6, 8}[static_cast<size_t>(pick(4))];
    tokens_ = 1 + pick(3);
    for (int i = 2 + pick(3); i > 0; --i) floats_.push_back(leaf(random_shape()));
    const size_t target = static_cast<size_t>(3 + pick(18));
    for (int tries = 0; tries < 400 && graph_.nodes().size() < target; ++tries) try_step();
    mark_outputs();
    case_.graph = to_string(graph_);
    for (Tensor* weight : weights_.tensors()) {
      auto layout = layout_for(*weight);
      if (!layout.is_mirrored()) case_.layouts.emplace(weight->name, std::move(layout));
    }
    if (pick(2) == 0) return std::move(case_);
    for (const Tensor* input : graph_.inputs()) constrain(*input);
    for (const Tensor* node : graph_.nodes()) constrain(*node);
    return std::move(case_);
  }

 private:
  using Maker = void (Generator::*)();

  void constrain(const Tensor& tensor) {
    auto constraint = random_constraint(rng_, tensor, case_.ranks, true);
    if (constraint) case_.constraints.emplace(tensor.name, *std::move(constraint));
  }

  meta::Layout layout_for(const Tensor& weight) {
    if (weight.name.starts_with("experts") && pick(2) == 0) {
      return whole_experts(rng_, weight.shape[2], case_.ranks);
    }
    const auto draw = [&] { return random_layout(rng_, weight, case_.ranks, weight.dtype != DType::kI64); };
    auto layout = draw();
    const bool cut = weight.name.starts_with("down");  // a split of axis 0 gives partial sums
    for (int tries = 0; cut && tries < 20 && !(layout.is_split() && layout.axis == 0); ++tries) layout = draw();
    return layout;
  }

  /// Tries to add a random op. Adds no op if an operand is unsuitable, or if an operand is a view of a cache that a
  /// later node has written.
  void try_step() {
    static constexpr Maker kMakers[] = {
        &Generator::make_product,  &Generator::make_product,  &Generator::make_product,  &Generator::make_pair,
        &Generator::make_sum,      &Generator::make_sum,      &Generator::make_sum,      &Generator::make_sum,
        &Generator::make_unary,    &Generator::make_scale,    &Generator::make_glu,      &Generator::make_sum_rows,
        &Generator::make_order,    &Generator::make_order,    &Generator::make_get_rows, &Generator::make_set_rows,
        &Generator::make_set_rows, &Generator::make_set_rows, &Generator::make_read,     &Generator::make_experts,
        &Generator::make_experts,  &Generator::make_concat,   &Generator::make_repeat,   &Generator::make_fill,
        &Generator::make_cast,     &Generator::make_reshape,  &Generator::make_slice,    &Generator::make_slice,
        &Generator::make_permute,  &Generator::make_permute,  &Generator::make_permute,  &Generator::make_integers,
        &Generator::make_reshard,
    };
    try {
      (this->*kMakers[static_cast<size_t>(pick(std::size(kMakers)))])();
    } catch (const InvalidArgument&) {
    }
  }

  int64_t pick(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }
  std::string name(std::string_view prefix) { return fmt::format("{}.{}", prefix, counter_++); }

  /// A random shape from a short list, so that many values have equal shapes.
  Shape random_shape() {
    const Shape shapes[] = {
        {width_, tokens_, 1, 1}, {width_, tokens_, 1, 1}, {width_, 1, tokens_, 1},     {width_, 1, 1, 1},
        {1, tokens_, 1, 1},      {1, width_, tokens_, 1}, {2, width_ / 2, tokens_, 1}, {1, 1, 1, 1},
        {tokens_, 1, width_, 2}};
    return shapes[pick(std::size(shapes))];
  }

  Value leaf(Shape shape) {
    if (pick(2) == 0) return {graph_.input(name("x"), DType::kF32, shape), kLeafBound};
    return {weights_.add(name("w"), DType::kF32, shape), kLeafBound};
  }
  DType float_type() {
    static constexpr DType kTypes[] = {DType::kF32, DType::kF32, DType::kF32, DType::kF16, DType::kBF16};
    return kTypes[pick(5)];
  }

  /// An integer leaf. `kind` and `range` determine its values (random_leaves.h). The leaf is an input, or a weight that
  /// may be split or Partial.
  Tensor* ids(std::string_view kind, int64_t range, Shape shape) {
    const std::string full = name(fmt::format("{}{}", kind, range));
    const DType dtype = kind == "slots" && pick(3) == 0 ? DType::kI64 : DType::kI32;
    return pick(4) != 0 ? graph_.input(full, dtype, shape) : weights_.add(full, dtype, shape);
  }

  /// A random value of the graph. On average, older values have more users than newer values.
  Value any() { return floats_[static_cast<size_t>(pick(static_cast<int64_t>(floats_.size())))]; }

  void keep(Tensor* tensor, int64_t bound) {
    if (tensor->elements() > 1024 || tensor->empty()) return;
    floats_.push_back({tensor, bound});
  }

  Value within(Value x, int64_t bound) {
    if (x.bound <= bound) return x;
    return {clamp(graph_, x.tensor, {-4.0f, 4.0f}), 4};
  }

  Tensor* dense(Tensor* x) { return x->is_contiguous() ? x : contiguous(graph_, x); }

  /// A second operand for x. Its shape is the shape of x, or has length 1 on some axes. Returns an existing value if
  /// one fits, otherwise a new leaf.
  Value partner(const Value& x) {
    for (int tries = 0; tries < 6; ++tries) {
      const Value other = any();
      bool fits = other.tensor != x.tensor;
      for (int axis = 0; axis < kMaxDims; ++axis) {
        const int64_t length = other.tensor->shape[axis];
        fits &= length == 1 || length == x.tensor->shape[axis];
      }
      if (fits) return other;
    }
    Shape shape = x.tensor->shape;
    for (int64_t& length : shape) length = pick(5) == 0 ? 1 : length;
    floats_.push_back(leaf(shape));
    return floats_.back();
  }

  /// Adds an input to a partial sum of the same shape, as a residual connection does. Only one rank may add the input
  /// to its addend. Other nodes may use the input on all ranks.
  void make_residual() {
    const Value y = any(), x = within(y, kBound / (kLeafBound * y.tensor->shape[0]));
    const Shape& s = x.tensor->shape;
    if (s[0] < 2) return;
    Tensor* product = mul_mat(graph_, weights_.add(name("down"), DType::kF32, {s[0], width_, 1, 1}), x.tensor);
    const auto fits = [&](const Value& value) {
      return value.tensor->role == Role::kInput && same_shape(*value.tensor, *product);
    };
    auto input = std::find_if(floats_.begin(), floats_.end(), fits);
    if (input == floats_.end()) {
      floats_.push_back({graph_.input(name("x"), DType::kF32, product->shape), kLeafBound});
      input = floats_.end() - 1;
    }
    Tensor* sum = add(graph_, product, input->tensor);
    if (pick(2) == 0) graph_.output(sum);
    keep(sum, kLeafBound * x.bound * s[0] + kLeafBound);
  }

  void make_product() {
    Value x = any();
    const Shape& s = x.tensor->shape;
    const int64_t rows[] = {width_, width_, width_, 1, 3};
    x = within(x, kBound / (kLeafBound * s[0]));
    // The weights are f32, because CPU kernels round the operands of other weights to 8 or 14 bits.
    Tensor* w = weights_.add(name("w"), DType::kF32, {s[0], rows[pick(5)], pick(3) ? 1 : s[2], 1});
    keep(mul_mat(graph_, w, x.tensor), kLeafBound * x.bound * s[0]);
  }

  void make_pair() {
    const Value a = within(any(), 1024), b = any();
    const Value c = within(b, kBound / (a.bound * a.tensor->shape[0]));
    keep(mul_mat(graph_, a.tensor, c.tensor), a.bound * c.bound * a.tensor->shape[0]);
  }

  void make_sum() {
    const Value x = within(any(), kBound / 2), y = within(partner(x), kBound / 2);
    const int64_t kind = pick(4);
    if (kind < 2) return keep(add(graph_, x.tensor, y.tensor), x.bound + y.bound);
    if (kind == 2) return keep(sub(graph_, x.tensor, y.tensor), x.bound + y.bound);
    const Value z = within(y, kBound / x.bound);
    keep(mul(graph_, x.tensor, z.tensor), x.bound * z.bound);
  }

  void make_unary() {
    static constexpr UnaryKind kKinds[] = {UnaryKind::kAbs,  UnaryKind::kNeg,  UnaryKind::kSgn,
                                           UnaryKind::kStep, UnaryKind::kRelu, UnaryKind::kSqr};
    const UnaryKind kind = kKinds[pick(6)];
    const Value x = kind == UnaryKind::kSqr ? within(any(), 1024) : any();
    keep(unary(graph_, x.tensor, kind), kind == UnaryKind::kSqr ? x.bound * x.bound : x.bound);
  }

  void make_scale() {
    const Value x = within(any(), kBound / 4);
    if (pick(3) == 0) return keep(clamp(graph_, x.tensor, {-2.0f, 3.0f}), 3);
    keep(scale(graph_, x.tensor, {static_cast<float>(pick(6) - 3), static_cast<float>(pick(3))}), 3 * x.bound + 2);
  }

  void make_glu() {
    const Value x = within(any(), 1024);
    if (x.tensor->shape[0] % 2 == 0) return keep(glu_fused(graph_, x.tensor, GluKind::kReglu), x.bound * x.bound);
    const Value y = within(partner(x), 1024);
    keep(glu(graph_, x.tensor, y.tensor, GluKind::kReglu), x.bound * y.bound);
  }

  void make_sum_rows() {
    const Value x = within(any(), kBound / 64);
    if (x.tensor->shape[0] <= 64) keep(sum_rows(graph_, x.tensor), x.bound * x.tensor->shape[0]);
  }

  void make_order() {
    const Value x = any();
    const int64_t length = x.tensor->shape[0];
    Tensor* found = pick(2) == 0 ? argmax(graph_, x.tensor) : top_k(graph_, x.tensor, 1 + pick(length));
    integers_.push_back({found, length});
    if (pick(2) != 0 || found->shape[2] != 1 || found->shape[3] != 1) return;
    Tensor* table = weights_.add(name("table"), float_type(), {width_, length, 1, 1});
    keep(get_rows(graph_, table, reshape(graph_, found, {found->elements(), 1, 1, 1})), kLeafBound);
  }

  void make_get_rows() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (pick(2) == 0) {
      return keep(get_rows(graph_, x.tensor, ids("ids", s[1], {1 + pick(3), s[2], s[3], 1})), x.bound);
    }
    Tensor* table = weights_.add(name("table"), float_type(), {width_, 5, 1, 1});
    keep(get_rows(graph_, table, ids("ids", 5, {tokens_, 1, 1, 1})), kLeafBound);
  }

  /// Writes rows into a new cache, or into an existing cache that earlier nodes may have read and written.
  void make_set_rows() {
    const Value x = within(any(), pick(2) == 0 ? kCacheBound : kLeafBound);
    const Shape& s = x.tensor->shape;
    Tensor** cache = nullptr;
    for (Tensor*& old : caches_) {
      const Shape& o = old->shape;
      if (o[0] == s[0] && o[1] >= s[1] && o[2] == s[2] && o[3] == s[3] && pick(2) == 0) cache = &old;
    }
    if (cache == nullptr) {
      const Shape shape{s[0], s[1] + pick(4), s[2], s[3]};
      caches_.push_back(weights_.add(name("cache"), float_type(), shape, Role::kCache));
      cache = &caches_.back();
      if (pick(4) == 0) read(*cache);  // reads rows that earlier runs have written
    }
    if (pick(3) == 0) {
      *cache = set_slice(graph_, *cache, x.tensor, {1, pick((*cache)->shape[1] - s[1] + 1), {}});
    } else {
      const Shape each{s[1], pick(4) ? 1 : s[2], pick(4) ? 1 : s[3], 1};
      *cache = set_rows(graph_, *cache, x.tensor, ids("slots", (*cache)->shape[1], each));
    }
    if (pick(3) != 0) read(*cache);
  }

  void make_read() {
    if (!caches_.empty()) read(caches_[static_cast<size_t>(pick(static_cast<int64_t>(caches_.size())))]);
  }

  void read(Tensor* cache) {
    const int64_t length = cache->shape[1];
    if (length > 1 && pick(2) == 0) {
      const int64_t begin = pick(length);
      cache = slice(graph_, cache, {1, begin, 1 + pick(length - begin)});
    }
    keep(cache->dtype == DType::kF32 ? cache : cast(graph_, cache, DType::kF32), kCacheBound);
  }

  /// Products with experts. The ids of the experts are a leaf or come from a router. There are one or two weights,
  /// whose numbers of experts can differ. A weight contains all experts or only some ranges of experts. The ids of a
  /// router may also select rows of a table, as models select the router's weights. If the ids select table rows, each
  /// rank has the ids and can free the memory of the ids before the products.
  void make_experts() {
    Value x = within(any(), kHalfBound / 2);
    const Shape& s = x.tensor->shape;
    if (s[3] != 1) return;
    const int64_t used = s[1] == 1 ? 1 + pick(2) : s[1];
    const bool computed = pick(2) == 0 && used <= kExperts;
    Tensor* chosen = computed ? routed(x, used) : ids("ids", kExperts, {used, s[2], 1, 1});
    if (computed && pick(2) == 0) {
      Tensor* table = weights_.add(name("table"), DType::kF32, {width_, kExperts, s[2], 1});
      keep(get_rows(graph_, table, chosen), kLeafBound);
    }
    if (pick(2) == 0) x = {scale(graph_, x.tensor, {2.0f, 0.0f}), 2 * x.bound};  // a value that only the experts use
    for (int64_t weights = 1 + pick(2); weights > 0; --weights) {
      const int64_t experts = pick(2) == 0 ? 3 : 1 + pick(kExperts);
      Tensor* w = weights_.add(name("experts"), DType::kF32, {s[0], width_, experts, 1});
      keep(mul_mat_id(graph_, w, x.tensor, chosen, pick(3) == 0 ? ranges(experts) : SelectParams()),
           kLeafBound * x.bound * s[0]);
    }
  }

  /// Ids of the best experts of each token. The scores are a product with `x`, or a separate leaf.
  Tensor* routed(const Value& x, int64_t used) {
    const Shape& s = x.tensor->shape;
    if (s[1] != 1 || pick(3) == 0) return top_k(graph_, leaf({kExperts, s[2], 1, 1}).tensor, used);
    Tensor* router = weights_.add(name("router"), DType::kF32, {s[0], kExperts, 1, 1});
    return top_k(graph_, mul_mat(graph_, router, reshape(graph_, dense(x.tensor), {s[0], s[2], 1, 1})), used);
  }

  /// One or two ranges with a total of `count` global indices. Some of these indices can be larger than every id.
  SelectParams ranges(int64_t count) {
    const int64_t first = pick(kExperts), some = 1 + pick(count);
    SelectParams select{{{first, some}}};
    if (some < count) select.ranges.push_back({first + some + pick(2), count - some});
    if (pick(2) == 0) std::reverse(select.ranges.begin(), select.ranges.end());
    return select;
  }

  void make_concat() {
    const Value x = any(), y = partner(x);
    keep(concat(graph_, {x.tensor, y.tensor}, static_cast<int>(pick(4))), std::max(x.bound, y.bound));
  }

  void make_repeat() {
    const Value x = any();
    Shape shape = x.tensor->shape;
    shape[pick(4)] *= 1 + pick(3);
    keep(repeat(graph_, x.tensor, shape), x.bound);
  }

  void make_fill() { keep(fill(graph_, {DType::kF32, any().tensor->shape, static_cast<float>(pick(5) - 2)}), 2); }

  void make_cast() {
    const Value x = within(any(), kHalfBound);
    static constexpr DType kTypes[] = {DType::kF16, DType::kBF16, DType::kI32};
    Tensor* stored = cast(graph_, x.tensor, kTypes[pick(3)]);
    if (stored->dtype == DType::kI32) return integers_.push_back({stored, x.bound});
    keep(cast(graph_, stored, DType::kF32), x.bound);
  }

  void make_reshape() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    const int64_t all = x.tensor->elements();
    const Shape shapes[] = {{all, 1, 1, 1},
                            {1, all, 1, 1},
                            {s[0] * s[1], s[2], s[3], 1},
                            {s[0], s[1] * s[2], 1, s[3]},
                            {1, s[0], s[1], s[2] * s[3]},
                            {2, all / 2, 1, 1}};
    keep(reshape(graph_, dense(x.tensor), shapes[pick(std::size(shapes))]), x.bound);
  }

  void make_slice() {
    const Value x = any();
    const int axis = static_cast<int>(pick(4));
    const int64_t length = x.tensor->shape[axis], begin = pick(length), step = pick(3) ? 1 : 1 + pick(3);
    keep(slice(graph_, x.tensor, {axis, begin, 1 + pick((length - begin - 1) / step + 1), step}), x.bound);
  }

  void make_permute() {
    const Value x = any();
    std::array<int, 4> axes{0, 1, 2, 3};
    std::shuffle(axes.begin(), axes.end(), rng_);
    Tensor* moved = permute(graph_, x.tensor, axes);
    keep(pick(3) == 0 ? contiguous(graph_, moved) : moved, x.bound);
  }

  void make_reshard() {
    const Value x = any();
    keep(reshard(graph_, x.tensor, random_reshard(rng_, *x.tensor, case_.ranks)), x.bound);
  }

  void make_integers() {
    if (integers_.empty() || pick(4) == 0) integers_.push_back({ids("ints", 4, random_shape()), kLeafBound});
    const Value x = integers_[static_cast<size_t>(pick(static_cast<int64_t>(integers_.size())))];
    if (pick(2) == 0) return keep(cast(graph_, x.tensor, DType::kF32), x.bound);
    Tensor* other = ids("ints", 4, x.tensor->shape);
    const int64_t kind = pick(x.bound < 1 << 16 ? 3 : 2);
    Tensor* made = kind == 0   ? add(graph_, x.tensor, other)
                   : kind == 1 ? sub(graph_, x.tensor, other)
                               : mul(graph_, x.tensor, other);
    integers_.push_back({made, kind == 2 ? x.bound * kLeafBound : x.bound + kLeafBound});
  }

  /// Marks random nodes as outputs. A view of a cache is not marked if a later node writes the cache, because the view
  /// may then contain the values after the write.
  void mark_outputs() {
    std::set<const Tensor*> used, written;
    for (Tensor* node : graph_.nodes()) used.insert(node->src.begin(), node->src.end());
    const auto nodes = graph_.nodes();
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      const bool stale = written.contains((*node)->storage());
      if (!stale && (!used.contains(*node) || pick(6) == 0)) graph_.output(*node);
      if (info((*node)->op).alias == Alias::kWrites) written.insert((*node)->storage());
    }
  }

  std::mt19937_64 rng_;
  RandomCase case_;
  int64_t width_ = 4, tokens_ = 1;
  TensorContext weights_;
  Graph graph_;
  std::vector<Value> floats_, integers_;
  std::vector<Tensor*> caches_;  ///< result of the last write to each cache
  int counter_ = 0;
};

}  // namespace

RandomCase integer_case(uint64_t seed) {
  return Generator(seed).run();
}

}  // namespace shoal::test
