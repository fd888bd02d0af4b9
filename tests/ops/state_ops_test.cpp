// causal_conv and gated_delta must give the same bits for all divisions of sequences into batches. The result of a
// token must not depend on padding, on later tokens, or on the tokens and the state before the beginning of the
// sequence. All these values may be NaN. The sequences of a batch must not affect each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"
#include "tests/support/same_bits.h"

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
  /// The elements of some tokens. A token is NaN if its number is negative.
  Values of(const std::vector<int64_t>& tokens) const {
    Values result;
    for (const int64_t token : tokens) {
      for (int64_t i = 0; i < width; ++i) result.push_back(token < 0 ? kNaN : values[token * width + i]);
    }
    return result;
  }
  void set(int64_t token, double value) { std::fill_n(values.begin() + token * width, width, value); }
};

/// Tokens of an op that are processed together. Each element of `states` is the state of a slot. Without `sequences`,
/// the batch has no StateSlots, and `states` has one element.
struct Batch {
  std::vector<int64_t> tokens;
  Values positions;
  std::vector<Values> states;
  Values sequences, slots;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  void add(int64_t token, double position, int64_t sequence) {
    tokens.push_back(token);
    positions.push_back(position);
    sequences.push_back(static_cast<double>(sequence));
  }
  StateSlots state_slots(Eval& eval) const {
    if (slots.empty()) return {};
    return {eval.integers(sequences), eval.integers(slots)};
  }
};

/// Result of an op for a batch: the rows of the tokens, and the new state of each sequence.
struct Run {
  Values rows;
  std::vector<Values> states;
};

/// Runs tokens [first, first + count) of `op` as a batch without StateSlots.
template <class Op>
Run run_part(const Op& op, int64_t first, int64_t count, const Values& state, int threads = 2) {
  Batch batch{std::vector<int64_t>(count), {}, {state}, {}, {}};
  std::iota(batch.tokens.begin(), batch.tokens.end(), first);
  batch.positions.assign(op.positions.begin() + first, op.positions.begin() + first + count);
  return op.run(batch, threads);
}

Values part(const Values& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

void append(const Values& values, Values& to) {
  to.insert(to.end(), values.begin(), values.end());
}

class Conv {
 public:
  static constexpr int64_t kWidth = 37, kTaps = 4, kState = kWidth * (kTaps - 1);

  explicit Conv(Values positions)
      : positions(std::move(positions)), x_(kWidth, tokens(), -1, 1, 1), weight_(kWidth, kTaps, -1, 1, 2) {}
  int64_t tokens() const { return static_cast<int64_t>(positions.size()); }
  void set(int64_t token, double value) { x_.set(token, value); }
  Run run(const Batch& batch, int threads = 2) const {
    Eval eval;
    Values state;
    for (const Values& slot : batch.states) append(slot, state);
    const Shape state_shape{kWidth, (kTaps - 1) * static_cast<int64_t>(batch.states.size()), 1, 1};
    const Values all =
        eval.run(causal_conv(eval.graph, eval.input({kWidth, batch.size(), 1, 1}, x_.of(batch.tokens)),
                             eval.input({kTaps, kWidth, 1, 1}, weight_.values), eval.input(state_shape, state),
                             eval.integers(batch.positions), {}, batch.state_slots(eval)),
                 fmt::format("CPU0:threads={}", threads));
    Run result{part(all, 0, kWidth * batch.size()), {}};
    for (auto at = static_cast<int64_t>(result.rows.size()); at < static_cast<int64_t>(all.size()); at += kState) {
      result.states.push_back(part(all, at, kState));
    }
    return result;
  }

  Values positions;

 private:
  Rows x_, weight_;
};

template <int64_t kSize>
class DeltaOf {
 public:
  static constexpr int64_t kHeads = 2, kWidth = kSize * kHeads, kMatrix = kSize * kSize, kState = kMatrix * kHeads;

  explicit DeltaOf(Values positions)
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
  Run run(const Batch& batch, int threads = 2) const {
    Eval eval;
    const int64_t count = batch.size(), slots = static_cast<int64_t>(batch.states.size());
    const auto input = [&](const Rows& rows, const Shape& shape) { return eval.input(shape, rows.of(batch.tokens)); };
    Values state;
    for (int64_t head = 0; head < kHeads; ++head) {
      for (const Values& slot : batch.states) append(part(slot, head * kMatrix, kMatrix), state);
    }
    const Values all =
        eval.run(gated_delta(eval.graph, input(q_, {kSize, 1, count, 1}), input(k_, {kSize, 1, count, 1}),
                             input(v_, {kSize, kHeads, count, 1}), input(decay_, {kHeads, count, 1, 1}),
                             input(beta_, {kHeads, count, 1, 1}), eval.input({kSize, kSize * slots, kHeads, 1}, state),
                             eval.integers(batch.positions), {}, {}, batch.state_slots(eval)),
                 fmt::format("CPU0:threads={}", threads));
    const int64_t of_head = static_cast<int64_t>(all.size()) / kHeads;
    Run result{{}, std::vector<Values>(batch.slots.empty() ? 1 : batch.slots.size())};
    for (int64_t token = 0; token < count; ++token) {
      for (int64_t head = 0; head < kHeads; ++head)
        append(part(all, head * of_head + token * kSize, kSize), result.rows);
    }
    for (size_t i = 0; i < result.states.size(); ++i) {
      for (int64_t head = 0; head < kHeads; ++head) {
        const int64_t first = head * of_head + count * kSize + static_cast<int64_t>(i) * kMatrix;
        append(part(all, first, kMatrix), result.states[i]);
      }
    }
    return result;
  }

  Values positions;

 private:
  Rows q_, k_, v_, decay_, beta_;
};

template <class Op>
class StateOps : public ::testing::Test {};
using Ops = ::testing::Types<Conv, DeltaOf<40>, DeltaOf<128>>;
TYPED_TEST_SUITE(StateOps, Ops);

template <class Op>
Values some_state(unsigned seed = 9) {
  return Rows(Op::kState, 1, -1, 1, seed).values;
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

TYPED_TEST(StateOps, OneBatchGivesSameBitsAsConsecutiveParts) {
  const TypeParam op(mixed_positions());
  const Run whole = run_part(op, 0, op.tokens(), some_state<TypeParam>());
  for (const std::vector<int64_t>& parts :
       {std::vector<int64_t>{1, 8, 9, 3, 46, 7}, {40, 34}, {0, 20, 2, 45, 2, 0, 5}}) {
    Run joined{{}, {some_state<TypeParam>()}};
    int64_t first = 0;
    for (const int64_t count : parts) {
      const Run part = run_part(op, first, count, joined.states[0]);
      append(part.rows, joined.rows);
      joined.states = part.states;
      first += count;
    }
    ASSERT_EQ(first, op.tokens());
    EXPECT_TRUE(same_bits(joined.rows, whole.rows));
    EXPECT_TRUE(same_bits(joined.states[0], whole.states[0]));
  }
}

TYPED_TEST(StateOps, DataBeforeASequenceHasNoEffect) {
  for (const int64_t before : {2, 40}) {
    for (const int64_t tokens : {3, 50}) {
      Values positions = counting(before, 7);
      append(counting(tokens), positions);
      TypeParam op(positions);
      const Run text = run_part(op, before, tokens, some_state<TypeParam>());
      for (int64_t token = 0; token < before; ++token) op.set(token, kNaN);
      const Run all = run_part(op, 0, before + tokens, Values(TypeParam::kState, kNaN));
      const Values rows(all.rows.begin() + before * TypeParam::kWidth, all.rows.end());
      EXPECT_TRUE(same_bits(rows, text.rows)) << before << " + " << tokens;
      EXPECT_TRUE(same_bits(all.states[0], text.states[0])) << before << " + " << tokens;
    }
  }
}

TYPED_TEST(StateOps, PaddingHasNoEffect) {
  for (const int64_t tokens : {4, 50}) {
    TypeParam op(counting(tokens, 7));
    op.positions[tokens / 2] = op.positions.back() = -1;
    op.set(tokens / 2, 0.25);
    const Run plain = run_part(op, 0, tokens, some_state<TypeParam>());
    op.set(tokens / 2, kNaN);
    op.set(tokens - 1, kNaN);
    const Run padded = run_part(op, 0, tokens, some_state<TypeParam>());
    EXPECT_TRUE(same_bits(padded.rows, plain.rows));
    EXPECT_TRUE(same_bits(padded.states[0], plain.states[0]));
    for (const int64_t token : {tokens / 2, tokens - 1}) {
      for (int64_t i = 0; i < TypeParam::kWidth; ++i) EXPECT_EQ(padded.rows[token * TypeParam::kWidth + i], 0);
    }
  }
}

TYPED_TEST(StateOps, LaterTokensHaveNoEffect) {
  for (const int64_t tokens : {4, 50}) {
    TypeParam op(counting(tokens, 7));
    const Run finite = run_part(op, 0, tokens, some_state<TypeParam>());
    const int64_t odd = tokens - 2;
    op.set(odd, kNaN);
    const Run all = run_part(op, 0, tokens, some_state<TypeParam>());
    const auto before = [=](const Run& run) { return part(run.rows, 0, odd * TypeParam::kWidth); };
    EXPECT_TRUE(same_bits(before(all), before(finite)));
    EXPECT_TRUE(std::isnan(all.rows[odd * TypeParam::kWidth]));
  }
}

/// Consecutive tokens of an op. The tokens belong to one sequence, which continues from `state`.
struct Tokens {
  int64_t first, count;
  Values state;
};

/// The results of tokens that are processed one by one. Element i of `states` is the state before token i.
template <class Op>
struct OneByOne {
  std::vector<Values> rows, states;

  OneByOne(const Op& op, const Tokens& tokens) : states{tokens.state} {
    for (int64_t i = 0; i < tokens.count; ++i) {
      Run run = run_part(op, tokens.first + i, 1, states.back(), 1);
      rows.push_back(std::move(run.rows));
      states.push_back(std::move(run.states[0]));
    }
  }
};

TYPED_TEST(StateOps, BitsDoNotDependOnTheLengthOfABatch) {
  constexpr int64_t kCount = 100;
  const TypeParam op(counting(kCount, 3));
  const OneByOne<TypeParam> expected(op, {0, kCount, some_state<TypeParam>()});
  Values rows;
  for (int64_t count = 1; count <= kCount; ++count) {
    append(expected.rows[count - 1], rows);
    if (count > 64 && count < kCount) continue;
    const Run run = run_part(op, 0, count, some_state<TypeParam>());
    EXPECT_TRUE(same_bits(run.rows, rows)) << count;
    EXPECT_TRUE(same_bits(run.states[0], expected.states[count])) << count;
  }
}

/// Random batches of three sequences on 1 to 3 threads. One of the sequences starts again after some tokens. The slots
/// of other sequences and the data of padding are NaN.
TYPED_TEST(StateOps, BitsDoNotDependOnOtherSequences) {
  const Values nan(TypeParam::kState, kNaN);
  Values positions = counting(100);
  append(counting(60, 5), positions);
  append(counting(20), positions);
  append(counting(30), positions);
  const TypeParam op(positions);
  const std::vector<Tokens> all{
      {0, 100, nan}, {100, 60, some_state<TypeParam>(1)}, {160, 50, some_state<TypeParam>(2)}};
  std::vector<OneByOne<TypeParam>> expected;
  for (const Tokens& tokens : all) expected.emplace_back(op, tokens);
  std::mt19937 random(7);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (const int64_t most : {4, 16, 101}) {
    std::vector<int64_t> done(all.size());
    for (int steps = 0; done != std::vector<int64_t>{100, 60, 50}; ++steps) {
      ASSERT_LT(steps, 1000);
      std::vector<int64_t> order(all.size()), begins(all.size()), counts(all.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Batch batch{{}, {}, std::vector<Values>(5, nan), {}, Values(all.size())};
      const int64_t turn = pick(5);
      for (const int64_t i : order) {
        const int64_t slot = (i + turn) % 5;
        batch.slots[i] = static_cast<double>(slot);
        batch.states[slot] = expected[i].states[done[i]];
        begins[i] = batch.size();
        counts[i] = std::min(pick(most), all[i].count - done[i]);
        for (int64_t token = all[i].first + done[i]; token < all[i].first + done[i] + counts[i]; ++token) {
          batch.add(token, op.positions[token], i);
        }
        if (pick(2) == 0) batch.add(-1, -1, pick(5) - 1);
      }
      const Run run = op.run(batch, 1 + steps % 3);
      for (const int64_t i : order) {
        for (int64_t j = 0; j < counts[i]; ++j) {
          const Values row = part(run.rows, (begins[i] + j) * TypeParam::kWidth, TypeParam::kWidth);
          EXPECT_TRUE(same_bits(row, expected[i].rows[done[i] + j])) << "token " << done[i] + j << " of " << i;
        }
        done[i] += counts[i];
        const Values& state = counts[i] > 0 ? expected[i].states[done[i]] : Values(TypeParam::kState, 0.0);
        EXPECT_TRUE(same_bits(run.states[i], state)) << "state " << i;
      }
    }
  }
}

/// Sequence 0 begins in the batch and reads a slot with NaN. Sequences 1 and 3 continue from the same slot. Sequence 2
/// has no tokens. The slot of sequence 4 does not exist. Token -1 is padding: its position is negative, or its sequence
/// does not exist.
TYPED_TEST(StateOps, SequencesOfABatchAreIndependent) {
  const Values with_nan(TypeParam::kState, kNaN), zeros(TypeParam::kState, 0.0), some = some_state<TypeParam>();
  TypeParam op(counting(12, 1));
  op.positions[0] = 0;
  const Batch batch{{-1, 0, 1, -1, 2, 3, 4, 5, -1, 6, 7, 8, 9, 10, -1, 11, -1},
                    {-1, 0, 2, -7, 3, 4, 5, 6, 5, 7, 8, 9, 10, 11, -1, 12, 13},
                    {with_nan, with_nan, some, with_nan},
                    {1, 0, 0, 0, 0, 3, 3, 3, 5, 3, 4, 4, 1, 1, 0, 1, -1},
                    {1, 2, 0, 2, 4}};
  const Run all = op.run(batch);
  const auto expect_same = [&](int64_t sequence, int64_t first, int64_t count, const Values& state) {
    const Run alone = run_part(op, first, count, state);
    EXPECT_TRUE(same_bits(all.states[sequence], alone.states[0])) << sequence;
    for (int64_t at = 0; at < batch.size(); ++at) {
      if (batch.tokens[at] < first || batch.tokens[at] >= first + count) continue;
      EXPECT_TRUE(same_bits(part(all.rows, at * TypeParam::kWidth, TypeParam::kWidth),
                            part(alone.rows, (batch.tokens[at] - first) * TypeParam::kWidth, TypeParam::kWidth)))
          << at;
    }
  };
  expect_same(0, 0, 3, with_nan);
  expect_same(3, 3, 4, some);
  expect_same(4, 7, 2, zeros);
  expect_same(1, 9, 3, some);
  EXPECT_EQ(all.states[2], zeros);
  for (int64_t at = 0; at < batch.size(); ++at) {
    if (batch.tokens[at] >= 0) continue;
    EXPECT_EQ(part(all.rows, at * TypeParam::kWidth, TypeParam::kWidth), Values(TypeParam::kWidth, 0.0)) << at;
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
