// causal_conv and gated_delta must give the same results for a whole batch and for consecutive parts of the batch. The
// result of a token must not depend on padding, on later tokens, or on the tokens and the state before the beginning of
// the sequence. All these values may be NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"

namespace shoal::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A tensor with `width` elements per token. Axis 1 or 2 is the axis of tokens.
struct Rows {
  int64_t width;
  Values values;

  Rows(int64_t width, int64_t tokens, double low, double high, unsigned seed) : width(width), values(width * tokens) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> between(low, high);
    for (double& value : values) value = between(random);
  }
  Values of(int64_t first, int64_t count) const {
    return {values.begin() + first * width, values.begin() + (first + count) * width};
  }
  void set(int64_t token, double value) { std::fill_n(values.begin() + token * width, width, value); }
};

/// Result of an op for some tokens: the rows of these tokens, and the new state.
struct Run {
  Values rows, state;
};

class Conv {
 public:
  static constexpr int64_t kWidth = 37, kTaps = 4, kState = kWidth * (kTaps - 1);

  explicit Conv(Values positions)
      : positions(std::move(positions)), x_(kWidth, tokens(), -1, 1, 1), weight_(kWidth, kTaps, -1, 1, 2) {}
  int64_t tokens() const { return static_cast<int64_t>(positions.size()); }
  void set(int64_t token, double value) { x_.set(token, value); }
  Run run(int64_t first, int64_t count, const Values& state) const {
    Eval eval;
    const auto begin = positions.begin() + first;
    const Values all =
        eval.run(causal_conv(eval.graph, eval.input({kWidth, count, 1, 1}, x_.of(first, count)),
                             eval.input({kTaps, kWidth, 1, 1}, weight_.values),
                             eval.input({kWidth, kTaps - 1, 1, 1}, state), eval.integers({begin, begin + count})));
    return {{all.begin(), all.begin() + kWidth * count}, {all.begin() + kWidth * count, all.end()}};
  }

  Values positions;

 private:
  Rows x_, weight_;
};

class Delta {
 public:
  static constexpr int64_t kSize = 40, kHeads = 2, kWidth = kSize * kHeads, kState = kSize * kSize * kHeads;

  explicit Delta(Values positions)
      : positions(std::move(positions)),
        q_(kSize, tokens(), -0.2, 0.2, 1),
        k_(kSize, tokens(), -0.2, 0.2, 2),
        v_(kWidth, tokens(), -1, 1, 3),
        decay_(kHeads, tokens(), -0.5, 0, 4),
        beta_(kHeads, tokens(), 0, 1, 5) {}
  int64_t tokens() const { return static_cast<int64_t>(positions.size()); }
  void set(int64_t token, double value) {
    for (Rows* rows : {&q_, &k_, &v_, &decay_, &beta_}) rows->set(token, value);
  }
  /// Each row of the result contains the two heads of a token.
  Run run(int64_t first, int64_t count, const Values& state) const {
    Eval eval;
    const auto begin = positions.begin() + first;
    const auto input = [&](const Rows& rows, const Shape& shape) { return eval.input(shape, rows.of(first, count)); };
    const Values all = eval.run(gated_delta(
        eval.graph, input(q_, {kSize, 1, count, 1}), input(k_, {kSize, 1, count, 1}),
        input(v_, {kSize, kHeads, count, 1}), input(decay_, {kHeads, count, 1, 1}), input(beta_, {kHeads, count, 1, 1}),
        eval.input({kSize, kSize, kHeads, 1}, state), eval.integers({begin, begin + count}), {}));
    Run result;
    const int64_t of_head = kSize * (count + kSize);
    for (int64_t token = 0; token < count; ++token) {
      for (int64_t head = 0; head < kHeads; ++head) append(all, head * of_head + token * kSize, kSize, result.rows);
    }
    for (int64_t head = 0; head < kHeads; ++head) {
      append(all, head * of_head + count * kSize, kSize * kSize, result.state);
    }
    return result;
  }

  Values positions;

 private:
  static void append(const Values& from, int64_t begin, int64_t count, Values& to) {
    to.insert(to.end(), from.begin() + begin, from.begin() + begin + count);
  }

  Rows q_, k_, v_, decay_, beta_;
};

template <class Op>
class StateOps : public ::testing::Test {};
using Ops = ::testing::Types<Conv, Delta>;
TYPED_TEST_SUITE(StateOps, Ops);

template <class Op>
Values some_state() {
  return Rows(Op::kState, 1, -1, 1, 9).values;
}

/// The positions of three sequences. The first sequence continues at position 5. Padding is inside the sequences and at
/// the end.
Values mixed_positions() {
  Values positions = counting(50, 5);
  for (const int64_t padding : {20, 21, 44}) positions[padding] = -1;
  for (int64_t i = 0; i < 17; ++i) positions.push_back(static_cast<double>(i));
  for (const double position : {0.0, 1.0, -1.0, 2.0, -1.0, -1.0, -1.0}) positions.push_back(position);
  return positions;
}

TYPED_TEST(StateOps, OneBatchGivesSameResultsAsConsecutiveParts) {
  const TypeParam op(mixed_positions());
  const Run whole = op.run(0, op.tokens(), some_state<TypeParam>());
  for (const std::vector<int64_t>& parts :
       {std::vector<int64_t>{1, 8, 9, 3, 46, 7}, {40, 34}, {0, 20, 2, 45, 2, 0, 5}}) {
    Run joined{{}, some_state<TypeParam>()};
    int64_t first = 0;
    for (const int64_t count : parts) {
      const Run part = op.run(first, count, joined.state);
      joined.rows.insert(joined.rows.end(), part.rows.begin(), part.rows.end());
      joined.state = part.state;
      first += count;
    }
    ASSERT_EQ(first, op.tokens());
    EXPECT_TRUE(close_to(joined.rows, whole.rows, {1e-11}));
    EXPECT_TRUE(close_to(joined.state, whole.state, {1e-11}));
  }
}

TYPED_TEST(StateOps, DataBeforeASequenceHasNoEffect) {
  for (const int64_t before : {2, 40}) {
    for (const int64_t tokens : {3, 50}) {
      Values positions = counting(before, 7);
      for (const double position : counting(tokens)) positions.push_back(position);
      TypeParam op(positions);
      const Run text = op.run(before, tokens, some_state<TypeParam>());
      for (int64_t token = 0; token < before; ++token) op.set(token, kNaN);
      const Run all = op.run(0, before + tokens, Values(TypeParam::kState, kNaN));
      const Values rows(all.rows.begin() + before * TypeParam::kWidth, all.rows.end());
      EXPECT_TRUE(close_to(rows, text.rows, {1e-11})) << before << " + " << tokens;
      EXPECT_TRUE(close_to(all.state, text.state, {1e-11})) << before << " + " << tokens;
    }
  }
}

TYPED_TEST(StateOps, PaddingHasNoEffect) {
  for (const int64_t tokens : {4, 50}) {
    TypeParam op(counting(tokens, 7));
    op.positions[tokens / 2] = op.positions.back() = -1;
    op.set(tokens / 2, 0.25);
    const Run plain = op.run(0, tokens, some_state<TypeParam>());
    op.set(tokens / 2, kNaN);
    op.set(tokens - 1, kNaN);
    const Run padded = op.run(0, tokens, some_state<TypeParam>());
    EXPECT_TRUE(close_to(padded.rows, plain.rows, {0}));
    EXPECT_TRUE(close_to(padded.state, plain.state, {0}));
    for (const int64_t token : {tokens / 2, tokens - 1}) {
      for (int64_t i = 0; i < TypeParam::kWidth; ++i) EXPECT_EQ(padded.rows[token * TypeParam::kWidth + i], 0);
    }
  }
}

TYPED_TEST(StateOps, LaterTokensHaveNoEffect) {
  for (const int64_t tokens : {4, 50}) {
    TypeParam op(counting(tokens, 7));
    const Run finite = op.run(0, tokens, some_state<TypeParam>());
    const int64_t odd = tokens - 2;
    op.set(odd, kNaN);
    const Run all = op.run(0, tokens, some_state<TypeParam>());
    const auto before = [=](const Run& run) {
      return Values(run.rows.begin(), run.rows.begin() + odd * TypeParam::kWidth);
    };
    EXPECT_TRUE(close_to(before(all), before(finite), {0}));
    EXPECT_TRUE(std::isnan(all.rows[odd * TypeParam::kWidth]));
  }
}

TEST(GatedDelta, ZeroDecayFactorClearsState) {
  for (const int64_t tokens : {3, 50}) {
    Eval eval;
    const Shape one{1, 1, tokens, 1}, shares{1, tokens, 1, 1};
    const auto ones = [&](const Shape& shape) { return eval.input(shape, Values(tokens, 1)); };
    Values decay(tokens, 0), expected(tokens + 1, 0);
    decay[1] = -std::numeric_limits<double>::infinity();
    expected[0] = 5;
    Tensor* beta = eval.input(shares, Values(tokens, 0));
    EXPECT_EQ(eval.run(gated_delta(eval.graph, ones(one), ones(one), ones(one), eval.input(shares, decay), beta,
                                   eval.input({1, 1, 1, 1}, {5}), eval.integers(counting(tokens, 3)), {})),
              expected);
  }
}

}  // namespace
}  // namespace shoal::test
