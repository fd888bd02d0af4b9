// shoal run: generates text from a prompt.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include "models/tokenizer/tokenizer.h"
#include "tools/chat/answer.h"
#include "tools/chat/conversation.h"
#include "tools/cli/command.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/prompt.h"
#include "tools/commands/generation.h"
#include "tools/report/trace_file.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {
namespace {

struct RunFlags {
  ChoiceFlags choice;
  OutputFlag output;
  GenerationFlags generation;
  TraceFlag trace;
  PromptFlags prompt;
  ChatFlags chat;
  bool is_chat = false;  ///< whether the prompt is a user's message for the chat template
  std::string text;      ///< text of the prompt
  std::optional<std::vector<int32_t>> prompt_tokens;

  void check() {
    choice.devices.check();
    if (chat.given() && !is_chat)
      throw UsageError("--system, --template and --template-var need --chat; add --chat, or omit these flags");
    if (prompt.given() || prompt_tokens) return;
    throw UsageError(
        "no prompt; give a text with -p, a file with -f, standard input with -f -, or ids with --prompt-tokens");
  }
};

/// The model's tokenizer. If input and output are token ids, the tokenizer is optional. In this case, returns nullopt
/// for a missing, unsupported or damaged tokenizer, and also prints a warning for a damaged tokenizer.
std::optional<models::Tokenizer> find_tokenizer(const RunFlags& flags, const models::Model& model) {
  std::optional<models::Tokenizer> tokenizer;
  try {
    tokenizer.emplace(model.file);
  } catch (const InvalidArgument& error) {
    if (!flags.prompt_tokens || !flags.output.json()) {
      fail<InvalidArgument>("{}; to run without a tokenizer, use --prompt-tokens with --output json", error.what());
    }
    if (models::has_known_tokenizer(model.file))
      warn(fmt::format("{}; without a tokenizer there is no text", error.what()));
    return std::nullopt;
  }
  check_tokenizer(model, *tokenizer);
  return tokenizer;
}

/// Renders or encodes the prompt and checks it against the model. Adds the end strings of a chat template to the stop
/// strings.
Conversation::Prompt find_prompt(RunFlags& flags, const models::Model& model,
                                 const std::optional<models::Tokenizer>& tokenizer) {
  Conversation::Prompt prompt;
  if (flags.is_chat) {
    ChatTemplate chat_template = flags.chat.find_template(model.file, *tokenizer);
    std::ranges::copy(chat_template.stops, std::back_inserter(flags.generation.options.stops));
    Conversation conversation(flags.chat, std::move(chat_template), *tokenizer);
    conversation.add_user(flags.text);
    prompt = conversation.prompt();
  } else {
    prompt.ids = flags.prompt_tokens ? *flags.prompt_tokens : tokenizer->encode(flags.text);
  }
  check_ids("--prompt-tokens", prompt.ids, model.hparams.vocab);
  check_length(prompt.ids, models::session_size(model.hparams, flags.choice.context.session()),
               flags.generation.options.count);
  return prompt;
}

struct Outcome {
  std::vector<int32_t> prompt;
  Generation generation;
  std::optional<AnswerPrinter> answer;  ///< set with --chat
  double load_ms = 0.0;
  size_t bytes = 0;                            ///< bytes of loaded weights
  std::chrono::duration<double> bytes_time{};  ///< time to load these bytes
  std::string error;                           ///< message of a failure; "" if nothing failed
};

nlohmann::json timings(const Outcome& outcome) {
  nlohmann::json json = timings_json(outcome.generation);
  json["load_ms"] = outcome.load_ms;
  json["load_bytes"] = outcome.bytes;
  json["load_bytes_ms"] = std::chrono::duration<double, std::milli>(outcome.bytes_time).count();
  return json;
}

nlohmann::json to_json(const RunFlags& flags, const Deployment& deployment, bool has_text, const Outcome& outcome) {
  const Generation& g = outcome.generation;
  nlohmann::json devices = nlohmann::json::array();
  for (const Device* device : deployment.placement->members()) devices.push_back(device->name());
  nlohmann::json json{{"model", flags.choice.model.path},
                      {"devices", devices},
                      {"context", deployment.engine->most_tokens()},
                      {"seed", flags.generation.options.sampler.seed},
                      {"prompt_tokens", outcome.prompt},
                      {"tokens", g.tokens},
                      {"text", has_text ? nlohmann::json(outcome.answer ? outcome.answer->said() : g.text) : nullptr},
                      {"stop", g.stop},
                      {"timings", timings(outcome)}};
  if (outcome.answer && !outcome.answer->thought().empty()) json["thought"] = outcome.answer->thought();
  if (!outcome.error.empty()) json["error"] = outcome.error;
  if (flags.generation.options.top_logits > 0) {
    auto& top = json["top_logits"] = nlohmann::json::array();
    for (const models::TokenLogit& entry : g.top_logits) top.push_back({entry.id, entry.logit});
  }
  return json;
}

/// Prints to stderr, because stdout contains the text.
void print_top_logits(const Generation& generation, const models::Tokenizer& tokenizer) {
  if (generation.top_logits.empty()) return;
  std::vector<std::vector<std::string>> rows{{"logit", "id", "piece"}};
  for (const models::TokenLogit& entry : generation.top_logits) {
    rows.push_back({fmt::format("{:.4f}", entry.logit), fmt::format("{}", entry.id),
                    printable(tokenizer.vocabulary().piece(entry.id))});
  }
  write_err(format_table(rows));
}

/// Returns the reason why fewer tokens were generated than requested; "" if the requested number was generated.
std::string why_stopped(const std::string& stop, int64_t context) {
  if (stop == "end_of_text") return "; stopped: end of text";
  if (stop == "stop_text") return "; stopped: stop text";
  if (stop == "interrupted") return "; stopped: interrupted";
  return stop == "context" ? fmt::format("; stopped: the context of {} tokens is full (-c)", context) : "";
}

void print_summary(const Outcome& outcome, int64_t context) {
  const Generation& g = outcome.generation;
  write_err(fmt::format("\nload {:.0f} ms{}; {}{}\n", outcome.load_ms, rate_text(outcome.bytes, outcome.bytes_time),
                        timings_text(g), why_stopped(g.stop, context)));
}

/// Completes the output, before a failure is reported.
int finish_printing(const RunFlags& flags, const Deployment& deployment, bool has_text, const Outcome& outcome) {
  if (flags.output.json()) {
    print_json(to_json(flags, deployment, has_text, outcome));
  } else if (outcome.error.empty() || !outcome.generation.text.empty()) {
    write_out("\n");
  }
  return outcome.error.empty() ? kSuccess : report(outcome.error, kFailed);
}

int generate_and_print(const RunFlags& flags, const Deployment& deployment,
                       const std::optional<models::Tokenizer>& tokenizer, Outcome& outcome) {
  bool stream = !flags.output.json();
  TextSink sink = [&](std::string_view text) {
    if (outcome.answer) {
      outcome.answer->push(text);
    } else if (stream) {
      write_out(text);
    }
  };
  try {
    generate(*deployment.engine, tokenizer ? &*tokenizer : nullptr, outcome.prompt, flags.generation.options, sink,
             outcome.generation);
    if (outcome.answer) outcome.answer->finish();
  } catch (const OutputError&) {
    throw;
  } catch (...) {
    outcome.error = describe_current();
  }
  if (finish_printing(flags, deployment, tokenizer.has_value(), outcome) != kSuccess) return kFailed;
  if (stream) {
    print_top_logits(outcome.generation, *tokenizer);
    print_summary(outcome, deployment.engine->most_tokens());
  }
  return outcome.generation.stop == "interrupted" ? interrupt_code() : kSuccess;
}

Request request_of(const RunFlags& flags, std::unique_ptr<models::Model> model, Tracer* tracer) {
  const int64_t candidates = flags.generation.sampling.candidates(flags.generation.options.top_logits);
  Request request{std::move(model), flags.choice.asked(flags.choice.devices.find_groups(), candidates)};
  request.asked.session.tracer = tracer;
  request.asked.session.drafts = flags.generation.options.draft;
  request.asked.session = models::engine_options(request.asked.session, 0);
  return request;
}

/// Runs in every process except process 0, which has the prompt.
int follow(const RunFlags& flags, Tracer* tracer) {
  follow_leader(request_of(flags, models::open_model(flags.choice.model.path), tracer));
  return kSuccess;
}

int run(RunFlags& flags, Tracer* tracer) {
  auto start = std::chrono::steady_clock::now();
  auto model = models::open_model(flags.choice.model.path);
  warn_of_ignored(*model);
  if (flags.choice.devices.profile) warn_of_profile(*flags.choice.devices.profile, *model);
  const std::optional<models::Tokenizer> tokenizer = find_tokenizer(flags, *model);
  if (!tokenizer) flags.generation.options.ends = models::end_tokens(model->file);
  flags.generation.finish(model->hparams.vocab);
  Conversation::Prompt prompt = find_prompt(flags, *model, tokenizer);
  Outcome outcome;
  outcome.prompt = std::move(prompt.ids);
  if (flags.is_chat) {
    outcome.answer.emplace(prompt.begins_thought, !flags.output.json());
    flags.generation.options.spelled = answer_marks(tokenizer->vocabulary());
  }
  Request request = request_of(flags, std::move(model), tracer);
  // For a short prompt, memory for a full batch would be wasted.
  const auto prompt_length = static_cast<int64_t>(outcome.prompt.size());
  request.asked.session.batch = std::min(request.asked.session.batch, prompt_length);
  request.asked.prompt = prompt_length;
  Deployment deployment = resolve(std::move(request));
  load(deployment);
  outcome.bytes = deployment.model->weight_bytes();
  outcome.bytes_time = deployment.load_time;
  start_engine(deployment, tokenizer ? &*tokenizer : nullptr);
  flags.choice.devices.warn_of_ways(*deployment.model);
  warn_of_context(deployment.model->hparams, deployment.engine->most_tokens());
  outcome.load_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return generate_and_print(flags, deployment, tokenizer, outcome);
}

void add_prompt(CLI::App& app, RunFlags& flags) {
  flags.prompt.add_to(app);
  auto read_ids = [&flags](const std::string& flag, const std::string& text) {
    flags.prompt_tokens = parse_ids(flag, text);
    require<InvalidArgument>(!flags.prompt_tokens->empty(), "{}: the list is empty; give ids such as 1,527,261", flag);
  };
  add_parsed(app, "--prompt-tokens", "IDS", read_ids, "Prompt as token ids, such as 1,527,261")
      ->excludes("--prompt")
      ->excludes("--file")
      ->excludes(app.add_flag("--chat", flags.is_chat,
                              "Format the prompt as a user's message with the model's chat template"));
  flags.chat.add_to(app);
}

}  // namespace

CommandBody define_run(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  flags->choice.add_to(app);
  add_prompt(app, *flags);
  flags->generation.add_to(app);
  add_integer(app, "--top-logits", flags->generation.options.top_logits, 0, std::numeric_limits<int32_t>::max(),
              "Number of highest logits to print for the last prompt position; 0: none");
  flags->output.add_to(app);
  flags->trace.add_to(app);
  return [flags] {
    flags->check();
    if (is_leader()) flags->text = flags->prompt.read();
    catch_interrupts();
    return flags->trace.run({{"command", "shoal run"}, {"model", flags->choice.model.path}}, [&flags](Tracer* tracer) {
      return is_leader() ? run(*flags, tracer) : follow(*flags, tracer);
    });
  };
}

}  // namespace shoal::tools
