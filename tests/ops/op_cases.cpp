#include "tests/ops/case_helpers.h"

namespace shoal::test {
namespace {

// --- table look-ups and cache writes ---

void add_get_rows(Cases& cases) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    add_case(cases, Op::kGetRows, std::string(name_of(dtype)), [=](Graph& g, TensorContext& w) {
      return get_rows(g, w.add("table", dtype, {768, 9, 1, 1}), plain(g, DType::kI32, {5, 1, 1, 1}, "ids"));
    });
    add_case(cases, Op::kGetRows, fmt::format("{} many rows", name_of(dtype)), [=](Graph& g, TensorContext& w) {
      return get_rows(g, w.add("table", dtype, {256, 37, 2, 1}), plain(g, DType::kI32, {21, 2, 1, 1}, "ids"));
    });
    add_case(cases, Op::kGetRows, fmt::format("{} batched ranges", name_of(dtype)), [=](Graph& g, TensorContext& w) {
      return get_rows(g, w.add("table", dtype, {256, 5, 2, 3}), plain(g, DType::kI32, {8, 2, 3, 1}, "ids"),
                      {{{10, 2}, {0, 3}}});
    });
  }
  add_case(cases, Op::kGetRows, "strided table", [](Graph& g, TensorContext&) {
    return get_rows(g, strided(g, DType::kF32, {33, 6, 1, 1}, "table"), plain(g, DType::kI32, {4, 1, 1, 1}, "ids"));
  });
  add_case(cases, Op::kGetRows, "no ids", [](Graph& g, TensorContext& w) {
    return get_rows(g, w.add("table", DType::kF32, {32, 4, 1, 1}), plain(g, DType::kI32, {0, 1, 1, 1}, "ids"));
  });
  add_case(cases, Op::kGetRows, "no rows", [](Graph& g, TensorContext& w) {
    return get_rows(g, w.add("table", DType::kF32, {32, 0, 1, 1}), plain(g, DType::kI32, {3, 1, 1, 1}, "ids"));
  });
}

void add_set_rows(Cases& cases) {
  add_case(cases, Op::kSetRows, "many rows", [](Graph& g, TensorContext& w) {
    return set_rows(g, w.add("cache", DType::kF16, {64, 40, 2, 1}, Role::kCache), plain(g, DType::kF32, {64, 29, 2, 1}),
                    plain(g, DType::kI32, {29, 1, 1, 1}, "ids"));
  });
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kI32 || dtype == DType::kI64 || !traits(dtype).from_f32) continue;
    add_case(cases, Op::kSetRows, std::string(name_of(dtype)), [=](Graph& g, TensorContext& w) {
      return set_rows(g, w.add("cache", dtype, {768, 8, 2, 1}, Role::kCache), plain(g, DType::kF32, {768, 3, 2, 1}),
                      plain(g, DType::kI32, {3, 1, 1, 1}, "ids"));
    });
    add_case(cases, Op::kSetRows, fmt::format("{} strided ranges", name_of(dtype)), [=](Graph& g, TensorContext& w) {
      Tensor* rows = permute(g, plain(g, DType::kF32, {256, 2, 6, 2}), {0, 2, 1, 3});
      return set_rows(g, w.add("cache", dtype, {256, 5, 2, 2}, Role::kCache), rows,
                      plain(g, DType::kI64, {6, 1, 1, 1}, "ids"), {{{7, 3}, {1, 2}}});
    });
  }
}

// --- products ---

struct Product {
  const char* name;
  Shape a, b;
};
constexpr Product kProducts[] = {
    {"vector", {256, 33, 1, 1}, {256, 1, 1, 1}},
    {"few columns", {512, 7, 1, 1}, {512, 5, 1, 1}},
    {"matrix", {768, 65, 1, 1}, {768, 70, 1, 1}},
    {"batched", {256, 6, 2, 1}, {256, 4, 2, 3}},
    {"grouped batches", {256, 5, 2, 1}, {256, 3, 6, 2}},
    {"nothing to sum", {0, 4, 1, 1}, {0, 3, 1, 1}},
    {"no rows", {256, 0, 1, 1}, {256, 3, 1, 1}},
    {"no columns", {256, 4, 1, 1}, {256, 0, 1, 1}},
    {"batched, many rows", {256, 37, 2, 1}, {256, 9, 4, 1}},
};

/// A product with a slice of a weight. The weight has 70 rows and 512 columns.
struct PartialProduct {
  const char* name;
  SliceParams part;
  int64_t columns;
};
constexpr PartialProduct kPartialProducts[] = {
    {"rows from 16", {1, 16, 40}, 3},
    {"rows from 16, many columns", {1, 16, 40}, 17},
    {"rows from 5", {1, 5, 33}, 3},
    {"half of the rows' length", {0, 256, 256}, 5},
};

/// Products with quantised weights may round the columns to 8 bits. The root-mean-square error is then 1/254/sqrt(3) of
/// the largest element in a block.
Tolerance product_tolerance(DType a, DType b) {
  if (traits(a).is_quantized) return {1e-4};
  return {a == DType::kF32 && b == DType::kF32 ? 1e-11 : 1e-6};
}

void add_mul_mat(Cases& cases) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!traits(dtype).is_float && !traits(dtype).is_quantized) continue;
    for (const Product& product : kProducts) {
      add_case(
          cases, Op::kMulMat, fmt::format("{} {}", name_of(dtype), product.name),
          [=](Graph& g, TensorContext& w) {
            return mul_mat(g, w.add("a", dtype, product.a), plain(g, DType::kF32, product.b, "b"));
          },
          product_tolerance(dtype, DType::kF32));
    }
    for (const PartialProduct& product : kPartialProducts) {
      add_case(
          cases, Op::kMulMat, fmt::format("{} {}", name_of(dtype), product.name),
          [=](Graph& g, TensorContext& w) {
            Tensor* a = slice(g, w.add("a", dtype, {512, 70, 1, 1}), product.part);
            return mul_mat(g, a, plain(g, DType::kF32, {a->shape[0], product.columns, 1, 1}, "b"));
          },
          product_tolerance(dtype, DType::kF32));
    }
    add_case(
        cases, Op::kMulMatId, fmt::format("{} many rows", name_of(dtype)),
        [=](Graph& g, TensorContext& w) {
          return mul_mat_id(g, w.add("experts", dtype, {256, 37, 3, 1}), plain(g, DType::kF32, {256, 1, 20, 1}),
                            plain(g, DType::kI32, {2, 20, 1, 1}, "ids"));
        },
        product_tolerance(dtype, DType::kF32));
    for (const int64_t tokens : {1, 20}) {
      // Each row has an odd number of blocks of 32, 64 or 128 elements.
      if (traits(dtype).block_elems == 256) continue;
      const int64_t k = 11 * std::max<int64_t>(32, traits(dtype).block_elems);
      add_case(
          cases, Op::kMulMatId, fmt::format("{} rows of 11 blocks, {} tokens", name_of(dtype), tokens),
          [=](Graph& g, TensorContext& w) {
            return mul_mat_id(g, w.add("experts", dtype, {k, 37, 5, 1}), plain(g, DType::kF32, {k, 1, tokens, 1}),
                              plain(g, DType::kI32, {4, tokens, 1, 1}, "ids"));
          },
          product_tolerance(dtype, DType::kF32));
    }
    add_case(
        cases, Op::kMulMatId, std::string(name_of(dtype)),
        [=](Graph& g, TensorContext& w) {
          return mul_mat_id(g, w.add("experts", dtype, {256, 9, 4, 1}), plain(g, DType::kF32, {256, 1, 5, 1}),
                            plain(g, DType::kI32, {2, 5, 1, 1}, "ids"));
        },
        product_tolerance(dtype, DType::kF32));
    add_case(
        cases, Op::kMulMatId, fmt::format("{} ranges, a row per expert", name_of(dtype)),
        [=](Graph& g, TensorContext& w) {
          return mul_mat_id(g, w.add("experts", dtype, {512, 3, 3, 1}), plain(g, DType::kF32, {512, 2, 7, 1}),
                            plain(g, DType::kI32, {2, 7, 1, 1}, "ids"), {{{5, 1}, {1, 2}}});
        },
        product_tolerance(dtype, DType::kF32));
  }
  for (const DType dtype : kFloats) {
    add_case(
        cases, Op::kMulMat, fmt::format("f16 x {}", name_of(dtype)),
        [=](Graph& g, TensorContext&) {
          return mul_mat(g, plain(g, DType::kF16, {70, 9, 1, 1}, "a"), plain(g, dtype, {70, 11, 1, 1}, "b"));
        },
        product_tolerance(DType::kF16, dtype));
    add_case(
        cases, Op::kMulMat, fmt::format("{} permuted views", name_of(dtype)),
        [=](Graph& g, TensorContext&) {
          Tensor* a = permute(g, plain(g, dtype, {64, 4, 10, 1}, "a"), {0, 2, 1, 3});
          Tensor* b = permute(g, plain(g, DType::kF32, {64, 8, 6, 1}, "b"), {0, 2, 1, 3});
          return mul_mat(g, a, b);
        },
        product_tolerance(dtype, DType::kF32));
  }
}

// --- element-wise ---

using Binary = Tensor* (*)(Graph&, Tensor*, Tensor*, std::string);
struct BinaryOp {
  Op op;
  Binary build;
};
constexpr BinaryOp kBinaryOps[] = {{Op::kAdd, add}, {Op::kSub, sub}, {Op::kMul, mul}, {Op::kDiv, div}};
struct BinaryShapes {
  const char* name;
  Shape a, b;
};
constexpr BinaryShapes kBinaryShapes[] = {
    {"alike", {1031, 3, 2, 1}, {1031, 3, 2, 1}},  {"row", {130, 5, 2, 2}, {130, 1, 1, 1}},
    {"column", {67, 5, 2, 1}, {1, 5, 2, 1}},      {"scalar", {600, 3, 1, 1}, {1, 1, 1, 1}},
    {"left row", {130, 1, 1, 1}, {130, 5, 2, 2}}, {"left scalar", {1, 1, 1, 1}, {33, 3, 1, 1}},
    {"outer", {1, 7, 1, 2}, {9, 1, 3, 1}},        {"scalars", {1, 1, 1, 1}, {1, 1, 1, 1}},
    {"empty", {4, 0, 1, 1}, {4, 1, 1, 1}},
};

void add_binary(Cases& cases) {
  for (const BinaryOp& row : kBinaryOps) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
      if (dtype == DType::kI32 && row.op == Op::kDiv) continue;
      for (const BinaryShapes& shapes : kBinaryShapes) {
        add_case(
            cases, row.op, fmt::format("{} {}", name_of(dtype), shapes.name),
            [=](Graph& g, TensorContext&) {
              return row.build(g, plain(g, dtype, shapes.a, "a"), plain(g, dtype, shapes.b, "b"), "");
            },
            tolerance_of(dtype));
      }
      add_case(
          cases, row.op, fmt::format("{} strided", name_of(dtype)),
          [=](Graph& g, TensorContext&) {
            return row.build(g, strided(g, dtype, {35, 4, 2, 2}, "a"), strided(g, dtype, {35, 1, 2, 1}, "b"), "");
          },
          tolerance_of(dtype));
    }
    add_case(cases, row.op, "f32 with f16", [=](Graph& g, TensorContext&) {
      return row.build(g, plain(g, DType::kF32, {40, 3, 1, 1}, "a"), plain(g, DType::kF16, {40, 1, 1, 1}, "b"), "");
    });
  }
}

void add_elementwise(Cases& cases) {
  const auto scaled = [](Graph& g, Tensor* x) { return scale(g, x, {0.7f, -0.25f}); };
  add_float_cases(cases, Op::kScale, "", scaled, true);
  const auto clamped = [](Graph& g, Tensor* x) { return clamp(g, x, {-0.5f, 0.25f}); };
  add_float_cases(cases, Op::kClamp, "", clamped, true);
  for (int i = 0; i < static_cast<int>(UnaryKind::kCount); ++i) {
    // Scales x so that the arguments reach the flat parts at both ends of the functions.
    const auto build = [=](Graph& g, Tensor* x) { return unary(g, scale(g, x, {9.0f, 0}), static_cast<UnaryKind>(i)); };
    add_float_cases(cases, Op::kUnary, fmt::format(" kind {}", i), build, true);
  }
}

void add_glu(Cases& cases) {
  for (int i = 0; i < static_cast<int>(GluKind::kCount); ++i) {
    const auto kind = static_cast<GluKind>(i);
    for (const DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        add_case(
            cases, Op::kGlu, fmt::format("{} kind {}", title(dtype, shape), i),
            [=](Graph& g, TensorContext&) {
              return glu(g, plain(g, dtype, shape, "gate"), plain(g, dtype, shape, "up"), kind);
            },
            tolerance_of(dtype));
        add_case(
            cases, Op::kGlu, fmt::format("{} fused kind {}", title(dtype, shape), i),
            [=](Graph& g, TensorContext&) {
              return glu_fused(g, plain(g, dtype, {2 * shape[0], shape[1], shape[2], shape[3]}), kind);
            },
            tolerance_of(dtype));
      }
      add_case(
          cases, Op::kGlu, fmt::format("{} strided kind {}", name_of(dtype), i),
          [=](Graph& g, TensorContext&) {
            return glu(g, strided(g, dtype, {21, 5, 2, 1}, "gate"), plain(g, dtype, {21, 5, 2, 1}, "up"), kind);
          },
          tolerance_of(dtype));
    }
  }
}

struct WhereShapes {
  const char* name;
  Shape condition, a, b;
};
constexpr WhereShapes kWhereShapes[] = {
    {"alike", {1031, 3, 2, 1}, {1031, 3, 2, 1}, {1031, 3, 2, 1}},
    {"row of conditions", {130, 1, 1, 1}, {130, 5, 2, 2}, {130, 5, 2, 2}},
    {"column of conditions", {1, 5, 2, 1}, {67, 5, 2, 1}, {67, 1, 1, 1}},
    {"scalars", {64, 33, 3, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}},
    {"outer", {1, 7, 1, 2}, {9, 1, 1, 1}, {1, 1, 3, 1}},
    {"one element", {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}},
    {"empty", {4, 0, 1, 1}, {4, 1, 1, 1}, {1, 0, 2, 1}},
};

void add_compare(Cases& cases) {
  for (int i = 0; i < static_cast<int>(CompareKind::kCount); ++i) {
    const auto kind = static_cast<CompareKind>(i);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
      // The kinds differ only in the innermost loop, so one kind has all shapes.
      const bool every = kind == CompareKind::kLess;
      for (const BinaryShapes& shapes : kBinaryShapes) {
        if (!every && &shapes != kBinaryShapes) continue;
        add_case(cases, Op::kCompare, fmt::format("{} {} kind {}", name_of(dtype), shapes.name, i),
                 [=](Graph& g, TensorContext&) {
                   return compare(g, plain(g, dtype, shapes.a, "a"), plain(g, dtype, shapes.b, "b"), kind);
                 });
      }
      if (!every) continue;
      add_case(cases, Op::kCompare, fmt::format("{} strided kind {}", name_of(dtype), i),
               [=](Graph& g, TensorContext&) {
                 return compare(g, strided(g, dtype, {35, 4, 2, 2}, "a"), strided(g, dtype, {35, 1, 2, 1}, "b"), kind);
               });
    }
    add_case(cases, Op::kCompare, fmt::format("equal elements kind {}", i), [=](Graph& g, TensorContext&) {
      const auto signs = [&](DType dtype, Shape shape, const char* name) {
        return unary(g, plain(g, dtype, shape, name), UnaryKind::kSgn);
      };
      return compare(g, signs(DType::kF32, {70, 5, 2, 1}, "a"), signs(DType::kBF16, {70, 5, 1, 1}, "b"), kind);
    });
  }
}

void add_where(Cases& cases) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
    for (const WhereShapes& shapes : kWhereShapes) {
      add_case(cases, Op::kWhere, fmt::format("{} {}", name_of(dtype), shapes.name), [=](Graph& g, TensorContext&) {
        return where(g, plain(g, DType::kI32, shapes.condition, "c"), plain(g, dtype, shapes.a, "a"),
                     plain(g, dtype, shapes.b, "b"));
      });
    }
    add_case(cases, Op::kWhere, fmt::format("{} strided", name_of(dtype)), [=](Graph& g, TensorContext&) {
      return where(g, strided(g, DType::kI32, {35, 4, 1, 2}, "c"), strided(g, dtype, {35, 4, 2, 2}, "a"),
                   strided(g, dtype, {35, 1, 2, 1}, "b"));
    });
  }
}

// --- along rows ---

void add_rows(Cases& cases) {
  add_float_cases(
      cases, Op::kRmsNorm, "", [](Graph& g, Tensor* x) { return rms_norm(g, x, {1e-5f}); }, false);
  add_float_cases(
      cases, Op::kLayerNorm, "", [](Graph& g, Tensor* x) { return layer_norm(g, x, {1e-5f}); }, false);
  add_float_cases(
      cases, Op::kSumRows, "", [](Graph& g, Tensor* x) { return sum_rows(g, x); }, false);
  add_float_cases(
      cases, Op::kArgmax, "", [](Graph& g, Tensor* x) { return argmax(g, x); }, false);
  add_case(cases, Op::kSumRows, "empty rows", [](Graph& g, TensorContext&) {
    return sum_rows(g, plain(g, DType::kF32, {0, 3, 1, 1}));
  });
  const auto sums = [](Graph& g, Tensor* x) { return cumsum(g, x); };
  add_float_cases(cases, Op::kCumsum, "", sums, false);
  for (const Shape& shape : kShapes) {
    add_case(cases, Op::kCumsum, title(DType::kI32, shape),
             [=](Graph& g, TensorContext&) { return cumsum(g, plain(g, DType::kI32, shape)); });
  }
  add_case(cases, Op::kCumsum, "i32 strided", [=](Graph& g, TensorContext&) {
    return cumsum(g, strided(g, DType::kI32, {601, 6, 2, 2}));
  });
  for (const int64_t k : {0, 1, 2, 20}) {
    const auto build = [=](Graph& g, Tensor* x) { return top_k(g, x, std::min(k, x->shape[0])); };
    add_float_cases(cases, Op::kTopK, fmt::format(" k {}", k), build, false);
  }
}

void add_soft_max(Cases& cases) {
  const auto bare = [](Graph& g, Tensor* x) { return soft_max(g, x, nullptr, nullptr, {3.0f}); };
  add_float_cases(cases, Op::kSoftMax, "", bare, false);
  const Shape shape{70, 5, 4, 2};
  for (const DType mask : {DType::kF32, DType::kF16}) {
    for (const auto& [heads, batches] : {std::pair{1, 1}, std::pair{4, 1}, std::pair{1, 2}, std::pair{4, 2}}) {
      for (const bool with_sinks : {false, true}) {
        const std::string name =
            fmt::format("mask {} [70, 5, {}, {}]{}", name_of(mask), heads, batches, with_sinks ? " sinks" : "");
        add_case(cases, Op::kSoftMax, name, [=, h = heads, z = batches](Graph& g, TensorContext& w) {
          Tensor* sinks = with_sinks ? w.add("sinks", DType::kF32, {4, 1, 1, 1}) : nullptr;
          return soft_max(g, plain(g, DType::kF32, shape), plain(g, mask, {70, 5, h, z}, "mask"), sinks, {0.5f});
        });
      }
    }
  }
}

void add_rope(Cases& cases) {
  RopeParams yarn{.dims = 64, .freq_scale = 0.25f, .ext_factor = 1.0f, .original_context = 512};
  RopeParams not_truncated = yarn;
  not_truncated.truncate = false;
  const std::pair<const char*, RopeParams> variants[] = {
      {"whole", {.dims = 64}},
      {"part", {.dims = 24}},
      {"last", {.dims = 24, .offset = 40}},
      {"middle", {.dims = 22, .offset = 37}},
      {"nothing", {.dims = 0}},
      {"linear", {.dims = 64, .base = 500000.0f, .freq_scale = 0.5f, .attn_factor = 1.25f}},
      {"yarn", yarn},
      {"yarn_not_truncated", not_truncated},
  };
  for (const auto& [name, params] : variants) {
    for (const RopeMode mode : {RopeMode::kNeighbours, RopeMode::kHalves}) {
      for (const DType dtype : kFloats) {
        RopeParams with_mode = params;
        with_mode.mode = mode;
        const std::string suffix = mode == RopeMode::kHalves ? "halves" : "neighbours";
        add_case(cases, Op::kRope, fmt::format("{} {} {}", name_of(dtype), name, suffix),
                 [=](Graph& g, TensorContext&) {
                   return rope(g, plain(g, dtype, {64, 3, 5, 2}), plain(g, DType::kI32, {5, 1, 1, 1}, "pos"), nullptr,
                               with_mode);
                 });
        add_case(cases, Op::kRope, fmt::format("{} {} {} factors strided", name_of(dtype), name, suffix),
                 [=](Graph& g, TensorContext& w) {
                   Tensor* factors = w.add("factors", DType::kF32, {with_mode.dims / 2, 1, 1, 1});
                   return rope(g, strided(g, dtype, {66, 2, 4, 1}), plain(g, DType::kI32, {4, 1, 1, 1}, "pos"), factors,
                               with_mode);
                 });
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
    {"one query", 64, 64, 1, 100, 8, 2, 1},
    {"prompt", 32, 32, 37, 37, 4, 4, 1},
    {"one kv head", 16, 24, 5, 70, 20, 1, 2},
    {"long", 16, 16, 2, 1300, 2, 1, 1},
    {"odd", 7, 5, 3, 9, 6, 3, 2},
    {"no rows", 8, 8, 3, 0, 4, 2, 1},
    {"no queries", 8, 8, 0, 5, 4, 2, 1},
    {"no heads", 8, 8, 3, 5, 0, 0, 1},
    {"latent query", 576, 512, 1, 150, 16, 1, 1, true},
    {"latent prompt", 576, 512, 9, 70, 20, 1, 1, true},
    {"small latent", 96, 64, 3, 70, 70, 1, 2, true},
};
struct AttentionVariant {
  const char* name;
  AttentionParams params;
  bool mask, sinks;
};
constexpr AttentionVariant kAttentionVariants[] = {
    {"bare", {.scale = 0.3f}, false, false},
    {"causal", {.scale = 0.3f, .causal = true}, false, false},
    {"window", {.scale = 0.3f, .causal = true, .window = 8}, false, false},
    {"open window", {.scale = 0.3f, .window = 3}, false, true},
    {"masked", {.scale = 0.3f}, true, false},
    {"everything", {.scale = 2.0f, .softcap = 1.5f, .causal = true, .window = 20}, true, true},
};

Tensor* build_attention(Graph& g, TensorContext& w, DType dtype, const AttentionSizes& n, const AttentionVariant& v) {
  // Queries and keys have the memory layout of models: the axis of heads directly follows the axis of elements. The op
  // gets a permuted view.
  Tensor* q = permute(g, plain(g, DType::kF32, {n.d, n.h, n.t, n.z}, "q"), {0, 2, 1, 3});
  Tensor* k = permute(g, w.add("k", dtype, {n.d, n.kv, n.s, n.z}, Role::kCache), {0, 2, 1, 3});
  Tensor* values = n.latent ? slice(g, k, {0, 0, n.e}) : w.add("v", dtype, {n.e, n.s, n.kv, n.z}, Role::kCache);
  Tensor* positions = plain(g, DType::kI32, {n.t, 1, 1, 1}, "pos");
  Tensor* mask = v.mask ? plain(g, DType::kF16, {n.s, n.t, 1, 1}, "mask") : nullptr;
  Tensor* sinks = v.sinks ? w.add("sinks", DType::kF32, {n.h, 1, 1, 1}) : nullptr;
  return attention(g, q, k, values, positions, mask, sinks, v.params);
}

void add_attention(Cases& cases) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_1, DType::kIQ4_NL}) {
    for (const AttentionSizes& sizes : kAttentionSizes) {
      if (sizes.d % traits(dtype).block_elems || sizes.e % traits(dtype).block_elems) continue;
      for (const AttentionVariant& variant : kAttentionVariants) {
        add_case(cases, Op::kAttention, fmt::format("{} {} {}", name_of(dtype), sizes.name, variant.name),
                 [=](Graph& g, TensorContext& w) { return build_attention(g, w, dtype, sizes, variant); }, {1e-10});
      }
    }
  }
}

/// Adds cases in which the rows of one sequence are divided into parts. The parts have the same queries. In cases
/// without sinks, each part has its own positions.
void add_attention_parts(Cases& cases) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const AttentionSizes& n : kAttentionSizes) {
      if (n.d % traits(dtype).block_elems || n.e % traits(dtype).block_elems) continue;
      for (const bool sinks : {false, true}) {
        add_case(
            cases, Op::kAttention, fmt::format("{} {} in parts{}", name_of(dtype), n.name, sinks ? ", sinks" : ""),
            [=](Graph& g, TensorContext& w) {
              Tensor* q = permute(g, plain(g, DType::kF32, {n.d, n.h, n.t, 1}, "q"), {0, 2, 1, 3});
              Tensor* k = w.add("k", dtype, {n.d, n.s, n.kv, 3}, Role::kCache);
              Tensor* v = n.latent ? slice(g, k, {0, 0, n.e}) : w.add("v", dtype, {n.e, n.s, n.kv, 3}, Role::kCache);
              Tensor* positions = plain(g, DType::kI32, {n.t, sinks ? 1 : 3, 1, 1}, "pos");
              Tensor* sink = sinks ? w.add("sinks", DType::kF32, {n.h, 1, 1, 1}) : nullptr;
              return attention(g, q, k, v, positions, nullptr, sink, {.scale = 0.3f, .causal = true, .parts = 5});
            },
            {1e-10});
      }
    }
  }
}

struct MergeSizes {
  const char* name;
  int64_t e, h, t, parts, all;
};
constexpr MergeSizes kMergeSizes[] = {{"all parts", 64, 8, 3, 4, 4},    {"one part", 512, 16, 1, 1, 8},
                                      {"some parts", 7, 5, 9, 2, 3},    {"no parts", 16, 4, 2, 0, 3},
                                      {"no values", 0, 3, 2, 2, 2},     {"no heads", 8, 0, 3, 2, 2},
                                      {"long rows", 1031, 2, 33, 3, 3}, {"many heads", 64, 128, 1, 8, 8}};

void add_merge_attention(Cases& cases) {
  for (const MergeSizes& n : kMergeSizes) {
    add_case(cases, Op::kMergeAttention, n.name, [=](Graph& g, TensorContext&) {
      return merge_attention(g, plain(g, DType::kF32, {n.e + 1, n.h, n.t, n.parts}, "parts"),
                             plain(g, DType::kF32, {n.all, n.h, n.t, 1}, "lse"));
    });
    add_case(cases, Op::kMergeAttention, std::string(n.name) + ", views", [=](Graph& g, TensorContext&) {
      Tensor* parts = slice(g, plain(g, DType::kF32, {n.e + 4, n.h, n.t, n.all}, "parts"), {0, 3, n.e + 1});
      Tensor* lse = permute(g, slice(g, parts, {0, n.e, 1}), {3, 1, 2, 0});
      return merge_attention(g, slice(g, parts, {3, n.all - n.parts, n.parts}), lse);
    });
  }
}

// --- along tokens, with a state ---

struct ConvSizes {
  const char* name;
  int64_t channels, tokens, taps;
  int64_t sequences = 0, slots = 1;  ///< without sequences: no StateSlots
};
constexpr ConvSizes kConvSizes[] = {{"one token", 70, 1, 4},
                                    {"prompt", 1100, 61, 4},
                                    {"few channels", 3, 5, 2},
                                    {"one channel", 1, 9, 5},
                                    {"one weight", 33, 17, 1},
                                    {"long window", 17, 3, 11},
                                    {"no tokens", 40, 0, 4},
                                    {"no channels", 0, 5, 4},
                                    {"nothing", 5, 0, 1},
                                    {"many tokens", 20, 700, 3},
                                    {"sequences", 600, 61, 4, 3, 5},
                                    {"tokens of many sequences", 33, 16, 4, 16, 20},
                                    {"one of many slots", 40, 9, 3, 1, 6},
                                    {"sequences, one weight", 33, 17, 1, 3, 2},
                                    {"idle sequences", 17, 3, 11, 9, 4},
                                    {"sequences without tokens", 40, 0, 4, 3, 5}};

/// The sources of StateSlots for a batch of `tokens` tokens.
StateSlots state_slots(Graph& g, int64_t tokens, int64_t sequences) {
  if (sequences == 0) return {};
  return {plain(g, DType::kI32, {tokens, 1, 1, 1}, "sequences"), plain(g, DType::kI32, {sequences, 1, 1, 1}, "slots")};
}

void add_causal_conv(Cases& cases) {
  for (const ConvSizes& n : kConvSizes) {
    const int64_t rows = (n.taps - 1) * n.slots;
    const Shape state{n.channels, rows, 1, 1};
    const auto conv = [=](Graph& g, TensorContext& w, Tensor* x, Tensor* before) {
      return causal_conv(g, x, w.add("weight", DType::kF32, {n.taps, n.channels, 1, 1}), before,
                         plain(g, DType::kI32, {n.tokens, 1, 1, 1}, "pos"), {}, state_slots(g, n.tokens, n.sequences));
    };
    add_case(cases, Op::kCausalConv, n.name, [=](Graph& g, TensorContext& w) {
      return conv(g, w, plain(g, DType::kF32, {n.channels, n.tokens, 1, 1}), plain(g, DType::kF32, state, "state"));
    });
    add_case(cases, Op::kCausalConv, std::string(n.name) + ", views", [=](Graph& g, TensorContext& w) {
      Tensor* x = plain(g, DType::kF32, {n.channels + 5, n.tokens + 1, 1, 1});
      Tensor* kept = w.add("kept", DType::kF32, {n.channels + 3, rows + 2, 1, 1}, Role::kCache);
      return conv(g, w, slice(g, slice(g, x, {0, 2, n.channels}), {1, 1, n.tokens}),
                  slice(g, slice(g, kept, {0, 3, n.channels}), {1, 2, rows}));
    });
  }
}

struct DeltaSizes {
  const char* name;
  int64_t size, key_heads, heads, tokens;
  int64_t sequences = 0, slots = 1;  ///< without sequences: no StateSlots
};
constexpr DeltaSizes kDeltaSizes[] = {{"one token", 128, 2, 4, 1},
                                      {"few tokens", 64, 1, 2, 3},
                                      {"prompt", 128, 1, 2, 70},
                                      {"many tokens", 16, 2, 2, 300},
                                      {"size 3", 3, 2, 6, 5},
                                      {"size 5", 5, 3, 3, 40},
                                      {"size 17", 17, 1, 3, 33},
                                      {"size 17, one token", 17, 2, 2, 1},
                                      {"size 1", 1, 2, 4, 37},
                                      {"size 72", 72, 2, 4, 100},
                                      {"no tokens", 17, 1, 2, 0},
                                      {"no heads", 8, 0, 0, 3},
                                      {"no value heads", 8, 2, 0, 3},
                                      {"no size", 0, 1, 2, 3},
                                      {"large", 256, 1, 1, 40},
                                      {"sequences", 128, 1, 2, 70, 3, 5},
                                      {"tokens of many sequences", 64, 2, 4, 16, 16, 20},
                                      {"sequences of size 17", 17, 1, 3, 33, 4, 3},
                                      {"sequences of few tokens", 72, 2, 4, 6, 2, 3},
                                      {"idle sequences", 32, 1, 2, 5, 9, 4},
                                      {"sequences without tokens", 17, 1, 2, 0, 3, 5}};

struct DeltaSources {
  Tensor *q, *k, *v, *decay, *beta, *state;
};

DeltaSources plain_delta(Graph& g, const DeltaSizes& n) {
  const auto f32 = [&](const char* name, Shape shape) { return plain(g, DType::kF32, shape, name); };
  const Shape keys{n.size, n.key_heads, n.tokens, 1}, shares{n.heads, n.tokens, 1, 1};
  return {f32("q", keys),       f32("k", keys),      f32("v", {n.size, n.heads, n.tokens, 1}),
          f32("decay", shares), f32("beta", shares), f32("state", {n.size, n.size * n.slots, n.heads, 1})};
}

/// The sources are views, as in models. The `q`, `k` and `v` of a token are adjacent in memory. `decay` is transposed,
/// and `beta` has gaps. The state is a part of a cache row.
DeltaSources delta_views(Graph& g, TensorContext& w, const DeltaSizes& n) {
  Tensor* qkv = plain(g, DType::kF32, {n.size, 2 * n.key_heads + n.heads, n.tokens, 1}, "qkv");
  Tensor* shares = plain(g, DType::kF32, {n.tokens, n.heads, 1, 1}, "decay");
  Tensor* betas = plain(g, DType::kF32, {n.heads + 2, n.tokens, 1, 1}, "beta");
  const int64_t elements = n.size * n.size * n.slots * n.heads;
  Tensor* kept = w.add("kept", DType::kF32, {elements + 7, 3, 1, 1}, Role::kCache);
  Tensor* row = slice(g, slice(g, kept, {1, 1, 1}), {0, 7, elements});
  return {slice(g, qkv, {1, 0, n.key_heads}),
          slice(g, qkv, {1, n.key_heads, n.key_heads}),
          slice(g, qkv, {1, 2 * n.key_heads, n.heads}),
          transpose(g, shares),
          slice(g, betas, {0, 1, n.heads}),
          reshape(g, row, {n.size, n.size * n.slots, n.heads, 1})};
}

void add_gated_delta(Cases& cases) {
  for (const DeltaSizes& n : kDeltaSizes) {
    for (const bool tiled : {false, true}) {
      if (tiled && n.heads <= n.key_heads) continue;
      const auto delta = [=](Graph& g, const DeltaSources& s) {
        Tensor* positions = plain(g, DType::kI32, {n.tokens, 1, 1, 1}, "pos");
        return gated_delta(g, s.q, s.k, s.v, s.decay, s.beta, s.state, positions, {tiled}, {},
                           state_slots(g, n.tokens, n.sequences));
      };
      const std::string name = fmt::format("{}{}", n.name, tiled ? ", tiled" : "");
      add_case(cases, Op::kGatedDelta, name, [=](Graph& g, TensorContext&) { return delta(g, plain_delta(g, n)); },
               {1e-10});
      add_case(cases, Op::kGatedDelta, name + ", views",
               [=](Graph& g, TensorContext& w) { return delta(g, delta_views(g, w, n)); }, {1e-10});
    }
  }
}

// --- data movement ---

void add_cast(Cases& cases) {
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const auto source = static_cast<DType>(from), target = static_cast<DType>(to);
      if (!traits(target).from_f32) continue;
      // A value halfway between two numbers of the target type may be rounded up or down.
      const Tolerance tolerance{traits(target).is_quantized ? 1e-4 : 1e-6};
      add_case(
          cases, Op::kCast, fmt::format("{} to {}", name_of(source), name_of(target)),
          [=](Graph& g, TensorContext& w) {
            return cast(g, w.add("x", source, {768, target == DType::kF32 ? 19 : 3, 2, 1}), target);
          },
          tolerance);
      if (traits(source).is_quantized) continue;
      add_case(
          cases, Op::kCast, fmt::format("{} strided to {}", name_of(source), name_of(target)),
          [=](Graph& g, TensorContext&) {
            return cast(g, strided(g, source, {256, 3, 2, 1}), target);
          },
          tolerance);
    }
  }
}

void add_movement(Cases& cases) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(name_of(dtype));
    add_case(cases, Op::kContiguous, name + " permuted", [=](Graph& g, TensorContext& w) {
      return contiguous(g, permute(g, w.add("x", dtype, {256, 19, 2, 2}), {0, 3, 1, 2}));
    });
    add_case(cases, Op::kContiguous, name + " sliced", [=](Graph& g, TensorContext& w) {
      return contiguous(g, slice(g, w.add("x", dtype, {768, 19, 2, 1}), {0, 256, 256}));
    });
    add_case(cases, Op::kContiguous, name + " resharded", [=](Graph& g, TensorContext& w) {
      return contiguous(g, reshard(g, permute(g, w.add("x", dtype, {256, 3, 2, 2}), {0, 3, 1, 2}), "axis 1"));
    });
    for (int axis = 0; axis < kMaxDims; ++axis) {
      add_case(cases, Op::kConcat, fmt::format("{} axis {}", name, axis), [=](Graph& g, TensorContext& w) {
        std::vector<Tensor*> sources;
        for (const int64_t length : {1, 0, 3}) {
          Shape shape{256, 17, 2, 2};
          shape[axis] = axis == 0 ? length * 256 : length;
          sources.push_back(w.add(fmt::format("x{}", length), dtype, shape));
        }
        return concat(g, sources, axis);
      });
    }
    add_case(cases, Op::kRepeat, name, [=](Graph& g, TensorContext& w) {
      return repeat(g, w.add("x", dtype, {256, 24, 1, 2}), {768, 48, 3, 2});
    });
    if (traits(dtype).is_quantized) continue;
    for (const Shape& shape : {Shape{70, 45, 2, 3}, Shape{1, 9, 1, 1}, Shape{600, 3, 1, 1}}) {
      add_case(cases, Op::kContiguous, name + " transposed " + to_string(shape),
               [=](Graph& g, TensorContext&) { return contiguous(g, strided(g, dtype, shape)); });
    }
    add_case(cases, Op::kConcat, name + " strided", [=](Graph& g, TensorContext&) {
      return concat(g, {strided(g, dtype, {5, 3, 2, 1}, "a"), strided(g, dtype, {530, 3, 2, 1}, "b")}, 0);
    });
    add_case(cases, Op::kRepeat, name + " of one element", [=](Graph& g, TensorContext&) {
      return repeat(g, plain(g, dtype, {1, 1, 1, 1}), {37, 2, 1, 1});
    });
    add_case(cases, Op::kRepeat, name + " strided", [=](Graph& g, TensorContext&) {
      return repeat(g, strided(g, dtype, {3, 2, 1, 1}), {9, 4, 2, 1});
    });
    add_case(cases, Op::kFill, name, [=](Graph& g, TensorContext&) { return fill(g, {dtype, {700, 3, 1, 1}, -7.0f}); });
  }
}

Cases make_cases() {
  Cases cases;
  for (void (*add_some)(Cases&) :
       {add_get_rows,    add_set_rows,    add_mul_mat,  add_binary,         add_elementwise,     add_glu,
        add_rows,        add_soft_max,    add_rope,     add_attention,      add_attention_parts, add_merge_attention,
        add_causal_conv, add_gated_delta, add_cast,     add_movement,       add_compare,         add_where,
        add_pool,        add_pad,         add_upsample, add_extended_cases, add_convolutions}) {
    add_some(cases);
  }
  return cases;
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const Cases cases = make_cases();
  return cases;
}

}  // namespace shoal::test
