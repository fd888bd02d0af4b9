#include "models/session/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shoal::models {
namespace {

bool better(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

void require_any(size_t logits) {
  require<InvalidArgument>(logits > 0, "there are no logits to choose a token from; evaluate a prompt first");
}

void require_finite(int32_t id, float logit) {
  require<InvalidArgument>(std::isfinite(logit),
                           "the logit of token {} is {}; the model's weights are damaged or a computation overflowed",
                           id, logit);
}

void require_logits(std::span<const float> logits) {
  require_any(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) require_finite(static_cast<int32_t>(i), logits[i]);
}

void require_best(std::span<const TokenLogit> best) {
  require_any(best.size());
  for (const TokenLogit& candidate : best) require_finite(candidate.id, candidate.logit);
}

void fill_candidates(std::span<const float> logits, std::vector<TokenLogit>& candidates) {
  candidates.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates[i] = {static_cast<int32_t>(i), logits[i]};
}

// Moves the k best candidates to the front, in order, and drops the other candidates.
void keep_best(std::vector<TokenLogit>& candidates, size_t k) {
  k = std::min(k, candidates.size());
  const auto middle = candidates.begin() + static_cast<std::ptrdiff_t>(k);
  if (middle != candidates.end()) std::nth_element(candidates.begin(), middle, candidates.end(), better);
  std::sort(candidates.begin(), middle, better);
  candidates.erase(middle, candidates.end());
}

float highest(const std::vector<TokenLogit>& candidates) {
  return std::min_element(candidates.begin(), candidates.end(), better)->logit;
}

}  // namespace

void check_params(const SamplerParams& params) {
  require<InvalidArgument>(std::isfinite(params.temp),
                           "temp = {}: expected a finite number; 0 or less takes the best token", params.temp);
  require<InvalidArgument>(params.top_k >= 0, "top_k = {}: expected 0 or more; 0 keeps all tokens", params.top_k);
  require<InvalidArgument>(params.top_p >= 0 && params.top_p <= 1,
                           "top_p = {}: expected a number from 0 to 1; 1 keeps all tokens", params.top_p);
  require<InvalidArgument>(params.min_p >= 0 && params.min_p <= 1,
                           "min_p = {}: expected a number from 0 to 1; 0 keeps all tokens", params.min_p);
  require<InvalidArgument>(params.repeat_penalty >= 0.01f && params.repeat_penalty <= 100,
                           "repeat_penalty = {}: expected a number from 0.01 to 100; 1 means no penalty",
                           params.repeat_penalty);
  for (const float penalty : {params.presence_penalty, params.frequency_penalty}) {
    require<InvalidArgument>(penalty >= -100 && penalty <= 100,
                             "presence or frequency penalty of {}: expected a number from -100 to 100; 0 means no "
                             "penalty",
                             penalty);
  }
  require<InvalidArgument>(params.penalty_last_n >= -1, "penalty_last_n = {}: expected 0 or more, or -1 for all tokens",
                           params.penalty_last_n);
  for (const auto& [id, bias] : params.biases) {
    require<InvalidArgument>(std::isfinite(bias), "the bias of token {} is {}: expected a finite number", id, bias);
  }
}

int64_t candidates_needed(const SamplerParams& params) {
  const int64_t best = params.temp <= 0 ? 1 : params.top_k;
  int64_t lowered = static_cast<int64_t>(params.biases.size());
  for (const auto& [id, bias] : params.biases) {
    if (bias > 0) return 0;
  }
  if (params.penalizes()) {
    const bool raises = params.repeat_penalty < 1 || params.presence_penalty < 0 || params.frequency_penalty < 0;
    if (raises || params.penalty_last_n < 0) return 0;
    lowered += params.penalty_last_n;
  }
  return best > 0 && best + lowered <= kMostCandidates ? best + lowered : 0;
}

std::vector<TokenLogit> top_logits(std::span<const float> logits, int k) {
  require<InvalidArgument>(k >= 0, "{} best logits were requested; expected 0 or more", k);
  require_logits(logits);
  std::vector<TokenLogit> candidates;
  fill_candidates(logits, candidates);
  keep_best(candidates, static_cast<size_t>(k));
  return candidates;
}

double log_sum_exp(std::span<const float> logits) {
  require_logits(logits);
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return top + std::log(sum);
}

Sampler::Sampler(const SamplerParams& params) : params_(params), generator_(params.seed) {
  check_params(params);
}

void Sampler::accept(int32_t token) {
  if (!params_.penalizes()) return;
  ++counts_[token];
  if (params_.penalty_last_n < 0) return;
  recent_.push_back(token);
  if (recent_.size() <= static_cast<size_t>(params_.penalty_last_n)) return;
  const auto oldest = counts_.find(recent_.front());
  if (--oldest->second == 0) counts_.erase(oldest);
  recent_.pop_front();
}

float Sampler::penalized(float logit, int count) const {
  logit = logit > 0 ? logit / params_.repeat_penalty : logit * params_.repeat_penalty;
  return logit - static_cast<float>(count) * params_.frequency_penalty - params_.presence_penalty;
}

int32_t Sampler::sample(std::span<const float> logits) {
  require_logits(logits);
  if (params_.temp <= 0 && params_.biases.empty() && counts_.empty()) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  fill_candidates(logits, candidates_);
  const auto logit_of = [&](int32_t id) -> float& {
    require<InvalidArgument>(id >= 0 && static_cast<size_t>(id) < logits.size(),
                             "token {} is not in a vocabulary of {} tokens", id, logits.size());
    return candidates_[static_cast<size_t>(id)].logit;
  };
  for (const auto& [id, bias] : params_.biases) logit_of(id) += bias;
  for (const auto& [id, count] : counts_) logit_of(id) = penalized(logit_of(id), count);
  return choose();
}

int32_t Sampler::sample_best(std::span<const TokenLogit> best) {
  require_best(best);
  candidates_.assign(best.begin(), best.end());
  for (TokenLogit& candidate : candidates_) {
    if (const auto found = params_.biases.find(candidate.id); found != params_.biases.end()) {
      candidate.logit += found->second;
    }
    if (const auto found = counts_.find(candidate.id); found != counts_.end()) {
      candidate.logit = penalized(candidate.logit, found->second);
    }
  }
  return choose();
}

int32_t Sampler::choose() {
  if (params_.temp <= 0) return std::min_element(candidates_.begin(), candidates_.end(), better)->id;
  keep_top_k();
  keep_top_p();
  keep_min_p();
  return draw();
}

void Sampler::keep_top_k() {
  if (params_.top_k > 0) keep_best(candidates_, static_cast<size_t>(params_.top_k));
}

// Sorts only as many candidates as needed. This number rarely exceeds a few hundred, even for a large vocabulary.
void Sampler::keep_top_p() {
  if (params_.top_p >= 1) return;
  const float top = highest(candidates_);
  double total = 0;
  for (const TokenLogit& candidate : candidates_) total += std::exp(static_cast<double>(candidate.logit) - top);

  const double enough = params_.top_p * total;
  double sum = 0;
  size_t kept = 0, sorted = 0;
  while (kept < candidates_.size() && (kept == 0 || sum < enough)) {
    if (kept == sorted) {
      sorted = std::min(candidates_.size(), std::max<size_t>(256, sorted * 4));
      std::partial_sort(candidates_.begin() + static_cast<std::ptrdiff_t>(kept),
                        candidates_.begin() + static_cast<std::ptrdiff_t>(sorted), candidates_.end(), better);
    }
    sum += std::exp(static_cast<double>(candidates_[kept++].logit) - top);
  }
  candidates_.resize(kept);
}

void Sampler::keep_min_p() {
  if (params_.min_p <= 0) return;
  const double least = static_cast<double>(highest(candidates_)) + std::log(static_cast<double>(params_.min_p));
  std::erase_if(candidates_, [&](const TokenLogit& candidate) { return candidate.logit < least; });
}

int32_t Sampler::draw() {
  const float top = highest(candidates_);
  const auto weight = [&](const TokenLogit& candidate) {
    return std::exp((static_cast<double>(candidate.logit) - top) / params_.temp);
  };
  double total = 0;
  for (const TokenLogit& candidate : candidates_) total += weight(candidate);
  const double target = static_cast<double>(generator_() >> 11) * 0x1.0p-53 * total;
  double sum = 0;
  for (const TokenLogit& candidate : candidates_) {
    sum += weight(candidate);
    if (sum > target) return candidate.id;
  }
  return candidates_.back().id;  // reached if rounding made the target equal to the total
}

}  // namespace shoal::models
