// Requests to an engine (engine.h) and their results.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/session/sampler.h"

namespace shoal::models {

using RequestId = int64_t;

/// Fills the mask of allowed tokens before a token is chosen: bit i % 32 of word i / 32 is 1 if token i is allowed.
/// `answer` has the tokens so far. At least one token must be allowed. Called by the thread that calls Engine::step().
using TokenMask = std::function<void(std::span<const int32_t> answer, std::span<uint32_t> mask)>;

struct RequestOptions {
  SamplerParams sampling = {};
  int64_t most_tokens = -1;              ///< maximum number of tokens of the answer; -1: no limit
  std::vector<int32_t> end_tokens = {};  ///< each of these tokens ends the answer
  std::vector<int32_t> spelled = {};     ///< control tokens whose pieces are part of the text
  std::vector<std::string> stops = {};   ///< each of these strings ends the answer; requires a tokenizer
  TokenMask mask = {};
  int logprobs = -1;              ///< number of highest logits that are returned for each token; -1: none
  bool lists_prompt = false;      ///< whether the outputs begin with the prompt's tokens after the first one; requires
                                  ///< logprobs, and uses no cached beginning
  bool reports_progress = false;  ///< whether outputs without a token report the computed part of the prompt
  int priority = 0;               ///< requests of a higher priority run earlier (engine.h)
  std::string salt = {};          ///< only requests with the same salt share cached beginnings
  /// Position in the prompt from which later prompts probably differ, such as the last message of a user. The state of
  /// recurrent layers at the end of the last full page up to this position is kept. -1: unknown.
  int64_t junction = -1;
  int64_t draft = 0;  ///< maximum number of tokens that are guessed from earlier tokens (drafts.h)
};

enum class Finish : uint8_t {
  kEndToken,
  kStopString,
  kTokens,   ///< most_tokens
  kContext,  ///< the context or the cache is full
  kCancelled,
  kFailed,  ///< Output::error has the reason
};

/// One token of an answer, or its end. With most_tokens = 0, there is no token, and the logits belong to the last token
/// of the prompt.
struct Output {
  RequestId request = 0;
  int32_t token = -1;      ///< -1: no token
  bool is_prompt = false;  ///< whether the token is part of the prompt (RequestOptions::lists_prompt); it has no text
  std::string text = {};   ///< text that can be shown now; held back text arrives later
  /// The logit of the token and the highest logits, before the sampler's parameters. The log probability of a token is
  /// its logit minus log_sum. Only with RequestOptions::logprobs.
  float logit = 0;
  double log_sum = 0;
  std::vector<TokenLogit> best = {};
  std::optional<Finish> finish = {};
  std::string error = {};
  int64_t cached_tokens = 0;     ///< number of prompt tokens that were in the cache; in reports and in the last output
  int64_t computed_tokens = -1;  ///< in reports (RequestOptions::reports_progress): number of prompt tokens that were
                                 ///< computed or in the cache
};

}  // namespace shoal::models
