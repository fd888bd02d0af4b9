// Requests and parts of steps inside an engine. Only the engine includes this file.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "models/engine/engine.h"
#include "models/session/stop_text.h"

namespace shoal::models {

inline constexpr int64_t kPriorityPlaces = 100;

struct Engine::Request {
  Request(RequestId number, std::vector<int32_t> prompt, const RequestOptions& asked, const Tokenizer* tokenizer)
      : id(number),
        options(asked),
        prompt_tokens(static_cast<int64_t>(prompt.size())),
        place(number - asked.priority * kPriorityPlaces),
        tokens(std::move(prompt)),
        sampler(asked.sampling),
        stop(asked.stops) {
    if (tokenizer != nullptr) decoder.emplace(*tokenizer);
    for (const int32_t token : tokens) sampler.accept(token);
  }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  /// Number of tokens that the next steps must compute. The last of these tokens gives the next token.
  int64_t pending() const { return size() - (memory ? memory->computed() : 0); }
  /// Number of tokens until the next position whose state is kept; without such a position, pending(). The state at
  /// the end of the last full page is kept if the model has states with pages of `page` tokens (0: no states).
  int64_t until_kept(int64_t page) const {
    const int64_t begin = memory->computed();
    const auto next = std::upper_bound(kept_positions.begin(), kept_positions.end(), begin);
    const int64_t end = next == kept_positions.end() ? size() : *next;
    return (page > 0 && end - begin < page ? std::min(end, (begin / page + 1) * page) : end) - begin;
  }
  std::span<const int32_t> answer() const { return std::span(tokens).subspan(static_cast<size_t>(prompt_tokens)); }
  bool is_running() const { return memory != nullptr; }
  /// Whether the outputs lack tokens of the prompt that computed tokens precede.
  bool lists_prompt() const { return options.lists_prompt && listed_tokens + 1 < prompt_tokens; }

  RequestId id;
  RequestOptions options;
  int64_t prompt_tokens;
  int64_t place;                ///< requests with lower places run first
  std::vector<int32_t> tokens;  ///< prompt and answer
  Sampler sampler;
  std::optional<StreamDecoder> decoder;
  StopText stop;
  std::unique_ptr<SequenceMemory> memory;  ///< nullptr: the request waits
  int64_t reserved = 0;                    ///< number of tokens for which the request needs pages
  std::vector<int64_t> kept_positions;     ///< positions at which prompt parts end, so that the states are kept
  int64_t cached_tokens = 0;
  int64_t listed_tokens = 0;  ///< number of prompt tokens that are in the outputs, with RequestOptions::lists_prompt
  double accepted = 0.5;      ///< share of the latest drafted tokens that were right
  bool has_started = false, is_finished = false;
};

/// The tokens of one request in a step.
struct Engine::Part {
  Request* request = nullptr;
  int64_t tokens = 0;  ///< number of computed tokens, without drafts
  std::vector<int32_t> drafts = {};
  bool has_output = false;    ///< whether the last token gives the next token
  bool lists_prompt = false;  ///< whether all tokens are outputs
  int64_t first_output = 0;
  int64_t outputs() const { return size() - first_listed(); }
  /// Index of the first token that is an output; size() if there is none.
  int64_t first_listed() const { return lists_prompt ? 0 : has_output ? tokens - 1 : size(); }
  int64_t size() const { return tokens + static_cast<int64_t>(drafts.size()); }
};

}  // namespace shoal::models
