// Tests the sampler in cases that can be computed by hand, and the distribution of its draws.
#include "models/session/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/error.h"

namespace shoal::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Parameters that disable all steps, so tokens are drawn from the softmax of all logits.
SamplerParams plain(uint64_t seed = 1) {
  return {.temp = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
}

// Logits whose softmax is proportional to `weights`.
std::vector<float> logits_of(const std::vector<double>& weights) {
  std::vector<float> logits;
  for (const double weight : weights) logits.push_back(static_cast<float>(std::log(weight)));
  return logits;
}

std::map<int32_t, int> counts_of(const SamplerParams& params, const std::vector<float>& logits, int draws) {
  Sampler sampler(params);
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

// Chi-square statistic of counts against weights. The result is infinite if a token without a weight was drawn.
double chi_square(const std::map<int32_t, int>& counts, const std::map<int32_t, double>& weights, int draws) {
  double total = 0, sum = 0;
  for (const auto& [id, weight] : weights) total += weight;
  for (const auto& [id, count] : counts) {
    if (!weights.contains(id)) return kInfinity;
  }
  for (const auto& [id, weight] : weights) {
    const double expected = draws * weight / total;
    const auto found = counts.find(id);
    sum += std::pow((found == counts.end() ? 0 : found->second) - expected, 2) / expected;
  }
  return sum;
}

// Seeds are fixed, so the results do not vary. The bound detects systematic errors of a few per cent. With 40,000 draws
// and up to 7 degrees of freedom, a correct sampler exceeds the bound for one seed in 10,000.
constexpr int kDraws = 40000;
constexpr double kBound = 30;

std::string refusal(const SamplerParams& params) {
  try {
    Sampler sampler(params);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Sampler, GreedyPrefersHighestLogitThenLowestId) {
  for (const float temp : {0.0f, -1.0f}) {
    Sampler sampler({.temp = temp, .top_k = 1});
    EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2}), 1);
    EXPECT_EQ(sampler.sample(std::vector<float>{-5, 3, 3}), 1);
    EXPECT_EQ(sampler.sample(std::vector<float>{-1}), 0);
  }
}

TEST(Sampler, DrawsFromTheSoftmax) {
  const std::vector<double> weights{1, 2, 3, 4, 10, 20, 30, 0.5};
  std::map<int32_t, double> expected;
  for (size_t i = 0; i < weights.size(); ++i) expected[static_cast<int32_t>(i)] = weights[i];
  EXPECT_LT(chi_square(counts_of(plain(), logits_of(weights), kDraws), expected, kDraws), kBound);
  // The bound is narrow enough to detect one weight with an error of 20 %.
  expected[4] *= 1.2;
  EXPECT_GT(chi_square(counts_of(plain(), logits_of(weights), kDraws), expected, kDraws), kBound);
}

TEST(Sampler, TemperatureSharpensAndFlattens) {
  // For temperature T, the softmax of logits / T has weights w^(1/T): squares for T = 0.5, square roots for T = 2.
  const std::vector<float> logits = logits_of({1, 2, 4});
  SamplerParams params = plain();
  params.temp = 0.5f;
  EXPECT_LT(chi_square(counts_of(params, logits, kDraws), {{0, 1}, {1, 4}, {2, 16}}, kDraws), kBound);
  params.temp = 2;
  EXPECT_LT(chi_square(counts_of(params, logits, kDraws), {{0, 1}, {1, std::sqrt(2)}, {2, 2}}, kDraws), kBound);
  params.temp = 1e-6f;
  EXPECT_EQ(counts_of(params, logits, 100), (std::map<int32_t, int>{{2, 100}}));
}

TEST(Sampler, TopKSelectsKHighestTokens) {
  const std::vector<float> logits = logits_of({1, 8, 2, 4, 1});
  SamplerParams params = plain();
  params.top_k = 3;
  EXPECT_LT(chi_square(counts_of(params, logits, kDraws), {{1, 8}, {3, 4}, {2, 2}}, kDraws), kBound);
  params.top_k = 1;
  EXPECT_EQ(counts_of(params, logits, 50), (std::map<int32_t, int>{{1, 50}}));
  params.top_k = 1000;
  EXPECT_EQ(counts_of(params, logits, 2000).size(), 5u);
}

TEST(Sampler, TopPSelectsSmallestSufficientSet) {
  const std::vector<float> logits = logits_of({1, 8, 2, 4, 1});  // sorted probabilities: 1/2, 1/4, 1/8, 1/16, 1/16
  SamplerParams params = plain();
  const std::pair<float, std::set<int32_t>> cases[] = {{0.0f, {1}},     {0.49f, {1}},       {0.51f, {1, 3}},
                                                       {0.74f, {1, 3}}, {0.76f, {1, 2, 3}}, {1.0f, {0, 1, 2, 3, 4}}};
  for (const auto& [p, kept] : cases) {
    params.top_p = p;
    std::set<int32_t> seen;
    for (const auto& [id, count] : counts_of(params, logits, 2000)) seen.insert(id);
    EXPECT_EQ(seen, kept) << p;
  }
}

TEST(Sampler, MinPDropsTokensFarBelowBest) {
  const std::vector<float> logits = logits_of({1, 8, 2, 4, 1});
  SamplerParams params = plain();
  const std::pair<float, std::set<int32_t>> cases[] = {
      {0.1f, {0, 1, 2, 3, 4}}, {0.2f, {1, 2, 3}}, {0.3f, {1, 3}}, {0.6f, {1}}, {1.0f, {1}}};
  for (const auto& [p, kept] : cases) {
    params.min_p = p;
    std::set<int32_t> seen;
    for (const auto& [id, count] : counts_of(params, logits, 2000)) seen.insert(id);
    EXPECT_EQ(seen, kept) << p;
  }
}

TEST(Sampler, StepsApplyInDocumentedOrder) {
  // This is the example in sampler.h. After top_k = 4, the probabilities are 8/15, 4/15, 2/15 and 1/15. Two tokens
  // reach top_p = 0.78 (12/15 = 0.8), and min_p selects one of these two tokens. Without top_k, two tokens have only
  // 12/16 = 0.75, so top_p selects three.
  const std::vector<float> logits = logits_of({8, 4, 2, 1, 1});
  SamplerParams params = plain();
  params.top_p = 0.78f;
  EXPECT_EQ(counts_of(params, logits, 2000).size(), 3u);
  params.top_k = 4;
  EXPECT_EQ(counts_of(params, logits, 2000).size(), 2u);
  params.min_p = 0.6f;
  EXPECT_EQ(counts_of(params, logits, 2000).size(), 1u);
  // Temperature is the last step. Temperature flattens the distribution of the draw but does not change the selected
  // tokens.
  params.min_p = 0;
  params.temp = 100;
  EXPECT_EQ(counts_of(params, logits, 2000).size(), 2u);
}

TEST(Sampler, TopPOnLargeVocabularyDrawsOnlyFromNucleus) {
  std::mt19937_64 random(3);
  std::vector<float> logits(20000);
  for (float& logit : logits) logit = static_cast<float>(random() % 4096) / 512;
  SamplerParams params = plain();
  params.top_p = 0.5f;
  std::vector<TokenLogit> sorted = top_logits(logits, static_cast<int>(logits.size()));
  double total = 0, sum = 0;
  for (const TokenLogit& t : sorted) total += std::exp(static_cast<double>(t.logit));
  std::set<int32_t> nucleus;
  for (size_t i = 0; sum < 0.5 * total; ++i) {
    nucleus.insert(sorted[i].id);
    sum += std::exp(static_cast<double>(sorted[i].logit));
  }
  ASSERT_GT(nucleus.size(), 300u);  // in its first pass, sample() sorts fewer than 300 tokens
  for (const auto& [id, count] : counts_of(params, logits, 100)) EXPECT_TRUE(nucleus.contains(id)) << id;
}

TEST(Sampler, SeedDeterminesTokens) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  const auto run = [&](uint64_t seed) {
    Sampler sampler(plain(seed));
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.sample(logits));
    return ids;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

TEST(Sampler, DrawsUseDocumentedGenerator) {
  // With two equal logits, the first token is drawn if the upper 53 bits of the random number, read as a fraction, are
  // less than 1/2.
  std::mt19937_64 generator(5);
  Sampler sampler(plain(5));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sampler.sample(std::vector<float>{1, 1}), generator() >> 63 ? 1 : 0) << i;
  }
}

TEST(Sampler, LargeLogitsDoNotOverflow) {
  EXPECT_LT(chi_square(counts_of(plain(), {3e38f, 3e38f, -3e38f}, kDraws), {{0, 1}, {1, 1}, {2, 1e-9}}, kDraws),
            kBound);
}

TEST(Sampler, ErrorsNameValidRangeOfParameters) {
  EXPECT_EQ(refusal(plain()), "");
  const auto with = [](auto set) {
    SamplerParams params = plain();
    set(params);
    return refusal(params);
  };
  EXPECT_THAT(with([](auto& p) { p.temp = kNan; }), HasSubstr("temp = nan: expected a finite number"));
  EXPECT_THAT(with([](auto& p) { p.temp = kInfinity; }), HasSubstr("temp = inf"));
  EXPECT_THAT(with([](auto& p) { p.top_k = -1; }), HasSubstr("top_k = -1: expected 0 or more"));
  for (const float bad : {-0.1f, 1.1f, kNan, kInfinity}) {
    EXPECT_THAT(with([&](auto& p) { p.top_p = bad; }), HasSubstr("expected a number from 0 to 1"));
    EXPECT_THAT(with([&](auto& p) { p.min_p = bad; }), HasSubstr("expected a number from 0 to 1"));
  }
}

TEST(Sampler, ErrorsNameInvalidLogits) {
  for (const float temp : {0.0f, 1.0f}) {
    SamplerParams params = plain();
    params.temp = temp;
    Sampler sampler(params);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      try {
        sampler.sample(std::vector<float>{0, 0, bad});
        FAIL() << bad;
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), HasSubstr("the logit of token 2 is"));
      }
    }
    EXPECT_THROW(sampler.sample({}), InvalidArgument);
  }
}

TEST(Sampler, CandidatesGiveSameChoicesAsAllLogits) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> draw(-20, 20);  // few different values, so that some logits are equal
  for (const SamplerParams& params : {SamplerParams{.seed = 1},
                                      {.temp = 0, .seed = 2},
                                      {.temp = 1.5f, .top_k = 256, .top_p = 1, .min_p = 0, .seed = 3},
                                      {.temp = 1, .top_k = 1, .seed = 4},
                                      {.temp = 3, .top_k = 7, .top_p = 0.9f, .seed = 5}}) {
    const int64_t needed = candidates_needed(params);
    ASSERT_GT(needed, 0);
    for (const int64_t given : {needed, needed + 10, int64_t{400}}) {
      Sampler host(params), devices(params);
      for (int i = 0; i < 50; ++i) {
        std::vector<float> logits(400);
        for (float& logit : logits) logit = static_cast<float>(draw(random)) / 4;
        ASSERT_EQ(devices.sample_best(top_logits(logits, static_cast<int>(given))), host.sample(logits)) << i;
      }
    }
  }
}

TEST(Sampler, NumberOfCandidatesDependsOnParameters) {
  EXPECT_EQ(candidates_needed({}), 40);
  EXPECT_EQ(candidates_needed({.temp = 0}), 1);
  EXPECT_EQ(candidates_needed({.temp = -1, .top_k = 0}), 1);
  EXPECT_EQ(candidates_needed({.top_k = 0}), 0);
  EXPECT_EQ(candidates_needed({.top_k = 256}), 256);
  EXPECT_EQ(candidates_needed({.top_k = 257}), 0);
}

TEST(Sampler, RefusesInvalidCandidates) {
  for (const float temp : {0.0f, 1.0f}) {
    Sampler sampler({.temp = temp});
    EXPECT_THROW(sampler.sample_best({}), InvalidArgument);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      EXPECT_THROW(sampler.sample_best(std::vector<TokenLogit>{{7, bad}}), InvalidArgument) << bad;
      EXPECT_THROW(log_sum_exp(std::vector<float>{1, bad}), InvalidArgument) << bad;
    }
  }
}

TEST(TopLogits, AreSortedByLogitThenId) {
  const std::vector<float> logits{1, 5, 3, 5, -2};
  EXPECT_THAT(top_logits(logits, 3), ElementsAre(TokenLogit{1, 5}, TokenLogit{3, 5}, TokenLogit{2, 3}));
  EXPECT_THAT(top_logits(logits, 1), ElementsAre(TokenLogit{1, 5}));
  EXPECT_EQ(top_logits(logits, 9).size(), 5u);
  EXPECT_EQ(top_logits(logits, 9).back(), (TokenLogit{4, -2}));
  EXPECT_TRUE(top_logits(logits, 0).empty());
  EXPECT_THROW(top_logits(logits, -1), InvalidArgument);
  EXPECT_THROW(top_logits({}, 1), InvalidArgument);
  EXPECT_THROW(top_logits(std::vector<float>{kNan}, 1), InvalidArgument);
}

/// Token that greedy sampling chooses from these logits after the tokens `before`.
int32_t choice(SamplerParams params, const std::vector<float>& logits, const std::vector<int32_t>& before) {
  params.temp = 0;
  Sampler sampler(params);
  for (const int32_t token : before) sampler.accept(token);
  return sampler.sample(logits);
}

TEST(SamplerPenalties, RepeatPenaltyDividesOrMultipliesLogit) {
  const SamplerParams two{.repeat_penalty = 2};
  EXPECT_EQ(choice(two, {4, 2.1f, 0}, {0}), 1);  // penalised logits: 2, 2.1, 0
  EXPECT_EQ(choice(two, {4, 1.9f, 0}, {0, 0, 0}), 0);
  EXPECT_EQ(choice(two, {-4, -7.9f, -9}, {0}), 1);  // penalised logits: -8, -7.9, -9
  EXPECT_EQ(choice(two, {-4, -8.1f, -9}, {0}), 0);
}

TEST(SamplerPenalties, OnlyFrequencyPenaltyGrowsWithCount) {
  EXPECT_EQ(choice({.frequency_penalty = 1}, {4, 1.5f}, {0, 0}), 0);  // penalised logits: 2, 1.5
  EXPECT_EQ(choice({.frequency_penalty = 1}, {4, 1.5f}, {0, 0, 0}), 1);
  EXPECT_EQ(choice({.presence_penalty = 1}, {4, 2.5f}, {0, 0, 0}), 0);  // penalised logits: 3, 2.5
  EXPECT_EQ(choice({.presence_penalty = 1.6f}, {4, 2.5f}, {0}), 1);
  EXPECT_EQ(choice({.presence_penalty = -2}, {4, 2.5f}, {1}), 1);
}

TEST(SamplerPenalties, ApplyOnlyToLastTokens) {
  const std::vector<int32_t> before{0, 1, 2, 1};
  SamplerParams params{.presence_penalty = 5, .penalty_last_n = 3};
  EXPECT_EQ(choice(params, {4, 4.5f, 4.4f}, before), 0);
  params.penalty_last_n = 4;
  EXPECT_EQ(choice(params, {4, 4.5f, 4.4f, 3.9f}, before), 3);
  params.penalty_last_n = -1;
  EXPECT_EQ(choice(params, {4, 4.5f, 4.4f, 3.9f}, before), 3);
  params.penalty_last_n = 1;
  EXPECT_EQ(choice(params, {4, 4.5f, 4.4f}, before), 2);
  params.penalty_last_n = 0;
  EXPECT_EQ(choice(params, {4, 4.5f, 4.4f}, before), 1);
}

TEST(SamplerPenalties, BiasesAreAddedBeforePenaltiesApply) {
  EXPECT_EQ(choice({.biases = {{1, 2.0f}}}, {4, 2.5f}, {}), 1);
  EXPECT_EQ(choice({.biases = {{0, -1e9f}}}, {4, -100}, {}), 1);
  EXPECT_EQ(choice({.repeat_penalty = 2, .biases = {{0, -1.0f}}}, {4, 1.4f}, {0}), 0);  // penalised logit: (4 - 1) / 2
  EXPECT_EQ(choice({.repeat_penalty = 2, .biases = {{0, -1.0f}}}, {4, 1.6f}, {0}), 1);
  EXPECT_THROW(choice({.biases = {{2, 1.0f}}}, {4, 2}, {}), InvalidArgument);
}

TEST(SamplerPenalties, RefuseValuesOutsideRanges) {
  EXPECT_THAT(refusal({.repeat_penalty = 0}), HasSubstr("repeat_penalty = 0: expected a number from 0.01 to 100"));
  EXPECT_THAT(refusal({.presence_penalty = kNan}), HasSubstr("from -100 to 100"));
  EXPECT_THAT(refusal({.frequency_penalty = 101}), HasSubstr("penalty of 101: expected"));
  EXPECT_THAT(refusal({.penalty_last_n = -2}), HasSubstr("penalty_last_n = -2"));
  EXPECT_THAT(refusal({.biases = {{3, kInfinity}}}), HasSubstr("the bias of token 3 is inf"));
}

TEST(SamplerPenalties, NeedOneMoreCandidatePerPenalisedToken) {
  EXPECT_EQ(candidates_needed({.repeat_penalty = 1.1f, .biases = {{1, -1.0f}, {2, -1.0f}, {3, -2.0f}}}), 107);
  EXPECT_EQ(candidates_needed({.temp = 0, .presence_penalty = 1}), 65);
  EXPECT_EQ(candidates_needed({.presence_penalty = 1, .penalty_last_n = 216}), 256);
  EXPECT_EQ(candidates_needed({.presence_penalty = 1, .penalty_last_n = 217}), 0);
  EXPECT_EQ(candidates_needed({.presence_penalty = 1, .penalty_last_n = 0}), 40);
  EXPECT_EQ(candidates_needed({.presence_penalty = 1, .penalty_last_n = -1}), 0);
  for (const SamplerParams& raises : {SamplerParams{.repeat_penalty = 0.9f},
                                      {.presence_penalty = -1},
                                      {.frequency_penalty = -1},
                                      {.biases = {{5, 0.1f}}}}) {
    EXPECT_EQ(candidates_needed(raises), 0);
  }
}

TEST(SamplerPenalties, CandidatesGiveSameChoicesAsAllLogits) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 1);
  for (int round = 0; round < 200; ++round) {
    SamplerParams params{
        .temp = round % 2 == 0 ? 0.0f : 1.0f, .top_k = 1 + round % 7, .seed = static_cast<uint64_t>(round)};
    params.repeat_penalty = 1 + 0.5f * static_cast<float>(round % 3);
    params.presence_penalty = static_cast<float>(round % 4), params.frequency_penalty = static_cast<float>(round % 5);
    params.penalty_last_n = round % 12;
    if (round % 2 == 1) params.biases = {{round % 50, -2.0f}, {(round * 7) % 50, -5.0f}};
    Sampler all(params), best(params);
    const auto needed = static_cast<int>(candidates_needed(params));
    ASSERT_GT(needed, 0);
    for (int token = 0; token < 30; ++token) {
      std::vector<float> logits(50);
      // Rounding makes some logits equal, so the test also covers the order of equal logits.
      for (float& logit : logits) logit = std::round(normal(random) * 4) / 2;
      const int32_t chosen = all.sample(logits);
      ASSERT_EQ(best.sample_best(top_logits(logits, needed)), chosen) << round;
      all.accept(chosen), best.accept(chosen);
    }
  }
}

}  // namespace
}  // namespace shoal::models
