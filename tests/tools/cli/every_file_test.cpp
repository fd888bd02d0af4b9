// Whatever file a flag or a variable names: it is not waited for in vain, and not replaced if it is somebody else's.
// The flags are those of the help, and outputs are found by giving each flag a new name: a flag added later is tested,
// too.
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

/// Arguments with which each command works; MODEL stands for the model file.
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
  };
  return all;
}

struct Flag {
  std::string name;   ///< the last of its names
  std::string names;  ///< "-m, --model"
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

/// Flags with a value, as the help lists them.
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

/// The working arguments with this flag, in place of the value that they have for it.
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

std::string shown(const std::vector<std::string>& args) {
  return fmt::format("{}", fmt::join(args, " "));
}

/// Runs for ten seconds at most; the first signal must end what runs longer.
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

TEST(EveryFile, EveryCommandIsTested) {
  std::set<std::string> tested;
  for (const auto& [command, arguments] : working_arguments()) tested.insert(command);
  const std::vector<std::string> all = commands();
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()), tested) << "give each command arguments that work";
}

TEST(EveryFile, APipeWithoutAWriterEndsByItselfOrByTheFirstSignal) {
  const test::TemporaryFile pipe("pipe");
  ASSERT_EQ(mkfifo(pipe.path.c_str(), 0600), 0);
  for (const auto& [command, arguments] : working_arguments()) {
    for (const Flag& flag : flags_of(command)) {
      for (const std::string& value : values_of(flag, pipe.path)) expect_end(arguments_with(command, flag, value));
    }
  }
  for (const std::string& variable : known_variables()) {
    expect_end({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", "1,1"}, {.variables = {{variable, pipe.path}}});
    expect_end({"run", "-m", kModel, "--chat", "-p", "x", "-n", "1"}, {.variables = {{variable, pipe.path}}});
  }
}

TEST(EveryFile, FoldersAndEndlessDevicesAreRefusedAtOnce) {
  for (const auto& [command, arguments] : working_arguments()) {
    for (const Flag& flag : flags_of(command)) {
      for (const char* path : {"/", "/dev/zero"}) {
        for (const std::string& value : values_of(flag, path)) expect_end(arguments_with(command, flag, value));
      }
    }
  }
}

/// Flags that write a file of a new name, with what they write.
std::map<std::string, std::string> outputs_of(const std::string& command) {
  std::map<std::string, std::string> outputs;
  for (const Flag& flag : flags_of(command)) {
    const test::TemporaryFile fresh("fresh.json");
    run(arguments_with(command, flag, fresh.path));
    if (fresh.exists()) outputs[flag.name] = fresh.text();
  }
  return outputs;
}

/// Other names of a file.
struct Names {
  explicit Names(const test::TemporaryFile& file) : symbolic(file.path + ".symbolic"), hard(file.path + ".hard") {
    std::filesystem::create_symlink(file.path, symbolic);
    std::filesystem::create_hard_link(file.path, hard);
  }
  ~Names() {
    std::filesystem::remove(symbolic);
    std::filesystem::remove(hard);
  }
  std::string symbolic, hard;
};

/// An output of the command's own kind that another flag reads.
void expect_inputs_kept(const std::string& command, const std::string& output, const std::string& own) {
  for (const Flag& flag : flags_of(command)) {
    if (flag.name == output) continue;
    const test::TemporaryFile file("own.json", own);
    const Names names(file);
    for (const std::string& value : values_of(flag, file.path)) {
      std::vector<std::string> args = arguments_with(command, flag, value);
      args.insert(args.end(), {output, names.hard});
      const Finished finished = run(args);
      const bool is_written = test::text_of(names.hard) != own;  // by a flag that does not read its value
      EXPECT_EQ(file.text(), own) << shown(args);
      EXPECT_TRUE(!is_written || finished.code == 0) << shown(args);
    }
  }
}

TEST(EveryFile, NoOutputReplacesAFileOfAnotherKind) {
  std::set<std::string> found;
  for (const auto& [command, arguments] : working_arguments()) {
    for (const auto& [flag, own] : outputs_of(command)) {
      found.insert(command + " " + flag);
      const test::TemporaryFile file("precious.txt", "precious");
      const Names names(file);
      for (const std::string& path : {file.path, names.symbolic, names.hard}) {
        const auto args = arguments_with(command, {flag, flag}, path);
        const Finished finished = run(args);
        EXPECT_EQ(finished.code, 2) << shown(args);
        EXPECT_THAT(finished.err, HasSubstr(path + ": is not a ")) << shown(args);
        EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
        EXPECT_EQ(file.text(), "precious") << shown(args);
      }
      expect_inputs_kept(command, flag, own);
      auto forced = arguments_with(command, {flag, flag}, file.path);
      forced.emplace_back("--force");
      EXPECT_EQ(run(forced).code, 0) << shown(forced);
      EXPECT_NE(file.text(), "precious") << shown(forced);
    }
  }
  for (const char* output : {"run --trace", "bench --trace", "simulate --trace"}) EXPECT_THAT(found, Contains(output));
}

TEST(EveryFile, NoOutputReplacesAnInput) {
  const test::TemporaryFile model("model.gguf", test::text_of(kModel)), trace("trace.json", "{\"traceEvents\":[]}");
  const std::string before = model.text();
  const auto expect_kept = [](const std::vector<std::string>& args, const ChildOptions& around = {}) {
    const Finished finished = run(args, around);
    EXPECT_EQ(finished.code, 2) << shown(args) << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr("this command reads it; name another file for the ")) << shown(args);
  };
  expect_kept({"run", "-m", model.path, "-p", "x", "-n", "1", "--trace", model.path, "--force"});
  expect_kept({"run", "-m", kModel, "-f", trace.path, "-n", "1", "--trace", trace.path});
  expect_kept({"run", "-m", kModel, "-f", "-", "-n", "1", "--trace", trace.path}, {.in = trace.path});
  expect_kept({"simulate", "-m", model.path, "--machine", "H200x2", "--trace", model.path, "--force"});
  EXPECT_EQ(model.text(), before);
  EXPECT_EQ(trace.text(), "{\"traceEvents\":[]}");
}

TEST(EveryFile, NoVariableReplacesAFileOfAnotherKind) {
  for (const std::string& variable : known_variables()) {
    const test::TemporaryFile file("precious.txt", "precious");
    const ChildOptions around{.variables = {{variable, file.path}}};
    const Finished calibrated = run({"bench-comm", "-dev", "CPU0,CPU1", "--calibrate", "-e", "1K", "-n", "1"}, around);
    EXPECT_EQ(file.text(), "precious") << variable;
    if (variable == "SHOAL_COMM_THRESHOLDS") {
      EXPECT_EQ(calibrated.code, 2) << calibrated.err;
    }
    if (!variable.ends_with("_FILE")) continue;  // a probe takes long unless it is refused
    const Finished probed = run({"probe", "--quick", "--force", "-dev", "CPU0", "--dtypes", "f32"}, around);
    EXPECT_EQ(probed.code, 2) << probed.err;
    EXPECT_THAT(probed.err,
                HasSubstr(file.path + ": is not a machine file, and would be lost; move it away, or name "));
    EXPECT_EQ(file.text(), "precious") << variable;
  }
}

}  // namespace
}  // namespace shoal::tools
