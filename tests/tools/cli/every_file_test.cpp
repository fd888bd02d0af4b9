// The tests pass unusual files to every flag and variable. The program must not hang, and the outputs of the program
// must not replace its inputs. The flags are read from the help, so flags added later are also tested.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"
#include "tools/cli/environment.h"

namespace shoal::tools {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// Arguments with which each command succeeds; MODEL stands for the model file.
const std::map<std::string, std::string>& working_arguments() {
  static const std::map<std::string, std::string> all{
      {"run", "-m MODEL -p In -n 1 --chat"},
      {"chat", "-m MODEL -n 1"},
      {"tokenize", "-m MODEL"},
      {"detokenize", "-m MODEL --ids 1"},
      {"info", "-m MODEL"},
      {"devices", ""},
      {"plan", "-m MODEL -dev CPU0"},
      {"compare", "-m MODEL -dev CPU0,CPU1 -p In"},
      {"bench", "-m MODEL -p 1 -n 0 -r 1 -dev CPU0"},
      {"probe", "--quick -dev CPU0 --dtypes f32"},
      {"simulate", "-m MODEL --machine H200x2 -p 1 -n 0"},
      {"bench-comm", "-dev CPU0,CPU1 -b 1K -e 1K -n 1 -w 0"},
      {"serve", "-m MODEL"},
      {"pull", "-hf o/m"},
      {"list", ""},
  };
  return all;
}

struct Flag {
  std::string name;   ///< the last name of the flag: "--model"
  std::string names;  ///< all names of the flag: "-m, --model"
  bool takes_profile = false;
};

std::vector<std::string> commands() {
  std::vector<std::string> names;
  const std::string help = run({"--help"}).out;
  const std::regex line("\n  ([a-z][a-z-]*) ");
  for (std::sregex_iterator found(help.begin(), help.end(), line), end; found != end; ++found) {
    names.push_back((*found)[1]);
  }
  return names;
}

/// Reads a command's help and returns the flags that take a value.
std::vector<Flag> flags_of(const std::string& command) {
  std::vector<Flag> flags;
  static const std::regex form("  ((?:-[^ ,]+, )*(-[^ ,]+)) [^ ].*");
  for (const std::string& line : lines(run({command, "--help"}).out)) {
    std::smatch found;
    if (std::regex_match(line, found, form)) flags.push_back({found[2], found[1]});
    if (!flags.empty() && line.find("@FILE") != std::string::npos) flags.back().takes_profile = true;
  }
  return flags;
}

/// The working arguments of a command, in which `flag` has this value.
std::vector<std::string> arguments_with(const std::string& command, const Flag& flag, const std::string& value) {
  std::vector<std::string> args = words(working_arguments().at(command));
  std::replace(args.begin(), args.end(), std::string("MODEL"), kModel);
  args.insert(args.begin(), command);
  const std::string names = ", " + flag.names + ",";
  for (size_t i = 1; i + 1 < args.size(); ++i) {
    if (!args[i].starts_with('-') || names.find(" " + args[i] + ",") == std::string::npos) continue;
    args[i + 1] = value;
    return args;
  }
  args.insert(args.end(), {flag.name, value});
  return args;
}

std::vector<std::string> values_of(const Flag& flag, const std::string& path) {
  std::vector<std::string> values{path};
  if (flag.takes_profile) values.push_back("@" + path);
  return values;
}

/// A server would not exit. So these commands start /bin/true instead of the Python package.
ChildOptions around(const std::string& command) {
  if (command == "serve" || command == "pull" || command == "list") {
    return {.variables = {{"SHOAL_PYTHON", "/bin/true"}}};
  }
  return {};
}

std::string shown(const std::vector<std::string>& args) {
  return fmt::format("{}", fmt::join(args, " "));
}

/// Expects that the program exits within ten seconds. Otherwise sends SIGINT, and expects the exit within two more
/// seconds.
void expect_end(const std::vector<std::string>& args, const ChildOptions& around = {}) {
  using std::chrono::milliseconds;
  Child child(args, around);
  for (int i = 0; i < 1000 && child.runs(); ++i) std::this_thread::sleep_for(milliseconds(10));
  if (!child.runs()) {
    child.wait();
    return;
  }
  child.send(SIGINT);
  for (int i = 0; i < 200 && child.runs(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(child.runs()) << shown(args);
  if (child.runs()) child.send(SIGKILL);
  EXPECT_EQ(child.wait(), 128 + SIGINT) << shown(args);
}

TEST(EveryFile, TestCasesCoverEveryCommand) {
  std::set<std::string> tested;
  for (const auto& [command, arguments] : working_arguments()) tested.insert(command);
  const std::vector<std::string> all = commands();
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()), tested) << "each command needs working arguments";
}

TEST(EveryFile, PipeWithoutWriterDoesNotHang) {
  const test::TemporaryFile pipe("pipe");
  ASSERT_EQ(mkfifo(pipe.path.c_str(), 0600), 0);
  for (const auto& [command, arguments] : working_arguments()) {
    for (const Flag& flag : flags_of(command)) {
      for (const std::string& value : values_of(flag, pipe.path))
        expect_end(arguments_with(command, flag, value), around(command));
    }
  }
  for (const std::string& variable : known_variables()) {
    expect_end({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", "1,1"}, {.variables = {{variable, pipe.path}}});
    expect_end({"run", "-m", kModel, "--chat", "-p", "x", "-n", "1"}, {.variables = {{variable, pipe.path}}});
  }
}

TEST(EveryFile, RejectsFoldersAndEndlessDevices) {
  for (const auto& [command, arguments] : working_arguments()) {
    for (const Flag& flag : flags_of(command)) {
      for (const char* path : {"/", "/dev/zero"}) {
        for (const std::string& value : values_of(flag, path))
          expect_end(arguments_with(command, flag, value), around(command));
      }
    }
  }
}

TEST(EveryFile, OutputsDoNotReplaceInputs) {
  const test::TemporaryFile model("model.gguf", test::text_of(kModel)), trace("trace.json", "{\"traceEvents\":[]}");
  const std::string before = model.text();
  const auto expect_kept = [](const std::vector<std::string>& args, const ChildOptions& around = {}) {
    const Finished finished = run(args, around);
    EXPECT_EQ(finished.code, 2) << shown(args) << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr("is also an input file; name another file for the ")) << shown(args);
  };
  expect_kept({"run", "-m", model.path, "-p", "x", "-n", "1", "--trace", model.path});
  expect_kept({"run", "-m", kModel, "-f", trace.path, "-n", "1", "--trace", trace.path});
  expect_kept({"run", "-m", kModel, "-f", "-", "-n", "1", "--trace", trace.path}, {.in = trace.path});
  EXPECT_EQ(model.text(), before);
  EXPECT_EQ(trace.text(), "{\"traceEvents\":[]}");
}

}  // namespace
}  // namespace shoal::tools
