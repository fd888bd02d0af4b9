// Picks the next token from the logits of the last position.
//
// First these parameters change the logits l of some tokens:
//   biases              l + bias
//   repeat_penalty      tokens among the last penalty_last_n: l / penalty if l > 0, else l * penalty
//   frequency_penalty   the same tokens: l - penalty * number of occurrences
//   presence_penalty    the same tokens: l - penalty
// If temp <= 0, the result is the token with the highest logit (among equal logits, the lowest id). Otherwise three
// steps remove candidates, and a fourth step draws one candidate. Each step uses the softmax of the remaining
// candidates:
//   top_k   keep the k highest logits
//   top_p   keep the highest logits until their probabilities add up to at least p
//   min_p   keep logits with at least min_p times the highest probability
//   temp    divide the logits by temp, draw from their softmax
// Example: the logits ln{8, 4, 2, 1, 1} have the probabilities 1/2, 1/4, 1/8, 1/16 and 1/16. top_k = 4 leaves 8/15,
// 4/15, 2/15 and 1/15. Then top_p = 0.75 leaves the first two logits (12/15 = 0.8). Then min_p = 0.6 leaves only the
// first logit, because 4 < 0.6 x 8.
//
// The same seed, parameters and logits give the same tokens. The generator is std::mt19937_64, seeded with `seed`. A
// draw uses the upper 53 bits of one generated number, times 2^-53. A Sampler belongs to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

namespace shoal::models {

struct SamplerParams {
  float temp = 0.8f;    ///< finite; <= 0 picks the highest logit
  int top_k = 40;       ///< >= 0; 0 keeps all tokens
  float top_p = 0.95f;  ///< 0 to 1; 1 keeps all tokens
  float min_p = 0.05f;  ///< 0 to 1; 0 keeps all tokens
  uint64_t seed = 0;
  float repeat_penalty = 1;                        ///< 0.01 to 100; 1: no penalty
  float presence_penalty = 0;                      ///< -100 to 100; 0: no penalty
  float frequency_penalty = 0;                     ///< -100 to 100; 0: no penalty
  int penalty_last_n = 64;                         ///< >= -1; -1: all tokens, including the prompt
  std::unordered_map<int32_t, float> biases = {};  ///< added to the logit of each token id; finite

  bool penalizes() const {
    return penalty_last_n != 0 && (repeat_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0);
  }
};

/// Number of best tokens that a Sampler needs. The result is 0 if the Sampler needs all logits, or needs more than
/// kMostCandidates tokens. Without penalties and biases, the number is k: 1 if temp <= 0, else top_k. If the logits of
/// m tokens may decrease, the number is k + m. At least k of the k + m best tokens then keep their logits. No token
/// outside the k + m best tokens has a higher logit than these k tokens. Parameters that may raise a logit require all
/// logits.
///   top_k 40, penalties on the last 64 tokens, 3 negative biases: 40 + 64 + 3 = 107
int64_t candidates_needed(const SamplerParams& params);
inline constexpr int64_t kMostCandidates = 256;

/// Throws InvalidArgument if a parameter is out of range. The message names the parameter and its range.
void check_params(const SamplerParams& params);

struct TokenLogit {
  int32_t id;
  float logit;
  bool operator==(const TokenLogit&) const = default;
};

/// Returns the min(k, logits.size()) highest logits, highest first. Equal logits are in order of their ids. Throws
/// InvalidArgument if k is negative, if there are no logits, or if a logit is not finite.
std::vector<TokenLogit> top_logits(std::span<const float> logits, int k);
/// log(sum of e^logit). Throws InvalidArgument if there are no logits, or if a logit is not finite.
double log_sum_exp(std::span<const float> logits);

class Sampler {
 public:
  /// Throws the errors of check_params().
  explicit Sampler(const SamplerParams& params);
  /// Adds a token of the prompt, or a chosen token, to the sequence. Penalties consider the last penalty_last_n tokens.
  void accept(int32_t token);
  /// Returns the id of the chosen token. Throws InvalidArgument if there are no logits, if a logit is not finite, or if
  /// a token with a bias is outside the vocabulary.
  int32_t sample(std::span<const float> logits);
  /// Like sample(), but needs only the best tokens. `best` has the order of top_logits(), and contains at least
  /// candidates_needed() tokens or the whole vocabulary. The returned token and all later tokens are the same as with
  /// sample().
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
  std::deque<int32_t> recent_;               // the last penalty_last_n tokens; unused if penalties consider all tokens
  std::unordered_map<int32_t, int> counts_;  // number of occurrences that penalties consider, by token
};

}  // namespace shoal::models
