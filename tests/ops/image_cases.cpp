// Conformance cases of pool_2d, pad and upsample.
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

}  // namespace shoal::test
