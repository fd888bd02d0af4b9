#include "tests/support/random_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "graph/ops/ops.h"
#include "graph/text.h"
#include "meta/meta.h"
#include "tests/support/random_values.h"

namespace shoal::test {
namespace {

/// An i32 value. Integers are always exact.
struct Integers {
  Tensor* tensor;
  int64_t magnitude;
};

bool divides(int64_t part, int64_t whole) {
  return part == 0 ? whole == 0 : whole % part == 0;
}

class Generator : public RandomImages {
 public:
  using RandomImages::RandomImages;

  RandomCase run() {
    case_.ranks = pick(6) == 0 ? 1 + pick(16) : 1 + pick(5);
    const int target = 5 + pick(36);
    while (values_.empty() || pick(2) == 0) values_.push_back(fresh(random_shape()));
    for (int tries = 0; tries < 20 * target && nodes() < target; ++tries) step();
    while (graph_.nodes().empty()) step();
    mark_outputs();
    case_.graph = to_string(graph_);
    for (Tensor* leaf : weights_.tensors()) lay_out(*leaf);
    if (pick(2) == 0) return std::move(case_);
    for (const Tensor* input : graph_.inputs()) constrain(*input, false);
    for (const Tensor* node : graph_.nodes()) constrain(*node, true);
    return std::move(case_);
  }

 private:
  void lay_out(Tensor& leaf) {
    const int axis = pick(4);
    const int64_t unit = axis == 0 ? traits(leaf.dtype).block_elems : 1;
    const auto wanted = segments_.find(&leaf);
    if (leaf.name.starts_with("experts") && pick(3) == 0) {
      case_.layouts.emplace(leaf.name, whole_experts(rng_, leaf.shape[2], case_.ranks));
    } else if (wanted != segments_.end()) {
      answer_in_segments(leaf, 1, wanted->second);
    } else if (pick(6) == 0) {
      answer_in_segments(leaf, axis, random_segments(rng_, leaf.shape[axis], unit, 1 + pick(3), case_.ranks));
    } else {
      auto layout = random_layout(rng_, leaf, case_.ranks, summable_.count(&leaf) > 0);
      if (!layout.is_mirrored()) case_.layouts.emplace(leaf.name, std::move(layout));
    }
  }

  void constrain(const Tensor& tensor, bool allow_partial) {
    auto constraint = random_constraint(rng_, tensor, case_.ranks, allow_partial);
    if (constraint) case_.constraints.emplace(tensor.name, *std::move(constraint));
  }

  void answer_in_segments(const Tensor& leaf, int axis, std::vector<std::vector<int64_t>> lengths) {
    const auto state = meta::SplitState::split(axis, lengths);
    case_.layouts.emplace(leaf.name, meta::to_layout(state, leaf, case_.ranks));
    case_.segments.emplace(leaf.name, std::move(lengths));
  }

  /// A dtype in which x may be stored. Only exact values may be stored in dtypes of four and five bits. Devices may
  /// round an inexact value to different levels, and the distance between two levels exceeds every tolerance.
  DType storage_for(const Value& x) {
    const DType dtype = random_float(x.tensor->shape[0] % 32 == 0);
    const bool coarse = dtype == DType::kQ4_0 || dtype == DType::kQ5_1 || dtype == DType::kMXFP4;
    return coarse && !x.exact ? DType::kQ8_0 : dtype;
  }

  /// An integer leaf. `kind` and `range` determine its values (random_leaves.h). The leaf is an input, or a weight that
  /// may be split or Partial.
  Tensor* ids(std::string_view kind, int64_t range, Shape shape) {
    const std::string full = name(fmt::format("{}{}", kind, range));
    const bool wide = kind == "slots" && pick(3) == 0;
    if (pick(4) != 0) return graph_.input(full, wide ? DType::kI64 : DType::kI32, shape);
    Tensor* leaf = weights_.add(full, wide ? DType::kI64 : DType::kI32, shape);
    if (!wide) summable_.insert(leaf);
    return leaf;
  }

  /// A second operand for x. Its shape is the shape of x, or has length 1 on some axes.
  Value partner(const Value& x, std::string_view prefix = "x") {
    for (int tries = 0; tries < 4 && prefix == "x"; ++tries) {
      const Value other = any();
      if (same_shape(*other.tensor, *x.tensor)) return other;
    }
    return fresh(broadcast(x.tensor->shape), prefix);
  }

  /// Returns `shape` with length 1 on some random axes.
  Shape broadcast(Shape shape) {
    for (int64_t& length : shape) {
      if (length > 0 && pick(4) == 0) length = 1;
    }
    return shape;
  }

  void step() {
    using Maker = void (Generator::*)();
    static constexpr Maker kMakers[] = {
        &Generator::make_mul_mat,  &Generator::make_mul_mat,  &Generator::make_mul_mat,  &Generator::make_pair_mat,
        &Generator::make_binary,   &Generator::make_binary,   &Generator::make_binary,   &Generator::make_unary,
        &Generator::make_scale,    &Generator::make_glu,      &Generator::make_glu,      &Generator::make_norm,
        &Generator::make_soft_max, &Generator::make_rope,     &Generator::make_reduce,   &Generator::make_discrete,
        &Generator::make_get_rows, &Generator::make_set_rows, &Generator::make_moe,      &Generator::make_attention,
        &Generator::make_cast,     &Generator::make_concat,   &Generator::make_repeat,   &Generator::make_reshape,
        &Generator::make_reshape,  &Generator::make_slice,    &Generator::make_slice,    &Generator::make_permute,
        &Generator::make_permute,  &Generator::make_fused,    &Generator::make_fused,    &Generator::make_cached,
        &Generator::make_norm,     &Generator::make_half,     &Generator::make_integers, &Generator::make_integers,
        &Generator::make_pool,     &Generator::make_pad,      &Generator::make_upsample, &Generator::make_where,
        &Generator::make_cumsum,   &Generator::make_fill,     &Generator::make_conv,     &Generator::make_delta,
        &Generator::make_parts,    &Generator::make_pages,    &Generator::make_image,    &Generator::make_image,
        &Generator::make_reshard};
    (this->*kMakers[pick(static_cast<int>(std::size(kMakers)))])();
  }

  void make_mul_mat() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    const bool blocks = s[0] % 32 == 0;
    const int64_t c = s[2] % 2 == 0 && pick(2) ? s[2] / 2 : (pick(2) ? 1 : s[2]);
    const int64_t d = pick(2) ? 1 : s[3];
    const int64_t m[] = {1, 2, 3, 4, 6, 8, 32, 64};
    Tensor* w = operand("w", random_float(blocks), {s[0], pick(60) == 0 ? 0 : m[pick(8)], c, d});
    const ProductParams params{pick(6) ? DType::kF32 : rounding(pick(2) ? DType::kF16 : DType::kBF16)};
    const double magnitude = x.magnitude * std::max<double>(1, static_cast<double>(s[0]) / 4);
    if (params.dtype == DType::kF16 && magnitude > 1000) return;  // larger sums could overflow
    keep(as_f32(mul_mat(graph_, w, x.tensor, params)), false, magnitude);
  }

  Tensor* as_f32(Tensor* x) { return x->dtype == DType::kF32 ? x : cast(graph_, x, DType::kF32); }

  void make_pair_mat() {
    const Value a = any(), b = any();
    if (a.tensor->shape[0] != b.tensor->shape[0]) return;
    if (!divides(a.tensor->shape[2], b.tensor->shape[2]) || !divides(a.tensor->shape[3], b.tensor->shape[3])) return;
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
    const Value x = any();
    const auto kind = static_cast<UnaryKind>(pick(static_cast<int>(UnaryKind::kCount)));
    Tensor* from = x.tensor;
    double magnitude = x.magnitude;
    switch (kind) {
      case UnaryKind::kSgn:
      case UnaryKind::kStep:
        if (!x.exact) return;  // kSgn and kStep are discontinuous
        break;
      case UnaryKind::kExp:
        from = clamp(graph_, from, {-2.0f, 2.0f});
        magnitude = 8;
        break;
      case UnaryKind::kLog:
      case UnaryKind::kSqrt:  // kLog and kSqrt are steep near 0
        from = scale(graph_, unary(graph_, from, UnaryKind::kAbs), {1.0f, 0.5f});
        magnitude += 1;
        break;
      case UnaryKind::kSqr:
        magnitude *= magnitude;
        break;
      default:
        magnitude = std::max(1.0, magnitude);
    }
    keep(unary(graph_, from, kind), x.exact, magnitude);
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

  /// A product with a fused matrix, whose rows consist of the segments gate | up or q | k | v. In most cases, all
  /// segments have the same partition, so that each rank has the same range of every segment.
  void make_fused() {
    const Value x = any();
    const bool glu = pick(2) == 0;
    const int64_t k = x.tensor->shape[0], part = 2 + pick(7);
    const int parts = glu ? 2 : 3;
    Tensor* w = operand("fused", random_float(k % 32 == 0), {k, part * parts, 1, 1});
    if (pick(4) != 0) {
      auto segments = random_segments(rng_, part, 1, 1, case_.ranks);
      for (int more = 1; more < parts; ++more) {
        segments.push_back(pick(5) == 0 ? random_segments(rng_, part, 1, 1, case_.ranks)[0] : segments[0]);
      }
      segments_.emplace(w, std::move(segments));
    }
    Tensor* h = mul_mat(graph_, w, x.tensor);
    const double magnitude = x.magnitude * std::max<double>(1, static_cast<double>(k) / 4);
    if (glu) {
      const auto kind = static_cast<GluKind>(pick(static_cast<int>(GluKind::kCount)));
      return keep(glu_fused(graph_, h, kind), false, magnitude * magnitude);
    }
    for (int i = pick(3); i < parts; i += 1 + pick(2)) {
      keep(slice(graph_, h, {0, i * part, part}), false, magnitude);
    }
  }

  void make_norm() {
    const Value x = any();
    // The elements of a short row can be almost equal. Normalising such a row would amplify rounding errors.
    if (x.tensor->shape[0] < 4) return;
    const DType dtype = pick(6) ? DType::kF32 : rounding(pick(2) ? DType::kF16 : DType::kBF16);
    Tensor* norm = pick(3) ? rms_norm(graph_, x.tensor, {1e-2f, dtype}) : layer_norm(graph_, x.tensor, {1e-1f, dtype});
    keep(as_f32(norm), x.exact && dtype == DType::kF32, 3);
  }

  void make_soft_max() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (x.magnitude > 8) return;
    Tensor* mask = pick(2) ? fresh({s[0], s[1], pick(2) ? 1 : s[2], 1}, "x", half_or_single()).tensor : nullptr;
    Tensor* sinks = pick(3) == 0 ? fresh({s[2], 1, 1, 1}).tensor : nullptr;
    const bool exact = x.exact && !is_summable(mask) && !is_summable(sinks);
    keep(soft_max(graph_, x.tensor, mask, sinks, {0.5f}), exact, 1);
  }

  bool is_summable(Tensor* tensor) const { return tensor != nullptr && summable_.count(tensor) > 0; }

  void make_rope() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (s[0] % 2 != 0) return;
    RopeParams params;
    params.dims = s[0] % 4 == 0 && pick(2) ? s[0] / 2 : s[0];
    if (params.dims < s[0] && pick(2)) params.offset = pick(static_cast<int>(s[0] - params.dims) + 1);
    params.mode = static_cast<RopeMode>(pick(2));
    if (pick(3) == 0) params.freq_scale = 0.25f;  // linear scaling
    if (pick(3) == 0) {                           // YaRN
      params.freq_scale = 0.25f;
      params.ext_factor = 1.0f;
      params.original_context = 32;
    }
    Tensor* factors = pick(3) == 0 ? fresh({params.dims / 2, 1, 1, 1}, "div").tensor : nullptr;
    keep(rope(graph_, x.tensor, ids("pos", 64, {s[2], 1, 1, 1}), factors, params), x.exact, 1.8 * x.magnitude);
  }

  void make_reduce() {
    const Value x = any();
    keep(sum_rows(graph_, x.tensor), false, x.magnitude * static_cast<double>(x.tensor->shape[0]));
  }

  void make_discrete() {
    const Value x = any();
    if (!x.exact) return;
    const int64_t length = x.tensor->shape[0];
    if (length == 0) return;
    Tensor* found = pick(2) == 0 ? argmax(graph_, x.tensor) : top_k(graph_, x.tensor, 1 + pick(length));
    if (pick(2) && found->shape[2] == 1 && found->shape[3] == 1) {
      // The indices select rows of a table with `length` rows.
      Tensor* table = weights_.add(name("table"), random_float(false), {4 + pick(5), length, 1, 1});
      Tensor* flat = reshape(graph_, found, {found->elements(), 1, 1, 1});
      return keep(get_rows(graph_, table, flat), true, 1);
    }
    if (pick(4) == 0) integers_.push_back({found, length});
    keep(cast(graph_, found, DType::kF32), true, static_cast<double>(length));
  }

  void make_get_rows() {
    if (pick(3) == 0) return make_get_rows_of_computed();
    const int64_t rows = 1 + pick(9), x = pick(2) ? 32 : 1 + pick(6), count = 1 + pick(4);
    const int64_t c = pick(3) == 0 ? 1 + pick(3) : 1, d = pick(4) == 0 ? 2 : 1;
    Tensor* table = weights_.add(name("table"), random_float(x == 32), {x, rows, c, d});
    const bool exact = pick(3) != 0 || traits(table->dtype).is_quantized;
    if (!exact) summable_.insert(table);
    keep(get_rows(graph_, table, ids("ids", rows, {count, c, d, 1})), exact, 1);
  }

  void make_get_rows_of_computed() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (s[1] == 0) return;
    keep(get_rows(graph_, x.tensor, ids("ids", s[1], {1 + pick(5), s[2], s[3], 1})), x.exact, x.magnitude);
  }

  void make_set_rows() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    const int64_t length = s[1] + pick(4);
    Tensor* cache = operand("cache", storage_for(x), {s[0], length, s[2], s[3]}, Role::kCache);
    Tensor* written = write(cache, x.tensor);
    if (written->dtype == DType::kF32) return keep(written, false, x.magnitude + 1);
    keep(cast(graph_, written, DType::kF32), false, x.magnitude + 1);
  }

  /// Writes `rows` into a cache. With a probability of 1/4, also writes other rows into the same cache.
  Tensor* write(Tensor* cache, Tensor* rows) {
    const Shape& s = rows->shape;
    const auto slots = [&] { return ids("slots", cache->shape[1], {s[1], pick(4) ? 1 : s[2], pick(4) ? 1 : s[3], 1}); };
    const auto one = [&](Tensor* to, Tensor* from) {
      const bool in_order = s[1] <= cache->shape[1] && pick(4) == 0;
      return in_order ? set_slice(graph_, to, from, {1, pick(cache->shape[1] - s[1] + 1), {}})
                      : set_rows(graph_, to, from, slots());
    };
    Tensor* written = one(cache, rows);
    if (pick(4) != 0) return written;
    const bool exact = traits(cache->dtype).is_quantized;
    Tensor* more = exact ? graph_.input(name("x"), DType::kF32, rows->shape) : fresh(rows->shape).tensor;
    return one(written, more);
  }

  void make_moe() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (s[3] != 1 || s[2] > 4) return;
    const int64_t named = 2 + pick(4), used = s[1] == 1 ? 1 + pick(2) : s[1];
    const Value scores = used <= named && pick(2) == 0 ? fresh({named, s[2], 1, 1}) : Value{nullptr, false, 0};
    Tensor* chosen = scores.exact ? top_k(graph_, scores.tensor, used) : ids("ids", named, {used, s[2], 1, 1});
    for (int weights = 1 + pick(2); weights > 0; --weights) {
      const int64_t experts = pick(3) == 0 ? 1 + pick(5) : named;
      Tensor* w = operand("experts", random_float(s[0] % 32 == 0), {s[0], 1 + pick(6), experts, 1});
      SelectParams select;
      if (pick(3) == 0) select.ranges = {{pick(named), experts}};
      keep(mul_mat_id(graph_, w, x.tensor, chosen, select), false,
           x.magnitude * std::max<double>(1, static_cast<double>(s[0]) / 4));
    }
  }

  void make_attention() {
    const Value q = any();
    const Shape& s = q.tensor->shape;
    if (q.magnitude > 8) return;
    const int64_t rows = 2 + pick(6), value_size = s[0] % 32 == 0 ? s[0] : 1 + pick(4);
    Tensor* k = operand("k", cache_type(s[0]), {s[0], rows, kv_heads(s[2]), s[3]}, Role::kCache);
    Tensor* v = operand("v", k->dtype, {value_size, rows, k->shape[2], s[3]}, Role::kCache);
    attend(q, k, v);
  }

  int64_t kv_heads(int64_t heads) { return heads % 2 == 0 && pick(2) ? heads / 2 : (pick(3) == 0 ? 1 : heads); }

  DType cache_type(int64_t row) {
    static constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0};
    return rounding(kTypes[pick(row % 32 == 0 ? 4 : 3)]);
  }

  DType half_or_single() { return rounding(pick(3) == 0 ? DType::kF16 : DType::kF32); }

  void attend(const Value& q, Tensor* k, Tensor* v) {
    const Shape& s = q.tensor->shape;
    const int64_t rows = k->shape[1];
    AttentionParams params{0.3f, pick(3) ? 0.0f : 5.0f, pick(2) == 0, 0};
    if (params.causal && pick(3) == 0) params.window = 2;
    Tensor* positions = params.causal ? ids("pos", rows, {s[1], 1, 1, 1}) : nullptr;
    const Shape seen{rows, s[1], pick(2) ? 1 : s[2], pick(2) ? 1 : s[3]};
    Tensor* mask = pick(3) == 0 ? fresh(seen, "x", half_or_single()).tensor : nullptr;
    Tensor* sinks = pick(3) == 0 ? fresh({s[2], 1, 1, 1}).tensor : nullptr;
    keep(attention(graph_, q.tensor, k, v, positions, mask, sinks, params), false, 2);
  }

  /// Attention over a sequence whose KV rows are divided into parts (AttentionParams::parts). Then the results of the
  /// parts are merged. All parts have the same positions, or each part has its own positions.
  void make_parts() {
    const Value q = any();
    const Shape& s = q.tensor->shape;
    if (q.magnitude > 8 || s[3] != 1) return;
    const int64_t rows = 2 + pick(6), parts = 1 + pick(4), size = 1 + pick(5);
    Tensor* k = operand("k", cache_type(s[0]), {s[0], rows, kv_heads(s[2]), parts}, Role::kCache);
    Tensor* v = operand("v", rounding(DType::kF32), {size, rows, k->shape[2], parts}, Role::kCache);
    const bool causal = pick(2) == 0;
    Tensor* positions = causal ? ids("pos", rows, {s[1], pick(2) ? 1 : parts, 1, 1}) : nullptr;
    Tensor* each = attention(graph_, q.tensor, k, v, positions, nullptr, nullptr,
                             {.scale = 0.3f, .causal = causal, .parts = parts});
    Tensor* lse = permute(graph_, slice(graph_, each, {0, size, 1}), {3, 1, 2, 0});
    keep(merge_attention(graph_, each, lse), false, 2);
  }

  /// Attention of several sequences to pages (AttentionParams::page), with or without parts.
  void make_pages() {
    const Value q = any();
    const Shape& s = q.tensor->shape;
    if (q.magnitude > 8) return;
    const int64_t page = 1 + pick(4), pages = 1 + pick(5), width = 1 + pick(4), sequences = 1 + pick(3);
    const int64_t parts = s[3] == 1 ? pick(4) : 0, z = parts > 0 ? parts : s[3], size = 1 + pick(5);
    Tensor* k = operand("k", cache_type(s[0]), {s[0], page * pages, kv_heads(s[2]), z}, Role::kCache);
    Tensor* v = operand("v", rounding(DType::kF32), {size, page * pages, k->shape[2], z}, Role::kCache);
    Tensor* positions = ids("pos", width * page, {s[1], pick(2) ? 1 : z, 1, 1});
    Tensor* table = ids("ids", pages, {width, sequences, 1, 1});
    Tensor* owners = ids("ids", sequences + 1, {s[1], 1, 1, 1});
    Tensor* sinks = pick(3) == 0 ? fresh({s[2], 1, 1, 1}).tensor : nullptr;
    const int64_t window = pick(3) == 0 ? 2 : 0;
    Tensor* each = paged_attention(graph_, q.tensor, k, v, positions, sinks, table, owners,
                                   {.scale = 0.3f, .causal = true, .window = window, .parts = parts, .page = page});
    if (parts == 0) return keep(each, false, 2);
    Tensor* lse = permute(graph_, slice(graph_, each, {0, size, 1}), {3, 1, 2, 0});
    keep(merge_attention(graph_, each, lse), false, 2);
  }

  /// Writes rows into a cache. Then attention reads the cache or a view of the cache.
  void make_cached() {
    const Value q = any();
    const Shape& s = q.tensor->shape;
    if (q.magnitude > 8) return;
    const int64_t heads = kv_heads(s[2]), length = 3 + pick(4);
    const int64_t seen = pick(3) == 0 ? length : 1 + pick(length);
    const bool merged = s[3] == 1 && pick(2) == 0;  // one row contains all heads, as in llama.cpp
    const auto cache = [&](std::string_view prefix, int64_t size, DType dtype) {
      Tensor* rows = fresh({size, 1 + pick(3), heads, s[3]}).tensor;
      if (!merged) {
        Tensor* written = write(operand(prefix, dtype, {size, length, heads, s[3]}, Role::kCache), rows);
        if (seen == length) return written;
        return pick(2) ? slice(graph_, written, {1, 0, seen}) : slice(graph_, written, {1, length - seen, seen});
      }
      rows = contiguous(graph_, permute(graph_, rows, {0, 2, 1, 3}));
      rows = reshape(graph_, rows, {size * heads, rows->shape[2], 1, 1});
      Tensor* written = write(operand(prefix, dtype, {size * heads, length, 1, 1}, Role::kCache), rows);
      Tensor* split = reshape(graph_, slice(graph_, written, {1, 0, seen}), {size, heads, seen, 1});
      return permute(graph_, split, {0, 2, 1, 3});
    };
    const DType dtype = cache_type(s[0]);
    Tensor* k = cache("k", s[0], dtype);
    if (s[0] == 0 || pick(3) > 0) return attend(q, k, cache("v", s[0], dtype));
    const int64_t block = traits(dtype).block_elems;  // each value row is the beginning of a key row
    attend(q, k, slice(graph_, k, {0, 0, block * (1 + pick(static_cast<int>(s[0] / block)))}));
  }

  /// Returns x with contiguous rows, which ops with a state need.
  Tensor* in_rows(Tensor* x) { return x->is_row_contiguous() ? x : contiguous(graph_, x); }

  /// Positions of tokens. Some tokens may start a sequence or be padding.
  Tensor* text_positions(int64_t tokens) { return ids(pick(3) == 0 ? "texts" : "pos", 9, {tokens, 1, 1, 1}); }

  /// The sources for the sequences of `tokens` tokens, or none. The state has `slots` slots.
  StateSlots some_sequences(int64_t tokens, int64_t slots) {
    if (slots == 1) return {};
    const int64_t count = 1 + pick(3);
    return {ids("runs", count, {tokens, 1, 1, 1}), ids("texts", slots * 3 / 2 + 1, {count, 1, 1, 1})};
  }

  void make_conv() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (s[2] != 1 || s[3] != 1) return;
    const int64_t taps = 1 + pick(4), slots = 1 + pick(3);
    Tensor* state = operand("state", DType::kF32, {s[0], (taps - 1) * slots, 1, 1}, Role::kCache);
    Tensor* weight = operand("w", DType::kF32, {taps, s[0], 1, 1});
    keep(causal_conv(graph_, in_rows(x.tensor), weight, state, text_positions(s[1]), {}, some_sequences(s[1], slots)),
         false, static_cast<double>(taps) * std::max(1.0, x.magnitude));
  }

  /// Adds gated_delta. The number of key heads is at most the number of value heads. Keys have a small norm, so that
  /// the state does not grow.
  void make_delta() {
    const Value x = any();
    const Shape& s = x.tensor->shape;
    if (s[0] > 8 || s[2] > 6 || s[3] != 1) return;
    const int64_t heads = s[1], key_heads = kv_heads(heads);
    const Shape keys{s[0], key_heads, s[2], 1}, shares{heads, s[2], 1, 1};
    Tensor* k = scale(graph_, fresh(keys).tensor, {0.3f, 0.0f});
    Tensor* decay = scale(graph_, fresh(shares, "div").tensor, {-0.5f, 0.0f});
    Tensor* beta = unary(graph_, fresh(shares).tensor, UnaryKind::kSigmoid);
    const int64_t slots = 1 + pick(3);
    Tensor* state = operand("state", DType::kF32, {s[0], s[0] * slots, heads, 1}, Role::kCache);
    keep(gated_delta(graph_, fresh(keys).tensor, k, in_rows(x.tensor), decay, beta, state, text_positions(s[2]),
                     {pick(2) == 0}, {}, some_sequences(s[2], slots)),
         false, 2 * static_cast<double>(s[0]) * std::max(1.0, x.magnitude));
  }

  void make_cast() {
    const Value x = any();
    if (pick(2)) return keep(contiguous(graph_, x.tensor), x.exact, x.magnitude);
    const DType dtype = storage_for(x);
    keep(cast(graph_, cast(graph_, x.tensor, dtype), DType::kF32), false, x.magnitude);
  }

  /// Ops on f16 or bf16 values. The other operands of these ops are leaves of the same dtype or of dtype f32.
  void make_half() {
    if (f32_only_) return;
    const Value x = any();
    const DType dtype = rounding(pick(2) ? DType::kF16 : DType::kBF16);
    Tensor* half = pick(3) == 0 ? operand("h", dtype, x.tensor->shape) : cast(graph_, x.tensor, dtype);
    const auto other = [&] { return fresh(x.tensor->shape, "x", pick(2) ? dtype : DType::kF32).tensor; };
    double magnitude = std::max(1.0, x.magnitude);
    for (int more = 1 + pick(3); more > 0; --more) {
      switch (pick(6)) {
        case 0:
          half = add(graph_, half, other());
          magnitude += 1;
          break;
        case 1:
          half = mul(graph_, half, other());
          break;
        case 2:
          half = unary(graph_, half, pick(2) ? UnaryKind::kNeg : UnaryKind::kTanh);
          break;
        case 3:
          half = scale(graph_, half, {-0.5f, 0.0f});
          break;
        case 4:
          half = contiguous(graph_, half);
          break;
        default:
          half = concat(graph_, {half, half}, 1);
          half = slice(graph_, half, {1, half->shape[1] / 4, half->shape[1] / 2});
      }
    }
    if (pick(3) != 0) return keep(cast(graph_, half, DType::kF32), false, magnitude);
    Tensor* w = operand("w", dtype, {half->shape[0], 1 + pick(6), 1, 1});
    keep(mul_mat(graph_, w, half), false, magnitude * std::max(1.0, static_cast<double>(w->shape[0]) / 4));
  }

  Tensor* integer_leaf(Shape shape) {
    const std::string full = name("ints8");
    if (pick(3) == 0) return graph_.input(full, DType::kI32, shape);
    Tensor* leaf = weights_.add(full, DType::kI32, shape);
    summable_.insert(leaf);
    return leaf;
  }

  void make_integers() {
    if (integers_.empty() || pick(4) == 0) integers_.push_back({integer_leaf(random_shape()), 8});
    const Integers x = integers_[pick(static_cast<int>(integers_.size()))];
    Shape s = x.tensor->shape;
    switch (pick(8)) {
      case 0:
        return keep(add(graph_, x.tensor, integer_leaf(broadcast(s))), x.magnitude + 8);
      case 1:
        return keep(sub(graph_, x.tensor, integer_leaf(broadcast(s))), x.magnitude + 8);
      case 2:
        return keep(mul(graph_, x.tensor, integer_leaf(broadcast(s))), x.magnitude * 8);
      case 3:
        return keep(concat(graph_, {x.tensor, integer_leaf(s)}, pick(4)), x.magnitude);
      case 4:
        s[pick(4)] *= 1 + pick(3);
        return keep(repeat(graph_, x.tensor, s), x.magnitude);
      case 5:
        if (s[1] == 0) return;
        return keep(get_rows(graph_, x.tensor, ids("ids", s[1], {1 + pick(4), s[2], s[3], 1})), x.magnitude);
      case 6:
        return keep(contiguous(graph_, permute(graph_, x.tensor, {2, 0, 1, 3})), x.magnitude);
      default:
        keep(cast(graph_, x.tensor, DType::kF32), true, static_cast<double>(x.magnitude));
    }
  }

  using RandomImages::keep;
  void keep(Tensor* tensor, int64_t magnitude) {
    if (tensor->elements() <= 4096 && magnitude < 1 << 20) integers_.push_back({tensor, magnitude});
  }

  void make_fill() {
    FillParams params{DType::kF32, any().tensor->shape, 0.5f * static_cast<float>(pick(5) - 2)};
    if (pick(3) != 0) return keep(fill(graph_, params), true, 1);
    params.dtype = DType::kI32;
    keep(fill(graph_, params), 8);
  }

  void make_cumsum() {
    if (!integers_.empty() && pick(3) == 0) {
      const Integers x = integers_[pick(static_cast<int>(integers_.size()))];
      return keep(cumsum(graph_, x.tensor), x.magnitude * std::max<int64_t>(1, x.tensor->shape[0]));
    }
    const Value x = any();
    keep(cumsum(graph_, x.tensor), x.exact,
         x.magnitude * static_cast<double>(std::max<int64_t>(1, x.tensor->shape[0])));
  }

  /// Adds where. The condition is a leaf or compares exact values.
  void make_where() {
    const Value x = any(), y = partner(x), limit = partner(x);
    const auto kind = static_cast<CompareKind>(pick(static_cast<int>(CompareKind::kCount)));
    Tensor* condition = nullptr;
    if (x.exact && limit.exact && pick(3) != 0) {
      condition = compare(graph_, x.tensor, limit.tensor, kind);
      if (pick(3) == 0) integers_.push_back({condition, 1});
    } else {
      condition = ids("ids", 2, broadcast(x.tensor->shape));
      if (pick(3) == 0) condition = compare(graph_, condition, integer_leaf({1, 1, 1, 1}), kind);
    }
    keep(where(graph_, condition, x.tensor, y.tensor), x.exact && y.exact, std::max(x.magnitude, y.magnitude));
  }

  void make_concat() {
    const Value x = any();
    const int axis = pick(4);
    std::vector<Tensor*> sources{x.tensor};
    bool exact = x.exact;
    for (int more = 1 + pick(2); more > 0; --more) {
      Shape shape = x.tensor->shape;
      shape[axis] = pick(8) == 0 ? 0 : 1 + pick(4);
      const Value y = pick(3) == 0 ? x : fresh(shape);
      exact &= y.exact;
      sources.push_back(y.tensor);
    }
    keep(concat(graph_, sources, axis), exact, x.magnitude + 1);
  }

  void make_repeat() {
    const Value x = any();
    Shape shape = x.tensor->shape;
    shape[pick(4)] *= pick(30) == 0 ? 0 : 1 + pick(3);
    keep(repeat(graph_, x.tensor, shape), x.exact, x.magnitude);
  }

  void make_reshape() {
    const Value x = any();
    Shape shape{1, 1, 1, 1};
    if (pick(2)) {  // merges two adjacent axes
      const int axis = pick(3);
      int to = 0;
      for (int from = 0; from < 4; ++from) {
        shape[std::min(to, 3)] *= x.tensor->shape[from];
        if (from != axis) ++to;
      }
    } else {
      int64_t rest = x.tensor->elements();
      if (rest == 0) shape[pick(4)] = 0;
      for (int64_t p = 2; p <= rest; ++p) {
        for (; rest % p == 0; rest /= p) shape[pick(4)] *= p;
      }
    }
    keep(reshape(graph_, dense(x.tensor), shape), x.exact, x.magnitude);
  }

  void make_slice() {
    const Value x = any();
    const int axis = pick(4);
    const int64_t length = x.tensor->shape[axis];
    const int64_t begin = length == 0 ? 0 : pick(length);
    const int64_t step = pick(3) ? 1 : 1 + pick(3);
    const int64_t part = begin == length || pick(30) == 0 ? 0 : 1 + pick((length - begin - 1) / step + 1);
    keep(slice(graph_, x.tensor, {axis, begin, part, step}), x.exact, x.magnitude);
  }

  void make_permute() {
    const Value x = any();
    std::array<int, 4> axes{0, 1, 2, 3};
    std::shuffle(axes.begin(), axes.end(), rng_);
    Tensor* moved = permute(graph_, x.tensor, axes);
    keep(axes[0] != 0 || pick(2) ? contiguous(graph_, moved) : moved, x.exact, x.magnitude);
  }

  void make_reshard() {
    const Value x = any();
    keep(reshard(graph_, x.tensor, random_reshard(rng_, *x.tensor, case_.ranks)), x.exact, x.magnitude);
  }

  void mark_outputs() {
    std::vector<Tensor*> used;
    for (Tensor* node : graph_.nodes()) used.insert(used.end(), node->src.begin(), node->src.end());
    for (Tensor* node : graph_.nodes()) {
      const bool last = std::find(used.begin(), used.end(), node) == used.end();
      if (last || pick(5) == 0) graph_.output(node);
    }
  }

  std::vector<Integers> integers_;
  std::map<Tensor*, std::vector<std::vector<int64_t>>> segments_;  ///< segments of axis 1 that the split-state callback
                                                                   ///< returns
};

}  // namespace

RandomCase random_case(uint64_t seed) {
  return Generator(seed).run();
}

}  // namespace shoal::test
