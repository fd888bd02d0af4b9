// Generating text: the loop of `shoal run` and `shoal chat`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/session/sampler.h"
#include "models/session/session.h"
#include "models/tokenizer/tokenizer.h"
#include "tools/cli/flags.h"

namespace shoal::tools {

struct GenerationOptions {
  int64_t count = 128;  ///< tokens to generate; -1: until the end of the text or of the context
  bool ignore_end = false;
  int top_logits = 0;  ///< how many of the last prompt position to keep
  models::SamplerParams sampler;
  std::vector<int32_t> ends;       ///< tokens that end the text, where there is no tokenizer to say so
  std::vector<std::string> stops;  ///< strings that end the text, and are not part of it
  std::vector<int32_t> spelled;    ///< control tokens that count as text
  size_t evaluated = 0;            ///< tokens of the prompt that the session has already
  size_t apart = 0;                ///< at the prompt's end, evaluated after a checkpoint of what is before them
};

/// What `run` and `chat` have in common: sampling, -n --stop --ignore-eos
struct GenerationFlags {
  SamplingFlags sampling;
  GenerationOptions options;

  void add_to(CLI::App& app);
  /// After parsing: the options with their sampler, seeded. Throws InvalidArgument for a bias of no token.
  void finish(int64_t vocabulary);
};

struct Generation {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<models::TokenLogit> top_logits;
  std::string stop;              ///< "count", "end_of_text", "stop_text", "context", "interrupted" or "error"
  int64_t prompt_evaluated = 0;  ///< tokens of the prompt that were computed
  int64_t evaluated = 0;         ///< tokens computed after it: the first token comes with the prompt, an end costs one
  double prompt_ms = 0.0;        ///< of prompt_evaluated tokens
  double generation_ms = 0.0;    ///< of `evaluated` tokens
};

/// "prompt 6 tokens, 310.2 tokens/s; generated 5 tokens, 20.1 tokens/s"; a rate is of the tokens evaluated, and left
/// out if there are none.
std::string timings_text(const Generation& generation);
/// The same with milliseconds, and rates of 0 if there is none.
nlohmann::json timings_json(const Generation& generation);

/// Told each piece of text as soon as it is complete, and cannot be the beginning of a stop string.
using TextSink = std::function<void(std::string_view text)>;

/// `tokenizer`: nullptr makes tokens without text. Evaluates the prompt and goes on from it until a stop, Ctrl-C or
/// SIGTERM. Fills `out` as it goes: when something throws, the sink for instance, it has what there is by then, and
/// stop is "error".
void generate(models::Session& session, const models::Tokenizer* tokenizer, std::span<const int32_t> prompt,
              const GenerationOptions& options, const TextSink& sink, Generation& out);

}  // namespace shoal::tools
