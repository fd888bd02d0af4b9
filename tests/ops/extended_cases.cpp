// Cases of the conformance suite for ids and masks per head and batch, set_slice, results of f16 and bf16, and slices
// with a step.
#include <set>

#include "tests/ops/case_helpers.h"

namespace shoal::test {
namespace {

void add_own_ids(Cases& cases) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    for (const auto& [heads, batches] : {std::pair{3, 2}, std::pair{3, 1}, std::pair{1, 2}}) {
      add_case(cases, Op::kSetRows, fmt::format("{} ids [5, {}, {}]", name_of(dtype), heads, batches),
               [=, h = heads, z = batches](Graph& g, TensorContext& w) {
                 return set_rows(g, w.add("cache", dtype, {96, 8, 3, 2}, Role::kCache),
                                 plain(g, DType::kF32, {96, 5, 3, 2}), plain(g, DType::kI32, {5, h, z, 1}, "ids"));
               });
    }
  }
  add_case(cases, Op::kSetRows, "ids per head in ranges", [](Graph& g, TensorContext& w) {
    return set_rows(g, w.add("cache", DType::kF32, {7, 5, 3, 1}, Role::kCache), plain(g, DType::kF32, {7, 6, 3, 1}),
                    plain(g, DType::kI64, {6, 3, 1, 1}, "ids"), {{{7, 3}, {1, 2}}});
  });
}

void add_set_slice(Cases& cases) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kI32 || dtype == DType::kI64 || !traits(dtype).from_f32) continue;
    const bool encodes_fast = traits(dtype).block_elems <= 32;
    for (int axis = 0; axis < (encodes_fast ? kMaxDims : 1); ++axis) {
      add_case(cases, Op::kSetSlice, fmt::format("{} axis {}", name_of(dtype), axis), [=](Graph& g, TensorContext& w) {
        Shape shape{256, 17, 2, 2}, whole = shape;
        const int64_t begin = axis == 0 ? 256 : 1;
        whole[axis] += 2 * begin;
        return set_slice(g, w.add("cache", dtype, whole, Role::kCache), plain(g, DType::kF32, shape),
                         {axis, begin, {}});
      });
    }
    add_case(cases, Op::kSetSlice, fmt::format("{} strided ranges", name_of(dtype)), [=](Graph& g, TensorContext& w) {
      Tensor* x = permute(g, plain(g, DType::kF32, {256, 2, 6, 2}), {0, 2, 1, 3});
      return set_slice(g, w.add("cache", dtype, {256, 5, 2, 2}, Role::kCache), x, {1, 2, {{7, 3}, {1, 2}}});
    });
  }
  add_case(cases, Op::kSetSlice, "many rows", [](Graph& g, TensorContext& w) {
    return set_slice(g, w.add("cache", DType::kF16, {256, 80, 1, 1}, Role::kCache),
                     plain(g, DType::kF32, {256, 70, 1, 1}), {1, 3, {}});
  });
  add_case(cases, Op::kSetSlice, "elements in ranges", [](Graph& g, TensorContext& w) {
    return set_slice(g, w.add("cache", DType::kF32, {9, 5, 2, 2}, Role::kCache),
                     transpose(g, plain(g, DType::kF32, {5, 7, 2, 2})), {0, 3, {{2, 4}, {8, 5}}});
  });
  add_case(cases, Op::kSetSlice, "no range", [](Graph& g, TensorContext& w) {
    return set_slice(g, w.add("cache", DType::kF32, {9, 5, 1, 1}, Role::kCache), plain(g, DType::kF32, {9, 3, 1, 1}),
                     {1, 3, {{100, 5}}});
  });
  add_case(cases, Op::kSetSlice, "nothing", [](Graph& g, TensorContext& w) {
    return set_slice(g, w.add("cache", DType::kF16, {9, 5, 1, 1}, Role::kCache), plain(g, DType::kF32, {9, 0, 1, 1}),
                     {1, 5, {}});
  });
}

struct Product {
  const char* name;
  Shape a, b;
};
constexpr Product kProducts[] = {
    {"vector", {256, 33, 1, 1}, {256, 1, 1, 1}},    {"few columns", {512, 7, 1, 1}, {512, 5, 1, 1}},
    {"matrix", {768, 65, 1, 1}, {768, 70, 1, 1}},   {"grouped batches", {256, 5, 2, 1}, {256, 3, 6, 2}},
    {"nothing to sum", {0, 4, 1, 1}, {0, 3, 1, 1}}, {"no columns", {256, 4, 1, 1}, {256, 0, 1, 1}},
};

/// Products with results of f16 and bf16.
void add_narrow_products(Cases& cases) {
  for (const DType result : {DType::kF16, DType::kBF16}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ6_K}) {
      const Tolerance tolerance{(traits(dtype).is_quantized ? 1e-4 : 1e-6) + tolerance_of(result).nmse};
      for (const Product& product : kProducts) {
        add_case(
            cases, Op::kMulMat, fmt::format("{} {} to {}", name_of(dtype), product.name, name_of(result)),
            [=](Graph& g, TensorContext& w) {
              return mul_mat(g, w.add("a", dtype, product.a), plain(g, DType::kF32, product.b, "b"), {result});
            },
            tolerance);
      }
    }
    add_case(
        cases, Op::kMulMat, fmt::format("permuted views to {}", name_of(result)),
        [=](Graph& g, TensorContext&) {
          Tensor* a = permute(g, plain(g, DType::kF16, {64, 4, 10, 1}, "a"), {0, 2, 1, 3});
          Tensor* b = permute(g, plain(g, result, {64, 8, 6, 1}, "b"), {0, 2, 1, 3});
          return mul_mat(g, a, b, {result});
        },
        Tolerance{1e-6 + tolerance_of(result).nmse});
  }
}

/// Norms with results of f16 and bf16.
void add_narrow_norms(Cases& cases) {
  for (const DType result : {DType::kF16, DType::kBF16}) {
    for (const Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
      for (const DType dtype : kFloats) {
        for (const Shape& shape : {Shape{7, 3, 2, 2}, Shape{1031, 2, 1, 1}, Shape{64, 33, 3, 1}, Shape{5, 0, 2, 1}}) {
          add_case(
              cases, op, fmt::format("{} {} to {}", name_of(dtype), to_string(shape), name_of(result)),
              [=](Graph& g, TensorContext&) {
                return g.add_node(op, NormParams{1e-5f, result}, {plain(g, dtype, shape)});
              },
              tolerance_of(result));
        }
      }
    }
  }
}

struct AttentionSizes {
  const char* name;
  int64_t d, e, t, s, h, kv, z;
  bool latent = false;  ///< whether each value row is the beginning of its key row
};
constexpr AttentionSizes kAttentionSizes[] = {
    {"one query", 64, 64, 1, 100, 8, 2, 2},
    {"prompt", 32, 32, 37, 37, 4, 4, 2},
    {"long", 16, 16, 2, 1300, 2, 1, 1},
    {"odd", 7, 5, 3, 9, 6, 3, 2},
    {"small latent", 96, 64, 3, 70, 70, 1, 2, true},
};

/// Attention with masks of their own for heads and batches.
void add_own_masks(Cases& cases) {
  for (const AttentionSizes& n : kAttentionSizes) {
    const std::set<std::pair<int64_t, int64_t>> pairs{{n.h, n.z}, {n.h, 1}, {1, n.z}};  // heads, batches
    for (const auto& [heads, batches] : pairs) {
      for (const DType dtype : {DType::kF32, DType::kF16}) {
        add_case(
            cases, Op::kAttention,
            fmt::format("{} {} mask [{}, {}] of {}", name_of(dtype), n.name, heads, batches, n.z),
            [=, h = heads, z = batches](Graph& g, TensorContext& w) {
              Tensor* q = plain(g, DType::kF32, {n.d, n.t, n.h, n.z}, "q");
              Tensor* k = w.add("k", dtype, {n.d, n.s, n.kv, n.z}, Role::kCache);
              Tensor* v = n.latent ? slice(g, k, {0, 0, n.e}) : w.add("v", dtype, {n.e, n.s, n.kv, n.z}, Role::kCache);
              Tensor* mask = plain(g, dtype, {n.s, n.t, h, z}, "mask");
              Tensor* positions = h == 1 ? plain(g, DType::kI32, {n.t, 1, 1, 1}, "pos") : nullptr;
              return attention(g, q, k, v, positions, mask, nullptr, {.scale = 0.3f, .causal = h == 1});
            },
            {1e-10});
      }
    }
  }
}

struct PagedSizes {
  const char* name;
  int64_t d, e, t, h, kv;
  int64_t page, pages, width, sequences;
  AttentionParams params;
  bool latent = false;  ///< whether each value row is the beginning of its key row
};
constexpr PagedSizes kPagedSizes[] = {
    {"one query", 64, 64, 1, 8, 2, 16, 9, 7, 1, {.causal = true}},
    {"one token each", 32, 32, 12, 4, 2, 32, 11, 5, 13, {.causal = true}},
    {"prompts", 32, 64, 150, 4, 4, 64, 5, 3, 5, {.causal = true, .window = 70}},
    {"long", 16, 16, 3, 2, 1, 128, 12, 11, 2, {.softcap = 2, .causal = true}},
    {"small pages", 7, 5, 20, 6, 3, 3, 40, 30, 3, {.causal = true, .window = 20}},
    {"one row per page", 8, 8, 9, 4, 2, 1, 90, 80, 2, {.causal = true}},
    {"open", 32, 32, 40, 6, 2, 20, 6, 4, 3, {.softcap = 1.5f, .window = 9}},
    {"latent", 96, 64, 70, 21, 1, 32, 6, 4, 3, {.causal = true}, true},
    {"no columns", 8, 8, 3, 2, 2, 4, 5, 0, 2, {.causal = true}},
    {"no sequences", 8, 8, 3, 2, 2, 4, 5, 3, 0, {.causal = true}},
    {"no queries", 8, 8, 0, 2, 2, 4, 5, 3, 2, {.causal = true}},
};

/// Adds paged attention. Random tables contain pages several times. In cases with parts, each part has its own
/// positions.
void add_pages(Cases& cases) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    for (const PagedSizes& n : kPagedSizes) {
      if (n.d % traits(dtype).block_elems || n.e % traits(dtype).block_elems) continue;
      for (const int64_t parts : {0, 3}) {
        add_case(
            cases, Op::kAttention,
            fmt::format("{} pages, {}{}", name_of(dtype), n.name, parts > 0 ? ", in parts" : ", with sinks"),
            [=](Graph& g, TensorContext& w) {
              const int64_t z = parts > 0 ? parts : 2, rows = n.page * n.pages;
              Tensor* q = plain(g, DType::kF32, {n.d, n.h, n.t, parts > 0 ? 1 : z}, "q");
              Tensor* k = permute(g, w.add("k", dtype, {n.d, n.kv, rows, z}, Role::kCache), {0, 2, 1, 3});
              Tensor* v = n.latent ? slice(g, k, {0, 0, n.e}) : w.add("v", dtype, {n.e, rows, n.kv, z}, Role::kCache);
              Tensor* positions = plain(g, DType::kI32, {n.t, parts > 0 ? z : 1, 1, 1}, "pos");
              Tensor* sinks = parts > 0 ? nullptr : w.add("sinks", DType::kF32, {n.h, 1, 1, 1});
              Tensor* table = plain(g, DType::kI32, {n.width, n.sequences, 1, 1}, "table");
              AttentionParams params = n.params;
              params.scale = 0.3f, params.page = n.page, params.parts = parts;
              return paged_attention(g, permute(g, q, {0, 2, 1, 3}), k, v, positions, sinks, table,
                                     plain(g, DType::kI32, {n.t, 1, 1, 1}, "sequences"), params);
            },
            {1e-10});
      }
    }
  }
}

/// Ops whose sources are slices with a step.
void add_steps(Cases& cases) {
  for (const DType dtype : kFloats) {
    for (int axis = 0; axis < kMaxDims; ++axis) {
      const auto x = [=](Graph& g, std::string name = "x") {
        Shape shape{37, 18, 3, 2};
        const int64_t length = shape[axis];
        shape[axis] = 2 + 3 * length;
        return slice(g, plain(g, dtype, shape, std::move(name)), {axis, 1, length, 3});
      };
      const auto add = [&](Op op, auto&& node, DType result = DType::kF32) {
        add_case(
            cases, op, fmt::format("{} step 3 on axis {}", name_of(dtype), axis),
            [=](Graph& g, TensorContext&) { return node(g, x(g)); }, tolerance_of(result));
      };
      add(
          Op::kContiguous, [](Graph& g, Tensor* s) { return contiguous(g, s); }, dtype);
      add(
          Op::kCast, [](Graph& g, Tensor* s) { return cast(g, s, DType::kBF16); }, DType::kBF16);
      add(
          Op::kUnary, [](Graph& g, Tensor* s) { return unary(g, s, UnaryKind::kSilu); }, dtype);
      add(
          Op::kAdd, [=](Graph& g, Tensor* s) { return shoal::add(g, s, x(g, "y")); }, dtype);
      add(
          Op::kConcat,
          [=](Graph& g, Tensor* s) {
            return concat(g, {s, x(g, "y")}, 1);
          },
          dtype);
      add(
          Op::kRepeat,
          [](Graph& g, Tensor* s) {
            return repeat(g, s, {37, 36, 3, 2});
          },
          dtype);
      add(Op::kRmsNorm, [](Graph& g, Tensor* s) { return rms_norm(g, s, {1e-5f}); });
      add(Op::kLayerNorm, [](Graph& g, Tensor* s) { return layer_norm(g, s, {1e-5f}); });
      add(Op::kSoftMax, [](Graph& g, Tensor* s) { return soft_max(g, s, nullptr, nullptr, {2.0f}); });
      add(Op::kSumRows, [](Graph& g, Tensor* s) { return sum_rows(g, s); });
      add(
          Op::kMulMat, [=](Graph& g, Tensor* s) { return mul_mat(g, s, x(g, "y")); },
          dtype == DType::kF32 ? DType::kF32 : DType::kF16);
    }
  }
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const auto part = [=](Graph& g, Shape shape, std::string name) {
      const int64_t length = shape[axis];
      shape[axis] = 2 * length;
      return slice(g, plain(g, DType::kF32, shape, std::move(name)), {axis, 1, length, 2});
    };
    add_case(cases, Op::kAttention, fmt::format("steps on axis {}", axis), [=](Graph& g, TensorContext&) {
      return attention(g, part(g, {64, 5, 4, 2}, "q"), part(g, {64, 9, 2, 2}, "k"), part(g, {32, 9, 2, 2}, "v"),
                       nullptr, nullptr, nullptr, {.scale = 0.3f});
    });
    add_case(cases, Op::kGetRows, fmt::format("step on axis {}", axis), [=](Graph& g, TensorContext&) {
      return get_rows(g, part(g, {33, 9, 2, 2}, "table"), plain(g, DType::kI32, {5, 2, 2, 1}, "ids"));
    });
    add_case(cases, Op::kSetRows, fmt::format("step on axis {}", axis), [=](Graph& g, TensorContext& w) {
      return set_rows(g, w.add("cache", DType::kQ8_0, {64, 8, 2, 2}, Role::kCache), part(g, {64, 3, 2, 2}, "x"),
                      plain(g, DType::kI32, {3, 1, 1, 1}, "ids"));
    });
  }
}

}  // namespace

void add_extended_cases(Cases& cases) {
  for (void (*add_some)(Cases&) :
       {add_own_ids, add_set_slice, add_narrow_products, add_narrow_norms, add_own_masks, add_pages, add_steps}) {
    add_some(cases);
  }
}

}  // namespace shoal::test
