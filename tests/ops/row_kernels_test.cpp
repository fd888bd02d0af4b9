// Tests of the kernels of row-wise ops, for every instruction-set level of this machine. The tests cover special
// arguments, and the accuracy over the whole range of arguments. The result for an element must have the same bits at
// every position of the element. Conversions must match the conversions of DTypeTraits bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "devices/cpu/isa.h"
#include "graph/ops/params.h"

namespace shoal::cpu {
namespace {

using Floats = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class RowLoops : public testing::TestWithParam<std::string_view> {
 protected:
  const RowKernels& rows() const { return kernels_of(GetParam()).rows; }
  Floats unary(UnaryKind kind, const Floats& x) const {
    Floats y(x.size());
    rows().unary[static_cast<size_t>(kind)](x.data(), y.data(), static_cast<int64_t>(x.size()));
    return y;
  }
};

Floats random_floats(size_t n, float scale = 1, uint32_t seed = 7) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  Floats values(n);
  for (float& v : values) v = normal(engine);
  return values;
}

/// Closely spaced magnitudes from 1e-30 to `largest`, with both signs.
Floats magnitudes(double largest) {
  Floats x;
  for (double v = 1e-30; v < largest; v *= 1.00037) {
    x.push_back(static_cast<float>(v));
    x.push_back(static_cast<float>(-v));
  }
  return x;
}

double unit_of(double exact) {
  const auto nearest = static_cast<float>(std::fabs(exact));
  return static_cast<double>(std::nextafter(nearest, kInfinity)) - nearest;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

struct Function {
  UnaryKind kind;
  double largest;  ///< largest magnitude of the arguments
  double units;    ///< allowed error, in units in the last place
  double (*exact)(double);
};

/// The kernels of gelu and gelu_quick compute `x * sigmoid(f(x))`, and the sigmoid computes exp(-f(x)). If `f(x)` is
/// large, the rounding error of `f(x)` causes a large relative error of the exponential. So the allowed error of these
/// two functions is larger than the allowed error of other functions.
const Function kFunctions[] = {
    {UnaryKind::kAbs, 1e30, 0, [](double x) { return std::fabs(x); }},
    {UnaryKind::kNeg, 1e30, 0, [](double x) { return -x; }},
    {UnaryKind::kSgn, 1e30, 0, [](double x) { return x > 0 ? 1.0 : -1.0; }},
    {UnaryKind::kStep, 1e30, 0, [](double x) { return x > 0 ? 1.0 : 0.0; }},
    {UnaryKind::kTanh, 1e30, 4, [](double x) { return std::tanh(x); }},
    {UnaryKind::kElu, 1e30, 3, [](double x) { return x > 0 ? x : std::expm1(x); }},
    {UnaryKind::kRelu, 1e30, 0, [](double x) { return x > 0 ? x : 0; }},
    {UnaryKind::kSigmoid, 80, 4, sigmoid},
    {UnaryKind::kGelu, 4, 40,
     [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); }},
    {UnaryKind::kGeluErf, 12, 8, [](double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }},
    {UnaryKind::kGeluQuick, 20, 40, [](double x) { return x * sigmoid(1.702 * x); }},
    {UnaryKind::kSilu, 80, 4, [](double x) { return x * sigmoid(x); }},
    {UnaryKind::kHardSwish, 1e15, 3, [](double x) { return x * std::clamp((x + 3) / 6, 0.0, 1.0); }},
    {UnaryKind::kHardSigmoid, 1e15, 3, [](double x) { return std::clamp((x + 3) / 6, 0.0, 1.0); }},
    {UnaryKind::kExp, 88, 2, [](double x) { return std::exp(x); }},
    {UnaryKind::kLog, 1e38, 3, [](double x) { return std::log(x); }},
    {UnaryKind::kSqr, 1e18, 0.5, [](double x) { return x * x; }},
    {UnaryKind::kSqrt, 1e38, 0.5, [](double x) { return std::sqrt(x); }},
    {UnaryKind::kSin, 1e9, 1, [](double x) { return std::sin(x); }},
    {UnaryKind::kCos, 1e9, 1, [](double x) { return std::cos(x); }},
    {UnaryKind::kSoftplus, 85, 4, [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }},
};

TEST_P(RowLoops, FunctionsAreAccurateForAllMagnitudes) {
  ASSERT_EQ(std::size(kFunctions), static_cast<size_t>(UnaryKind::kCount));
  for (const Function& f : kFunctions) {
    const Floats x = magnitudes(f.largest), y = unary(f.kind, x);
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = f.exact(x[i]);
      if (std::isnan(exact)) {
        ASSERT_TRUE(std::isnan(y[i])) << static_cast<int>(f.kind) << " of " << x[i];
        continue;
      }
      const double units = std::fabs(y[i] - exact) / unit_of(exact);
      if (units > worst || std::isnan(units)) worst = units, at = i;
    }
    EXPECT_LE(worst, f.units) << "kind " << static_cast<int>(f.kind) << " of " << x[at] << " gives " << y[at];
  }
}

TEST_P(RowLoops, FunctionsHandleSpecialArguments) {
  const Floats odd{0, -kInfinity, kInfinity, kNaN};
  using testing::IsNan;
  EXPECT_THAT(unary(UnaryKind::kTanh, odd), testing::ElementsAre(0, -1, 1, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kElu, odd), testing::ElementsAre(0, -1, kInfinity, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kSigmoid, odd), testing::ElementsAre(0.5f, 0, 1, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kExp, odd), testing::ElementsAre(1, 0, kInfinity, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kLog, odd), testing::ElementsAre(-kInfinity, IsNan(), kInfinity, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kSqrt, odd), testing::ElementsAre(0, IsNan(), kInfinity, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kSin, odd), testing::ElementsAre(0, IsNan(), IsNan(), IsNan()));
  EXPECT_THAT(unary(UnaryKind::kCos, odd), testing::ElementsAre(1, IsNan(), IsNan(), IsNan()));
  EXPECT_THAT(unary(UnaryKind::kHardSigmoid, odd), testing::ElementsAre(0.5f, 0, 1, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kSoftplus, odd), testing::ElementsAre(std::log(2.0f), 0, kInfinity, IsNan()));
  EXPECT_THAT(unary(UnaryKind::kSoftplus, {100, -100, 3e38f, -3e38f}),
              testing::ElementsAre(100, std::exp(-100.0f), 3e38f, 0));
  const Floats tiny{1e-40f, -1e-40f, 1e-45f, 3.4e38f};
  EXPECT_THAT(unary(UnaryKind::kLog, tiny),
              testing::ElementsAre(std::log(1e-40f), IsNan(), std::log(1e-45f), std::log(3.4e38f)));
  EXPECT_THAT(unary(UnaryKind::kTanh, tiny), testing::ElementsAre(1e-40f, -1e-40f, 1e-45f, 1));
  EXPECT_THAT(unary(UnaryKind::kExp, {88.73f, 88.72f, -103.9f, -104.1f}),
              testing::ElementsAre(kInfinity, testing::Lt(kInfinity), std::exp(-103.9f), 0));
}

/// Runs f on ranges [begin, begin + n) of x. Compares the results bit for bit with the results for all of x. Also
/// detects writes past the end of a range.
void expect_same_bits_everywhere(const Floats& x, const std::function<void(const float*, float*, int64_t)>& f) {
  Floats whole(x.size());
  f(x.data(), whole.data(), static_cast<int64_t>(x.size()));
  for (size_t begin = 0; begin < x.size(); begin += 3) {
    for (size_t n = 0; begin + n <= x.size(); ++n) {
      Floats part(n + 1, 42.0f);
      f(x.data() + begin, part.data(), static_cast<int64_t>(n));
      ASSERT_EQ(part[n], 42.0f) << "wrote past the end";
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(part[i]), std::bit_cast<uint32_t>(whole[begin + i])) << begin << ", " << n;
      }
    }
  }
}

TEST_P(RowLoops, ElementsHaveTheSameBitsAtEveryPosition) {
  const Floats x = random_floats(70, 3);
  for (int kind = 0; kind < kUnaryKernelCount; ++kind) {
    SCOPED_TRACE(kind);
    expect_same_bits_everywhere(x, rows().unary[kind]);
  }
  // The second operand. Each range of x is combined with the same range of this operand.
  const Floats other = random_floats(70, 2, 8);
  const auto beside = [&](const float* from) { return other.data() + (from - x.data()); };
  for (int kind = 0; kind < kGluKernelCount; ++kind) {
    expect_same_bits_everywhere(
        x, [&](const float* from, float* to, int64_t n) { rows().glu[kind](from, beside(from), to, n); });
  }
  for (int kind = 0; kind < 4; ++kind) {
    expect_same_bits_everywhere(x, [&](const float* from, float* to, int64_t n) {
      rows().binary[kind](from, true, beside(from), true, to, n);
    });
    for (const bool left : {false, true}) {
      expect_same_bits_everywhere(x, [&](const float* from, float* to, int64_t n) {
        rows().binary[kind](left ? &other[5] : from, !left, left ? from : &other[5], left, to, n);
      });
    }
  }
  expect_same_bits_everywhere(x,
                              [&](const float* from, float* to, int64_t n) { rows().scale(from, 0.3f, -0.7f, to, n); });
  expect_same_bits_everywhere(x,
                              [&](const float* from, float* to, int64_t n) { rows().clamp(from, -0.3f, 0.7f, to, n); });
  expect_same_bits_everywhere(
      x, [&](const float* from, float* to, int64_t n) { rows().normalize(from, 0.1f, 0.7f, to, n); });
  expect_same_bits_everywhere(
      x, [&](const float* from, float* to, int64_t n) { rows().logits(from, beside(from), 0.7f, to, n); });
}

TEST_P(RowLoops, GluMultipliesTheActivatedGateByUp) {
  const Floats gate = random_floats(100, 3), up = random_floats(100, 1, 9);
  const UnaryKind kinds[] = {UnaryKind::kSilu, UnaryKind::kGelu, UnaryKind::kGeluErf, UnaryKind::kGeluQuick,
                             UnaryKind::kRelu};
  for (int kind = 0; kind < kGluKernelCount; ++kind) {
    Floats result(100), expected = unary(kinds[kind], gate);
    rows().glu[kind](gate.data(), up.data(), result.data(), 100);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] *= up[i];
    EXPECT_EQ(result, expected) << kind;
  }
}

TEST_P(RowLoops, ClampKeepsNaN) {
  Floats x{-2, 0.5f, 2, kNaN, kInfinity, -kInfinity};
  rows().clamp(x.data(), -1, 1, x.data(), 6);
  EXPECT_THAT(x, testing::ElementsAre(-1, 0.5f, 1, testing::IsNan(), 1, -1));
}

TEST_P(RowLoops, SumsAreComputedInDouble) {
  for (const size_t n : {0, 1, 3, 16, 31, 64, 100, 513}) {
    Floats x = random_floats(n, 100);
    double sum = 0, squares = 0, magnitude = 0;
    for (const float v : x) {
      sum += v;
      magnitude += std::fabs(static_cast<double>(v));
      squares += (v - 0.25) * (v - 0.25);
    }
    EXPECT_NEAR(rows().sum(x.data(), static_cast<int64_t>(n)), sum, 1e-14 * magnitude) << n;
    EXPECT_NEAR(rows().sum_squares(x.data(), 0.25, static_cast<int64_t>(n)), squares, 1e-14 * squares) << n;
  }
}

TEST_P(RowLoops, LargestLogitIsReturned) {
  for (const int64_t n : {1, 7, 16, 40}) {
    for (int64_t top = 0; top < n; ++top) {
      Floats x(n, -2.0f), mask(n, -1.0f), to(n);
      x[top] = -1.5f;
      EXPECT_EQ(rows().logits(x.data(), nullptr, 2, to.data(), n), -3.0f);
      EXPECT_EQ(rows().logits(x.data(), mask.data(), 2, to.data(), n), -4.0f);
      EXPECT_EQ(to[top], -4.0f);
      mask[top] = -kInfinity;
      x[top] = kNaN;
      EXPECT_EQ(rows().logits(x.data(), mask.data(), 2, to.data(), n), n == 1 ? -kInfinity : -5.0f);
      EXPECT_EQ(to[top], -kInfinity);
    }
  }
}

TEST_P(RowLoops, RopeFactorsMatchDoublePrecisionFactors) {
  for (const int64_t pairs : {1, 12, 16, 24, 64}) {
    std::vector<double> quarters((pairs + kTurnStep - 1) / kTurnStep * kTurnStep);
    for (int64_t i = 0; i < pairs; ++i)
      quarters[i] = std::pow(10000.0, -double(i) / double(pairs)) * 2 / std::numbers::pi;
    for (const double position : {0.0, 1.0, 511.0, 131071.0, 1000003.0}) {
      for (const bool neighbours : {false, true}) {
        Floats factors(4 * pairs + 1, 42.0f);
        rows().turn(quarters.data(), position, 1.5, pairs, neighbours, factors.data());
        EXPECT_EQ(factors.back(), 42.0f);
        for (int64_t i = 0; i < pairs; ++i) {
          const double angle = std::pow(10000.0, -double(i) / double(pairs)) * position;
          const auto cosine = static_cast<float>(1.5 * std::cos(angle)),
                     sine = static_cast<float>(1.5 * std::sin(angle));
          const int64_t place = neighbours ? 2 * i : i;
          ASSERT_NEAR(factors[place], cosine, 1.5e-7) << angle;
          ASSERT_NEAR(factors[2 * pairs + place], neighbours ? -sine : sine, 1.5e-7) << angle;
          if (!neighbours) continue;
          ASSERT_EQ(factors[place + 1], factors[place]);
          ASSERT_EQ(factors[2 * pairs + place + 1], -factors[2 * pairs + place]);
        }
      }
    }
  }
}

/// Floats with bit patterns from the whole range, floats next to each power of two, and floats next to rounding limits.
Floats patterns() {
  Floats x;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 7919)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (uint32_t top = 0; top < 0x10000; top += 1) {
    for (const uint32_t low : {0x0000u, 0x0fffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u}) {
      x.push_back(std::bit_cast<float>(top << 16 | low));
    }
  }
  x.resize(x.size() / 32 * 32);
  return x;
}

TEST_P(RowLoops, ConversionsTo16BitsMatchReference) {
  const Floats x = patterns();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> expected(x.size()), got(x.size());
    traits(dtype).from_f32(x.data(), expected.data(), static_cast<int64_t>(x.size()));
    // The conversion omits the last three elements, so the last vector is not full.
    rows().from_f32[static_cast<size_t>(dtype)](x.data(), got.data(), static_cast<int64_t>(x.size() - 3));
    EXPECT_THAT(std::vector(got.end() - 3, got.end()), testing::Each(0));
    for (size_t i = 0; i < x.size() - 3; ++i) {
      if (!std::isnan(x[i])) {
        ASSERT_EQ(got[i], expected[i]) << name_of(dtype) << " " << x[i];
      } else {
        float back;
        traits(dtype).to_f32(&got[i], &back, 1);
        ASSERT_TRUE(std::isnan(back)) << name_of(dtype);
      }
    }
  }
}

TEST_P(RowLoops, ConversionToQ8MatchesReference) {
  Floats x = random_floats(32 * 200);
  for (size_t block = 0; block < 200; ++block) {
    const float factor = std::ldexp(1.0f, static_cast<int>(block % 60) - 30);
    for (size_t i = 0; i < 32; ++i) x[32 * block + i] *= factor;
  }
  std::fill_n(x.begin(), 32, 0.0f);
  x[40] = kNaN;
  x[70] = kInfinity;
  x[100] = -kInfinity;
  x[101] = kNaN;
  for (size_t i = 160; i < 192; ++i) x[i] = static_cast<float>(i % 3) + 0.5f;  // ties between two integers
  x[160] = 127;
  std::vector<std::byte> expected(bytes_for(DType::kQ8_0, static_cast<int64_t>(x.size()))), got(expected.size());
  traits(DType::kQ8_0).from_f32(x.data(), expected.data(), static_cast<int64_t>(x.size()));
  rows().from_f32[static_cast<size_t>(DType::kQ8_0)](x.data(), got.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(got, expected);
  // Blocks 1 to 3 contain NaN and infinities.
  Floats back(5 * 32);
  traits(DType::kQ8_0).to_f32(got.data(), back.data(), 5 * 32);
  for (size_t i = 0; i < back.size(); ++i)
    ASSERT_EQ(std::isfinite(back[i]), i < 32 || i >= 128) << i << ": " << back[i];
}

TEST_P(RowLoops, SumsOfArraysAreRoundedOnce) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const DTypeTraits& type = traits(dtype);
    for (const int64_t n : {0, 1, 15, 16, 50}) {
      constexpr int kSources = 5;
      std::vector<std::vector<std::byte>> arrays(kSources, std::vector<std::byte>(n * 4 + 16));
      Floats total(n);
      for (int source = 0; source < kSources; ++source) {
        const Floats x = random_floats(n, 1, source);
        type.from_f32(x.data(), arrays[source].data() + 3 * type.block_bytes, n);
        Floats stored(n);
        type.to_f32(arrays[source].data() + 3 * type.block_bytes, stored.data(), n);
        for (int64_t i = 0; i < n; ++i) total[i] = source == 0 ? stored[i] : total[i] + stored[i];
      }
      std::vector<std::byte> expected(n * 4 + 16), other(n * 4 + 16);
      type.from_f32(total.data(), expected.data() + 3 * type.block_bytes, n);
      const std::byte* sources[kSources];
      for (int source = 0; source < kSources; ++source) sources[source] = arrays[source].data();
      std::byte* outs[] = {arrays[2].data(), other.data()};
      rows().sum_arrays[static_cast<size_t>(dtype)]({sources, kSources, 3, outs, 2, 3, n});
      EXPECT_EQ(other, expected) << name_of(dtype) << " " << n;
      EXPECT_EQ(arrays[2], expected) << "in place, " << name_of(dtype) << " " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, RowLoops, testing::ValuesIn(usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::cpu
