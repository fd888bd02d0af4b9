// Tests of pool_2d, pad, upsample, cumsum, compare and where. Expected values are from the documentation of ONNX
// (https://onnx.ai/onnx/operators, examples of AveragePool, MaxPool, Pad, Resize and CumSum) and of PyTorch
// (ReflectionPad2d, ReplicationPad2d), or they were computed by hand. The loops of every instruction-set level of this
// machine are compared with plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "devices/cpu/isa.h"
#include "graph/ops/ops.h"
#include "graph/text.h"
#include "tests/ops/eval.h"
#include "tests/support/kernel_inputs.h"
#include "tests/support/reference.h"

namespace shoal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Tolerance kClose{1e-13};

Values pooled(const PoolParams& params) {
  Eval eval;
  return eval.run(pool_2d(eval.graph, eval.input({5, 5, 1, 1}, counting(25, 1)), params));
}

TEST(Pool, AveragesIgnorePads) {
  const Values expected{7,    7.5, 8,    8.5, 9,    9.5, 10,   10.5, 11,   11.5, 12,   12.5, 13,
                        13.5, 14,  14.5, 15,  15.5, 16,  16.5, 17,   17.5, 18,   18.5, 19};
  EXPECT_TRUE(close_to(pooled({PoolKind::kAverage, {5, 5}, {1, 1}, {2, 2, 2, 2}}), expected, kClose));
}

TEST(Pool, AveragesCountPads) {
  const Values expected{2.52, 3.6, 4.8,  4.08, 3.24, 4.56,  6.4,  8.4,  7.04, 5.52, 7.2,  10,  13,
                        10.8, 8.4, 6.96, 9.6,  12.4, 10.24, 7.92, 6.12, 8.4,  10.8, 8.88, 6.84};
  EXPECT_TRUE(close_to(pooled({PoolKind::kAverage, {5, 5}, {1, 1}, {2, 2, 2, 2}, true}), expected, kClose));
}

TEST(Pool, MaximaIgnorePads) {
  const Values expected{13, 14, 15, 15, 15, 18, 19, 20, 20, 20, 23, 24, 25,
                        25, 25, 23, 24, 25, 25, 25, 23, 24, 25, 25, 25};
  EXPECT_EQ(pooled({PoolKind::kMax, {5, 5}, {1, 1}, {2, 2, 2, 2}}), expected);
  EXPECT_EQ(pooled({PoolKind::kMax, {2, 2}, {2, 2}}), (Values{7, 9, 17, 19}));
}

TEST(Pool, MaximaOfNegativeElementsAreNegative) {
  Eval eval;
  Tensor* x = eval.input({2, 1, 1, 1}, {-3, -5});
  EXPECT_EQ(eval.run(pool_2d(eval.graph, x, {PoolKind::kMax, {2, 1}, {1, 1}, {1, 1, 0, 0}})), (Values{-3, -3, -5}));
}

Values padded(const PadParams& params) {
  Eval eval;
  return eval.run(pad(eval.graph, eval.input({3, 3, 1, 1}, counting(9)), params));
}

TEST(Pad, ReflectionsDoNotRepeatTheOutermostElement) {
  EXPECT_EQ(padded({{1, 2, 0, 0}, {1, 0, 0, 0}, PadMode::kReflect}),
            (Values{7, 6, 7, 8, 7, 4, 3, 4, 5, 4, 1, 0, 1, 2, 1, 4, 3, 4, 5, 4, 7, 6, 7, 8, 7}));
  EXPECT_EQ(padded({{2, 0, 0, 0}, {2, 0, 0, 0}, PadMode::kReflect}),
            (Values{2, 1, 0, 1, 2, 1, 0, 5, 4, 3, 4, 5, 4, 3, 8, 7, 6, 7, 8, 7, 6}));
}

TEST(Pad, EdgesRepeatTheOutermostElement) {
  EXPECT_EQ(padded({{1, 2, 0, 0}, {1, 0, 0, 0}, PadMode::kEdge}),
            (Values{0, 0, 1, 2, 2, 0, 0, 1, 2, 2, 0, 0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8, 8}));
}

TEST(Pad, ConstantsSurroundTheImage) {
  EXPECT_EQ(padded({{0, 1, 0, 0}, {1, 0, 1, 0}, PadMode::kConstant, -2}),
            (Values{-2, -2, -2, -2, 0,  1,  2,  -2, 3,  4,  5,  -2, 6,  7,  8,  -2,
                    -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2}));
}

Values resized(const Shape& shape, const UpsampleParams& params) {
  Eval eval;
  return eval.run(upsample(eval.graph, eval.input(shape, counting(shape[0] * shape[1], 1)), params));
}

TEST(Upsample, NearestElementsAreRoundedDown) {
  EXPECT_EQ(resized({2, 2, 1, 1}, {{6, 4}, UpsampleMode::kNearest}),
            (Values{1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 3, 3, 3, 4, 4, 4}));
  EXPECT_EQ(resized({4, 2, 1, 1}, {{2, 1}, UpsampleMode::kNearest}), (Values{1, 3}));
  // floor(i * 3 / 7) for i in [0, 7)
  EXPECT_EQ(resized({3, 1, 1, 1}, {{7, 1}, UpsampleMode::kNearest}), (Values{1, 1, 1, 2, 2, 3, 3}));
}

TEST(Upsample, BilinearPositionsAreCentresOfElements) {
  const Values expected{1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4};
  EXPECT_TRUE(close_to(resized({2, 2, 1, 1}, {{4, 4}, UpsampleMode::kBilinear}), expected, kClose));
  // Position 3/2 * (i + 1/2) - 1/2 is 1/4 for i = 0 and 7/4 for i = 1.
  EXPECT_TRUE(close_to(resized({3, 1, 1, 1}, {{2, 1}, UpsampleMode::kBilinear}), {1.25, 2.75}, kClose));
}

TEST(Upsample, CornersKeepTheirValues) {
  const Values thirds{3, 4, 5, 6, 5, 6, 7, 8, 7, 8, 9, 10, 9, 10, 11, 12};
  Values expected;
  for (const double value : thirds) expected.push_back(value / 3);
  EXPECT_TRUE(close_to(resized({2, 2, 1, 1}, {{4, 4}, UpsampleMode::kCorners}), expected, kClose));
  EXPECT_EQ(resized({3, 1, 1, 1}, {{1, 1}, UpsampleMode::kCorners}), (Values{1}));
}

// Interpolation multiplies infinity by weights of 0, which gives NaN.
TEST(Upsample, ResultsNextToInfinityEqualReference) {
  const auto backend = Registry::instance().init("CPU0:threads=2");
  for (const auto mode : {UpsampleMode::kNearest, UpsampleMode::kBilinear, UpsampleMode::kCorners}) {
    for (const Shape& size : {Shape{5, 5, 1, 1}, {3, 5, 1, 1}, {6, 3, 1, 1}, {6, 6, 1, 1}}) {
      for (int64_t at = 0; at < 9; ++at) {
        Graph graph;
        Tensor* x = graph.input("x", DType::kF32, {3, 3, 1, 1});
        Tensor* y = graph.output(upsample(graph, x, {{size[0], size[1]}, mode}));
        TensorValues leaves{{x, counting(9, 1)}};
        leaves.at(x)[static_cast<size_t>(at)] = kInfinity;
        EXPECT_TRUE(close_to(run_graph(*backend, graph, leaves).at(y), reference_eval(graph, leaves).at(y), kClose))
            << to_string(*y) << ", infinity at " << at;
      }
    }
  }
}

TEST(Cumsum, AddsAlongAxis0) {
  Eval eval;
  Tensor* x = eval.input({5, 2, 1, 1}, {1, 2, 3, 4, 5, -1, 0.5, 0.25, kInfinity, -1});
  EXPECT_EQ(eval.run(cumsum(eval.graph, x)), (Values{1, 3, 6, 10, 15, -1, -0.5, -0.25, kInfinity, kInfinity}));
}

TEST(Cumsum, IntegersWrap) {
  Eval eval;
  EXPECT_EQ(eval.run(cumsum(eval.graph, eval.integers({2147483647, 1, 5}))),
            (Values{2147483647, -2147483648.0, -2147483643}));
}

TEST(Cumsum, SmallElementsAfterALargeOneAreNotLost) {
  Values x(1001, 1);
  x[0] = 0x1p25;
  Eval eval;
  EXPECT_EQ(eval.run(cumsum(eval.graph, eval.input({1001, 1, 1, 1}, x))).back(), 0x1p25 + 1000);
}

TEST(Compare, NaNIsOnlyUnequal) {
  for (int i = 0; i < static_cast<int>(CompareKind::kCount); ++i) {
    Eval eval;
    Tensor* a = eval.input({4, 1, 1, 1}, {kNaN, 1, kNaN, -kInfinity});
    Tensor* b = eval.input({4, 1, 1, 1}, {1, kNaN, kNaN, kInfinity});
    const auto kind = static_cast<CompareKind>(i);
    const bool differs = kind == CompareKind::kNotEqual;
    const bool less = differs || kind == CompareKind::kLess || kind == CompareKind::kLessEqual;
    const Values expected{differs ? 1.0 : 0, differs ? 1.0 : 0, differs ? 1.0 : 0, less ? 1.0 : 0};
    EXPECT_EQ(eval.run(compare(eval.graph, a, b, kind)), expected) << i;
  }
}

TEST(Where, EveryConditionExceptZeroSelectsA) {
  Eval eval;
  Tensor* condition = eval.integers({0, 1, -1, 256, -2147483648.0});
  Tensor* a = eval.input(DType::kF16, {5, 1, 1, 1}, {1, 2, 3, kInfinity, 5});
  Tensor* b = eval.input(DType::kF16, {1, 1, 1, 1}, {-9});
  EXPECT_EQ(eval.run(where(eval.graph, condition, a, b)), (Values{-9, 2, 3, kInfinity, 5}));
}

class ImageLoops : public testing::TestWithParam<std::string_view> {
 protected:
  const cpu::Kernels& kernels() const { return cpu::kernels_of(GetParam()); }
};

using Floats = std::vector<float>;

TEST_P(ImageLoops, PoolEqualsPlainLoop) {
  for (const int64_t length : {1, 5, 37, 64}) {
    const Floats x = random_floats(length, 3);
    for (const int64_t stride : {1, 2, 3}) {
      for (int64_t kernel = 1; kernel <= 4; ++kernel) {
        for (int64_t before = 0; before < kernel; ++before) {
          const int64_t n = (length - 1 + before) / stride + 1;
          Floats largest(n), sums(n);
          kernels().images.pool[0]({x.data(), length, kernel, stride, before, largest.data(), n});
          kernels().images.pool[1]({x.data(), length, kernel, stride, before, sums.data(), n});
          for (int64_t i = 0; i < n; ++i) {
            float top = -INFINITY, sum = 0;
            for (int64_t k = std::max<int64_t>(i * stride - before, 0);
                 k < std::min(i * stride - before + kernel, length); ++k) {
              top = std::max(top, x[k]);
              sum += x[k];
            }
            ASSERT_EQ(largest[i], top) << length << ", kernel " << kernel << ", stride " << stride << ", element " << i;
            ASSERT_EQ(sums[i], sum) << length << ", kernel " << kernel << ", stride " << stride << ", element " << i;
          }
        }
      }
    }
  }
}

TEST_P(ImageLoops, MaximaOfNaNAreNaN) {
  for (const int64_t at : {0, 1, 2}) {
    Floats x{3, 1, 2};
    x[at] = NAN;
    float largest = 0;
    kernels().images.pool[0]({x.data(), 3, 3, 1, 0, &largest, 1});
    EXPECT_TRUE(std::isnan(largest)) << at;
    const Floats other{5, 5, 5};
    Floats ahead(3), behind(3);
    kernels().images.combine[0](x.data(), other.data(), ahead.data(), 3);
    kernels().images.combine[0](other.data(), x.data(), behind.data(), 3);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::isnan(ahead[i]), i == at);
      EXPECT_EQ(std::isnan(behind[i]), i == at);
    }
  }
}

TEST_P(ImageLoops, InterpolationEqualsPlainLoop) {
  constexpr int64_t kLength = 23, kCount = 71;
  const Floats x = random_floats(kLength, 5), y = random_floats(kLength, 6), shares = random_floats(kCount, 7);
  std::vector<int32_t> low(kCount), high(kCount);
  Floats weight(kCount), picked(kCount), mixed(kCount), blended(kLength);
  for (int64_t i = 0; i < kCount; ++i) {
    low[i] = static_cast<int32_t>(i * 7 % kLength);
    high[i] = static_cast<int32_t>(i * 5 % kLength);
    weight[i] = std::fabs(shares[i]);
  }
  kernels().images.gather(x.data(), low.data(), picked.data(), kCount);
  kernels().images.interpolate(x.data(), {low.data(), high.data(), weight.data()}, mixed.data(), kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(picked[i], x[low[i]]);
    const double w = weight[i];
    ASSERT_NEAR(mixed[i], x[low[i]] * (1 - w) + x[high[i]] * w, 1e-6);
  }
  kernels().images.mix(x.data(), y.data(), 0.25f, blended.data(), kLength);
  for (int64_t i = 0; i < kLength; ++i) ASSERT_NEAR(blended[i], 0.75 * x[i] + 0.25 * y[i], 1e-6);
}

TEST_P(ImageLoops, ComparisonsAndSelectionsEqualPlainLoops) {
  for (const int64_t n : {1, 3, 16, 37}) {
    std::vector<int32_t> a(n), b(n), result(n), condition(n), words(n);
    std::vector<uint16_t> halves(n), left(n, 1), right(n, 2);
    for (int64_t i = 0; i < n; ++i) {
      a[i] = static_cast<int32_t>(i % 3) - 1;
      b[i] = static_cast<int32_t>(i % 5) - 2;
      condition[i] = static_cast<int32_t>(i % 2 * 256);
    }
    const Floats x(a.begin(), a.end()), y(b.begin(), b.end());
    for (size_t kind = 0; kind < static_cast<size_t>(CompareKind::kCount); ++kind) {
      for (const bool integers : {false, true}) {
        const void* from = integers ? static_cast<const void*>(a.data()) : x.data();
        const void* with = integers ? static_cast<const void*>(b.data()) : y.data();
        kernels().rows.compare[integers ? 1 : 0][kind](from, with, result.data(), n);
        for (int64_t i = 0; i < n; ++i) {
          const bool expected[] = {a[i] == b[i], a[i] != b[i], b[i] > a[i], a[i] <= b[i], b[i] < a[i], a[i] >= b[i]};
          ASSERT_EQ(result[i], expected[kind] ? 1 : 0) << "kind " << kind << ", " << a[i] << " and " << b[i];
        }
      }
    }
    kernels().rows.select_halves(condition.data(), left.data(), right.data(), halves.data(), n);
    kernels().rows.select_words(condition.data(), reinterpret_cast<const uint32_t*>(a.data()),
                                reinterpret_cast<const uint32_t*>(b.data()), reinterpret_cast<uint32_t*>(words.data()),
                                n);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(halves[i], condition[i] ? 1 : 2);
      ASSERT_EQ(words[i], condition[i] ? a[i] : b[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, ImageLoops, testing::ValuesIn(cpu::usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::test
