// Profiles of splits: what is read, what is refused and how, and that run, bench and plan take them.
#include "tools/cli/split_profile.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"
#include "tools/bench/bench_sweep.h"
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

/// A file with this profile.
struct File : test::TemporaryFile {
  explicit File(const std::string& text, const std::string& name = "profile") : TemporaryFile(name + ".json", text) {}
  std::string argument() const { return "@" + path; }
};

TEST(SplitProfile, IsRead) {
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

TEST(SplitProfile, SaysWhatIsWrong) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { parse_split_profile(text, "p.json"); },
                ThrowsMessage<InvalidArgument>(
                    ::testing::AllOf(::testing::StartsWith("--tensor-split @p.json: "), HasSubstr(message))))
        << text;
  };
  const auto with = [](const std::string& devices, const std::string& shares) {
    return fmt::format(R"({{"version": 1, "devices": {}, "tensor_split": {}}})", devices, shares);
  };
  expect("", "it is no JSON");
  expect("{\"version\": 1,", "it is no JSON (at byte ");
  expect("[1]", "it is not a JSON object");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& text : {R"({"version": )" + deep + "}", R"({"version": 1, "split_mode": )" + deep + "}",
                                  with(deep, "[1]"), with(R"(["CPU0"])", "[" + deep + "]")}) {
    expect(text, "lists and objects in each other, more than 16 deep; a profile is such as");
  }
  expect("{}", "it has no \"version\"");
  expect(R"({"version": 2})", "its version is 2, and this program reads 1");
  expect(R"({"version": "1"})", "its version is \"1\"");
  expect(R"({"version": 1})", "it has no \"devices\"");
  expect(with("[]", "[]"), "\"devices\" is not a list of names");
  expect(with("[1, 2]", "[1, 1]"), "\"devices\" has 1, which is no name");
  expect(with(R"(["CPU0", "cpu0"])", "[1, 1]"), "named twice");
  expect(with(R"(["CPU0", ""])", "[1, 1]"), "an empty device name");
  expect(with(R"(["CPU0", "CPU1"])", "\"3,1\""), "\"tensor_split\" is not a list of numbers");
  expect(with(R"(["CPU0", "CPU1"])", "[3]"), "\"tensor_split\" has 1 numbers for 2 devices");
  expect(with(R"(["CPU0", "CPU1"])", "[3, -1]"), "\"tensor_split\" has -1, no number >= 0");
  expect(with(R"(["CPU0", "CPU1"])", "[3, null]"), "\"tensor_split\" has null");
  expect(with(R"(["CPU0", "CPU1"])", "[0, 0]"), "adds up to 0");
  expect(with(R"(["CPU0", "CPU1"])", "[1e400, 1]"), "@p.json: number overflow parsing '1e400'; a profile is such as");
  expect(R"({"version": 1, "split_mode": "row", "devices": ["A"], "tensor_split": [1]})", "\"split_mode\" is \"row\"");
}

TEST(SplitProfile, IsForItsDevicesOnly) {
  const SplitProfile profile = parse_split_profile(kGood, "p.json");
  check_profile(profile, "CPU0,CPU1", SplitMode::kTensor);
  check_profile(profile, "cpu0, cpu1", SplitMode::kTensor);
  EXPECT_THAT(
      [&] { check_profile(profile, "CPU0,CPU1,CPU2", SplitMode::kTensor); },
      ThrowsMessage<InvalidArgument>(HasSubstr("for 2 device(s), CPU0,CPU1, and --devices names 3, CPU0,CPU1,CPU2")));
  EXPECT_THROW(check_profile(profile, "CPU1,CPU0", SplitMode::kTensor), InvalidArgument);
  EXPECT_THAT([&] { check_profile(profile, "CPU0,CPU1", SplitMode::kLayer); },
              ThrowsMessage<InvalidArgument>(HasSubstr("for -sm tensor, and layer is asked for")));
}

TEST(SplitProfile, IsTakenByRunBenchAndPlan) {
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

  const Finished bench =
      run({"bench", "-m", kModel, "-p", "0", "-n", "1", "-r", "1", "-ts", file.argument(), "-o", "json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(json::parse(bench.out)[0]["devices"], "CPU0,CPU1");
  EXPECT_EQ(json::parse(bench.out)[0]["tensor_split"], "3,1.5");
}

TEST(SplitProfile, ThatCannotServeEndsTheProgramInOneLine) {
  const File file(kGood), broken("{", "broken");
  const auto expect = [](const std::vector<std::string>& args, const std::string& message) {
    const Finished ended = run(args);
    EXPECT_NE(ended.code, 0);
    EXPECT_THAT(ended.err, HasSubstr(message));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(ended.out, "");
  };
  for (const char* command : {"run", "plan", "bench", "compare"}) {
    std::vector<std::string> args{command, "-m", kModel, "-p", "5", "-dev", "CPU0,CPU1,CPU2", "-ts"};
    const auto with = [&](const std::string& ratio) {
      std::vector<std::string> all = args;
      all.push_back(ratio);
      return all;
    };
    expect(with(file.argument()), "the profile is for 2 device(s), CPU0,CPU1");
    expect(with("@/nowhere/p.json"), "--tensor-split: /nowhere/p.json: cannot open the profile: No such file");
    expect(with("@" + test::temporary("")),
           "is a directory, not a profile; check the path, or write one with scripts/tune_split.py");
    expect(with("@"), "a name of a profile follows");
  }
  expect({"run", "-m", kModel, "-p", "In", "-ts", broken.argument()}, "it is no JSON");
}

TEST(SplitProfile, SaysThatItIsForAnotherModel) {
  SplitProfile profile = parse_split_profile(kGood, "p.json");
  EXPECT_EQ(other_model(profile, "llama 5M Q8_0", "/else/renamed.gguf"), "");
  EXPECT_THAT(other_model(profile, "llama 1B Q8_0", "m.gguf"),
              HasSubstr("@p.json: the profile was made for llama 5M Q8_0, and the model is llama 1B Q8_0"));
  profile.model_type.clear();
  EXPECT_EQ(other_model(profile, "x", "/models/m.gguf"), "");
  EXPECT_THAT(other_model(profile, "x", "/models/n.gguf"), HasSubstr("made for m.gguf, and the model is n.gguf"));
  profile.model_file.clear();
  EXPECT_EQ(other_model(profile, "x", "n.gguf"), "");
  const File other(
      R"({"version": 1, "model": {"type": "llama 7B Q4_0"}, "devices": ["CPU0", "CPU1"], "tensor_split": [3, 1]})");
  const Finished plan = run({"plan", "-m", kModel, "-ts", other.argument()});
  EXPECT_EQ(plan.code, 0);
  EXPECT_THAT(plan.err, HasSubstr("made for llama 7B Q4_0"));
  EXPECT_EQ(std::count(plan.err.begin(), plan.err.end(), '\n'), 1) << plan.err;
}

TEST(SplitProfile, SaysThatItIsForOtherDevices) {
  const auto with = [](const json& descriptions) {
    return json{{"version", 1}, {"devices", {"CPU0", "CPU1"}}, {"tensor_split", {3, 1}}, {"descriptions", descriptions}}
        .dump();
  };
  SplitProfile profile = parse_split_profile(with({"X, 1 core, slowed 3x", "X, 1 core"}), "p.json");
  EXPECT_EQ(other_devices(profile, {"X, 1 core, slowed 3x", "X, 1 core"}), "");
  EXPECT_EQ(other_devices(profile, {}), "");
  EXPECT_EQ(other_devices(profile, {"X, 1 core", "X, 1 core"}),
            "--tensor-split @p.json: the profile was made where CPU0 is X, 1 core, slowed 3x, and here it is X, 1 "
            "core: other shares may be faster");
  EXPECT_THAT(other_devices(profile, {"X, 1 core, slowed 3x", "Y"}), HasSubstr("where CPU1 is X, 1 core, and here"));
  EXPECT_THAT(other_devices(profile, {"Z", "Y"}), HasSubstr("here it is Z (and 1 more differ): other shares"));
  EXPECT_EQ(other_devices(parse_split_profile(kGood, "p.json"), {"Z", "Y"}), "");
  const auto expect_refused = [&](const json& descriptions, const std::string& message) {
    EXPECT_THAT([&] { parse_split_profile(with(descriptions), "p.json"); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  expect_refused("X", "\"descriptions\" is not a list of texts");
  expect_refused({"X", 1}, "\"descriptions\" has 1, which is no text");
  expect_refused({"X"}, "\"descriptions\" has 1 texts for 2 devices");
}

TEST(SplitProfile, OfOtherDevicesWarnsInEveryCommand) {
  const File plain(kGood);
  const Finished planned = run({"plan", "-m", kModel, "-ts", plain.argument(), "--output", "json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  json same = json::parse(kGood);
  same["descriptions"] = json::parse(planned.out)["descriptions"];
  ASSERT_EQ(same["descriptions"].size(), 2u);
  EXPECT_EQ(json::parse(planned.out)["model_type"], "llama 5.2M Q8_0");
  same["model"]["type"] = "llama 5.2M Q8_0";
  json other = same;
  other["descriptions"][0] = "another\nprocessor";
  const File as_here(same.dump(), "here"), elsewhere(other.dump(), "elsewhere");
  const std::vector<std::vector<std::string>> commands{
      {"run", "-p", "In", "-n", "1"}, {"plan"}, {"bench", "-p", "0", "-n", "1", "-r", "1"}, {"compare", "-p", "In"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"-m", kModel, "-dev", "CPU0,CPU1", "-ts", as_here.argument()});
    const Finished quiet = run(command);
    EXPECT_EQ(quiet.code, 0) << quiet.err;
    EXPECT_THAT(quiet.err, Not(HasSubstr("the profile was made"))) << command[0];
    command.back() = elsewhere.argument();
    const Finished warned = run(command);
    EXPECT_EQ(warned.code, 0) << warned.err;
    EXPECT_THAT(warned.err, HasSubstr("the profile was made where CPU0 is another\\nprocessor, and here it is "))
        << command[0];
    EXPECT_EQ(warned.err.find("the profile was made"), warned.err.rfind("the profile was made")) << command[0];
  }
}

TEST(SplitProfile, SaysHowModelsAreSplit) {
  const File layers(R"({"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [2, 1], "split_mode": "layer"})");
  const Finished bench = run({"bench", "-m", kModel, "-p", "0", "-n", "1", "-r", "1", "-dev", "CPU0,CPU1", "-ts",
                              layers.argument(), "-o", "json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(json::parse(bench.out)[0]["split_mode"], "layer");
  EXPECT_EQ(run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", layers.argument()}).code, 0);
  for (const char* command : {"bench", "plan"}) {
    const Finished refused = run({command, "-m", kModel, "-sm", "tensor", "-ts", layers.argument()});
    EXPECT_NE(refused.code, 0);
    EXPECT_THAT(refused.err, HasSubstr("the profile is for -sm layer, and tensor is asked for"));
  }
  const Finished compared = run({"compare", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", layers.argument()});
  EXPECT_NE(compared.code, 0);
  EXPECT_THAT(compared.err, HasSubstr("only devices that act as one can be compared"));
  const File tensor(kGood, "tensor");
  const Finished both = run({"bench", "-m", kModel, "-ts", layers.argument() + ";" + tensor.argument()});
  EXPECT_NE(both.code, 0);
  EXPECT_THAT(both.err, HasSubstr("use them one by one"));
}

TEST(SplitProfile, AndAutoInSimulations) {
  const File file(kGood);
  const auto simulated = [](const std::vector<std::string>& more) {
    std::vector<std::string> args{"simulate", "-m", kModel, "--machine", "L4x2", "-p", "0", "-n", "1", "-o", "json"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  const Finished refused = simulated({"-ts", file.argument()});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("profiles are for real devices, and "));
  EXPECT_THAT(refused.err, HasSubstr("has no CPU0; give the shares themselves, such as -ts \"3,1.5\""));
  const File here(R"({"version": 1, "devices": ["L4.1", "L4.0"], "tensor_split": [3, 1], "split_mode": "layer"})",
                  "l4");
  const Finished taken = simulated({"-ts", here.argument()});
  ASSERT_EQ(taken.code, 0) << taken.err;
  EXPECT_EQ(json::parse(taken.out)[0]["devices"], "L4.1,L4.0");
  EXPECT_EQ(json::parse(taken.out)[0]["split_mode"], "layer");
  const Finished mixed = simulated({"-ts", "auto;3,1", "--device-counts", "2"});
  ASSERT_EQ(mixed.code, 0) << mixed.err;
  const json rows = json::parse(mixed.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NE(rows[0]["tensor_split"], "auto");
  EXPECT_EQ(rows[1]["tensor_split"], "3,1");
}

TEST(BenchSetups, TakeProfilesAndAuto) {
  const File file(kGood);
  BenchLists lists;
  lists.models = {"m"};
  lists.devices = {"CPU0;CPU0,CPU1;CPU2,CPU3"};
  lists.ratios = {file.argument() + ";auto"};
  std::vector<std::string> texts;
  for (const BenchSetup& setup : make_setups(lists, SplitMode::kTensor)) {
    texts.push_back(setup.devices.text() + " " + setup.ratio);
  }
  EXPECT_THAT(texts, ElementsAre("CPU0 auto", "CPU0,CPU1 3,1.5", "CPU0,CPU1 auto", "CPU2,CPU3 auto"));
  lists.devices = {"CPU0"};
  EXPECT_THROW(make_setups(lists, SplitMode::kTensor), UsageError);
  take_devices_of_profiles(lists);
  EXPECT_THAT(lists.devices, ElementsAre("CPU0,CPU1"));
  EXPECT_EQ(make_setups(lists, SplitMode::kTensor).size(), 2u);
}

}  // namespace
}  // namespace shoal::tools
