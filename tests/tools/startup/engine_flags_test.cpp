#include "tools/startup/engine_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tools/cli/arguments.h"

namespace shoal::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

using Arguments = std::vector<std::string>;

/// The flags that EngineFlags finds in a command line. The command also has a flag --port of its own.
Arguments given(const Arguments& arguments) {
  CLI::App app;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::string port;
  app.add_option("--port", port);
  EngineFlags flags;
  flags.add_to(app);
  Arguments spelled = spell_out(app, arguments);
  std::reverse(spelled.begin(), spelled.end());
  app.parse(spelled);
  return flags.given();
}

TEST(EngineFlags, GivenListsOnlyFlagsOfTheCommandLine) {
  EXPECT_THAT(given({}), IsEmpty());
  EXPECT_THAT(given({"--port", "1", "-np", "4", "-dev", "CPU0,CPU1", "--draft", "2", "m.gguf"}),
              ElementsAre("--model", "m.gguf", "--devices", "CPU0,CPU1", "--parallel", "4", "--draft", "2"));
}

TEST(EngineFlags, GivenKeepsOnlyTheLastValueExceptForLists) {
  EXPECT_THAT(given({"-c", "1", "-c", "512"}), ElementsAre("--ctx-size", "512"));
  EXPECT_THAT(given({"-ot", "a=CPU", "-ot", "b=CPU,c=CPU"}),
              ElementsAre("--override-tensor", "a=CPU", "--override-tensor", "b=CPU,c=CPU"));
}

TEST(EngineFlags, ParseOfGivenRestoresEveryFlag) {
  EngineFlags flags;
  flags.parse(given({"-m",      "m.gguf", "-dev",   "CPU0,CPU1", "-ts",    "3,1",  "-c",  "512",   "-ctk", "q8_0",
                     "-ub",     "64",     "-ngl",   "-1",        "--comm", "host", "-ot", "a=CPU", "-np",  "3",
                     "--draft", "5",      "-ctxcp", "2",         "--fit",  "off",  "-t",  "2"}));
  EXPECT_EQ(flags.choice.model.path, "m.gguf");
  EXPECT_EQ(flags.choice.devices.list, "CPU0,CPU1");
  EXPECT_EQ(flags.choice.devices.ratio, "3,1");
  EXPECT_EQ(flags.choice.devices.comm, "host");
  EXPECT_EQ(flags.choice.devices.threads, 2);
  EXPECT_EQ(flags.choice.devices.host.device_layers, -1);
  ASSERT_EQ(flags.choice.devices.host.overrides.size(), 1u);
  EXPECT_EQ(flags.choice.devices.host.overrides[0].pattern, "a");
  EXPECT_EQ(flags.choice.context.context, 512);
  EXPECT_EQ(flags.choice.context.ubatch, 64);
  EXPECT_EQ(flags.choice.context.dtype_k, DType::kQ8_0);
  EXPECT_EQ(flags.choice.context.checkpoints, 2);
  EXPECT_EQ(flags.choice.fit.on, false);
  EXPECT_EQ(flags.parallel, 3);
  EXPECT_EQ(flags.draft, 5);
}

TEST(EngineFlags, ParseOfGivenRestoresSwitches) {
  for (const auto& [flag, mmap, repack, offload, cache] :
       {std::tuple("--mmap", std::optional(true), true, true, false),
        {"--no-mmap", std::optional(false), true, true, false},
        {"--no-repack", std::optional<bool>(), false, true, false},
        {"--repack", std::optional<bool>(), true, true, false},
        {"--no-op-offload", std::optional<bool>(), true, false, false},
        {"--no-op-offload=0", std::optional<bool>(), true, true, false},
        {"-nkvo", std::optional<bool>(), true, true, true},
        {"-nkvo=0", std::optional<bool>(), true, true, false}}) {
    EngineFlags flags;
    flags.parse(given({flag}));
    EXPECT_EQ(flags.choice.load.mmap, mmap) << flag;
    EXPECT_EQ(flags.choice.load.repack, repack) << flag;
    EXPECT_EQ(flags.choice.context.op_offload, offload) << flag;
    EXPECT_EQ(flags.choice.devices.host.cache, cache) << flag;
  }
}

TEST(EngineFlags, ParseReportsWrongFlags) {
  const auto parsing = [](const Arguments& arguments) { return [arguments] { EngineFlags().parse(arguments); }; };
  EXPECT_THAT(parsing({"--parallel", "0"}),
              ThrowsMessage<InvalidArgument>(HasSubstr("--parallel must be a whole number from 1 to")));
  EXPECT_THAT(parsing({"--port", "1"}), ThrowsMessage<InvalidArgument>(HasSubstr("there is no flag --port")));
  EXPECT_THAT(parsing({"-m", "a", "-hf", "b/c"}),
              ThrowsMessage<InvalidArgument>(HasSubstr("--hf-repo excludes --model")));
}

}  // namespace
}  // namespace shoal::tools
