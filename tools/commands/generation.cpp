#include "tools/commands/generation.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "models/session/stop_text.h"
#include "tools/cli/interrupt.h"

namespace shoal::tools {
namespace {

/// Adds the milliseconds of its life to a sum, exceptions or not.
class Stopwatch {
 public:
  explicit Stopwatch(double& ms) : ms_(ms) {}
  ~Stopwatch() { ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& ms_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// One run of the loop.
class Generator {
 public:
  Generator(models::Session& session, const models::Tokenizer* tokenizer, const GenerationOptions& options,
            const TextSink& sink, Generation& out)
      : session_(session),
        tokenizer_(tokenizer),
        options_(options),
        sink_(sink),
        sampler_(options.sampler),
        stop_text_(options.stops),
        out_(out) {
    if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
  }

  void run(std::span<const int32_t> prompt) {
    for (const int32_t token : prompt) sampler_.accept(token);
    evaluate_prompt(prompt);
    if (options_.top_logits > 0) list_top_logits();
    Stopwatch watch(out_.generation_ms);
    while (out_.stop.empty()) step();
    if (decoder_) emit(stop_text_.push(decoder_->finish()));
    emit(stop_text_.finish());
  }

 private:
  /// Leaves no logits when it was interrupted between two batches.
  void evaluate_prompt(std::span<const int32_t> prompt) {
    Stopwatch watch(out_.prompt_ms);
    size_t batch = session_.batch();
    for (size_t begin = 0; begin < prompt.size(); begin += batch) {
      forget();
      if (interrupted()) return;
      evaluate(prompt.subspan(begin, std::min(batch, prompt.size() - begin)), out_.prompt_evaluated);
    }
  }

  void evaluate(std::span<const int32_t> tokens, int64_t& counter) {
    session_.evaluate(tokens);
    if (session_.selects()) {
      candidates_ = session_.candidates();
    } else {
      logits_ = session_.logits();
    }
    counter += static_cast<int64_t>(tokens.size());
  }

  void forget() { logits_ = {}, candidates_ = {}; }

  void list_top_logits() {
    if (!logits_.empty()) out_.top_logits = models::top_logits(logits_, options_.top_logits);
    if (!candidates_.empty()) out_.top_logits = models::top_of(candidates_, options_.top_logits);
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
    if (!out_.tokens.empty()) evaluate({&out_.tokens.back(), 1}, out_.evaluated);
    int32_t token = session_.selects() ? sampler_.sample_best(candidates_) : sampler_.sample(logits_);
    if (!options_.ignore_end && is_end(token)) {
      out_.stop = "end_of_text";
      return;
    }
    sampler_.accept(token);
    out_.tokens.push_back(token);
    if (decoder_) emit(stop_text_.push(decoder_->push(token)));
    if (stop_text_.found()) out_.stop = "stop_text";
  }

  bool is_end(int32_t token) const {
    if (tokenizer_ != nullptr) return tokenizer_->is_end(token);
    return std::find(options_.ends.begin(), options_.ends.end(), token) != options_.ends.end();
  }

  void emit(const std::string& text) {
    out_.text += text;
    if (!text.empty()) sink_(text);
  }

  models::Session& session_;
  const models::Tokenizer* tokenizer_;  // nullptr: no text
  const GenerationOptions& options_;
  const TextSink& sink_;
  models::Sampler sampler_;
  models::StopText stop_text_;
  std::optional<models::StreamDecoder> decoder_;
  std::span<const float> logits_;
  std::span<const models::TokenLogit> candidates_;  // in place of logits, where the devices select
  Generation& out_;
};

}  // namespace

void generate(models::Session& session, const models::Tokenizer* tokenizer, std::span<const int32_t> prompt,
              const GenerationOptions& options, const TextSink& sink, Generation& out) {
  try {
    Generator(session, tokenizer, options, sink, out).run(prompt);
  } catch (...) {
    out.stop = "error";
    throw;
  }
}

}  // namespace shoal::tools
