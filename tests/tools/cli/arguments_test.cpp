// Tests of the translation of command-line arguments, without starting a process.
#include "tools/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::ElementsAreArray;

struct Command {
  CLI::App app;
  std::string prompt, split, model;
  int count = 0, threads = 0;
  bool flag = false;

  Command() {
    app.add_option("-p,--prompt", prompt);
    app.add_option("-n,--predict", count);
    app.add_option("-t,--threads", threads);
    app.add_option("-m,--model", model);
    app.add_option("--tensor-split", split);
    app.add_flag("--ignore-eos", flag);
  }
};

using Arguments = std::vector<std::string>;

void expect(const Arguments& given, const Arguments& wanted) {
  EXPECT_THAT(spell_out(Command().app, given), ElementsAreArray(wanted)) << ::testing::PrintToString(given);
}

TEST(SpellOut, ExpandsShortFlags) {
  expect({"-ts", "3,1"}, {"--tensor-split", "3,1"});
  expect({"-ts=3,1"}, {"--tensor-split", "3,1"});
  expect({"--tensor-split=3,1", "--ignore-eos"}, {"--tensor-split", "3,1", "--ignore-eos"});
}

TEST(SpellOut, LeavesValuesUnchanged) {
  expect({"-p", "-ts"}, {"-p", "-ts"});
  expect({"--prompt", "-ts=3"}, {"--prompt", "-ts=3"});
  expect({"-p", "--"}, {"-p", "--"});
  expect({"-p", "-p", "-ts", "-ts"}, {"-p", "-p", "--tensor-split", "-ts"});
  expect({"-p", "--ignore-eos", "--ignore-eos"}, {"-p", "--ignore-eos", "--ignore-eos"});
  expect({"--prompt=a=b"}, {"--prompt", "a=b"});
}

TEST(SpellOut, KeepsEmptyValues) {
  expect({"--prompt=", "--ignore-eos"}, {"--prompt", "", "--ignore-eos"});
  expect({"-ts=", "-p", ""}, {"--tensor-split", "", "-p", ""});
  expect({"-p"}, {"-p"});
}

TEST(SpellOut, JoinsBooleanFlagAndFollowingNumber) {
  expect({"--ignore-eos", "1"}, {"--ignore-eos=1"});
  expect({"--ignore-eos", "0", "-n", "3"}, {"--ignore-eos=0", "-n", "3"});
}

TEST(SpellOut, SingleArgumentWithoutFlagIsTheModel) {
  expect({"a.gguf", "-n", "3"}, {"-n", "3", "--model", "a.gguf"});
  for (const Arguments& given : {Arguments{"a.gguf", "b.gguf"}, {"-m", "a.gguf", "b.gguf"}}) {
    EXPECT_THROW(spell_out(Command().app, given), InvalidArgument);
  }
}

TEST(SpellOut, StopsAtDoubleDash) {
  expect({"-n", "3", "--", "-ts", "--bogus"}, {"-n", "3", "--", "-ts", "--bogus"});
}

TEST(SpellOut, AcceptsNumbersAttachedToShortFlags) {
  expect({"-n3", "-n-1", "-t", "4"}, {"-n3", "-n-1", "-t", "4"});
}

TEST(SpellOut, RejectsUnknownFlags) {
  // -ub and -dev are flags of other commands.
  for (const char* arg :
       {"-ngl", "-ngl=3", "-tb", "-mg", "-pfile", "--bogus", "--bogus=1", "-x", "-ub", "-dev", "-5", "-x3", "-"}) {
    EXPECT_THROW(spell_out(Command().app, {"-n", "3", arg, "7"}), InvalidArgument) << arg;
  }
}

}  // namespace
}  // namespace shoal::tools
