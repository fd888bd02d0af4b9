// shoal chat: a conversation with a model.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "base/text.h"
#include "tools/chat/answer.h"
#include "tools/chat/conversation.h"
#include "tools/chat/line_editor.h"
#include "tools/cli/command.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model_text.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/prompt.h"
#include "tools/commands/generation.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {
namespace {

constexpr const char* kSpace = " \t\r\n";
// Number of tokens at the end of a prompt that a template may render differently in a later prompt, which contains the
// answer. The engine keeps the state before these tokens.
constexpr int64_t kApart = 16;

struct Flags {
  ChoiceFlags choice;
  GenerationFlags generation;
  ChatFlags chat;
  PromptFlags prompt;
  OutputFlag output;
  bool show_timings = false;
  std::optional<std::string> first;  ///< the first question, from -p or -f
};

/// Writes a new file and never replaces an existing one.
void save_new_file(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  require<InvalidArgument>(file >= 0, "{}: cannot be written: {}; name a new file in a writable folder", path,
                           std::strerror(errno));
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  require<InvalidArgument>(close(file) == 0 && written, "{}: cannot be written: {}; check the disk", path,
                           std::strerror(error));
}

/// Answers questions one after the other. The engine caches the beginning of the conversation.
class Chat {
 public:
  Chat(const Flags& flags, models::Engine& engine, const models::Tokenizer& tokenizer, ChatTemplate chat_template)
      : options_(flags.generation.options),
        json_(flags.output.json()),
        show_timings_(flags.show_timings),
        engine_(engine),
        tokenizer_(tokenizer),
        conversation_(flags.chat, std::move(chat_template), tokenizer) {
    options_.spelled = answer_marks(tokenizer.vocabulary());
    options_.apart = kApart;
  }

  /// Prints the answer during its generation. If an error occurs or the answer is empty, removes the question from the
  /// conversation, because a template might refuse an empty answer or two consecutive questions.
  void answer(const std::string& question) {
    const nlohmann::json before = conversation_.messages();
    conversation_.add_user(attached_ + question);
    if (answer_or_restore(before, "the question was dropped")) attached_.clear();
  }
  /// Answers the last question again.
  void regenerate() {
    const nlohmann::json before = conversation_.messages();
    require<InvalidArgument>(conversation_.drop_answer(), "/regen: there is no answer yet; ask a question first");
    answer_or_restore(before, "the previous answer is kept");
  }
  void clear() {
    conversation_.clear();
    attached_.clear();
    has_reported_eviction_ = false;
  }
  /// Puts the text of a file before the next question.
  void attach(const std::string& path) { attached_ += read_text_file(path, "text") + "\n"; }
  bool has_attached() const { return !attached_.empty(); }
  void save(const std::string& path) const {
    save_new_file(path, conversation_.messages().dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }

 private:
  /// Answers the last question. If an error occurs or the answer is empty, restores the messages `before`. Returns
  /// false for an empty answer.
  bool answer_or_restore(const nlohmann::json& before, std::string_view consequence) {
    try {
      if (generate_answer()) return true;
      conversation_.restore(before);
      warn(fmt::format("the model said nothing; {}", consequence));
      return false;
    } catch (...) {
      conversation_.restore(before);
      throw;
    }
  }

  /// Returns false if the answer is empty.
  bool generate_answer() {
    const Conversation::Prompt prompt = prompt_that_fits();
    AnswerPrinter printer(prompt.begins_thought, !json_);
    Generation generation;
    generate(
        engine_, &tokenizer_, prompt.ids, options_, [&](std::string_view text) { printer.push(text); }, generation);
    printer.finish();
    json_ ? print_line(generation, printer) : write_out("\n");
    if (show_timings_ && !json_) write_err(timings_text(generation) + "\n");
    if (generation.stop == "context") {
      warn(fmt::format(
          "the context of {} tokens is full (-c); the oldest questions are dropped when you ask the next question",
          engine_.most_tokens()));
    }
    options_.sampler.seed += 1;  // otherwise all answers would use the same random numbers
    if (printer.said().find_first_not_of(kSpace) == std::string::npos) return false;
    conversation_.add_answer(printer.said(), printer.thought());
    return true;
  }

  /// Prints one JSON object on one line.
  void print_line(const Generation& generation, const AnswerPrinter& printer) const {
    nlohmann::ordered_json line{{"question", conversation_.messages().back()["content"]},
                                {"text", printer.said()},
                                {"stop", generation.stop},
                                {"timings", timings_json(generation)}};
    if (!printer.thought().empty()) line["thought"] = printer.thought();
    write_out(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }

  /// Renders the prompt. If the prompt leaves too little room for an answer in the context, drops the oldest questions.
  Conversation::Prompt prompt_that_fits() {
    const int64_t context = engine_.most_tokens();
    const int64_t room = std::min<int64_t>(context / 4, options_.count < 0 ? context : options_.count);
    Conversation::Prompt prompt = conversation_.prompt();
    const size_t before = prompt.ids.size();
    while (static_cast<int64_t>(prompt.ids.size()) + room > context && conversation_.evict_oldest()) {
      prompt = conversation_.prompt();
    }
    require<InvalidArgument>(
        static_cast<int64_t>(prompt.ids.size()) < context,
        "the question has {} tokens, but the context holds {}; use -c {} or more, or a shorter question",
        prompt.ids.size(), context,
        context_needed(static_cast<int64_t>(prompt.ids.size()), options_.count == 0 ? 1 : options_.count));
    if (prompt.ids.size() < before && !std::exchange(has_reported_eviction_, true)) {
      warn(
          fmt::format("the conversation has {} tokens, but the context holds {} (-c); the oldest questions are "
                      "dropped, now and whenever the conversation becomes too long again",
                      before, context));
    }
    return prompt;
  }

  GenerationOptions options_;
  const bool json_, show_timings_;
  models::Engine& engine_;
  const models::Tokenizer& tokenizer_;
  Conversation conversation_;
  std::string attached_;  ///< text that precedes the next question
  bool has_reported_eviction_ = false;
};

struct ChatCommand {
  std::string_view name, value, help;
  void (*run)(Chat& chat, const std::string& value);  ///< nullptr: the command ends the conversation
};

constexpr std::string_view kHelpCommand = "/help";
constexpr ChatCommand kChatCommands[] = {
    {kHelpCommand, "", "lists the commands", [](Chat&, const std::string&) {}},
    {"/exit", "", "ends the conversation, as does Ctrl-D", nullptr},
    {"/clear", "", "starts a new conversation", [](Chat& chat, const std::string&) { chat.clear(); }},
    {"/regen", "", "answers the last question again", [](Chat& chat, const std::string&) { chat.regenerate(); }},
    {"/read", "FILE", "puts the text of a file before the next question",
     [](Chat& chat, const std::string& path) { chat.attach(path); }},
    {"/save", "FILE", "writes the conversation as JSON to a new file",
     [](Chat& chat, const std::string& path) { chat.save(path); }},
};

std::string usage_of(const ChatCommand& command) {
  return fmt::format("{}{}{}", command.name, command.value.empty() ? "" : " ", command.value);
}

/// The command on a line, or nullptr if the line is a question. A line that begins with an unknown name, such as Qwen's
/// "/think about it", is also a question. At a terminal, a line with only an unknown name is refused, because the name
/// is probably mistyped. Throws InvalidArgument for such a line, for a missing value and for an unexpected value.
const ChatCommand* command_of(const std::string& line, bool at_terminal, std::string& value) {
  const std::string name = line.substr(0, line.find_first_of(kSpace));
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyz";
  const bool is_name = name.size() > 1 && name[0] == '/' && name.find_first_not_of(kLetters, 1) == std::string::npos;
  if (!is_name || line.find('\n') != std::string::npos) return nullptr;
  std::string known;
  for (const ChatCommand& command : kChatCommands) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", usage_of(command));
    if (name != command.name) continue;
    const size_t at = line.find_first_not_of(kSpace, name.size());
    value = at == std::string::npos ? "" : line.substr(at);
    require<InvalidArgument>(value.empty() == command.value.empty(), "this command has the form {}", usage_of(command));
    return &command;
  }
  require<InvalidArgument>(
      !at_terminal || name != line,
      "there is no command {}; there are {}; to ask this line as a question, put it between \"\"\" and \"\"\"", name,
      known);
  return nullptr;
}

void print_help() {
  std::string text;
  for (const ChatCommand& command : kChatCommands) text += fmt::format("{:<12}{}\n", usage_of(command), command.help);
  write_err(text +
            "If a line ends with \\, the question continues on the next line; lines between \"\"\" and \"\"\" are one "
            "question.\nA line that begins with another /word is a question if more text follows.\n");
}

/// Runs the command on one line of input, or answers the question on this line. Returns false if the line ends the
/// conversation.
bool ask(Chat& chat, const LineEditor& editor, const std::string& line, bool may_be_command) {
  bool is_question = !may_be_command;
  try {
    std::string value;
    const ChatCommand* const command = may_be_command ? command_of(line, editor.is_terminal(), value) : nullptr;
    is_question = command == nullptr;
    if (command != nullptr && command->run == nullptr) return false;
    if (command != nullptr && command->name == kHelpCommand) print_help();
    command != nullptr ? command->run(chat, value) : chat.answer(line);
  } catch (const Interrupted&) {
    // A signal arrived while the template was rendered. The question is dropped.
  } catch (const InvalidArgument& error) {
    if (!editor.is_terminal()) throw;
    write_err(fmt::format("shoal: error: {}\n", escaped(error.what())));
    if (is_question && chat.has_attached()) {
      write_err(
          "The text of /read is still put before the next question; /clear drops this text and the conversation.\n");
    }
  }
  if (!interrupted()) return true;
  if (isatty(STDIN_FILENO) == 0) return false;  // no user is present
  clear_interrupt();
  return !interrupted();  // interrupted() is true after SIGTERM
}

void converse(Chat& chat, LineEditor& editor, const std::optional<std::string>& first) {
  const bool has_first = first && first->find_first_not_of(kSpace) != std::string::npos;
  if (has_first && !ask(chat, editor, *first, false)) return;
  while (true) {
    const LineEditor::Input input = editor.read();
    if (isatty(STDIN_FILENO) != 0) clear_interrupt();  // ignores a Ctrl-C that arrived during the input
    if (interrupted()) return;                         // after SIGTERM
    const size_t begin = input.text.find_first_not_of(kSpace), last = input.text.find_last_not_of(kSpace);
    const bool is_blank = begin == std::string::npos;
    if (input.end == LineEditor::End::kEnd) return;
    if (input.end == LineEditor::End::kInterrupt || is_blank) continue;
    const bool may_be_command = !input.is_quoted && input.text[begin] == '/';
    const std::string text = may_be_command ? input.text.substr(begin, last + 1 - begin) : input.text;
    if (!ask(chat, editor, text, may_be_command)) return;
  }
}

Request request_of(const Flags& flags, std::unique_ptr<models::Model> model) {
  const ChoiceFlags& choice = flags.choice;
  Request request{std::move(model), choice.asked(choice.devices.find_groups(), flags.generation.sampling.candidates())};
  request.asked.session.drafts = flags.generation.options.draft;
  request.asked.session = models::engine_options(request.asked.session, choice.context.checkpoints);
  return request;
}

/// Runs in every process except process 0.
int follow(const Flags& flags) {
  follow_leader(request_of(flags, models::open_model(flags.choice.model.path)));
  return kSuccess;
}

int chat(Flags& flags) {
  auto model = models::open_model(flags.choice.model.path);
  warn_of_ignored(*model);
  const models::Tokenizer tokenizer(model->file);
  check_tokenizer(*model, tokenizer);
  flags.generation.finish(model->hparams.vocab);
  ChatTemplate chat_template = flags.chat.find_template(model->file, tokenizer);
  std::ranges::copy(chat_template.stops, std::back_inserter(flags.generation.options.stops));
  Deployment deployment = resolve(request_of(flags, std::move(model)));
  load(deployment);
  start_engine(deployment, &tokenizer);
  flags.choice.devices.warn_of_ways(*deployment.model);
  warn_of_context(deployment.model->hparams, deployment.engine->most_tokens());
  Chat conversation(flags, *deployment.engine, tokenizer, std::move(chat_template));
  LineEditor editor;
  if (editor.is_terminal()) write_err("Ctrl-C ends an answer, Ctrl-D the conversation; /help lists the commands.\n");
  converse(conversation, editor, flags.first);
  return interrupted() ? interrupt_code() : kSuccess;
}

}  // namespace

CommandBody define_chat(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  flags->generation.options.count = -1;
  flags->choice.add_to(app);
  flags->choice.context.add_checkpoints_to(app);
  flags->prompt.add_to(app);
  flags->chat.add_to(app);
  flags->generation.add_to(app);
  flags->output.add_to(app, "Output format: text, or json (one line of JSON per answer)");
  app.add_flag("--show-timings", flags->show_timings, "Print the speed of each answer to stderr");
  return [flags] {
    flags->choice.devices.check();
    if (!is_leader()) return follow(*flags);
    if (flags->prompt.given()) flags->first = flags->prompt.read();
    catch_interrupts();
    return chat(*flags);
  };
}

}  // namespace shoal::tools
