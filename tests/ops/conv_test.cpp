// Properties of convolutions: conv_transpose_2d is the transposed map of conv_2d, and the order of sums does not depend
// on a device's share of the channels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"

namespace shoal::test {
namespace {

Values random_values(const Shape& s, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> between(-1, 1);
  Values values(static_cast<size_t>(s[0] * s[1] * s[2] * s[3]));
  for (double& value : values) value = between(random);
  return rounded(DType::kF32, values);
}

double inner_product(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += a[i] * b[i];
  return sum;
}

struct Sizes {
  Shape w, x;
  ConvParams params;
};

// Windows that do not reach the end of x need an output_pad. Strides, pads, dilations and groups have different values.
const Sizes kSizes[] = {
    {{3, 3, 5, 7}, {13, 9, 5, 2}, {.pads = {1, 1, 1, 1}}},
    {{3, 2, 4, 6}, {12, 11, 4, 1}, {.stride = {2, 3}}},
    {{4, 3, 3, 8}, {21, 17, 6, 3}, {{3, 2}, {4, 2, 1, 3}, {2, 4}, 2}},
    {{5, 1, 1, 9}, {40, 1, 9, 2}, {{4, 1}, {2, 0, 0, 0}, {1, 1}, 9}},
};

/// The parameters with which conv_transpose_2d gives a result with the shape of x.
ConvTransposeParams transposed(const Sizes& n) {
  ConvTransposeParams params{n.params.stride, n.params.pads, n.params.dilation, {0, 0}, n.params.groups};
  for (const int axis : {0, 1}) {
    const int64_t free = n.x[axis] + n.params.pads[2 * axis] + n.params.pads[2 * axis + 1] -
                         n.params.dilation[axis] * (n.w[axis] - 1) - 1;
    params.output_pad[axis] = free % n.params.stride[axis];
  }
  return params;
}

TEST(Convolution, TransposedMapHasTheSameInnerProducts) {
  for (const Sizes& n : kSizes) {
    const Values w = random_values(n.w, 1), x = random_values(n.x, 2);
    Eval forward, backward;
    Tensor* y = conv_2d(forward.graph, forward.input(n.w, w), forward.input(n.x, x), n.params);
    const Shape result = y->shape;
    const Values of_y = random_values(result, 3), conv = forward.run(y);
    Tensor* back =
        conv_transpose_2d(backward.graph, backward.input(n.w, w), backward.input(result, of_y), transposed(n));
    ASSERT_EQ(back->shape, n.x);
    const double expected = inner_product(conv, of_y), got = inner_product(x, backward.run(back));
    EXPECT_NEAR(got, expected, 1e-5 * std::max(1.0, std::abs(expected)));
  }
}

/// The results of channels [first, first + count) of a convolution with kernels w, or of its transposed map.
Values results_of(const Sizes& n, const Values& w, int64_t first, int64_t count, bool transpose, int threads) {
  Eval eval;
  const int axis = transpose ? 2 : 3;
  Tensor* kernels = slice(eval.graph, eval.input(n.w, w), {axis, first, count});
  Tensor* x = eval.input(n.x, random_values(n.x, 5));
  Tensor* y = transpose ? conv_transpose_2d(eval.graph, contiguous(eval.graph, kernels), x, {.stride = {2, 2}})
                        : conv_2d(eval.graph, contiguous(eval.graph, kernels), x, n.params);
  return eval.run(y, fmt::format("CPU0:threads={}", threads));
}

// conv_2d computes few and many channels with different kernels. Its sums have more terms than one piece of a sum.
TEST(Convolution, ResultsDoNotDependOnOtherChannels) {
  for (const auto& [width, transpose] : {std::pair(19, false), {150, false}, {19, true}}) {
    const Sizes n{{3, 3, transpose ? 30 : 70, transpose ? 70 : 30},
                  {width, 5, 70, 1},
                  {.pads = {3, 0, 1, 1}, .dilation = {2, 1}}};
    const Values w = random_values(n.w, 4), all = results_of(n, w, 0, 30, transpose, 1);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 13}, {14, 11}, {25, 3}, {28, 2}}) {
      const Values some = results_of(n, w, first, count, transpose, 3);
      const auto plane = static_cast<int64_t>(all.size()) / 30;
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * plane)) << first << ", " << count;
    }
  }
}

/// The results of a convolution with kernels w, which are all 1 if w is empty.
Values convolve(const Sizes& n, Values w, const Values& x, bool transpose) {
  if (w.empty()) w.assign(static_cast<size_t>(n.w[0] * n.w[1] * n.w[2] * n.w[3]), 1.0);
  Eval eval;
  Tensor *kernels = eval.input(n.w, w), *input = eval.input(n.x, x);
  return eval.run(transpose ? conv_transpose_2d(eval.graph, kernels, input, {.stride = {2, 1}})
                            : conv_2d(eval.graph, kernels, input, n.params));
}

TEST(Convolution, NaNAffectsOnlyResultsWhoseWindowsContainIt) {
  for (const bool transpose : {false, true}) {
    const Sizes n{{3, 2, 5, 5}, {21, 6, 5, 2}, {.pads = {1, 1, 1, 0}}};
    const Values w = random_values(n.w, 6), x = random_values(n.x, 7), clean = convolve(n, w, x, transpose);
    for (const size_t at : {size_t{0}, size_t{140}, x.size() - 1}) {
      Values dirty = x, marks(x.size(), 0.0);
      dirty[at] = std::numeric_limits<double>::quiet_NaN();
      marks[at] = 1;
      const Values got = convolve(n, w, dirty, transpose), reached = convolve(n, {}, marks, transpose);
      for (size_t i = 0; i < got.size(); ++i) {
        if (reached[i] != 0) {
          EXPECT_TRUE(std::isnan(got[i])) << at << ", " << i;
        } else {
          EXPECT_EQ(got[i], clean[i]) << at << ", " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal::test
