// Picks the next token from the logits of the last position.
//
// First the logits l of some tokens change:
//   biases              l + bias
//   repeat_penalty      of those among the last penalty_last_n tokens: l / penalty where l > 0, else l * penalty
//   frequency_penalty   of the same ones: l - penalty * how often they are there
//   presence_penalty    of the same ones: l - penalty
// With temp <= 0 the highest logit wins (the lowest id of equals). Otherwise candidates are narrowed in this order,
// each step looking at the softmax of what the step before left, and one is drawn:
//   top_k   keep the k highest logits
//   top_p   keep the fewest highest ones whose probabilities add up to at least p
//   min_p   keep those with at least min_p times the highest probability
//   temp    divide the logits by temp, draw from their softmax
// Logits ln{8, 4, 2, 1, 1} (probabilities 1/2, 1/4, 1/8, 1/16, 1/16): top_k = 4 leaves 8/15, 4/15, 2/15, 1/15;
// top_p = 0.75 then leaves the first two (12/15 = 0.8); min_p = 0.6 leaves the first (4 < 0.6 x 8).
//
// The same seed, parameters and logits give the same tokens: the generator is std::mt19937_64, seeded with `seed`, and
// a draw takes one number of it, its upper 53 bits times 2^-53. A Sampler belongs to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

namespace shoal::models {

struct SamplerParams {
  float temp = 0.8f;    ///< finite; <= 0: the highest logit
  int top_k = 40;       ///< >= 0; 0: all
  float top_p = 0.95f;  ///< 0 to 1; 1: all
  float min_p = 0.05f;  ///< 0 to 1; 0: all
  uint64_t seed = 0;
  float repeat_penalty = 1;                        ///< 0.01 to 100; 1: none
  float presence_penalty = 0;                      ///< -100 to 100; 0: none
  float frequency_penalty = 0;                     ///< -100 to 100; 0: none
  int penalty_last_n = 64;                         ///< >= -1; -1: all tokens, those of the prompt among them
  std::unordered_map<int32_t, float> biases = {};  ///< by token; finite

  bool penalizes() const {
    return penalty_last_n != 0 && (repeat_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0);
  }
};

/// How many of the best tokens a Sampler needs, where they are few enough to be selected by devices (at most
/// kMostCandidates); 0: it needs all logits. Without penalties and biases 1 with temp <= 0, else top_k. Each token
/// whose logit becomes less can make room for one from outside the best: of the best k + m, with m such tokens, k at
/// least stay as they are, and none from outside is better. What could make a logit larger needs all of them.
///   top_k 40, penalties on the last 64 tokens, 3 negative biases: 107
int64_t candidates_needed(const SamplerParams& params);
inline constexpr int64_t kMostCandidates = 256;

/// Throws InvalidArgument that names the parameter and its legal range.
void check_params(const SamplerParams& params);

struct TokenLogit {
  int32_t id;
  float logit;
  bool operator==(const TokenLogit&) const = default;
};

/// The min(k, logits.size()) highest logits, highest first, equals by id. Throws InvalidArgument for k < 0, for no
/// logits, and for a logit that is not finite.
std::vector<TokenLogit> top_logits(std::span<const float> logits, int k);
/// The same of tokens that are selected already, in that order.
std::vector<TokenLogit> top_of(std::span<const TokenLogit> best, int k);

class Sampler {
 public:
  /// Throws as check_params() does.
  explicit Sampler(const SamplerParams& params);
  /// The token is now part of the text: of the prompt, or chosen. Penalties count the latest ones.
  void accept(int32_t token);
  /// The id of the chosen token. Throws InvalidArgument for no logits, a logit that is not finite, or a bias of a token
  /// that there is not.
  int32_t sample(std::span<const float> logits);
  /// The same from the best tokens, in the order of top_logits(): candidates_needed() of them, all of the vocabulary,
  /// or any number between. The token and the next ones are those that all logits would give.
  int32_t sample_best(std::span<const TokenLogit> best);

 private:
  float penalized(float logit, int count) const;
  int32_t choose();
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();
  int32_t draw();

  SamplerParams params_;
  std::mt19937_64 generator_;
  std::vector<TokenLogit> candidates_;
  std::deque<int32_t> recent_;               // the last penalty_last_n tokens; not kept where all count
  std::unordered_map<int32_t, int> counts_;  // how often a token is among those that count
};

}  // namespace shoal::models
