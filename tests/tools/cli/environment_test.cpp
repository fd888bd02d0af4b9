// Tests of the warnings about unknown environment variables.
#include "tools/cli/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::HasSubstr;

TEST(Environment, WarnsOfUnknownVariables) {
  const Finished finished = run({"devices"}, {.variables = {{"SHOAL_CPU_THREAD", "2"}, {"SHOAL_TEST_PLUGIN", "x"}}});
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.err,
            "shoal: warning: unknown environment variable SHOAL_CPU_THREAD (did you mean SHOAL_CPU_THREADS?) has no "
            "effect; check its name\n");
  EXPECT_THAT(run({"devices"}, {.variables = {{"SHOAL_NONSENSE", ""}}}).err,
              HasSubstr("unknown environment variable SHOAL_NONSENSE has no effect"));
}

/// The table of known variables contains every variable that the sources read.
TEST(Environment, KnowsAllVariablesOfTheSources) {
  namespace fs = std::filesystem;
  std::set<std::string> read;
  const std::regex name("\"(SHOAL_[A-Z0-9_]+)\"");
  for (const char* folder : {"graph", "devices", "collectives", "meta", "sched", "models", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(SHOAL_SOURCE_DIR) / folder)) {
      const std::string file = entry.path().extension();
      if (file != ".cpp" && file != ".h" && file != ".cu") continue;
      const std::string text = test::text_of(entry.path());
      for (std::sregex_iterator found(text.begin(), text.end(), name), end; found != end; ++found)
        read.insert((*found)[1]);
    }
  }
  EXPECT_GE(read.size(), 10u);
  for (const std::string& variable : read) EXPECT_TRUE(is_known_variable(variable)) << variable;
}

}  // namespace
}  // namespace shoal::tools
