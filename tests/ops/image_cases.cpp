// Conformance cases of pool_2d, pad, upsample and convolutions.
#include "tests/ops/case_helpers.h"

namespace shoal::test {
namespace {

constexpr PoolParams kPools[] = {
    {.kernel = {1, 1}},
    {.kernel = {2, 2}, .stride = {2, 2}},
    {.kernel = {3, 3}, .stride = {2, 2}, .pads = {1, 1, 1, 1}},
    {.kernel = {3, 2}, .stride = {1, 1}, .pads = {2, 0, 0, 1}},
    {.kernel = {5, 1}, .stride = {3, 4}, .pads = {4, 3, 0, 0}},
};
/// Images with one element, short and long rows, many channels, and no channels.
constexpr Shape kImages[] = {{1, 1, 3, 1}, {7, 6, 5, 2}, {70, 3, 2, 1}, {1100, 2, 1, 1}, {9, 8, 20, 1}, {6, 5, 0, 2}};

bool fits(const PoolParams& params, const Shape& shape) {
  return shape[0] + params.pads[0] + params.pads[1] >= params.kernel[0] &&
         shape[1] + params.pads[2] + params.pads[3] >= params.kernel[1];
}

constexpr PadParams kPads[] = {
    {},
    {.before = {3, 0, 0, 0}},
    {.before = {1, 2, 0, 1}, .after = {4, 0, 2, 0}, .value = -0.75f},
    {.before = {0, 1, 1, 0}, .after = {1, 2, 0, 1}, .mode = PadMode::kReflect},
    {.before = {5, 0, 2, 1}, .after = {0, 3, 0, 2}, .mode = PadMode::kEdge},
};
constexpr Shape kPadShapes[] = {{6, 3, 2, 2}, {1031, 3, 2, 2}, {33, 24, 2, 2}};

/// The lengths of axes 0 and 1 of the source, and of the result.
constexpr std::array<int64_t, 4> kScalings[] = {{1, 1, 1, 1}, {5, 4, 10, 8},   {7, 3, 17, 4}, {12, 9, 5, 3},
                                                {1, 6, 9, 1}, {33, 2, 600, 5}, {8, 8, 8, 8},  {4, 3, 0, 6}};

struct Conv2dSizes {
  const char* name;
  Shape w, x;  ///< [kw, kh, input channels per group, result channels] and [width, height, channels, batches]
  ConvParams params;
};
const Conv2dSizes kConv2dSizes[] = {
    {"3x3", {3, 3, 5, 7}, {17, 16, 5, 2}, {.pads = {1, 1, 1, 1}}},
    {"1x1", {1, 1, 33, 20}, {8, 16, 33, 1}, {}},
    {"strides", {3, 2, 4, 13}, {19, 16, 4, 1}, {.stride = {2, 3}}},
    {"uneven pads", {4, 3, 2, 3}, {9, 5, 2, 2}, {.pads = {3, 0, 1, 5}}},
    {"dilation", {3, 2, 3, 4}, {20, 9, 3, 1}, {.pads = {2, 1, 0, 2}, .dilation = {4, 3}}},
    {"strides, dilation and pads", {3, 3, 3, 5}, {23, 11, 3, 2}, {{3, 2}, {7, 4, 2, 6}, {2, 5}}},
    {"groups", {3, 3, 4, 9}, {12, 5, 12, 2}, {.pads = {1, 1, 1, 1}, .groups = 3}},
    {"depthwise", {3, 3, 1, 18}, {32, 7, 18, 2}, {.pads = {1, 1, 1, 1}, .groups = 18}},
    {"depthwise with 2 results per channel", {5, 2, 1, 12}, {10, 7, 6, 1}, {.stride = {2, 1}, .groups = 6}},
    {"wide depthwise", {4, 3, 1, 3}, {331, 6, 3, 2}, {.pads = {5, 7, 1, 0}, .dilation = {3, 1}, .groups = 3}},
    {"taps that span 65 elements", {65, 2, 1, 3}, {150, 4, 3, 1}, {.pads = {32, 32, 0, 0}, .groups = 3}},
    {"taps that span 67 elements", {3, 2, 1, 2}, {150, 4, 2, 1}, {.dilation = {33, 1}, .groups = 2}},
    {"many terms", {3, 3, 130, 14}, {8, 9, 130, 1}, {.pads = {1, 1, 1, 1}}},
    {"many channels", {1, 1, 6, 101}, {5, 3, 6, 2}, {}},
    {"signal", {7, 1, 12, 5}, {1030, 1, 12, 1}, {.stride = {2, 1}, .pads = {3, 3, 0, 0}}},
    {"only pads", {2, 2, 2, 2}, {1, 1, 2, 1}, {.pads = {9, 4, 3, 3}}},
    {"no input channels", {3, 3, 0, 4}, {5, 5, 0, 1}, {}},
    {"no result channels", {3, 3, 4, 0}, {5, 5, 4, 1}, {}},
    {"no batches", {3, 3, 4, 2}, {5, 5, 4, 0}, {}},
};

struct ConvTransposeSizes {
  const char* name;
  Shape w, x;  ///< [kw, kh, result channels per group, input channels] and [width, height, channels, batches]
  ConvTransposeParams params;
};
const ConvTransposeSizes kConvTransposeSizes[] = {
    {"3x3", {3, 3, 7, 5}, {17, 16, 5, 2}, {.pads = {1, 1, 1, 1}}},
    {"1x1", {1, 1, 20, 33}, {8, 16, 33, 1}, {}},
    {"twice the size", {4, 4, 13, 6}, {16, 17, 6, 1}, {.stride = {2, 2}, .pads = {1, 1, 1, 1}}},
    {"strides and uneven pads", {5, 4, 3, 4}, {7, 6, 4, 2}, {.stride = {3, 2}, .pads = {4, 0, 1, 3}}},
    {"gaps between kernels", {2, 1, 3, 2}, {4, 3, 2, 1}, {.stride = {5, 3}}},
    {"output pads", {3, 3, 2, 3}, {5, 4, 3, 1}, {.stride = {2, 3}, .output_pad = {1, 2}}},
    {"dilation", {3, 2, 4, 3}, {10, 9, 3, 1}, {.pads = {2, 1, 0, 2}, .dilation = {4, 3}, .output_pad = {3, 0}}},
    {"strides and dilation", {4, 3, 3, 2}, {6, 5, 2, 2}, {{4, 3}, {3, 1, 0, 5}, {6, 2}, {2, 1}}},
    {"groups", {3, 3, 4, 9}, {6, 5, 9, 2}, {.stride = {2, 2}, .pads = {1, 1, 1, 1}, .groups = 3}},
    {"depthwise", {4, 4, 1, 18}, {16, 7, 18, 2}, {.stride = {2, 2}, .pads = {1, 1, 1, 1}, .groups = 18}},
    {"depthwise with 2 results per channel", {2, 3, 2, 6}, {10, 7, 6, 1}, {.stride = {2, 1}, .groups = 6}},
    {"many terms", {4, 4, 14, 150}, {8, 5, 150, 1}, {.stride = {2, 2}, .pads = {1, 1, 1, 1}}},
    {"many channels", {2, 2, 101, 3}, {5, 3, 3, 2}, {.stride = {2, 2}}},
    {"signal", {16, 1, 5, 12}, {100, 1, 12, 1}, {.stride = {8, 1}, .pads = {4, 4, 0, 0}}},
    {"no input channels", {3, 3, 4, 0}, {5, 5, 0, 1}, {}},
    {"no result channels", {3, 3, 0, 4}, {5, 5, 4, 1}, {}},
    {"no result", {3, 3, 4, 2}, {5, 5, 2, 1}, {.pads = {3, 4, 0, 0}}},
};

}  // namespace

void add_pool(Cases& cases) {
  const auto add = [&](const std::string& name, DType dtype, const Shape& shape, const PoolParams& params) {
    if (!fits(params, shape)) return;
    add_case(cases, Op::kPool2d, name + " " + title(dtype, shape),
             [=](Graph& g, TensorContext&) { return pool_2d(g, plain(g, dtype, shape), params); });
  };
  for (size_t i = 0; i < std::size(kPools); ++i) {
    PoolParams largest = kPools[i], inside = largest, all = largest;
    inside.kind = all.kind = PoolKind::kAverage;
    all.count_pads = true;
    for (const Shape& shape : kImages) {
      add(fmt::format("max {}", i), DType::kF32, shape, largest);
      add(fmt::format("average {}", i), DType::kF32, shape, inside);
      add(fmt::format("average with pads {}", i), DType::kF32, shape, all);
    }
    for (const DType dtype : {DType::kF16, DType::kBF16}) add(fmt::format("max {}", i), dtype, {17, 16, 3, 2}, largest);
    for (const DType dtype : kFloats) {
      add_case(cases, Op::kPool2d, fmt::format("{} strided {}", name_of(dtype), i), [=](Graph& g, TensorContext&) {
        return pool_2d(g, strided(g, dtype, {13, 9, 2, 2}), inside);
      });
    }
  }
  add("whole image", DType::kF32, {33, 31, 5, 2}, {.kind = PoolKind::kAverage, .kernel = {33, 31}});
}

void add_pad(Cases& cases) {
  for (size_t i = 0; i < std::size(kPads); ++i) {
    const PadParams params = kPads[i];
    for (const DType dtype : kFloats) {
      for (const Shape& shape : kPadShapes) {
        add_case(cases, Op::kPad, fmt::format("{} pads {}", title(dtype, shape), i),
                 [=](Graph& g, TensorContext&) { return pad(g, plain(g, dtype, shape), params); });
      }
      add_case(cases, Op::kPad, fmt::format("{} strided, pads {}", name_of(dtype), i), [=](Graph& g, TensorContext&) {
        return pad(g, strided(g, dtype, {17, 6, 3, 2}), params);
      });
    }
  }
  add_case(cases, Op::kPad, "empty image", [](Graph& g, TensorContext&) {
    return pad(g, plain(g, DType::kF32, {0, 3, 2, 1}), {.before = {2, 0, 1, 0}, .after = {3, 1, 0, 0}, .value = 2});
  });
  add_case(cases, Op::kPad, "empty result", [](Graph& g, TensorContext&) {
    return pad(g, plain(g, DType::kF32, {4, 3, 0, 1}), {.before = {2, 0, 0, 0}, .mode = PadMode::kReflect});
  });
}

void add_upsample(Cases& cases) {
  for (int i = 0; i < static_cast<int>(UpsampleMode::kCount); ++i) {
    const auto mode = static_cast<UpsampleMode>(i);
    for (const DType dtype : kFloats) {
      for (const auto& [w, h, to_w, to_h] : kScalings) {
        const Shape shape{w, h, 3, 2};
        const UpsampleParams params{{to_w, to_h}, mode};
        add_case(
            cases, Op::kUpsample, fmt::format("{} to {} x {} mode {}", title(dtype, shape), to_w, to_h, i),
            [=](Graph& g, TensorContext&) { return upsample(g, plain(g, dtype, shape), params); }, tolerance_of(dtype));
      }
      add_case(
          cases, Op::kUpsample, fmt::format("{} strided mode {}", name_of(dtype), i),
          [=](Graph& g, TensorContext&) {
            return upsample(g, strided(g, dtype, {9, 6, 2, 2}), {{13, 11}, mode});
          },
          tolerance_of(dtype));
    }
    add_case(cases, Op::kUpsample, fmt::format("many rows mode {}", i), [=](Graph& g, TensorContext&) {
      return upsample(g, plain(g, DType::kF32, {16, 32, 2, 1}), {{24, 64}, mode});
    });
  }
}

void add_convolutions(Cases& cases) {
  const auto add = [&](Op op, const auto& n, auto&& build) {
    for (const DType dtype : kFloats) {
      add_case(cases, op, fmt::format("{} {}", name_of(dtype), n.name), [=](Graph& g, TensorContext& w) {
        return build(g, w.add("w", dtype, n.w), plain(g, DType::kF32, n.x), n.params, "");
      });
      add_case(cases, op, fmt::format("{} {}, views", name_of(dtype), n.name), [=](Graph& g, TensorContext&) {
        return build(g, strided(g, dtype, n.w, "w"), strided(g, DType::kF32, n.x), n.params, "");
      });
    }
  };
  for (const Conv2dSizes& n : kConv2dSizes) add(Op::kConv2d, n, conv_2d);
  for (const ConvTransposeSizes& n : kConvTransposeSizes) add(Op::kConvTranspose2d, n, conv_transpose_2d);
}

}  // namespace shoal::test
