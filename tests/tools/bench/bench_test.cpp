// Tests of shoal bench: the combinations of values from list flags, the measurements, and the three output formats.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "devices/cpu/cpu_device.h"
#include "tests/tools/bench/bench_output.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_report.h"
#include "tools/bench/bench_sweep.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

using models::SplitMode;
using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kOther = SHOAL_SOURCE_DIR "/data/models/tiny-kjv-5m-q4_k_m.gguf";

std::vector<std::string> texts(const std::vector<BenchSetup>& setups) {
  std::vector<std::string> out;
  for (const BenchSetup& s : setups) {
    out.push_back(fmt::format("{} {} [{}] t{}", s.model, s.devices.text(), s.ratio, s.threads));
  }
  return out;
}

TEST(BenchSetups, CombineModelsDevicesAndMatchingRatios) {
  BenchLists lists;
  lists.models = {"a", "b"};
  lists.devices = {"CPU0;CPU0,CPU1"};
  lists.ratios = {"1,1;3:1"};
  EXPECT_THAT(texts(make_setups(lists, SplitMode::kTensor)),
              ElementsAre("a CPU0 [] t0", "a CPU0,CPU1 [1,1] t0", "a CPU0,CPU1 [3:1] t0", "b CPU0 [] t0",
                          "b CPU0,CPU1 [1,1] t0", "b CPU0,CPU1 [3:1] t0"));
}

TEST(BenchSetups, AcceptRepeatedLists) {
  BenchLists lists;
  lists.models = {"m"};
  lists.devices = {"CPU0,CPU1", "CPU2;CPU3"};
  lists.ratios = {"", "1/2"};  // equal shares, and shares in the ratio 1 to 2
  lists.threads = {1, 4};
  EXPECT_THAT(texts(make_setups(lists, SplitMode::kTensor)),
              ElementsAre("m CPU0,CPU1 [] t1", "m CPU0,CPU1 [] t4", "m CPU0,CPU1 [1/2] t1", "m CPU0,CPU1 [1/2] t4",
                          "m CPU2 [] t1", "m CPU2 [] t4", "m CPU3 [] t1", "m CPU3 [] t4"));
}

TEST(BenchSetups, AutoRatioAppliesToEveryDeviceList) {
  BenchLists lists;
  lists.models = {"m"};
  lists.devices = {"CPU0;CPU0,CPU1"};
  lists.ratios = {"3,1;auto"};
  EXPECT_THAT(texts(make_setups(lists, SplitMode::kTensor)),
              ElementsAre("m CPU0 [auto] t0", "m CPU0,CPU1 [3,1] t0", "m CPU0,CPU1 [auto] t0"));
}

TEST(BenchSetups, LayerSplitHasOneSharePerDeviceGroup) {
  BenchLists lists;
  lists.models = {"m"};
  lists.devices = {"CPU0+CPU1,CPU2"};
  lists.ratios = {"2,1"};
  EXPECT_THAT(texts(make_setups(lists, SplitMode::kLayer)), ElementsAre("m CPU0+CPU1,CPU2 [2,1] t0"));
  EXPECT_THROW(make_setups(lists, SplitMode::kTensor), UsageError);
}

TEST(BenchTests, AreOrderedByBatchAndDepth) {
  BenchLists lists;
  lists.prompts = {512, 0, 64};
  lists.generates = {16};
  lists.depths = {0, 100};
  lists.ubatches = {32, 64};
  std::vector<std::string> names;
  for (const BenchTest& test : make_tests(lists)) names.push_back(fmt::format("{} ub{}", test.name(), test.ubatch));
  EXPECT_THAT(names, ElementsAre("pp512 ub32", "pp64 ub32", "tg16 ub32", "pp512 @ d100 ub32", "pp64 @ d100 ub32",
                                 "tg16 @ d100 ub32", "pp512 ub64", "pp64 ub64", "tg16 ub64", "pp512 @ d100 ub64",
                                 "pp64 @ d100 ub64", "tg16 @ d100 ub64"));
  lists.prompts = lists.generates = {0};
  EXPECT_THROW(make_tests(lists), UsageError);
}

TEST(BenchTests, TokensAreValidAndVaried) {
  const std::vector<int32_t> tokens = bench_tokens(5000, 1000);
  EXPECT_EQ(tokens.size(), 5000u);
  EXPECT_GE(*std::min_element(tokens.begin(), tokens.end()), 0);
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), 1000);
  EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 900u);
  EXPECT_EQ(tokens, bench_tokens(5000, 1000));
  EXPECT_NE(tokens, bench_tokens(5000, 1000, 2));
}

TEST(BenchStatistics, ContainMeanAndStandardDeviation) {
  const BenchSamples samples{10, {1'000'000'000, 2'000'000'000, 4'000'000'000}};
  EXPECT_THAT(samples.rates(), ElementsAre(10.0, 5.0, 2.5));
  EXPECT_EQ(samples.avg_ns(), 2'333'333'333);
  EXPECT_EQ(samples.stddev_ns(), 1'527'525'232);
  EXPECT_NEAR(samples.avg_rate(), 5.8333333, 1e-6);
  EXPECT_NEAR(samples.stddev_rate(), 3.8188131, 1e-6);
  const BenchSamples one{10, {1'000'000'000}};
  EXPECT_EQ(one.stddev_ns(), 0);
  EXPECT_EQ(one.stddev_rate(), 0.0);
}

TEST(BenchStatistics, PercentilesAreValues) {
  EXPECT_EQ(percentile({40, 10, 30, 20}, 0.5), 20);
  EXPECT_EQ(percentile({40, 10, 30, 20}, 0.51), 30);
  EXPECT_EQ(percentile({40, 10, 30, 20}, 0.99), 40);
  EXPECT_EQ(percentile({7}, 0.5), 7);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(BenchText, ShortensSharesInTables) {
  EXPECT_EQ(short_shares("0.505986219,0.494013781"), "0.506,0.494");
  EXPECT_EQ(short_shares("0.001234567:0.9999999/0.25"), "0.00123:1/0.25");
  EXPECT_EQ(short_shares("1234.5678,12.3456,0.000000"), "1235,12.3,0");
  for (const char* as_it_is : {"", "3,1", "131,125,128", "even", "auto", "0,0.5", "1e-3,1.5e7", "1..5,x", "100000,1"}) {
    EXPECT_EQ(short_shares(as_it_is), as_it_is);
  }
}

TEST(BenchText, PrintsTheCommitOfTheBuild) {
  EXPECT_THAT(build_commit(), ContainsRegex("^([0-9a-f]{9,40}[+]?|unknown)$"));
}

/// A model on a device with one thread.
Deployment small_deployment(int64_t context, const std::string& model = kModel) {
  cpu::configure("devices=1,threads=1");
  Request request{models::open_model(model)};
  request.asked.fixed.groups = {find_devices({"CPU0"})};
  request.asked.session = {context, 64};
  Deployment deployment = resolve(std::move(request));
  load(deployment);
  return deployment;
}

/// Measures a test in the same way as `shoal bench`.
BenchSamples measured(Deployment& deployment, const BenchTest& test, int repetitions,
                      const std::function<bool()>& stop = {}) {
  return measure(deployment, test, BenchFlags().session(test), {.repetitions = repetitions}, stop);
}

TEST(BenchMeasure, MeasuresEachRepetition) {
  Deployment deployment = small_deployment(64);
  const BenchSamples prompt = measured(deployment, {.prompt = 20, .depth = 7}, 3);
  EXPECT_EQ(prompt.tokens, 20);
  ASSERT_EQ(prompt.ns.size(), 3u);
  const BenchSamples generation = measured(deployment, {.generate = 9, .depth = 30, .ubatch = 8}, 3);
  EXPECT_EQ(generation.tokens, 9);
  ASSERT_EQ(generation.ns.size(), 3u);
  for (const int64_t ns : prompt.ns) EXPECT_GT(ns, 0);
  for (const int64_t ns : generation.ns) EXPECT_GT(ns, 0);
}

// The sliding window has 29 tokens. Each run evicts cache rows, so the next repetition must fill the caches again.
TEST(BenchMeasure, MeasuresSlidingWindowModelsAtDepth) {
  Deployment deployment = small_deployment(400, SHOAL_REFERENCE_MODELS "/gemma3.gguf");
  EXPECT_EQ(measured(deployment, {.prompt = 200, .depth = 100, .ubatch = 32}, 2).ns.size(), 2u);
  EXPECT_EQ(measured(deployment, {.generate = 100, .depth = 100, .ubatch = 32}, 2).ns.size(), 2u);
}

TEST(BenchMeasure, TimeGrowsWithNumberOfTokens) {
  Deployment deployment = small_deployment(512);
  const auto fastest = [&](const BenchTest& test) {
    const BenchSamples samples = measured(deployment, test, 5);
    return *std::min_element(samples.ns.begin(), samples.ns.end());
  };
  // A run with ten times as many tokens takes longer, and a deep cache makes attention slower. The expected ratios are
  // far below the measured ratios.
  EXPECT_GT(fastest({.generate = 100}), 3 * fastest({.generate = 10}));
  EXPECT_GT(fastest({.prompt = 400}), 2 * fastest({.prompt = 40}));
}

TEST(BenchMeasure, StopCallbackEndsMeasurementWithinRun) {
  Deployment deployment = small_deployment(64);
  std::atomic<int> asked{0};
  // `stop` is polled before each node of each run, so the measurement ends within the first run.
  EXPECT_THROW(measured(deployment, {.prompt = 20}, 1000, [&] { return ++asked > 30; }), Interrupted);
  EXPECT_LT(asked, 40);
  EXPECT_EQ(measured(deployment, {.generate = 1}, 1000).ns.size(), 1000u);  // the deployment can be used again
}

TEST(BenchProgram, MarkdownHasLlamaBenchColumns) {
  const std::vector<std::string> rows = lines(output("-p 16 -n 4 -d 0,8 -r 2"));
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_THAT(cells(rows[0]), ElementsAre("model", "size", "params", "devices", "ts", "test", "t/s"));
  EXPECT_THAT(rows[1], ContainsRegex("^[|] -+ [|] -+: [|] -+: [|] -+ [|] -+ [|] -+: [|] -+: [|]$"));
  const std::vector<std::string> first = cells(rows[2]);
  ASSERT_EQ(first.size(), 7u);
  EXPECT_EQ(first[0], "llama 5.2M Q8_0");
  EXPECT_EQ(first[1], "5.3 MiB");
  EXPECT_EQ(first[2], "5.25 M");
  EXPECT_EQ(first[3], "CPU0");
  EXPECT_EQ(first[4], "-");
  EXPECT_THAT(first[6], ContainsRegex("^[0-9]+[.][0-9][0-9] ± [0-9]+[.][0-9][0-9]$"));
  std::vector<std::string> tests;
  for (size_t i = 2; i < rows.size(); ++i) tests.push_back(cells(rows[i])[5]);
  EXPECT_THAT(tests, ElementsAre("pp16", "tg4", "pp16 @ d8", "tg4 @ d8"));
  // All lines have the same width. A line with a plus-minus sign is one byte longer than the other lines, because this
  // sign has two bytes.
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].size(), rows[0].size() + (i < 2 ? 0 : 1)) << rows[i];
}

TEST(BenchProgram, MarkdownAlignsLongShares) {
  const std::vector<std::string> rows =
      lines(output("-dev CPU0;CPU0,CPU1 -ts 0.505986219,0.494013781;3,1 -p 16 -n 1 -r 1 --no-warmup"));
  ASSERT_EQ(rows.size(), 8u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].size(), rows[0].size() + (i < 2 ? 0 : 1)) << rows[i];
  EXPECT_EQ(cells(rows[4])[4], "0.506,0.494");
  EXPECT_EQ(cells(rows[6])[4], "3,1");
}

TEST(BenchProgram, MarkdownHasColumnsForChangedSettings) {
  const auto heading = [](const std::string& args) { return cells(lines(output(args + " -r 1 -n 0"))[0]); };
  EXPECT_THAT(heading("-p 4 -t 1 -ub 4 -b 8 -ctk q8_0"),
              ElementsAre("model", "size", "params", "devices", "threads", "n_batch", "n_ubatch", "type_k", "type_v",
                          "ts", "test", "t/s"));
  EXPECT_THAT(heading("-p 4 -sm layer -dev CPU0,CPU1 -ngl 3"),
              ElementsAre("model", "size", "params", "devices", "sm", "ngl", "ts", "test", "t/s"));
}

TEST(BenchProgram, JsonFieldsAreCompleteAndConsistent) {
  const json result = json::parse(output("-p 16 -n 4 -d 8 -r 3 -t 1 -ub 8 -o json"), nullptr, false);
  ASSERT_EQ(result.size(), 2u);
  for (const json& test : result) {
    for (const char* key : {"build_commit", "build_version", "cpu_info", "backends", "model_filename", "model_type"}) {
      EXPECT_NE(test[key].get<std::string>(), "") << key;
    }
    EXPECT_EQ(test["gpu_info"], "");
    EXPECT_EQ(test["model_filename"], kModel);
    EXPECT_EQ(test["model_n_params"], 5246208);
    EXPECT_EQ(test["n_threads"], 1);
    EXPECT_EQ(test["n_ubatch"], 8);
    EXPECT_EQ(test["n_depth"], 8);
    EXPECT_EQ(test["type_k"], "f16");
    EXPECT_EQ(test["candidates"], 40);
    EXPECT_EQ(test["use_mmap"], true);
    EXPECT_EQ(test["repack"], true);
    EXPECT_THAT(test["test_time"].get<std::string>(), ContainsRegex("^20..-..-..T..:..:..Z$"));
    const auto ns = test["samples_ns"].get<std::vector<int64_t>>();
    const auto rates = test["samples_ts"].get<std::vector<double>>();
    ASSERT_EQ(ns.size(), 3u);
    ASSERT_EQ(rates.size(), 3u);
    const double tokens = test["n_prompt"].get<double>() + test["n_gen"].get<double>();
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(rates[i] * static_cast<double>(ns[i]) / 1e9, tokens, 1e-6);
    EXPECT_NEAR(test["avg_ns"].get<double>(), std::accumulate(ns.begin(), ns.end(), 0.0) / 3, 1.0);
    EXPECT_NEAR(test["avg_ts"].get<double>(), std::accumulate(rates.begin(), rates.end(), 0.0) / 3, 1e-6);
    EXPECT_GE(test["stddev_ts"].get<double>(), 0.0);
  }
  EXPECT_EQ(result[0]["test"], "pp16 @ d8");
  EXPECT_EQ(result[0]["n_prompt"], 16);
  EXPECT_EQ(result[1]["test"], "tg4 @ d8");
  EXPECT_EQ(result[1]["n_gen"], 4);
}

TEST(BenchProgram, SampleOnHostFlagDisablesDeviceCandidates) {
  const json result = json::parse(output("-p 4 -n 0 -r 1 --sample-on-host -o json"), nullptr, false);
  EXPECT_EQ(result[0]["candidates"], 0);
}

TEST(BenchProgram, SweepsModelsDevicesAndRatios) {
  const std::string text =
      output("-m " + kOther + " -dev CPU0;CPU1,CPU2 -dev CPU3 -ts 1,1;3,1 -p 8 -n 0 -r 1 -o jsonl");
  std::vector<std::string> found;
  for (const std::string& line : lines(text)) {
    const json one = json::parse(line, nullptr, false);
    ASSERT_FALSE(one.is_discarded()) << line;
    found.push_back(fmt::format("{} {} {}", one["model_type"].get<std::string>().substr(11),
                                one["devices"].get<std::string>(), one["tensor_split"].get<std::string>()));
  }
  EXPECT_THAT(found, ElementsAre("Q8_0 CPU0 ", "Q8_0 CPU1,CPU2 1,1", "Q8_0 CPU1,CPU2 3,1", "Q8_0 CPU3 ", "Q4_K_M CPU0 ",
                                 "Q4_K_M CPU1,CPU2 1,1", "Q4_K_M CPU1,CPU2 3,1", "Q4_K_M CPU3 "));
}

TEST(BenchProgram, EveryDeviceListUsesTheSameThreadCount) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "this test needs several cores";
  const Finished finished =
      run(bench_args("-dev CPU0;CPU0,CPU1 -p 4 -n 0 -r 1 -o json"), {.cpu_devices = std::nullopt});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json result = json::parse(finished.out);
  EXPECT_EQ(result[0]["n_threads"], result[1]["n_threads"]);
}

TEST(BenchProgram, BadInputGivesAOneLineError) {
  const auto expect = [](const std::string& args, int code, const std::string& message) {
    const Finished finished = run(words("bench " + args));
    EXPECT_EQ(finished.code, code) << args;
    EXPECT_EQ(finished.out, "") << args;
    EXPECT_THAT(finished.err, StartsWith("shoal: error: "));
    EXPECT_THAT(finished.err, HasSubstr(message));
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  };
  const std::string model = "-m " + kModel + " ";
  expect("", 2, "--model or --hf-repo is required");
  expect("-m no-such.gguf", 1, "no-such.gguf: cannot open the model file");
  expect(model + "-m no-such.gguf", 1, "no-such.gguf: cannot open the model file");  // fails before the first model is
                                                                                     // measured
  expect(model + "-p 0 -n 0", 2, "nothing to measure; give a number of tokens above 0 with -p or -n");
  for (const char* flag : {"-p", "-n", "-d"}) {
    for (const char* value : {"-1", "x", "1,", "1;2", "99999999999"}) {
      expect(model + flag + " " + value, 2, "must be a whole number from 0 to 2147483647");
    }
  }
  expect(model + "-c 20 -p 16 -n 0 -d 8", 2, "pp16 @ d8: a sequence has 24 tokens, but the context of -c has 20");
  expect(model + "-p 2147483647 -n 0 -d 1", 2, "pp2147483647 @ d1: a sequence has at most 2147483647 positions");
  expect(model + "-b 0", 2, "--batch-size must be a whole number from 1 to");
  expect(model + "-ub 0", 2, "--ubatch-size must be a whole number from 1 to");
  expect(model + "-t -1", 2, "--threads must be a whole number from 0 to");
  expect(model + "-r 0", 2, "--repetitions must be a whole number from 1 to");
  expect(model + "-o xml", 2, "--output must be md, json or jsonl, got 'xml'");
  expect(model + "-dev CPU0;", 2, "an empty device name in ''");
  expect(model + "-dev CPU0,CPU0", 2, "device CPU0 is named twice");
  expect(model + "-dev CPU0;CPU9", 1, "there is no device 'CPU9'");
  expect(model + "-ts 3,1", 2,
         "--tensor-split: there are 2 shares in '3,1', but no list of --devices has as many devices");
  expect(model + "-dev CPU0,CPU1 -ts 3,x", 2, "bad ratio '3,x': 'x' is not a number");
  expect(model + "-dev CPU0,CPU1 -ts 0,0", 2, "at least one must be above 0");
  expect(model + "-sm row", 2, "--split-mode must be tensor or layer");
  expect(model + "-ctk q4_K", 2, "--cache-type-k must be f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
  expect(model + "-ts @p.json", 2,
         "--tensor-split @p.json: only run, chat, plan and compare read profiles; give the shares");
}

TEST(BenchProgram, ChecksMemoryBeforeLoading) {
  const Finished finished = run(bench_args("-p 0 -n 1 -d 2000000000"));
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_THAT(finished.err, HasSubstr("shoal: error: CPU0 needs 5.6 TiB and has "));
}

TEST(BenchProgram, FailureKeepsEarlierRows) {
  // The override of the weights is valid in the first setup. In the second setup, CPU1 belongs to a meta device, so the
  // override is invalid.
  const Finished finished = run(bench_args("-dev CPU1;CPU0,CPU1 -ot ffn_down=CPU1 -p 4 -n 0 -r 1 -o json"));
  EXPECT_EQ(finished.code, 1);
  const json rows = json::parse(finished.out, nullptr, false);
  ASSERT_EQ(rows.size(), 1u) << finished.out << finished.err;
  EXPECT_EQ(rows[0]["devices"], "CPU1");
  EXPECT_THAT(finished.err, StartsWith("shoal: error: "));
  EXPECT_THAT(finished.err, HasSubstr("cannot be placed on CPU1; use one of META(CPU0,CPU1), CPU2"));
}

TEST(BenchProgram, InterruptPrintsFinishedRows) {
  for (const char* format : {"json", "md"}) {
    // The second prompt takes minutes, so the signal arrives during its evaluation.
    const Finished ended =
        run_interrupted(bench_args(fmt::format("-p 4,60000 -n 0 -r 1 -o {}", format)), SIGINT,
                        [](const Finished& run) { return run.out.find("pp4") != std::string::npos; });
    EXPECT_EQ(ended.code, 130);
    EXPECT_FALSE(ended.killed);
    EXPECT_THAT(ended.err, HasSubstr("warning: a context of 60000"));
    EXPECT_THAT(ended.out, HasSubstr("pp4"));
    EXPECT_THAT(ended.out, ::testing::Not(HasSubstr("pp60000")));
    if (std::string(format) == "md") continue;
    EXPECT_EQ(json::parse(ended.out, nullptr, false).size(), 1u);
  }
}

}  // namespace
}  // namespace shoal::tools
