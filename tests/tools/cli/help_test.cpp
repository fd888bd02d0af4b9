// Tests of help, of the version, and of suggestions for mistyped names.
#include "tools/cli/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tools/child.h"
#include "tools/cli/arguments.h"

namespace shoal::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string help_of(const std::string& command) {
  const Finished finished = run({command, "--help"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  return finished.out;
}

TEST(Help, ListsTheFlagsOfEveryCommandInGroups) {
  for (const char* command : {"run", "chat", "tokenize", "detokenize", "info", "devices", "plan", "compare", "bench",
                              "probe", "simulate", "bench-comm", "serve", "pull", "list"}) {
    const std::string help = help_of(command);
    EXPECT_THAT(help, AllOf(Not(HasSubstr("\nOther:")), Not(HasSubstr("{false}"))))
        << command << ": each flag has a group in tools/cli/help.cpp";
    EXPECT_THAT(help, HasSubstr("\nOutput and help:\n")) << command;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
  }
}

TEST(Help, ListsGroupsOfFlagsInAFixedOrder) {
  const std::string help = help_of("run");
  size_t last = 0;
  for (const char* title : {"\nModel and prompt:\n", "\nGeneration:\n", "\nSampling:\n", "\nContext and batches:\n",
                            "\nDevices:\n", "\nPlacement:\n", "\nOutput and help:\n"}) {
    const size_t at = help.find(title);
    EXPECT_NE(at, std::string::npos) << title;
    EXPECT_GT(at, last) << title;
    last = at;
  }
}

TEST(Help, ListsShortNamesBeforeLongNames) {
  const std::string help = help_of("run");
  for (const char* names : {"  -m, --model FILE ", "  -dev, --devices NAMES", "  -ts, --tensor-split SHARES ",
                            "  -ngl, --gpu-layers, --n-gpu-layers INT", "  -ctk, --cache-type-k TYPE ",
                            "  -f, --file FILE ", "  --repack, --no-repack "}) {
    EXPECT_THAT(help, HasSubstr(names));
  }
  EXPECT_THAT(help, Not(HasSubstr("(-ts)")));
}

TEST(Help, DescriptionsAreNotAbbreviated) {
  const std::string help = help_of("run");
  EXPECT_THAT(help, AllOf(HasSubstr("Prompt text"), Not(HasSubstr("..."))));
}

TEST(Help, ProgramHelpListsCommands) {
  const Finished help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* command : {"\n  run  ", "\n  bench-comm  ", "\n  simulate  "})
    EXPECT_THAT(help.out, HasSubstr(command));
}

TEST(Version, NamesCommitCompilerAndInstructionSets) {
  const Finished version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, StartsWith("shoal 0."));
  EXPECT_THAT(version.out, ContainsRegex("\ncommit: [0-9a-z]+[+]?\ncompiler: (GCC|Clang) [0-9.]+"));
  EXPECT_THAT(version.out,
              ContainsRegex("\nCPU instruction sets: built baseline.*; usable here baseline.*; used [a-z0-9]+\n"));
  EXPECT_THAT(version.out, ContainsRegex("\nCUDA: (yes|no), "));
}

TEST(DidYouMean, SuggestsOnlyCloseNames) {
  const std::vector<std::string> known{"--temp", "-t", "--threads", "--tensor-split", "-ctk", "-c", "--ctx-size"};
  for (const auto& [text, name] : {std::pair("--tmep", "--temp"),
                                   {"-temp", "--temp"},
                                   {"--thread", "--threads"},
                                   {"--tensor", "--tensor-split"},
                                   {"--ctx", "--ctx-size"},
                                   {"-ctt", "-ctk"},
                                   {"--htreasd", "--threads"}}) {
    EXPECT_EQ(did_you_mean(text, known), std::string(" (did you mean ") + name + "?)") << text;
  }
  for (const char* text : {"-x", "--bogus", "-tt", "--thrxyzs", ""}) EXPECT_EQ(did_you_mean(text, known), "") << text;
}

TEST(DidYouMean, SuggestsFlagsAndCommands) {
  const auto error = [](const std::vector<std::string>& args) {
    const Finished finished = run(args);
    EXPECT_EQ(finished.code, 2);
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    return finished.err;
  };
  EXPECT_THAT(error({"run", "-m", kModel, "-p", "x", "--tmep", "0"}),
              HasSubstr("there is no flag --tmep (did you mean --temp?); see shoal run --help"));
  EXPECT_THAT(error({"run", "--devicse", "CPU0"}), HasSubstr("there is no flag --devicse (did you mean --devices?)"));
  EXPECT_THAT(error({"run", "-dve", "CPU0"}), HasSubstr("there is no flag -dve (did you mean -dev?)"));
  EXPECT_THAT(error({"run", "--ctx", "3"}), HasSubstr("there is no flag --ctx (did you mean --ctx-size?)"));
  EXPECT_THAT(error({"--versoin"}), HasSubstr("--versoin comes before the command (did you mean --version?); begin"));
  EXPECT_THAT(error({"--hlep"}), HasSubstr("--hlep comes before the command (did you mean --help?); begin with"));
  EXPECT_THAT(error({"rnu"}), HasSubstr("there is no command 'rnu' (did you mean run?); the commands are run,"));
}

}  // namespace
}  // namespace shoal::tools
