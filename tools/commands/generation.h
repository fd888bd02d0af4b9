// Text generation: the loop of `shoal run` and `shoal chat`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/engine/engine.h"
#include "models/session/sampler.h"
#include "models/tokenizer/tokenizer.h"
#include "tools/cli/flags.h"

namespace shoal::tools {

struct GenerationOptions {
  int64_t count = 128;  ///< number of tokens to generate; -1: until the text ends or the context is full
  bool ignore_end = false;
  int top_logits = 0;  ///< number of highest logits to list for the last prompt position
  models::SamplerParams sampler;
  std::vector<int32_t> ends;       ///< ids of end tokens, used only without a tokenizer
  std::vector<std::string> stops;  ///< strings that end the generation and are removed from the text
  std::vector<int32_t> spelled;    ///< control tokens that are printed as text
  int64_t apart = 0;               ///< number of tokens at the end of the prompt that later prompts may change
  int64_t draft = 0;               ///< models::RequestOptions::draft
};

/// Flags that `run` and `chat` share: sampling flags, -n --draft --stop --ignore-eos
struct GenerationFlags {
  SamplingFlags sampling;
  GenerationOptions options;

  void add_to(CLI::App& app);
  /// Completes the options with a seeded sampler. Call this function after parsing. Throws InvalidArgument if a bias
  /// names a token outside the vocabulary.
  void finish(int64_t vocabulary);
};

struct Generation {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<models::TokenLogit> top_logits;
  std::string stop;              ///< "count", "end_of_text", "stop_text", "context", "interrupted" or "error"
  int64_t prompt_evaluated = 0;  ///< number of prompt tokens that were evaluated
  int64_t evaluated = 0;         ///< number of generated tokens that were evaluated. The last generated token is
                                 ///< evaluated only if an end token follows.
  double prompt_ms = 0.0;        ///< time for `prompt_evaluated` tokens
  double generation_ms = 0.0;    ///< time for `evaluated` tokens
};

/// "prompt 6 tokens, 310.2 tokens/s; generated 5 tokens, 20.1 tokens/s". Rates refer to evaluated tokens and are
/// omitted if no token was evaluated.
std::string timings_text(const Generation& generation);
/// The same numbers as JSON, with milliseconds. A rate is 0 if no token was evaluated.
nlohmann::json timings_json(const Generation& generation);

/// Receives each piece of text when the piece is complete and cannot be the beginning of a stop string.
using TextSink = std::function<void(std::string_view text)>;

/// Evaluates the prompt and generates tokens until a stop condition is met, or until Ctrl-C or SIGTERM. `tokenizer` is
/// the tokenizer of the engine. Without a tokenizer (nullptr), tokens have no text. The engine has no other requests.
/// Updates `out` after every token. After an exception, for example from the sink, `out` contains the results so far,
/// and `out.stop` is "error".
void generate(models::Engine& engine, const models::Tokenizer* tokenizer, std::span<const int32_t> prompt,
              const GenerationOptions& options, const TextSink& sink, Generation& out);

}  // namespace shoal::tools
