// Tests of shoal plan with --machine, --recommend, --tensor-split auto and --fit. Files describe the machines, so every
// machine that runs the tests gets the same predictions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/models/hollow_model.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using models::HollowModel;
using nlohmann::json;
using test::TemporaryFile;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Description of two devices with `memory` bytes each. A collective has `latency` seconds of latency. The second
/// device has three times the speed of the first device.
std::string two_devices(const std::string& name, double latency, double memory = 64e9) {
  return fmt::format(
      R"({{"version": 1, "name": "two", "devices": [
          {{"name": "{0}0", "memory": {1}, "bandwidth": 1e9, "op_seconds": 1e-9, "rates": {{"default": 1e10}}}},
          {{"name": "{0}1", "memory": {1}, "bandwidth": 3e9, "op_seconds": 1e-9, "rates": {{"default": 3e10}}}}],
          "algorithms": [{{"name": "x", "latency": {2}, "bandwidth": 1e10}}]}})",
      name, memory, latency);
}

json plan_json(std::vector<std::string> args) {
  args.insert(args.begin(), {"plan", "-m", kModel});
  args.insert(args.end(), {"--output", "json"});
  const Finished finished = run(args);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return json::parse(finished.out, nullptr, false);
}

class PlanPredict : public ::testing::Test {
 protected:
  // Hides the saved measurements of the machine that runs the tests.
  void SetUp() override { setenv("SHOAL_MACHINE_FILE", test::temporary("no_such_machine.json").c_str(), 1); }
  void TearDown() override { unsetenv("SHOAL_MACHINE_FILE"); }

  const TemporaryFile fast_{"plan_fast.json", two_devices("CPU", 1e-7)},
      slow_{"plan_slow.json", two_devices("CPU", 1e-2)};
};

TEST_F(PlanPredict, SuggestsTheProbeCommand) {
  const Finished text = run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-t", "1"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("no prediction of speed: run `shoal probe --devices CPU0,CPU1 -t 1` first"));
  const json plan = plan_json({"-dev", "CPU0,CPU1"});
  EXPECT_TRUE(plan["prediction"].is_null());
  EXPECT_THAT(plan["no_prediction"], HasSubstr("shoal probe"));
  EXPECT_FALSE(plan.contains("candidates"));
}

TEST_F(PlanPredict, PredictsSpeedOfADescribedMachine) {
  const json plan =
      plan_json({"-dev", "CPU0,CPU1", "--machine", fast_.path, "-ts", "1,3", "-p", "64", "-n", "8", "-d", "16"});
  const json& prediction = plan["prediction"];
  EXPECT_EQ(prediction["name"], "CPU0,CPU1 tensor 1,3");
  EXPECT_EQ(prediction["machine"], fast_.path);
  EXPECT_EQ(prediction["tensor_split"].size(), 2u);
  EXPECT_EQ(prediction["prompt"]["tokens"], 64);
  EXPECT_EQ(prediction["generation"]["tokens"], 8);
  EXPECT_EQ(prediction["generation"]["depth"], 16);
  for (const char* phase : {"prompt", "generation"}) {
    const json& p = prediction[phase];
    EXPECT_NEAR(p["tokens_per_second"].get<double>() * p["seconds"].get<double>(), p["tokens"].get<double>(), 1e-6)
        << phase;
    EXPECT_EQ(p["devices"].size(), 2u);
    EXPECT_EQ(p["collectives"][0]["kind"], "all_reduce");
    EXPECT_LT(p["imbalance"].get<double>(), 0.2);
  }
  EXPECT_EQ(prediction["generation"]["collectives"][0]["count"], 12);
  for (const json& row : plan["memory"]) {
    EXPECT_EQ(row["margin"].get<int64_t>(), row["free"].get<int64_t>() - row["total"].get<int64_t>());
    EXPECT_GT(row["margin_percent"].get<double>(), 0);
  }
  const Finished text =
      run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "--machine", fast_.path, "-ts", "1,3", "-n", "8"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("prediction for CPU0,CPU1 tensor 1,3"), HasSubstr("tokens/s"),
                              HasSubstr("imbalance"), HasSubstr("communication")));
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos);
}

TEST_F(PlanPredict, PredictsRequestsAtTheSameTime) {
  const auto plan = [&](const char* requests) {
    return plan_json(
        {"-dev", "CPU0,CPU1", "--machine", fast_.path, "-c", "1024", "-p", "64", "-n", "8", "-np", requests});
  };
  const json one = plan("1"), eight = plan("8");
  EXPECT_EQ(one["prediction"]["parallel"], 1);
  EXPECT_EQ(eight["prediction"]["parallel"], 8);
  const double rate = one["prediction"]["generation"]["tokens_per_second"];
  EXPECT_GT(eight["prediction"]["generation"]["tokens_per_second"], 1.5 * rate) << "a step reads each weight once";
  EXPECT_NEAR(eight["prediction"]["prompt"]["seconds"], 8 * one["prediction"]["prompt"]["seconds"].get<double>(),
              1e-9 + 0.02 * eight["prediction"]["prompt"]["seconds"].get<double>());
}

TEST_F(PlanPredict, NamesTheDeviceThatLimitsTheCache) {
  const json plan = plan_json({"-dev", "CPU0,CPU1", "--machine", fast_.path, "-ts", "1,3", "-c", "500"});
  EXPECT_EQ(plan["cache"]["tokens"], 512) << "whole pages";
  EXPECT_EQ(plan["cache"]["limited_by"], "CPU1") << "it stores most KV heads";
  EXPECT_GT(plan["cache"]["most_tokens"], 100'000);
  const Finished text = run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "--machine", fast_.path, "-ts", "1,3"});
  EXPECT_THAT(text.out,
              ContainsRegex("the KV cache holds 512 tokens; CPU1 has room for [0-9]+, the fewest of all devices"));
}

TEST_F(PlanPredict, JsonContainsUnitsAndSplitKey) {
  const auto key = [&](const char* ratio) { return plan_json({"-dev", "CPU0,CPU1", "-ts", ratio})["split_key"]; };
  EXPECT_EQ(key("3,1"), key("6,2"));
  EXPECT_NE(key("3,1"), key("1,1"));
  EXPECT_EQ(plan_json({"-dev", "CPU0"})["units"], (json{{"query_heads", 4}, {"feed_forward", 24}, {"vocabulary", 32}}));
}

/// The model uses 8 of its 32 experts for each token. Each expert has only 768 columns, which are three blocks of Q4_K.
class PlanExperts : public PlanPredict {
 protected:
  void SetUp() override {
    PlanPredict::SetUp();
    HollowModel hollow(2, 256, 768, 8, 4, 256);
    hollow.h.experts = 32, hollow.h.experts_used = 8;
    hollow.dtype = models::all_of(DType::kQ4_K);
    hollow.write(file_.path);
  }
  Finished plan(std::vector<std::string> args, const std::string& output) {
    args.insert(args.begin(), {"plan", "-m", file_.path, "-c", "64", "--machine", fast_.path, "--output", output});
    return run(args);
  }
  const TemporaryFile file_{"plan_experts.gguf"};
};

TEST_F(PlanExperts, ReportsExpertSplitAndReason) {
  const auto experts = [&](std::vector<std::string> args) { return json::parse(plan(args, "json").out)["experts"]; };
  EXPECT_EQ(experts({"-dev", "CPU0,CPU1", "--expert-split", "inside"}), (json{{"split", "inside"}}));
  EXPECT_EQ(experts({"-dev", "CPU0,CPU1", "--expert-split", "whole"}), (json{{"split", "whole"}}));
  EXPECT_TRUE(experts({"-dev", "CPU0", "--expert-split", "whole"}).is_null());
  const json chosen = experts({"-dev", "CPU0,CPU1"});
  EXPECT_EQ(chosen["tokens"], 1);
  const double inside = chosen["inside_seconds"], whole = chosen["whole_seconds"];
  EXPECT_EQ(chosen["split"], whole < inside ? "whole" : "inside");
  EXPECT_GT(inside, 0);
  EXPECT_EQ(experts({"-dev", "CPU0,CPU1", "-n", "0", "-ub", "48"})["tokens"], 48);
  EXPECT_THAT(plan({"-dev", "CPU0,CPU1", "--expert-split", "whole"}, "text").out,
              AllOf(HasSubstr("routed experts whole\n"),
                    HasSubstr("blk.0.ffn_down_exps.weight   q4_K  [768, 256, 32]       split 2 [16:{0} 16:{1}]")));
  EXPECT_THAT(
      plan({"-dev", "CPU0,CPU1", "-ts", "1,3"}, "text").out,
      AllOf(HasSubstr("routed experts "), HasSubstr("; their products take "), HasSubstr(" for a token (inside: ")));
}

TEST_F(PlanPredict, ReportsLatentSplitAndReason) {
  const auto plan = [&](std::vector<std::string> args, const std::string& output) {
    args.insert(args.begin(), {"plan", "-m", SHOAL_REFERENCE_MODELS "/deepseek2.gguf", "-c", "64", "--machine",
                               fast_.path, "--output", output});
    return run(args);
  };
  const auto latent = [&](std::vector<std::string> args) {
    return json::parse(plan(args, "json").out)["latent_cache"];
  };
  EXPECT_EQ(latent({"-dev", "CPU0,CPU1", "--latent-split", "rows"}), (json{{"split", "rows"}, {"parts", 2}}));
  EXPECT_EQ(latent({"-dev", "CPU0,CPU1", "--latent-split", "mirrored"}), (json{{"split", "mirrored"}, {"parts", 1}}));
  EXPECT_TRUE(latent({"-dev", "CPU0", "--latent-split", "rows"}).is_null());
  const json chosen = latent({"-dev", "CPU0,CPU1"});
  EXPECT_EQ(chosen["rows"], 32) << "each device has half of the rows of the context";
  const double mirrored = chosen["mirrored_seconds"], rows = chosen["rows_seconds"];
  EXPECT_EQ(chosen["split"], rows < mirrored ? "rows" : "mirrored");
  EXPECT_GT(mirrored, 0);
  EXPECT_EQ(latent({"-dev", "CPU0,CPU1", "-n", "8", "-d", "40"})["rows"], 44);
  EXPECT_THAT(plan({"-dev", "CPU0,CPU1", "--latent-split", "rows"}, "text").out,
              HasSubstr("latent cache by rows: 2 parts\n"));
  EXPECT_THAT(plan({"-dev", "CPU0,CPU1"}, "text").out, HasSubstr("; attention of a token to 32 rows takes "));
  EXPECT_TRUE(plan_json({"-dev", "CPU0,CPU1"})["latent_cache"].is_null());
}

TEST_F(PlanPredict, RecommendsOneDeviceIfCollectivesAreSlow) {
  const json both = plan_json({"-dev", "CPU0,CPU1", "--machine", fast_.path, "--recommend"});
  EXPECT_EQ(both["recommended"]["device_list"], "CPU0,CPU1");
  EXPECT_EQ(both["recommended"]["split_mode"], "tensor");
  EXPECT_EQ(both["recommended"], both["candidates"][0]);
  EXPECT_GE(both["candidates"].size(), 5u);
  const json one = plan_json({"-dev", "CPU0,CPU1", "--machine", slow_.path, "--recommend"});
  EXPECT_EQ(one["recommended"]["device_list"], "CPU1");
  EXPECT_THAT(one["reason"], AllOf(HasSubstr("CPU1 alone is predicted "), HasSubstr("x faster than CPU0,CPU1")));
  const Finished text = run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "--machine", slow_.path, "--recommend"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("candidates by speed of generation"), HasSubstr("CPU1 alone is predicted ")));
}

TEST_F(PlanPredict, AutoChoosesTheFastestShares) {
  const Finished chosen =
      run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "--machine", fast_.path, "-ts", "auto", "--output", "json"});
  ASSERT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_THAT(chosen.err, AllOf(HasSubstr("shoal: tensor split "), HasSubstr(" for CPU0,CPU1: predicted ")));
  EXPECT_EQ(std::count(chosen.err.begin(), chosen.err.end(), '\n'), 1) << chosen.err;
  const json plan = json::parse(chosen.out);
  const double first = plan["tensor_split"][0], second = plan["tensor_split"][1];
  EXPECT_NEAR(first / (first + second), 0.25, 0.13);
  const double rate = plan["prediction"]["generation"]["tokens_per_second"];
  for (const char* ratio : {"1,1", "1,2", "1,4", "1,7"}) {
    const json other = plan_json({"-dev", "CPU0,CPU1", "--machine", fast_.path, "-ts", ratio});
    EXPECT_LE(other["prediction"]["generation"]["tokens_per_second"].get<double>(), rate * 1.01) << ratio;
  }
  // With one device, there are no shares to choose, so no message is printed.
  EXPECT_EQ(run({"plan", "-m", kModel, "-ts", "auto", "--machine", fast_.path, "-dev", "CPU0"}).err, "");
}

TEST_F(PlanPredict, AutoSharesOptimiseTheRequestedObjective) {
  const auto chosen = [&](const std::string& objective, const std::string& tokens) {
    return run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "--machine", fast_.path, "-ts", "auto", "-p", tokens, "-n",
                "8", "-d", "300", "--objective", objective, "--output", "json"});
  };
  const auto rate = [](const Finished& finished, const char* phase) {
    const json plan = json::parse(finished.out, nullptr, false);
    return fmt::format("{:.1f}", plan["prediction"][phase]["tokens_per_second"].get<double>());
  };
  const Finished generation = chosen("generation", "64"), prompt = chosen("prompt", "64"), mix = chosen("mix", "64");
  EXPECT_THAT(generation.err, HasSubstr("predicted " + rate(generation, "generation") + " tokens/s"));
  EXPECT_THAT(prompt.err, HasSubstr("predicted " + rate(prompt, "prompt") + " tokens/s"));
  EXPECT_THAT(mix.err, HasSubstr("predicted prompt " + rate(mix, "prompt") + " and generation " +
                                 rate(mix, "generation") + " tokens/s"));
  for (const char* objective : {"prompt", "mix"}) {
    const Finished without = chosen(objective, "0");
    EXPECT_EQ(without.code, 2);
    EXPECT_THAT(without.err, HasSubstr(fmt::format("the objective {} needs a prompt", objective)));
  }
}

TEST_F(PlanPredict, AutoReportsRemediesIfNothingFits) {
  const TemporaryFile small("plan_auto_small.json", two_devices("TIGHT.", 1e-7, 10e6));
  const auto planned = [&](std::vector<std::string> more) {
    std::vector<std::string> args{"plan", "-m",    kModel, "--machine", small.path,  "-ts",      "auto",
                                  "-c",   "32768", "-ub",  "32",        "--no-mmap", "--output", "json"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  const Finished none = planned({});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.err, AllOf(HasSubstr(": no shares fit: TIGHT."), HasSubstr("possible remedies: a context of "),
                              Not(HasSubstr("predicted"))));
  // With --fit, shares are chosen for the context that fits.
  const Finished fitted = planned({"--fit", "on", "--fit-ctx", "128", "--fit-target", "0"});
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  EXPECT_THAT(fitted.err,
              AllOf(HasSubstr(" instead of 32768"), HasSubstr(": predicted "), Not(HasSubstr("no shares"))));
  const json plan = json::parse(fitted.out);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_GE(plan["context"].get<int64_t>(), 128);
  const double rate = plan["prediction"]["generation"]["tokens_per_second"];
  EXPECT_THAT(fitted.err, HasSubstr(fmt::format("predicted {:.1f} tokens/s", rate)));
}

TEST_F(PlanPredict, SimulatesOtherMachines) {
  const json all = plan_json({"--machine", "H200x2"});
  EXPECT_EQ(all["devices"], json({"H200.0", "H200.1"}));
  EXPECT_GT(all["prediction"]["generation"]["tokens_per_second"].get<double>(), 0);
  EXPECT_EQ(plan_json({"--machine", "H200x2", "-dev", "H200.1"})["devices"], json({"H200.1"}));
  const Finished none = run({"plan", "-m", kModel, "--machine", "H200x2", "-dev", "H200.2"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("has no device 'H200.2'"));
}

/// Flags that place a part of the model on the host, which is CPU0 in these tests.
const std::vector<std::vector<std::string>> kOnHost{{"-ngl", "2"}, {"-nkvo"}, {"-ot", "ffn_up=CPU"}};

TEST_F(PlanPredict, HostFlagsNeedMeasurementsOfTheHost) {
  for (const auto& option : kOnHost) {
    const auto plan_with = [&](std::vector<std::string> args) {
      args.insert(args.end(), option.begin(), option.end());
      return plan_json(args);
    };
    EXPECT_THAT(plan_with({"-dev", "CPU1"})["no_prediction"], HasSubstr("`shoal probe --devices CPU1,CPU0`"));
    const json here = plan_with({"-dev", "CPU1", "--machine", fast_.path, "--recommend"});
    EXPECT_EQ(here["prediction"]["generation"]["devices"].size(), 2u) << option[0];
    EXPECT_EQ(here["candidates"].size(), 1u);
    // The machine has no CPU. The plan still succeeds, but without a predicted speed.
    const json none = plan_with({"--machine", "H200x2"});
    EXPECT_TRUE(none["prediction"].is_null());
    EXPECT_THAT(none["no_prediction"], AllOf(HasSubstr("machine H200x2 has no device 'CPU0'"), HasSubstr(option[0]),
                                             HasSubstr("add the device to a JSON file")));
    for (const std::vector<std::string>& wanted : {std::vector<std::string>{"--recommend"}, {"-ts", "auto"}}) {
      std::vector<std::string> args{"plan", "-m", kModel, "--machine", "H200x2"};
      args.insert(args.end(), option.begin(), option.end());
      args.insert(args.end(), wanted.begin(), wanted.end());
      const Finished refused = run(args);
      EXPECT_EQ(refused.code, 1);
      EXPECT_THAT(refused.err, HasSubstr("machine H200x2 has no device 'CPU0'"));
      EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
    }
  }
}

TEST_F(PlanPredict, ChoosesSharesWithLayersOnHost) {
  const TemporaryFile probed("plan_probed.json");
  setenv("SHOAL_MACHINE_FILE", probed.path.c_str(), 1);
  const std::vector<std::string> args{"-m",  kModel, "-dev", "CPU1,CPU2", "-t",       "1",
                                      "-ts", "auto", "-ngl", "2",         "--output", "json"};
  std::vector<std::string> running{"run", "-p", "In", "-n", "1"}, planning{"plan"};
  running.insert(running.end(), args.begin(), args.end());
  planning.insert(planning.end(), args.begin(), args.end());
  const Finished ran = run(running);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("measuring 3 device(s)"), HasSubstr("tensor split ")));
  // The second command uses the saved measurements.
  const Finished again = run(planning);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("measuring")));
  EXPECT_FALSE(json::parse(again.out)["prediction"].is_null());
}

TEST_F(PlanPredict, FitFlagShrinksContext) {
  const TemporaryFile small("plan_small.json", two_devices("SMALL.", 1e-7, 12e6));
  const auto fitted = [&](std::vector<std::string> more, int64_t tokens = 4096) {
    std::vector<std::string> args{
        "plan", "-m", kModel,      "--machine", small.path, "-dev", "SMALL.0", "-c", fmt::format("{}", tokens),
        "-ub",  "32", "--no-mmap", "--output",  "json"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  EXPECT_EQ(json::parse(fitted({}).out)["fits"], false);
  const Finished on = fitted({"--fit", "on", "--fit-ctx", "128", "--fit-target", "0"});
  ASSERT_EQ(on.code, 0) << on.err;
  const json plan = json::parse(on.out);
  EXPECT_EQ(plan["fits"], true);
  const int64_t context = plan["context"];
  EXPECT_GE(context, 128);
  EXPECT_LT(context, 4096);
  EXPECT_THAT(on.err, HasSubstr(fmt::format("shoal: context {} instead of 4096", context)));
  // The context that --fit found is the largest: a context with 32 more tokens does not fit.
  EXPECT_EQ(json::parse(fitted({}, context + 32).out)["fits"], false);
  const Finished off = fitted({"-fit", "off", "-fitc", "128", "-fitt", "0"});
  EXPECT_EQ(json::parse(off.out)["context"], 4096);
  const Finished never = fitted({"--fit", "on", "--fit-target", "0"});
  EXPECT_EQ(never.code, 1);
  EXPECT_THAT(never.err, AllOf(HasSubstr("not even a context of 4096 fits (--fit-ctx 4096)"), HasSubstr("-ctk q8_0")));
  EXPECT_EQ(fitted({"--fit", "maybe"}).code, 2);
}

TEST_F(PlanPredict, FitFlagChangesNothingIfContextFits) {
  const Finished ran =
      run({"run", "-m", kModel, "-p", "In", "-n", "1", "--fit", "on", "--fit-target", "0", "--output", "json"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  const Finished never = run({"run", "-m", kModel, "-p", "In", "-n", "1", "--fit", "on", "--fit-target", "1000000000"});
  EXPECT_EQ(never.code, 1);
  EXPECT_THAT(never.err, HasSubstr("not even a context of 512 fits"));
}

TEST_F(PlanPredict, RecommendReportsRemediesIfNothingFits) {
  const TemporaryFile tiny("plan_tiny.json", two_devices("TINY.", 1e-7, 8e6));
  const json plan = plan_json({"--machine", tiny.path, "-dev", "TINY.0", "-c", "8192", "--recommend", "--no-mmap"});
  EXPECT_TRUE(plan["recommended"].is_null());
  EXPECT_THAT(plan["reason"], HasSubstr("nothing fits: TINY.0 needs "));
  EXPECT_GE(plan["remedies"]["more_devices"]["count"].get<int>(), 1);
}

/// Checks the context sizes that remedies suggest. The tests run shoal plan with each suggested context.
class PlanRemedies : public PlanPredict {
 protected:
  PlanRemedies() { HollowModel(8, 1024, 4096, 16, 8, 8192).write(model_.path); }

  static std::string machine(double first, double second) {
    return fmt::format(R"({{"version": 1, "name": "two", "devices": [
        {{"name": "REM.0", "memory": {}, "bandwidth": 1e9, "op_seconds": 1e-9, "rates": {{"default": 1e10}}}},
        {{"name": "REM.1", "memory": {}, "bandwidth": 2e9, "op_seconds": 1e-9, "rates": {{"default": 2e10}}}}],
        "algorithms": [{{"name": "x", "latency": 1e-6, "bandwidth": 1e10}}]}})",
                       first, second);
  }
  json planned(const std::string& machine, const std::string& more) const {
    std::vector<std::string> args{"plan", "-m", model_.path, "--machine", machine,    "-ub", "32",
                                  "-p",   "0",  "-n",        "4",         "--output", "json"};
    std::istringstream words(more);
    for (std::string word; words >> word;) args.push_back(word);
    const Finished finished = run(args);
    EXPECT_EQ(finished.code, 0) << more << ": " << finished.err;
    return json::parse(finished.out, nullptr, false);
  }
  /// Applies a remedy: each flag in `options` replaces the flag with the same name in `command`.
  static std::string changed(const std::string& command, const std::string& options) {
    std::string text = options;
    std::istringstream words(command);
    for (std::string name, value; words >> name >> value;) {
      if ((" " + options).find(" " + name + " ") == std::string::npos) text += " " + name + " " + value;
    }
    return text;
  }
  static std::string longer(std::string options, int64_t context, int64_t more) {
    const std::string now = fmt::format("-c {}", context);
    EXPECT_TRUE(options.starts_with(now + " ") || options == now) << options;
    return options.replace(0, now.size(), fmt::format("-c {}", more));
  }
  void check(const std::string& machine, const std::string& command, const json& remedies, const std::string& name) {
    ASSERT_TRUE(remedies.contains(name)) << command;
    const int64_t context = remedies[name];
    const std::string options = remedies[name + "_options"];
    EXPECT_EQ(planned(machine, changed(command, options))["fits"], true) << command << " with " << options;
    const std::string more = changed(command, longer(options, context, context + 32));
    EXPECT_EQ(planned(machine, more)["fits"], false) << more;
    // In both split modes, a context that is 2.5 % larger does not fit.
    const int64_t most = context + context / 40;
    const std::string cache = name == "context" ? "" : " -ctk q8_0 -ctv q8_0";
    for (const char* mode : {"tensor", "layer"}) {
      const std::string other = fmt::format("-c {}{} -ts auto -sm {}", most, cache, mode);
      EXPECT_EQ(planned(machine, other)["fits"], false) << other << " after " << command << ": " << options;
    }
  }

  const TemporaryFile model_{"plan_hollow.gguf"};
};

TEST_F(PlanRemedies, SuggestedContextsAreTheLargestThatFit) {
  const TemporaryFile uneven("plan_uneven.json", machine(110e6, 260e6)), alike("plan_alike.json", machine(2e8, 2e8));
  const std::vector<std::pair<std::string, std::string>> cases{
      {uneven.path, "-c 65536"}, {uneven.path, "-c 65536 -sm layer -ts 3,1"}, {alike.path, "-c 65536"}};
  for (const auto& [path, command] : cases) {
    const json plan = planned(path, command + " --recommend");
    ASSERT_TRUE(plan["recommended"].is_null()) << command;
    const json& remedies = plan["remedies"];
    EXPECT_THAT(plan["reason"], HasSubstr("(" + remedies["context_options"].get<std::string>() + ")"));
    check(path, command, remedies, "context");
    check(path, command, remedies, "context_q8_0");
  }
  const json one = planned(uneven.path, "-c 65536 -dev REM.1 --recommend");
  EXPECT_EQ(one["remedies"]["context_options"], fmt::format("-c {}", one["remedies"]["context"].get<int64_t>()));
}

TEST_F(PlanRemedies, AutoSuggestsContextsThatFit) {
  const TemporaryFile uneven("plan_uneven.json", machine(110e6, 260e6));
  const Finished found = run({"plan", "-m", model_.path, "--machine", uneven.path, "-ub", "32", "-c", "65536", "-ts",
                              "auto", "--output", "json"});
  EXPECT_EQ(found.code, 0) << found.err;
  const size_t begin = found.err.find("(-c "), end = found.err.find(')', begin);
  ASSERT_NE(end, std::string::npos) << found.err;
  const std::string options = found.err.substr(begin + 1, end - begin - 1);
  EXPECT_EQ(planned(uneven.path, changed("-c 65536 -ts auto", options))["fits"], true) << options;
}

TEST_F(PlanPredict, ObjectiveNeedsTokensOfItsPhase) {
  const auto expect = [&](std::vector<std::string> args, const std::string& message) {
    args.insert(args.begin(), {"plan", "-m", kModel, "-dev", "CPU0,CPU1", "--machine", fast_.path});
    const Finished ended = run(args);
    EXPECT_EQ(ended.code, message.empty() ? 0 : 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(message));
    const auto lines = std::count(ended.err.begin(), ended.err.end(), '\n');
    EXPECT_TRUE(message.empty() || lines == 1) << ended.err;
  };
  expect({"-p", "0", "--objective", "prompt", "--recommend"},
         "the objective prompt needs a prompt; give numbers above 0 with -p and -n");
  expect({"-n", "0", "--objective", "generation", "--recommend"},
         "the objective generation needs tokens to generate; give numbers above 0");
  expect({"-n", "0", "--objective", "generation", "-ts", "auto"}, "the objective generation needs tokens to generate");
  expect({"-n", "0", "-p", "16", "-ts", "auto"}, "");
  expect({"-n", "0", "-p", "16", "--recommend"}, "");
  expect({"-n", "0", "--objective", "mix", "-ts", "auto"}, "the objective mix needs a prompt and tokens to generate");
  expect({"-n", "0", "--objective", "prompt", "-ts", "auto", "-p", "16"}, "");
  expect({"-n", "0", "-p", "16"}, "");  // the command does not search for shares
}

TEST_F(PlanPredict, RejectsInvalidRequests) {
  const auto expect = [](std::vector<std::string> args, int code, const std::string& message) {
    args.insert(args.begin(), {"plan", "-m", kModel});
    const Finished ended = run(args);
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(message));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  const TemporaryFile broken("plan_broken.json", "{\"version\": 1, \"devices\": 7}");
  expect({"--machine", fast_.path, "-dev", "CPU0", "-p", "600"}, 1, "do not fit into a context of 512");
  expect({"--machine", fast_.path, "-dev", "CPU0", "-p", "0", "-n", "0"}, 1, "nothing to predict");
  expect({"--machine", "/nowhere/m.json", "-dev", "CPU0"}, 1, "/nowhere/m.json");
  expect({"--machine", broken.path, "-dev", "CPU0"}, 1, "devices");
  expect({"--machine", fast_.path, "-dev", "CPU2"}, 1, "has no device 'CPU2'; it has CPU0, CPU1");
  expect({"--objective", "speed"}, 2, "--objective must be generation, prompt or mix, got 'speed'");
  expect({"-n", "x"}, 2, "--n-gen");
}

}  // namespace
}  // namespace shoal::tools
