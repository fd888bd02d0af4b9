#include "tools/generation.h"

#include <algorithm>
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

/// One run of the loop.
class Generator {
 public:
  Generator(models::Session& session, const models::Tokenizer& tokenizer, const GenerationOptions& options,
            const TextSink& sink)
      : session_(session),
        tokenizer_(tokenizer),
        options_(options),
        sink_(sink),
        sampler_(options.sampler),
        decoder_(tokenizer) {}

  Generation run(std::span<const int32_t> prompt) {
    Stopwatch watch;
    evaluate_prompt(prompt);
    out_.prompt_ms = watch.lap();
    if (!logits_.empty() && options_.top_logits > 0) {
      out_.top_logits = models::top_logits(logits_, options_.top_logits);
    }
    watch.lap();
    while (out_.stop.empty()) step();
    emit(decoder_.finish());
    out_.generation_ms = watch.lap();
    return std::move(out_);
  }

 private:
  /// Leaves no logits when Ctrl-C came between two batches.
  void evaluate_prompt(std::span<const int32_t> prompt) {
    size_t batch = session_.batch();
    for (size_t begin = 0; begin < prompt.size(); begin += batch) {
      logits_ = {};
      if (interrupted()) return;
      session_.evaluate(prompt.subspan(begin, std::min(batch, prompt.size() - begin)));
      logits_ = session_.logits();
    }
  }

  std::string stop_reason() const {
    if (interrupted()) return "interrupted";
    if (options_.count >= 0 && static_cast<int64_t>(out_.tokens.size()) >= options_.count) return "count";
    // The first token needs no room: it comes from the prompt's logits.
    if (!out_.tokens.empty() && session_.position() >= session_.context()) return "context";
    return {};
  }

  void step() {
    out_.stop = stop_reason();
    if (!out_.stop.empty()) return;
    if (!out_.tokens.empty()) {
      session_.evaluate({&out_.tokens.back(), 1});
      logits_ = session_.logits();
    }
    int32_t token = sampler_.sample(logits_);
    if (!options_.ignore_end && tokenizer_.is_end(token)) {
      out_.stop = "end_of_text";
      return;
    }
    out_.tokens.push_back(token);
    emit(decoder_.push(token));
  }

  void emit(const std::string& text) {
    sink_(text);
    out_.text += text;
  }

  models::Session& session_;
  const models::Tokenizer& tokenizer_;
  const GenerationOptions& options_;
  const TextSink& sink_;
  models::Sampler sampler_;
  models::StreamDecoder decoder_;
  std::span<const float> logits_;
  Generation out_;
};

}  // namespace

Generation generate(models::Session& session, const models::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                    const GenerationOptions& options, const TextSink& sink) {
  require<InvalidArgument>(!prompt.empty(), "the prompt is empty; give a text with -p or ids with --prompt-tokens");
  require<InvalidArgument>(static_cast<int64_t>(prompt.size()) <= session.context(),
                           "the prompt has {} tokens and the context holds {}; use -c {} or more", prompt.size(),
                           session.context(), prompt.size());
  return Generator(session, tokenizer, options, sink).run(prompt);
}

}  // namespace shoal::tools
