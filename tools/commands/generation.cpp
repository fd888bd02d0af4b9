#include "tools/commands/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/error.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/prompt.h"

namespace shoal::tools {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Value of Generation::stop.
std::string stop_of(const models::Output& end) {
  switch (*end.finish) {
    case models::Finish::kEndToken:
      return "end_of_text";
    case models::Finish::kStopString:
      return "stop_text";
    case models::Finish::kTokens:
      return "count";
    case models::Finish::kContext:
      return "context";
    case models::Finish::kCancelled:
      return "interrupted";
    case models::Finish::kFailed:
      break;
  }
  fail<InvalidArgument>("{}", end.error);
}

models::RequestOptions request_of(const models::Tokenizer* tokenizer, std::span<const int32_t> prompt,
                                  const GenerationOptions& options) {
  models::RequestOptions request;
  request.sampling = options.sampler;
  request.most_tokens = options.count;
  if (!options.ignore_end) {
    request.end_tokens = options.ends;
    if (tokenizer != nullptr) request.end_tokens.assign(tokenizer->ends().begin(), tokenizer->ends().end());
  }
  request.stops = options.stops;
  request.spelled = options.spelled;
  if (options.top_logits > 0) request.logprobs = options.top_logits;
  request.junction = std::max<int64_t>(0, static_cast<int64_t>(prompt.size()) - options.apart);
  request.draft = options.draft;
  return request;
}

/// Adds an output to the results.
void add(models::Output output, const TextSink& sink, Generation& out) {
  if (out.tokens.empty() && !output.best.empty()) out.top_logits = std::move(output.best);
  if (output.token >= 0) out.tokens.push_back(output.token);
  if (output.finish) out.stop = stop_of(output);
  out.text += output.text;
  if (!output.text.empty()) sink(output.text);
}

/// Ends the request if an exception leaves the loop of generate().
struct Submitted {
  models::Engine& engine;
  models::RequestId id;
  ~Submitted() { engine.cancel(id); }
};

void run(models::Engine& engine, models::RequestOptions request, std::span<const int32_t> prompt, const TextSink& sink,
         Generation& out) {
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;  // when the prompt was evaluated
  const int64_t before = engine.stats().prompt_tokens;
  const Submitted submitted{engine, engine.submit({prompt.begin(), prompt.end()}, std::move(request))};
  bool has_prompt = false;
  while (out.stop.empty()) {
    if (interrupted()) engine.cancel(submitted.id);
    engine.step();
    out.prompt_evaluated = engine.stats().prompt_tokens - before;
    std::vector<models::Output> outputs = engine.take_outputs();
    if (!has_prompt) {
      out.prompt_ms = ms_since(start);
      first = Clock::now();
      has_prompt = !outputs.empty();
    } else {
      out.generation_ms = ms_since(first);
      out.evaluated = static_cast<int64_t>(out.tokens.size());
    }
    for (models::Output& output : outputs) {
      if (output.request == submitted.id) add(std::move(output), sink, out);
    }
  }
}

}  // namespace

void GenerationFlags::add_to(CLI::App& app) {
  add_integer(app, "-n,--predict", options.count, -1, kMostTokens,
              "Number of tokens to generate; -1: until the text ends or the context is full");
  add_integer(app, "--draft", options.draft, 0, 64, "Maximum number of guessed tokens per step");
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

void generate(models::Engine& engine, const models::Tokenizer* tokenizer, std::span<const int32_t> prompt,
              const GenerationOptions& options, const TextSink& sink, Generation& out) {
  try {
    run(engine, request_of(tokenizer, prompt, options), prompt, sink, out);
  } catch (...) {
    out.stop = "error";
    throw;
  }
}

}  // namespace shoal::tools
