// Tests of split profiles: parsing, errors, and use by run and plan.
#include "tools/cli/split_profile.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"
#include "tools/cli/command.h"

namespace shoal::tools {
namespace {

using models::SplitMode;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

const char* const kGood = R"({"version": 1, "model": {"file": "m.gguf", "type": "llama 5M Q8_0"},
  "devices": ["CPU0", "CPU1"], "tensor_split": [3, 1.5], "objective": "generation", "measured": {"generation": 41}})";

/// A profile file with this text.
struct File : test::TemporaryFile {
  explicit File(const std::string& text, const std::string& name = "profile") : TemporaryFile(name + ".json", text) {}
  std::string argument() const { return "@" + path; }
};

TEST(SplitProfile, ReadsAllFields) {
  const SplitProfile profile = parse_split_profile(kGood, "p.json");
  EXPECT_EQ(profile.device_list(), "CPU0,CPU1");
  EXPECT_EQ(profile.ratio(), "3,1.5");
  EXPECT_EQ(profile.mode, SplitMode::kTensor);
  EXPECT_EQ(profile.model_file, "m.gguf");
  EXPECT_EQ(profile.model_type, "llama 5M Q8_0");
  const SplitProfile layers = parse_split_profile(
      R"({"version": 1, "devices": ["CPU0+CPU1", "CPU2"], "tensor_split": [2, 1], "split_mode": "layer"})", "p.json");
  EXPECT_EQ(layers.mode, SplitMode::kLayer);
  EXPECT_EQ(layers.device_list(), "CPU0+CPU1,CPU2");
  EXPECT_THAT(layers.shares, ElementsAre(2, 1));
}

TEST(SplitProfile, RejectsInvalidProfiles) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { parse_split_profile(text, "p.json"); },
                ThrowsMessage<InvalidArgument>(
                    ::testing::AllOf(::testing::StartsWith("--tensor-split @p.json: "), HasSubstr(message))))
        << text;
  };
  const auto with = [](const std::string& devices, const std::string& shares) {
    return fmt::format(R"({{"version": 1, "devices": {}, "tensor_split": {}}})", devices, shares);
  };
  expect("", "parse error at line 1, column 1");
  expect("[1]", "cannot use at() with array");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  expect(with(deep, "[1]"), "lists and objects are nested more than 16 deep; an example of a profile is");
  expect("{}", "key 'version' not found");
  expect(R"({"version": 2})", "\"version\" is 2, but this program reads version 1");
  expect(R"({"version": 1})", "key 'devices' not found");
  expect(with("[]", "[]"), "an empty device name in ''");
  expect(with("[1, 2]", "[1, 1]"), "type must be string, but is number");
  expect(with(R"(["CPU0", "cpu0"])", "[1, 1]"), "named twice");
  expect(with(R"(["CPU0", "CPU1"])", "\"3,1\""), "type must be array, but is string");
  expect(with(R"(["CPU0", "CPU1"])", "[3]"), "1 numbers for 2 devices");
  expect(with(R"(["CPU0", "CPU1"])", "[3, -1]"), "'-1' is not a number >= 0");
  expect(with(R"(["CPU0", "CPU1"])", "[3, null]"), "type must be number, but is null");
  expect(with(R"(["CPU0", "CPU1"])", "[0, 0]"), "at least one must be above 0");
  expect(with(R"(["CPU0", "CPU1"])", "[1e400, 1]"), "number overflow parsing '1e400'; an example of a profile is");
  expect(R"({"version": 1, "split_mode": "row", "devices": ["A"], "tensor_split": [1]})", "\"split_mode\" is \"row\"");
}

TEST(SplitProfile, RejectsProfilesForOtherDevices) {
  const SplitProfile profile = parse_split_profile(kGood, "p.json");
  check_profile(profile, "CPU0,CPU1", SplitMode::kTensor);
  check_profile(profile, "cpu0, cpu1", SplitMode::kTensor);
  EXPECT_THAT(
      [&] { check_profile(profile, "CPU0,CPU1,CPU2", SplitMode::kTensor); },
      ThrowsMessage<InvalidArgument>(HasSubstr("for 2 device(s) (CPU0,CPU1), but --devices names 3 (CPU0,CPU1,CPU2)")));
  EXPECT_THROW(check_profile(profile, "CPU1,CPU0", SplitMode::kTensor), InvalidArgument);
  EXPECT_THAT([&] { check_profile(profile, "CPU0,CPU1", SplitMode::kLayer); },
              ThrowsMessage<InvalidArgument>(HasSubstr("for -sm tensor, not for -sm layer")));
}

TEST(SplitProfile, RunAndPlanUseTheProfile) {
  const File file(kGood);
  const Finished plan = run({"plan", "-m", kModel, "-ts", file.argument(), "--output", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const json planned = json::parse(plan.out);
  EXPECT_EQ(planned["devices"], json({"CPU0", "CPU1"}));
  EXPECT_NEAR(planned["tensor_split"][0].get<double>() / planned["tensor_split"][1].get<double>(), 2, 1e-9);

  const Finished generated =
      run({"run", "-m", kModel, "-p", "In", "-n", "2", "-ts", file.argument(), "--output", "json"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  EXPECT_EQ(json::parse(generated.out)["devices"], json({"CPU0", "CPU1"}));
}

TEST(SplitProfile, UnusableProfileGivesAOneLineError) {
  const File file(kGood), broken("{", "broken");
  const auto expect = [](const std::vector<std::string>& args, const std::string& message) {
    const Finished ended = run(args);
    EXPECT_NE(ended.code, 0);
    EXPECT_THAT(ended.err, HasSubstr(message));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(ended.out, "");
  };
  for (const char* command : {"run", "plan", "compare"}) {
    std::vector<std::string> args{command, "-m", kModel, "-p", "5", "-dev", "CPU0,CPU1,CPU2", "-ts"};
    const auto with = [&](const std::string& ratio) {
      std::vector<std::string> all = args;
      all.push_back(ratio);
      return all;
    };
    expect(with(file.argument()), "the profile is for 2 device(s) (CPU0,CPU1)");
    expect(with("@/nowhere/p.json"), "--tensor-split: /nowhere/p.json: cannot open the profile: No such file");
    expect(with("@" + test::temporary("")),
           "is a directory, not a profile; check the path, or write a profile with scripts/tune_split.py");
    expect(with("@"), "the name of the profile is missing");
  }
  expect({"run", "-m", kModel, "-p", "In", "-ts", broken.argument()}, "parse error at line 1, column 2");
}

TEST(SplitProfile, WarnsOfProfileForAnotherModel) {
  const auto with = [](const char* model) {
    return fmt::format(R"({{"version": 1, "model": {}, "devices": ["CPU0", "CPU1"], "tensor_split": [3, 1]}})", model);
  };
  const File by_type(with(R"({"type": "llama 7B\nQ4_0", "file": "x.gguf"})"), "type");
  const File by_file(with(R"({"file": "x.gguf"})"), "file");
  const File same(with(R"({"type": "llama 5.2M Q8_0", "file": "renamed.gguf"})"), "same"), none(with("7"), "none");
  const std::string name = std::filesystem::path(kModel).filename();
  const std::vector<std::vector<std::string>> commands{
      {"run", "-p", "In", "-n", "1"}, {"plan"}, {"compare", "-p", "In"}};
  const auto err = [](std::vector<std::string> command, const File& profile) {
    command.insert(command.end(), {"-m", kModel, "-dev", "CPU0,CPU1", "-ts", profile.argument()});
    const Finished finished = run(command);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.err;
  };
  for (const std::vector<std::string>& command : commands) {
    EXPECT_THAT(err(command, by_type),
                HasSubstr("the profile was made for llama 7B\\nQ4_0, but the model is llama 5.2M Q8_0; other shares"));
  }
  EXPECT_THAT(err({"plan"}, by_file), HasSubstr("made for x.gguf, but the model is " + name));
  EXPECT_THAT(err({"plan"}, same), Not(HasSubstr("the profile was made")));
  EXPECT_THAT(err({"plan"}, none), Not(HasSubstr("the profile was made")));
}

TEST(SplitProfile, SetsTheSplitMode) {
  const File layers(R"({"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [2, 1], "split_mode": "layer"})");
  EXPECT_EQ(run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", layers.argument()}).code, 0);
  const Finished refused = run({"plan", "-m", kModel, "-sm", "tensor", "-ts", layers.argument()});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("the profile is for -sm layer, not for -sm tensor"));
  const Finished compared = run({"compare", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", layers.argument()});
  EXPECT_NE(compared.code, 0);
  EXPECT_THAT(compared.err, HasSubstr("for -sm layer, but compare needs -sm tensor"));
}

}  // namespace
}  // namespace shoal::tools
