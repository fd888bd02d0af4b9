#include "tools/commands/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

#include "base/error.h"
#include "models/session/stop_text.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/prompt.h"

namespace shoal::tools {
namespace {

/// The destructor adds the lifetime of this object in milliseconds to a sum.
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

/// One run of the generation loop.
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
    evaluate_prompt(prompt.subspan(options_.evaluated));
    if (options_.top_logits > 0) list_top_logits();
    Stopwatch watch(out_.generation_ms);
    while (out_.stop.empty()) step();
    if (decoder_) emit(stop_text_.push(decoder_->finish()));
    emit(stop_text_.finish());
  }

 private:
  void evaluate_prompt(std::span<const int32_t> prompt) {
    Stopwatch watch(out_.prompt_ms);
    const size_t apart = session_.needs_checkpoints() ? std::min(options_.apart, prompt.size()) : 0;
    evaluate_batches(prompt.first(prompt.size() - apart));
    if (apart > 0 && !interrupted()) session_.checkpoint();
    evaluate_batches(prompt.last(apart));
  }

  /// Evaluates the prompt in batches. If a signal arrives between two batches, returns early without logits.
  void evaluate_batches(std::span<const int32_t> prompt) {
    size_t batch = session_.batch();
    for (size_t begin = 0; begin < prompt.size(); begin += batch) {
      reset();
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

  void reset() { logits_ = {}, candidates_ = {}; }

  void list_top_logits() {
    if (!logits_.empty()) out_.top_logits = models::top_logits(logits_, options_.top_logits);
    if (!candidates_.empty()) out_.top_logits = models::top_of(candidates_, options_.top_logits);
  }

  std::string stop_reason() const {
    if (interrupted()) return "interrupted";
    if (options_.count >= 0 && static_cast<int64_t>(out_.tokens.size()) >= options_.count) return "count";
    // The first token needs no room in the context, because it is sampled from the logits of the prompt.
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
    if (decoder_) emit(stop_text_.push(text_of(token)));
    if (stop_text_.found()) out_.stop = "stop_text";
  }

  /// The text that this token completes.
  std::string text_of(int32_t token) {
    const bool spelled = std::find(options_.spelled.begin(), options_.spelled.end(), token) != options_.spelled.end();
    return spelled ? decoder_->finish() + tokenizer_->vocabulary().piece(token) : decoder_->push(token);
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
  const models::Tokenizer* tokenizer_;  // nullptr: tokens have no text
  const GenerationOptions& options_;
  const TextSink& sink_;
  models::Sampler sampler_;
  models::StopText stop_text_;
  std::optional<models::StreamDecoder> decoder_;
  std::span<const float> logits_;
  std::span<const models::TokenLogit> candidates_;  // replaces the logits if the devices select candidates
  Generation& out_;
};

}  // namespace

void GenerationFlags::add_to(CLI::App& app) {
  add_integer(app, "-n,--predict", options.count, -1, kMostTokens,
              "Number of tokens to generate; -1: until the text ends or the context is full");
  app.add_flag("--ignore-eos", options.ignore_end, "Continue after an end-of-text token");
  sampling.add_to(app);
  sampling.add_penalties_to(app);
  const auto read_stop = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(!text.empty(), "{}: the stop text is empty; give a text", flag);
    options.stops.push_back(text);
  };
  add_repeated(app, "--stop", "TEXT", read_stop, "Text that ends the generation and is not printed; may be repeated");
}

void GenerationFlags::finish(int64_t vocabulary) {
  options.sampler = sampling.sampler;
  if (sampling.random_seed) options.sampler.seed = std::random_device()();
  for (const auto& [id, bias] : options.sampler.biases) check_ids("--logit-bias", {&id, 1}, vocabulary);
}

namespace {

/// Tokens per second; 0 if no time was measured.
double rate(int64_t tokens, double ms) {
  return ms > 0.0 ? static_cast<double>(tokens) * 1000.0 / ms : 0.0;
}

/// "5 tokens, 310.2 tokens/s". The rate refers to evaluated tokens and is omitted if no token was evaluated.
std::string count_text(int64_t tokens, int64_t evaluated, double ms) {
  const std::string count = fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s");
  return evaluated > 0 ? fmt::format("{}, {:.1f} tokens/s", count, rate(evaluated, ms)) : count;
}

}  // namespace

std::string timings_text(const Generation& generation) {
  const Generation& g = generation;
  return fmt::format("prompt {}; generated {}", count_text(g.prompt_evaluated, g.prompt_evaluated, g.prompt_ms),
                     count_text(static_cast<int64_t>(g.tokens.size()), g.evaluated, g.generation_ms));
}

nlohmann::json timings_json(const Generation& generation) {
  const Generation& g = generation;
  return {{"prompt_evaluated", g.prompt_evaluated},
          {"prompt_ms", g.prompt_ms},
          {"prompt_tokens_per_second", rate(g.prompt_evaluated, g.prompt_ms)},
          {"generation_evaluated", g.evaluated},
          {"generation_ms", g.generation_ms},
          {"generation_tokens_per_second", rate(g.evaluated, g.generation_ms)}};
}

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
