// Tests of the child process that renders chat templates. The program and its child processes must exit within a time
// limit. Each error is one line.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>

#include "tests/support/sanitized.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"
#include "tools/chat/chat_template.h"
#include "tools/cli/child_process.h"

namespace shoal::tools {
namespace {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// A shell script that writes its process id and the id of its child, and then runs `rest`.
class Script : public test::TemporaryFile {
 public:
  explicit Script(const std::string& rest)
      : TemporaryFile("renderer",
                      fmt::format("#!/bin/sh\nsleep 60 &\necho $$ $! >{}\n{}\n", test::temporary(kPids), rest)) {
    chmod(path.c_str(), 0700);
  }
  /// Waits until the script runs. Returns the process ids of the script and its child.
  std::vector<std::string> started() const {
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(60);
    while (!pids_.text().ends_with('\n') && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
    return words(pids_.text());
  }
  /// Expects that the processes have exited. A zombie counts as exited.
  void expect_gone() const {
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
    for (const std::string& pid : started()) {
      const auto runs = [&] {
        const std::string stat = test::text_of("/proc/" + pid + "/stat");
        return !stat.empty() && stat.find(") Z") == std::string::npos;
      };
      while (runs() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
      EXPECT_FALSE(runs()) << pid;
    }
  }

 private:
  static constexpr const char* kPids = "pids.txt";
  const test::TemporaryFile pids_{kPids};
};

constexpr const char* kSleeps = "exec sleep 60";
constexpr const char* kClosesAndSleeps = "exec sleep 60 <&- >&-";

TEST(Renderer, SignalsKillRendererAndItsChildProcesses) {
  for (const int number : {SIGINT, SIGTERM}) {
    for (const char* rest : {kSleeps, kClosesAndSleeps}) {
      const Script script(rest);
      Child child({"run", "-m", kModel, "--chat", "-p", "x"}, {.variables = {{"SHOAL_PYTHON", script.path}}});
      ASSERT_EQ(script.started().size(), 2u);
      const Clock::time_point sent = Clock::now();
      child.send(number);
      EXPECT_EQ(child.wait(), 128 + number);
      EXPECT_FALSE(child.killed()) << "the program exits by itself, after it has killed the renderer";
      EXPECT_LT(Clock::now() - sent, milliseconds(test::kSanitized ? 5000 : 500));
      script.expect_gone();
    }
  }
}

TEST(Renderer, TimeLimitHoldsWithOpenAndClosedPipes) {
  for (const char* rest : {kSleeps, kClosesAndSleeps}) {
    const Script script(rest);
    const ChildAnswer answer = ask_child({script.path}, "", milliseconds(300));
    EXPECT_EQ(answer.end, ChildEnd::kTookTooLong) << rest;
    script.expect_gone();
  }
}

TEST(Renderer, LeavesNoChildProcessesAfterTheAnswer) {
  const Script script("echo answer; exit 3");
  const ChildAnswer answer =
      ask_child({"/bin/sh", "-c", script.path + " >/dev/null; echo answer; exit 3"}, "", std::chrono::seconds(10));
  EXPECT_EQ(answer.end, ChildEnd::kExited);
  EXPECT_EQ(answer.code, 3);
  EXPECT_EQ(answer.out, "answer\n");
  script.expect_gone();
}

std::string refusal(const std::string& chat_template, const ChildOptions& around = {}) {
  const test::TemporaryFile file("template.jinja", chat_template);
  const Finished finished = run({"run", "-m", kModel, "--chat", "-p", "x", "--template", file.path}, around);
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  return finished.err;
}

TEST(Renderer, ErrorNamesAProgramThatIsNotPython) {
  for (const char* answer : {"{}", "{\"parts\": 7}", "{\"parts\": [[1, true]]}", "{\"error\": {}}", "[]", "x"}) {
    const Script script(fmt::format("kill $!; echo '{}'", answer));
    EXPECT_THAT(refusal("x", {.variables = {{"SHOAL_PYTHON", script.path}}}),
                HasSubstr("the chat template could not be rendered: " + script.path +
                          " gave no answer; set SHOAL_PYTHON to a Python with jinja2 (package python3-jinja2)\n"))
        << answer;
  }
}

TEST(Renderer, CutsAndEscapesTemplateMessages) {
  EXPECT_THAT(refusal("{{ raise_exception('\\ud800') }}"), HasSubstr("refuses the conversation: \ufffd; give another"));
  const std::string cut = refusal("{{ raise_exception('\u202e' ~ 'x' * 1000000) }}");
  EXPECT_THAT(cut, HasSubstr("refuses the conversation: \\u202exxxxx"));
  EXPECT_THAT(cut, HasSubstr("xxx... (omitted characters: 9998"));
  EXPECT_THAT(cut, EndsWith("); give another template with --template FILE\n"));
}

TEST(Renderer, SizeErrorNamesTheChatTemplate) {
  const Finished endless = run({"run", "-m", kModel, "--chat", "-p", "x", "--template", "/dev/zero"});
  EXPECT_THAT(endless.err, HasSubstr("/dev/zero: is larger than 64.0 MiB, the limit for a chat template\n"));
}

TEST(Renderer, UserCannotSetVariablesThatTheConversationSets) {
  for (const char* variable : {"messages=1", "add_generation_prompt=false"}) {
    const Finished finished = run({"run", "-m", kModel, "--chat", "-p", "x", "--template-var", variable});
    EXPECT_EQ(finished.code, 2);
    EXPECT_THAT(finished.err, HasSubstr("is set by the conversation; name another variable"));
  }
}

TEST(Renderer, WorksWithASmallStack) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers need a larger stack";
  const test::TemporaryFile question("question.txt", "Who?\n"), text("template.jinja", "{{ messages[0].content }}");
  const std::string line =
      fmt::format("ulimit -s 64; exec {} chat -m {} --template {} -n 1 --temp 0 -dev CPU0 <{} >/dev/null 2>&1",
                  SHOAL_PROGRAM, kModel, text.path, question.path);
  EXPECT_EQ(std::system(line.c_str()), 0);
}

}  // namespace
}  // namespace shoal::tools
