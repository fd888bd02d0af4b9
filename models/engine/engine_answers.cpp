// Results of a step: the engine chooses tokens, decodes their text, and ends requests.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "models/engine/engine.h"
#include "models/engine/engine_request.h"

namespace shoal::models {
namespace {

bool is_allowed(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

}  // namespace

void Engine::finish_part(Part& part, std::span<const TokenLogit> best) {
  Request& request = *part.request;
  const auto each = static_cast<size_t>(runner_.candidates_per_output());
  const int64_t begin = request.memory->computed(), page = memory_.page();
  stats_.prompt_tokens += std::clamp<int64_t>(request.prompt_tokens - begin, 0, part.tokens);
  const auto drafted = static_cast<int64_t>(part.drafts.size());
  int64_t right = 0;  // number of right drafts
  if (begin < request.prompt_tokens) report(request, begin + part.tokens);
  if (part.lists_prompt) {
    try {
      list_prompt(part, begin);
    } catch (const InvalidArgument& error) {
      end(request, Finish::kFailed, error.what());
    }
  }
  if (part.has_output && !request.is_finished) {
    const int64_t first = part.tokens - 1 - part.first_listed();
    for (; !request.is_finished; ++right) {
      const int64_t row = first + right;
      add_token(request, best.subspan(static_cast<size_t>(row) * each, each), part.first_output + row);
      if (right == drafted || request.is_finished || request.tokens.back() != part.drafts[static_cast<size_t>(right)]) {
        break;
      }
    }
  }
  if (drafted > 0) {
    stats_.drafted_tokens += drafted;
    stats_.accepted_tokens += right;
    request.accepted += 0.2 * (static_cast<double>(right) / static_cast<double>(drafted) - request.accepted);
  }
  if (memory_.has_states() && right < drafted) {
    // The state includes wrong tokens. The next step starts from the old state.
    request.memory->discard();
  } else {
    const int64_t to = begin + part.tokens + right;
    const bool is_kept =
        std::find(request.kept_positions.begin(), request.kept_positions.end(), to) != request.kept_positions.end();
    const bool is_rolling = to >= request.prompt_tokens && to % page == 0;
    using Keep = SequenceMemory::Keep;
    request.memory->advance(request.tokens, to,
                            is_kept      ? Keep::kState
                            : is_rolling ? Keep::kStateInsteadOfLast
                                         : Keep::kNothing);
  }
  if (request.is_finished) request.memory.reset();
}

void Engine::list_logits(const Request& request, std::span<const float> logits, Output& output) {
  output.log_sum = log_sum_exp(logits);
  output.best = top_logits(logits, request.options.logprobs);
}

void Engine::report(const Request& request, int64_t computed) {
  if (!request.options.reports_progress || computed > request.prompt_tokens) return;
  outputs_.push_back({.request = request.id, .cached_tokens = request.cached_tokens, .computed_tokens = computed});
}

/// Lists the tokens of the prompt that follow the tokens of the part, which begins at position `begin`.
void Engine::list_prompt(const Part& part, int64_t begin) {
  Request& request = *part.request;
  for (int64_t i = 0; i < part.tokens && request.lists_prompt(); ++i) {
    if (begin + i < request.listed_tokens) continue;  // computed again after the request has lost its memory
    const std::span<const float> logits = runner_.logits(part.first_output + i, 1);
    Output output{
        .request = request.id, .token = request.tokens[static_cast<size_t>(begin + i + 1)], .is_prompt = true};
    output.logit = logits[static_cast<size_t>(output.token)];
    list_logits(request, logits, output);
    outputs_.push_back(std::move(output));
    ++request.listed_tokens;
  }
}

int32_t Engine::choose(Request& request, std::span<const TokenLogit> best, int64_t row, Output& output) {
  const int64_t needed = candidates_needed(request.options.sampling);
  const auto vocab = static_cast<size_t>(model_.hparams.vocab);
  bool is_enough = (needed > 0 && needed <= static_cast<int64_t>(best.size())) || best.size() == vocab;
  std::vector<TokenLogit> allowed;
  if (request.options.mask) {
    std::fill(mask_.begin(), mask_.end(), 0);
    try {
      request.options.mask(request.answer(), mask_);
    } catch (const std::exception& error) {
      fail<InvalidArgument>("the mask failed after {} tokens of the answer: {}", request.answer().size(), error.what());
    }
    std::copy_if(best.begin(), best.end(), std::back_inserter(allowed),
                 [&](const TokenLogit& one) { return is_allowed(mask_, one.id); });
    is_enough =
        !allowed.empty() && (best.size() == vocab || (needed > 0 && needed <= static_cast<int64_t>(allowed.size())));
  }
  if (is_enough && request.options.logprobs < 0) {
    return request.sampler.sample_best(request.options.mask ? std::span<const TokenLogit>(allowed) : best);
  }
  const std::span<const float> logits = runner_.logits(row, 1);
  int32_t token = -1;
  if (request.options.mask) {
    allowed.clear();
    for (size_t i = 0; i < vocab; ++i) {
      const auto id = static_cast<int32_t>(i);
      if (is_allowed(mask_, id)) allowed.push_back({id, logits[i]});
    }
    require<InvalidArgument>(!allowed.empty(), "the mask allows no token after {} tokens of the answer",
                             request.answer().size());
    token = request.sampler.sample_best(allowed);
  } else {
    token = request.sampler.sample(logits);
  }
  if (request.options.logprobs >= 0) {
    output.logit = logits[static_cast<size_t>(token)];
    list_logits(request, logits, output);
  }
  return token;
}

void Engine::add_token(Request& request, std::span<const TokenLogit> best, int64_t row) {
  Output output{.request = request.id};
  try {
    if (request.options.most_tokens == 0) {
      if (request.options.logprobs >= 0) {
        list_logits(request, runner_.logits(row, 1), output);
        outputs_.push_back(std::move(output));
      }
      return end(request, Finish::kTokens);
    }
    output.token = choose(request, best, row, output);
  } catch (const InvalidArgument& error) {
    return end(request, Finish::kFailed, error.what());
  }
  const auto& ends = request.options.end_tokens;
  if (std::find(ends.begin(), ends.end(), output.token) != ends.end()) {
    return end(request, Finish::kEndToken);
  }
  request.sampler.accept(output.token);
  request.tokens.push_back(output.token);
  ++stats_.generated_tokens;
  const auto answered = static_cast<int64_t>(request.answer().size());
  if (request.decoder) output.text = request.stop.push(text_of(request, output.token));
  outputs_.push_back(std::move(output));
  if (request.stop.found()) return end(request, Finish::kStopString);
  if (answered == request.options.most_tokens) return end(request, Finish::kTokens);
  // The last token needs no room, because it is not evaluated.
  if (request.size() > most_tokens_) return end(request, Finish::kContext);
}

/// The text that a token completes.
std::string Engine::text_of(Request& request, int32_t token) const {
  const auto& spelled = request.options.spelled;
  if (std::find(spelled.begin(), spelled.end(), token) == spelled.end()) return request.decoder->push(token);
  return request.decoder->finish() + tokenizer_->vocabulary().piece(token);
}

void Engine::end(Request& request, Finish finish, const std::string& error) {
  request.is_finished = true;
  Output output{.request = request.id, .finish = finish, .error = error, .cached_tokens = request.cached_tokens};
  if (request.decoder && !request.stop.found()) {
    output.text = request.stop.push(request.decoder->finish());
    output.text += request.stop.finish();
  }
  outputs_.push_back(std::move(output));
}

}  // namespace shoal::models
