// shoal run: generates text from a prompt.
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <random>

#include "graph/error.h"
#include "models/tokenizer.h"
#include "tools/command.h"
#include "tools/engine.h"
#include "tools/flags.h"
#include "tools/generation.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/program.h"

namespace shoal::tools {
namespace {

struct RunFlags {
  ModelFlags model;
  DeviceFlags devices;
  ContextFlags context;
  OutputFlag output;
  GenerationOptions generation;
  CLI::Option* prompt = nullptr;
  CLI::Option* seed = nullptr;
  std::string prompt_text;
  std::string prompt_tokens;
};

std::vector<int32_t> prompt_ids(const RunFlags& flags, const models::Tokenizer& tokenizer) {
  if (flags.prompt->count() > 0) return tokenizer.encode(flags.prompt_text);
  require<InvalidArgument>(!flags.prompt_tokens.empty(), "no prompt; give a text with -p or ids with --prompt-tokens");
  return parse_ids("--prompt-tokens", flags.prompt_tokens);
}

/// Tokens per second; 0 when there was nothing to measure.
double rate(size_t tokens, double ms) {
  return ms > 0.0 ? static_cast<double>(tokens) * 1000.0 / ms : 0.0;
}

struct Outcome {
  std::vector<int32_t> prompt;
  Generation generation;
  double load_ms = 0.0;

  double prompt_rate() const { return rate(prompt.size(), generation.prompt_ms); }
  size_t steps() const { return generation.tokens.empty() ? 0 : generation.tokens.size() - 1; }
  double generation_rate() const { return rate(steps(), generation.generation_ms); }
};

nlohmann::json to_json(const RunFlags& flags, const Engine& engine, const Outcome& outcome) {
  const Generation& g = outcome.generation;
  nlohmann::json devices = nlohmann::json::array();
  for (const Device* device : engine.placement->members()) devices.push_back(device->name());
  nlohmann::json json{{"model", flags.model.path},
                      {"devices", devices},
                      {"context", engine.session->context()},
                      {"seed", flags.generation.sampler.seed},
                      {"prompt_tokens", outcome.prompt},
                      {"tokens", g.tokens},
                      {"text", g.text},
                      {"stop", g.stop},
                      {"timings",
                       {{"load_ms", outcome.load_ms},
                        {"prompt_ms", g.prompt_ms},
                        {"generation_ms", g.generation_ms},
                        {"prompt_tokens_per_second", outcome.prompt_rate()},
                        {"generation_tokens_per_second", outcome.generation_rate()}}}};
  if (flags.generation.top_logits > 0) {
    auto& top = json["top_logits"] = nlohmann::json::array();
    for (const models::TokenLogit& entry : g.top_logits) top.push_back({entry.id, entry.logit});
  }
  return json;
}

void print_summary(const Outcome& outcome) {
  fmt::print(stderr, "\nload {:.0f} ms; prompt {} tokens, {:.1f} tokens/s; generated {} tokens, {:.1f} tokens/s\n",
             outcome.load_ms, outcome.prompt.size(), outcome.prompt_rate(), outcome.generation.tokens.size(),
             outcome.generation_rate());
}

int run(RunFlags& flags) {
  catch_interrupts();
  if (flags.seed->count() == 0) flags.generation.sampler.seed = std::random_device()();
  models::check_params(flags.generation.sampler);
  auto start = std::chrono::steady_clock::now();
  auto model = models::open_model(flags.model.path);
  models::Tokenizer tokenizer(model->file);
  Outcome outcome;
  outcome.prompt = prompt_ids(flags, tokenizer);
  models::SessionOptions session = flags.context.session();
  // A short prompt needs no memory for a full batch.
  session.batch = std::min(session.batch, std::max<int64_t>(1, static_cast<int64_t>(outcome.prompt.size())));
  Engine engine = load_engine(std::move(model), flags.devices.find(), flags.devices.placement(), session);
  outcome.load_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  bool stream = !flags.output.json();
  outcome.generation =
      generate(*engine.session, tokenizer, outcome.prompt, flags.generation, [&](std::string_view text) {
        if (!stream) return;
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
  if (stream) {
    fmt::print("\n");
    print_summary(outcome);
  } else {
    print_json(to_json(flags, engine, outcome));
  }
  return outcome.generation.stop == "interrupted" ? kInterrupted : kSuccess;
}

}  // namespace

CommandBody define_run(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  flags->model.add_to(app);
  flags->prompt = app.add_option("-p,--prompt", flags->prompt_text, "Text to go on from");
  app.add_option("--prompt-tokens", flags->prompt_tokens, "Token ids instead of a text, such as 1,527,261")
      ->excludes(flags->prompt);
  GenerationOptions& generation = flags->generation;
  app.add_option("-n,--predict", generation.count, "Tokens to generate; -1: until the text or the context ends")
      ->capture_default_str();
  app.add_flag("--ignore-eos", generation.ignore_end, "Go on after an end-of-text token");
  flags->context.add_to(app);
  flags->devices.add_to(app);
  flags->seed = app.add_option("--seed", generation.sampler.seed, "Seed of sampling; default random");
  app.add_option("--temp", generation.sampler.temp, "Temperature; 0: always the best token")->capture_default_str();
  app.add_option("--top-k", generation.sampler.top_k, "Sample from the k best; 0: all")->capture_default_str();
  app.add_option("--top-p", generation.sampler.top_p, "... whose probabilities add up to p")->capture_default_str();
  app.add_option("--min-p", generation.sampler.min_p, "... at least p times as probable as the best")
      ->capture_default_str();
  app.add_option("--top-logits", generation.top_logits, "Report the k best logits of the last prompt position")
      ->check(CLI::NonNegativeNumber);
  flags->output.add_to(app);
  return [flags] {
    try {
      return run(*flags);
    } catch (const Interrupted&) {
      return kInterrupted;
    }
  };
}

}  // namespace shoal::tools
