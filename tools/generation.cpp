#include "tools/generation.h"

#include <chrono>

#include "graph/error.h"
#include "tools/interrupt.h"

namespace shoal::tools {
namespace {

class Stopwatch {
 public:
  /// Milliseconds since construction or the last call.
  double lap() {
    auto now = std::chrono::steady_clock::now();
    double ms = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

Generation generate(models::Session& session, const models::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                    const GenerationOptions& options, const TextSink& sink) {
  require<InvalidArgument>(!prompt.empty(), "the prompt is empty; give a text with -p or ids with --prompt-tokens");
  require<InvalidArgument>(static_cast<int64_t>(prompt.size()) <= session.context(),
                           "the prompt has {} tokens and the context holds {}; use -c {} or more", prompt.size(),
                           session.context(), prompt.size());
  Generation out;
  Stopwatch watch;
  models::Sampler sampler(options.sampler);
  models::StreamDecoder decoder(tokenizer);
  auto emit = [&](std::string text) {
    sink(text);
    out.text += text;
  };
  session.evaluate(prompt);
  std::span<const float> logits = session.logits();
  out.prompt_ms = watch.lap();
  if (options.top_logits > 0) out.top_logits = models::top_logits(logits, options.top_logits);
  auto stop = [&]() -> const char* {
    if (interrupted()) return "interrupted";
    if (options.count >= 0 && static_cast<int64_t>(out.tokens.size()) >= options.count) return "count";
    if (!out.tokens.empty() && session.position() >= session.context()) return "context";
    return nullptr;
  };
  watch.lap();
  for (const char* reason = nullptr;;) {
    reason = stop();
    if (reason) {
      out.stop = reason;
      break;
    }
    if (!out.tokens.empty()) {
      session.evaluate({&out.tokens.back(), 1});
      logits = session.logits();
    }
    int32_t token = sampler.sample(logits);
    if (!options.ignore_end && tokenizer.is_end(token)) {
      out.stop = "end_of_text";
      break;
    }
    out.tokens.push_back(token);
    emit(decoder.push(token));
  }
  emit(decoder.finish());
  out.generation_ms = watch.lap();
  return out;
}

}  // namespace shoal::tools
