// Tests of conversations in shoal chat, with piped input and at a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "models/tokenizer/tokenizer.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

std::vector<std::string> chat_args(const std::string& command, const test::TemporaryFile& chat_template) {
  return {command, "-m", kModel, "--template", chat_template.path, "--temp", "0", "-n", "7", "-c", "256"};
}

TEST(Chat, AnswersUseTheWholeConversation) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  const test::TemporaryFile questions("questions.txt",
                                      "Who is the LORD?\n\nAnd \\\nMoses?\n/clear\nWho is the LORD?\n/exit\nx\n");
  for (const char* devices : {"CPU0", "CPU0,CPU1,CPU2"}) {
    auto args = chat_args("chat", chat_template);
    args.insert(args.end(), {"--system", "Be brief.", "--devices", devices});
    const Finished finished = run(args, {.in = questions.path});
    ASSERT_EQ(finished.code, 0) << finished.err;
    std::string text = "system: Be brief.\nuser: Who is the LORD?\nassistant:";
    const auto next = [&] {
      const auto answer = run_json({"run", "-m", kModel, "-p", text, "--temp", "0", "-n", "7", "--devices", devices});
      const auto said = answer["text"].get<std::string>();
      return said.substr(std::min(said.find_first_not_of(" \n"), said.size()));
    };
    const std::string first = next();
    text += " " + first + "\nuser: And \nMoses?\nassistant:";
    EXPECT_EQ(finished.out, first + "\n" + next() + "\n" + first + "\n");
  }
}

// In Windows files, each line ends with CR LF.
TEST(Chat, AcceptsWindowsLineEnds) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  const test::TemporaryFile plain("plain.txt", "Who is the LORD?\n"),
      other("other.txt", "Who is the LORD?\r\n/exit \r\nx\n");
  const auto args = chat_args("chat", chat_template);
  const Finished finished = run(args, {.in = other.path});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, run(args, {.in = plain.path}).out);
  auto once = chat_args("run", chat_template);
  once.insert(once.end(), {"--chat", "-f", plain.path});
  const auto tokens = run_json(once)["prompt_tokens"];
  const test::TemporaryFile question("question.txt", "Who is the LORD?\r\n");
  once.back() = question.path;
  EXPECT_EQ(run_json(once)["prompt_tokens"], tokens);
}

// With -n 0, every answer is empty. Some templates refuse a conversation with an empty answer.
TEST(Chat, DropsAQuestionWithoutAnswer) {
  const test::TemporaryFile chat_template(
      "template.jinja", "{% for m in messages %}{{ m.content or raise_exception('no content') }}{% endfor %}");
  const test::TemporaryFile questions("questions.txt", "Who?\nAnd who?\n");
  auto args = chat_args("chat", chat_template);
  args[args.size() - 3] = "0";  // value of -n
  const Finished finished = run(args, {.in = questions.path});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, "\n\n");
  const std::string warning = "the model said nothing; the question was dropped\n";
  EXPECT_THAT(finished.err, HasSubstr(warning));
  EXPECT_THAT(finished.err.substr(finished.err.find(warning) + warning.size()), HasSubstr(warning));
}

TEST(Chat, FileFlagGivesTheFirstQuestion) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  const test::TemporaryFile both("both.txt", "Who is \\\nthe LORD?\nAnd Moses?\n"),
      first("first.txt", "Who is \nthe LORD?\n"), rest("rest.txt", "And Moses?\n");
  auto args = chat_args("chat", chat_template);
  const std::string expected = run(args, {.in = both.path}).out;
  ASSERT_EQ(std::count(expected.begin(), expected.end(), '\n'), 2) << expected;
  args.insert(args.end(), {"-f", first.path});
  EXPECT_EQ(run(args, {.in = rest.path}).out, expected);
  args.back() = "-";
  EXPECT_EQ(run(args, {.in = first.path}).out, expected.substr(0, expected.find('\n') + 1));
}

TEST(Chat, RunWithChatFlagAsksOneQuestion) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  auto args = chat_args("run", chat_template);
  args.insert(args.end(), {"--chat", "-p", "Who is the LORD?", "--system", "Be brief."});
  const auto answer = run_json(args);
  const auto plain = run_json(
      {"run", "-m", kModel, "-p", "system: Be brief.\nuser: Who is the LORD?\nassistant:", "--temp", "0", "-n", "7"});
  EXPECT_EQ(answer["prompt_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(answer["tokens"], plain["tokens"]);
}

// The model has no chat template and no token for the end mark of ChatML. The model generates the mark as text.
TEST(Chat, ChatMlEndMarkEndsAnAnswer) {
  const std::string end = "-<|im_end|>";
  const models::GgufFile file(kModel);
  const models::Tokenizer tokenizer(file);
  models::Token id = 0;
  const auto can_be_replaced = [&] {
    return tokenizer.vocabulary().piece(id).size() == end.size() &&
           tokenizer.vocabulary().kind(id) == models::TokenKind::kNormal;
  };
  while (!can_be_replaced()) ++id;
  std::ifstream stream(kModel, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(stream), {});
  bytes.replace(bytes.find(tokenizer.vocabulary().piece(id)), end.size(), end);
  const test::TemporaryFile model("model.gguf", bytes), question("question.txt", "Who?\n");
  std::vector<std::string> args{"chat", "-m", model.path, "--logit-bias", fmt::format("{}=1e9", id), "-n", "7"};
  EXPECT_EQ(run(args, {.in = question.path}).out, "-\n");
  args[0] = "run";
  args.insert(args.end(), {"--chat", "-p", "Who?"});
  EXPECT_EQ(run_json(args)["stop"], "stop_text");
}

// The oldest questions are dropped, but the system prompt is kept.
TEST(Chat, DropsOldestQuestionsIfContextIsFull) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += "And the LORD said unto Moses and unto Aaron, go?\n";
  const test::TemporaryFile questions("questions.txt", lines);
  auto args = chat_args("chat", chat_template);
  args[args.size() - 1] = "96";
  const Finished finished = run(args, {.in = questions.path});
  EXPECT_EQ(finished.code, 0) << finished.err;
  const std::string forgotten = "tokens, but the context holds 96 (-c); the oldest questions are dropped";
  EXPECT_THAT(finished.err, HasSubstr(forgotten));
  EXPECT_EQ(finished.err.find(forgotten), finished.err.rfind(forgotten)) << "the message is printed once";
  EXPECT_GE(std::count(finished.out.begin(), finished.out.end(), '\n'), 12);
  const test::TemporaryFile longer("longer.txt", std::string(2000, 'z') + "\n");
  const Finished refused = run(args, {.in = longer.path});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("tokens, but the context holds 96; use -c "));
}

/// Output of `shoal chat` with `input` as standard input.
Finished chat(const std::string& input, const std::vector<std::string>& more = {}) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate), lines("lines.txt", input);
  auto args = chat_args("chat", chat_template);
  args.insert(args.end(), more.begin(), more.end());
  return run(args, {.in = lines.path});
}

TEST(Chat, CommandsAreNotQuestions) {
  const Finished help = chat("/help\n");
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.out, "");
  for (const char* command : {"/help", "/exit", "/clear", "/regen", "/read FILE", "/save FILE"}) {
    EXPECT_THAT(help.err, HasSubstr(command));
  }
  for (const auto& [line, error] :
       {std::pair("/save", "this command has the form /save FILE\n"),
        {"/exit now", "this command has the form /exit\n"},
        {"/regen", "/regen: there is no answer yet; ask a question first\n"},
        {"/read no-such.txt", "no-such.txt: cannot open the text: No such file or directory"}}) {
    const Finished refused = chat(std::string(line) + "\n");
    EXPECT_EQ(refused.code, 1) << line;
    EXPECT_EQ(refused.out, "") << line;
    EXPECT_THAT(refused.err, HasSubstr(std::string("shoal: error: ") + error));
  }
}

TEST(Chat, UnknownSlashWordsAreQuestions) {
  for (const char* line : {"/usr/bin is what?", "/no_think Who?", "/think Who?", "/think"}) {
    const Finished finished = chat(std::string(line) + "\n", {"-o", "json"});
    ASSERT_EQ(finished.code, 0) << line << finished.err;
    EXPECT_EQ(nlohmann::json::parse(finished.out)["question"], line);
  }
}

TEST(Chat, RegenAnswersTheLastQuestionAgain) {
  const std::string once = chat("Who is the LORD?\n").out;
  EXPECT_EQ(chat("Who is the LORD?\n/regen\n").out, once + once);
  EXPECT_EQ(chat("Who is the LORD?\n/regen\nAnd Moses?\n").out, once + chat("Who is the LORD?\nAnd Moses?\n").out);
}

TEST(Chat, ReadsAndSavesFiles) {
  const test::TemporaryFolder folder;
  const std::string text = folder.path() / "text.txt", saved = folder.path() / "saved.json";
  std::ofstream(text) << "Moses went up.";
  const std::string input = "/read " + text + "\nWho?\n/save " + saved + "\n";
  const Finished finished = chat(input);
  EXPECT_EQ(finished.code, 0) << finished.err;
  const auto messages = nlohmann::json::parse(test::text_of(saved));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["content"], "Moses went up.\nWho?");
  EXPECT_EQ(messages[1]["role"], "assistant");
  EXPECT_EQ(messages[1]["content"].get<std::string>() + "\n", finished.out);
  // An existing file is not replaced.
  const Finished again = chat(input);
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr(saved + ": cannot be written: File exists; name a new file"));
  EXPECT_EQ(nlohmann::json::parse(test::text_of(saved)), messages);
}

TEST(Chat, QuotedLinesAreOneQuestion) {
  const std::string expected = chat("Who is\\\nthe LORD?\n").out;
  ASSERT_EQ(std::count(expected.begin(), expected.end(), '\n'), 1);
  for (const char* input :
       {"\"\"\"Who is\nthe LORD?\"\"\"\n", "\"\"\"\nWho is\nthe LORD?\n\"\"\"\n", "\"\"\"Who is\nthe LORD?\n"}) {
    EXPECT_EQ(chat(input).out, expected) << input;
  }
  // Quoted text is not a command.
  EXPECT_NE(chat("\"\"\"/exit\"\"\"\n").out, "");
}

TEST(Chat, JsonHasOneLinePerAnswer) {
  const std::string input = "Who is the LORD?\nAnd Moses?\n";
  const Finished finished = chat(input, {"-o", "json"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  std::string said;
  for (const std::string& line : lines(finished.out)) {
    const auto answer = nlohmann::json::parse(line);
    EXPECT_EQ(answer["stop"], "count");
    EXPECT_GT(answer["timings"]["generation_tokens_per_second"].get<double>(), 0.0);
    said += answer["text"].get<std::string>() + "\n";
  }
  EXPECT_EQ(said, chat(input).out);
  EXPECT_THAT(finished.out, HasSubstr("{\"question\":\"And Moses?\","));
}

TEST(Chat, SecondQuestionEvaluatesOnlyNewTokens) {
  std::string system;
  for (int i = 0; i < 12; ++i) system += "In the beginning God created the heaven and the earth. ";
  const Finished finished = chat("Who is the LORD?\nAnd Moses?\n", {"-o", "json", "-c", "512", "--system", system});
  ASSERT_EQ(finished.code, 0) << finished.err;
  std::vector<int64_t> evaluated;
  for (const std::string& line : lines(finished.out)) {
    evaluated.push_back(nlohmann::json::parse(line)["timings"]["prompt_evaluated"]);
  }
  ASSERT_EQ(evaluated.size(), 2u);
  EXPECT_GT(evaluated[0], 128);
  EXPECT_LT(evaluated[1], 64) << "at most one page and the new question";
  EXPECT_GT(evaluated[1], 0);
}

TEST(Chat, PrintsTimingsOnlyOnRequest) {
  const std::string input = "Who is the LORD?\n";
  EXPECT_THAT(chat(input).err, Not(HasSubstr("tokens/s")));
  EXPECT_THAT(chat(input, {"--show-timings"}).err,
              testing::ContainsRegex("prompt [0-9]+ tokens, [0-9.]+ tokens/s; generated 7 tokens, [0-9.]+ tokens/s\n"));
}

TEST(Chat, TemplateErrorsHaveOneLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% if", "the chat template is not valid Jinja: "},
      {"{{ raise_exception('no system\\nmessage') }}", "the chat template refuses the conversation: no system message"},
      {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "the chat template "},
      {"{{ ''.__class__.__mro__ }}", "the chat template is not allowed to do this: "},
      {"{% if false %}x{% endif %}", "the chat template renders an empty prompt"},
  };
  for (const auto& [text, error] : cases) {
    const test::TemporaryFile chat_template("template.jinja", text);
    auto args = chat_args("run", chat_template);
    args.insert(args.end(), {"--chat", "-p", "x"});
    const Finished finished = run(args);
    EXPECT_EQ(finished.code, 1);
    EXPECT_THAT(finished.err, HasSubstr(chat_template.path + ": " + error));
    EXPECT_THAT(finished.err, testing::EndsWith("; give another template with --template FILE\n"));
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  }
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  auto args = chat_args("run", chat_template);
  args.insert(args.end(), {"--chat", "-p", "x"});
  EXPECT_THAT(run(args, {.variables = {{"SHOAL_PYTHON", "/nowhere/python"}}}).err,
              HasSubstr("/nowhere/python cannot be started"));
}

/// A run of the program in a separate pseudo-terminal.
class AtTerminal {
 public:
  AtTerminal(const std::vector<std::string>& args, const std::string& state) {
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    std::vector<char*> argv{const_cast<char*>(SHOAL_PROGRAM)};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    setenv("XDG_STATE_HOME", state.c_str(), 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    setenv("TERM", "vt100", 1);
    execv(SHOAL_PROGRAM, argv.data());
    _exit(127);
  }
  ~AtTerminal() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(terminal_);
  }
  AtTerminal(const AtTerminal&) = delete;
  AtTerminal& operator=(const AtTerminal&) = delete;

  void type(std::string_view keys) {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  /// Waits until the program prints `text`. Returns the output before `text`.
  std::string until(const std::string& text) {
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (seen_.find(text) == std::string::npos && read_before(deadline)) continue;
    const size_t end = seen_.find(text);
    if (end == std::string::npos) throw std::runtime_error("no '" + text + "' in: " + seen_);
    const std::string before = seen_.substr(0, end);
    seen_.erase(0, end + text.size());
    return before;
  }
  void signal(int number) { ASSERT_EQ(kill(pid_, number), 0); }
  /// Waits until the program exits, and expects the exit code `code`. During the wait, reads the terminal, because a
  /// full terminal would block the program.
  void end(int code = 0) {
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (read_before(deadline)) continue;
    if (Clock::now() >= deadline) kill(pid_, SIGKILL);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == code) << status << ": " << seen_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr seconds kPatience{60};

  /// Reads output of the program. Returns false if the program closed its terminal or wrote nothing before the
  /// deadline.
  bool read_before(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wait{terminal_, POLLIN, 0};
    if (left.count() <= 0 || poll(&wait, 1, static_cast<int>(left.count())) <= 0) return false;
    char part[4096];
    const ssize_t count = read(terminal_, part, sizeof part);
    seen_.append(part, static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return count > 0;
  }

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string seen_;
};

TEST(Chat, TerminalKeysEditLines) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  const test::TemporaryFolder state;
  auto args = chat_args("chat", chat_template);
  args.insert(args.end(), {"--devices", "CPU0"});
  {
    AtTerminal program(args, state.path());
    program.until("> ");
    program.type(
        "Who is the LORX\x7f"
        "D?\r");  // Backspace
    const std::string first = program.until("\r\n> ");
    program.type("half a li");
    program.until("half a li");
    // Ctrl-C discards the line, even immediately after the prompt.
    for (int i = 0; i < 20; ++i) {
      program.type("\x03");
      program.until("^C\r\n> ");
    }
    program.type("/clear\r");
    program.until("> ");
    program.type("\x1b[A\x1b[A\r");  // two presses of the up key recall the line before /clear
    const std::string again = program.until("\r\n> ");
    EXPECT_EQ(again.substr(again.rfind("D?")), first.substr(first.rfind("D?")));
    program.type("h\xc3\xa4lf a l\xffine");
    program.until("h\xc3\xa4lf a line");
    program.signal(SIGTERM);
    program.end(128 + SIGTERM);
  }
  // The next run of the program reads the history of the first run. Ctrl-C stops an answer but not the program.
  args[args.size() - 5] = "-1";  // value of -n
  args[args.size() - 3] = "2048";
  args.push_back("--ignore-eos");
  AtTerminal program(args, state.path());
  program.until("> ");
  program.type("\x1b[A\r");
  program.until("D?");
  program.until("e");
  program.type("\x03");
  program.until("> ");
  program.type("\x04");
  program.end();
}

TEST(Chat, PastedLinesAreOneQuestion) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  const test::TemporaryFolder state;
  const std::string saved = state.path() / "saved.json";
  auto args = chat_args("chat", chat_template);
  args.insert(args.end(), {"--devices", "CPU0"});
  AtTerminal program(args, state.path());
  program.until("\x1b[?2004h");
  program.until("> ");
  program.type("So: \x1b[200~/exit\rWho is\rthe \x01LORD?\r\x1b[201~ Tell.\r");
  program.until("\r\n> ");
  program.type("/help\r");
  program.until("/save FILE");
  program.until("> ");
  program.type("/save " + saved + "\r");
  program.until("\r\n> ");
  program.type("\x04");
  program.until("\r\n");  // so that the shell prints its prompt on a new line
  program.until("\x1b[?2004l");
  program.end();
  const auto messages = nlohmann::json::parse(test::text_of(saved));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["content"], "So: /exit\nWho is\nthe LORD? Tell.");
}

TEST(Chat, IgnoresABlankFirstQuestion) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate), none("none.txt", "\n");
  auto args = chat_args("chat", chat_template);
  args.insert(args.end(), {"-p", " "});
  const Finished finished = run(args, {.in = none.path});
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.out, "");
}

TEST(Chat, TooLongQuestionLeavesConversationUnchanged) {
  const test::TemporaryFile chat_template(
      "template.jinja",
      std::string("{% if messages[-1].content == 'count' %}{{ raise_exception(messages | length ~ ' of them') }}"
                  "{% endif %}") +
          kTemplate);
  const test::TemporaryFolder state;
  auto args = chat_args("chat", chat_template);
  args.insert(args.end(), {"--devices", "CPU0"});
  AtTerminal program(args, state.path());
  program.until("> ");
  program.type("Who is the LORD?\r");
  program.until("\r\n> ");
  std::string question;
  for (int i = 0; i < 100; ++i) question += "zebra ";
  program.type(question + "\r");
  EXPECT_THAT(program.until("use -c "), Not(HasSubstr("forgotten")));
  program.until("> ");
  program.type("count\r");
  program.until("refuses the conversation: 3 of them");
  program.until("> ");
  program.type("\x04");
  program.end();
}

TEST(Chat, RejectsMistypedCommandAtTerminal) {
  const test::TemporaryFile chat_template("template.jinja", kTemplate);
  const test::TemporaryFolder state;
  auto args = chat_args("chat", chat_template);
  args.insert(args.end(), {"--devices", "CPU0"});
  AtTerminal program(args, state.path());
  program.until("> ");
  program.type("/hlep\r");
  program.until(
      "there is no command /hlep; there are /help, /exit, /clear, /regen, /read FILE, /save FILE; to ask "
      "this line as a question, put it between \"\"\" and \"\"\"");
  program.until("> ");
  const std::string saved = state.path() / "saved.json";
  program.type("/think Who?\r");
  program.until("\r\n> ");
  program.type("/save " + saved + "\r");
  program.until("\r\n> ");
  program.type("\x04");
  program.end();
  EXPECT_EQ(nlohmann::json::parse(test::text_of(saved))[0]["content"], "/think Who?");
}

TEST(Chat, AttachedTextSurvivesFailedQuestion) {
  const test::TemporaryFile chat_template(
      "template.jinja",
      std::string("{% if 'fail' in messages[-1].content %}{{ raise_exception('no') }}{% endif %}") + kTemplate);
  const test::TemporaryFolder state;
  const std::string text = state.path() / "text.txt", saved = state.path() / "saved.json";
  std::ofstream(text) << "Moses went up.";
  auto args = chat_args("chat", chat_template);
  args.insert(args.end(), {"--devices", "CPU0"});
  AtTerminal program(args, state.path());
  program.until("> ");
  program.type("/read " + text + "\r");
  program.until("\r\n> ");
  program.type("fail\r");
  program.until("The text of /read is still put before the next question");
  program.until("> ");
  for (const char* question : {"Who?\r", "Where?\r"}) {
    program.type(question);
    program.until("\r\n> ");
  }
  program.type("/save " + saved + "\r");
  program.until("\r\n> ");
  program.type("\x04");
  program.end();
  const auto messages = nlohmann::json::parse(test::text_of(saved));
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0]["content"], "Moses went up.\nWho?");
  EXPECT_EQ(messages[2]["content"], "Where?");
}

}  // namespace
}  // namespace shoal::tools
