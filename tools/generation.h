// Generating text: the loop of `shoal run`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/sampler.h"
#include "models/session.h"
#include "models/tokenizer.h"

namespace shoal::tools {

struct GenerationOptions {
  int64_t count = 128;  ///< tokens to generate; < 0: until the end of the text or of the context
  bool ignore_end = false;
  int top_logits = 0;  ///< how many of the last prompt position to keep
  models::SamplerParams sampler;
};

struct Generation {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<models::TokenLogit> top_logits;
  std::string stop;  ///< "count", "end_of_text", "context" or "interrupted"
  double prompt_ms = 0.0;
  double generation_ms = 0.0;  ///< of all tokens but the first, which comes with the prompt
};

/// Told each piece of text as soon as it is complete.
using TextSink = std::function<void(std::string_view text)>;

/// Evaluates the prompt and goes on from it until a stop or Ctrl-C. Throws InvalidArgument when the prompt does not
/// fit.
Generation generate(models::Session& session, const models::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                    const GenerationOptions& options, const TextSink& sink);

}  // namespace shoal::tools
