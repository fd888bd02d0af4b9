// Tests of shoal bench -np: the tests of requests, their measurements, and the output.
#include "tools/bench/parallel_bench.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <numeric>

#include "devices/cpu/cpu_device.h"
#include "tests/tools/bench/bench_output.h"
#include "tools/bench/bench_sweep.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/interrupt.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

TEST(RequestTests, CombinePromptsGenerationsAndNumbersOfRequests) {
  BenchLists lists;
  lists.prompts = {256, 64};
  lists.generates = {16};
  lists.depths = {0, 32};
  lists.parallels = {1, 8};
  std::vector<std::string> names;
  for (const BenchTest& test : make_tests(lists)) names.push_back(test.name());
  EXPECT_THAT(names,
              ElementsAre("np1 pp256 tg16", "np8 pp256 tg16", "np1 pp64 tg16", "np8 pp64 tg16", "np1 pp256 tg16 @ d32",
                          "np8 pp256 tg16 @ d32", "np1 pp64 tg16 @ d32", "np8 pp64 tg16 @ d32"));
}

TEST(RequestTests, CountTokensOfAllRequests) {
  const BenchTest test{.prompt = 256, .generate = 64, .depth = 10, .parallel = 8};
  EXPECT_EQ(test.tokens(), 2560);
  EXPECT_EQ(test.length(), 330);
}

TEST(RequestTests, CacheHasWholePagesForEachRequest) {
  const auto dense = models::open_model(kModel);
  const BenchTest test{.prompt = 256, .generate = 64, .depth = 10, .parallel = 8};
  EXPECT_EQ(cache_tokens(test, dense->hparams, 2), 8 * 352);  // 330 tokens need 11 pages of 32 tokens
  const auto latent = models::open_model(SHOAL_REFERENCE_MODELS "/deepseek2.gguf");
  EXPECT_EQ(cache_tokens(test, latent->hparams, 1), 8 * 352);
  for (const int64_t parts : {2, 3, 8, 65}) {
    const int64_t page = models::page_rows(parts);
    EXPECT_GE(cache_tokens(test, latent->hparams, 2), 8 * ((330 + page - 1) / page * page)) << parts;
  }
}

/// The small model on a device with one thread, planned for `sequences` requests.
Deployment deployment_for(int64_t context, int64_t sequences, const std::string& model = kModel) {
  cpu::configure("devices=1,threads=1");
  Request request{models::open_model(model)};
  request.asked.fixed.groups = {find_devices({"CPU0"})};
  request.asked.session = {.context = context, .batch = 64, .sequences = sequences};
  request.asked.session = models::engine_options(request.asked.session);
  Deployment deployment = resolve(std::move(request));
  load(deployment);
  return deployment;
}

TEST(ParallelBench, MeasuresEachRequestOfEachRepetition) {
  const BenchTest test{.prompt = 40, .generate = 9, .parallel = 6};
  Deployment deployment = deployment_for(6 * 64, 6);
  ParallelBench bench(deployment, 64);
  EXPECT_EQ(deployment.plan, nullptr) << "the engine has the plan";
  const BenchSamples samples = bench.measure(test, {.repetitions = 3});
  EXPECT_EQ(samples.tokens, 6 * 49);
  ASSERT_EQ(samples.ns.size(), 3U);
  const RequestTimes& times = samples.requests;
  ASSERT_EQ(times.prompt_ns.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(times.prompt_ns[i] + times.generation_ns[i], samples.ns[i]);
    EXPECT_NEAR(times.prompt_rates[i] * static_cast<double>(times.prompt_ns[i]) / 1e9, 6 * 40, 1e-6);
    const double generated = times.generation_rates[i] * static_cast<double>(times.generation_ns[i]) / 1e9;
    EXPECT_LE(generated, 6 * 8 + 1e-6);  // the prompts give the first tokens
    EXPECT_GT(generated, 0);
  }
  EXPECT_EQ(times.first_ns.size(), 3U * 6);
  EXPECT_EQ(times.between_ns.size(), 3U * 6 * 8);
  EXPECT_THAT(times.first_ns, Each(Gt(0)));
  EXPECT_THAT(times.between_ns, Each(Gt(0)));
  EXPECT_EQ(*std::max_element(times.first_ns.begin(), times.first_ns.end()),
            *std::max_element(times.prompt_ns.begin(), times.prompt_ns.end()));
  EXPECT_EQ(times.preemptions, 0);
}

TEST(ParallelBench, RequestsShareNoPrompt) {
  Deployment deployment = deployment_for(6 * 64, 6);
  ParallelBench bench(deployment, 64);
  bench.measure({.prompt = 40, .generate = 9, .parallel = 6}, {.repetitions = 2});
  bench.measure({.prompt = 40, .generate = 2, .parallel = 3}, {.repetitions = 2, .warmup = false});
  const models::EngineStats stats = bench.engine().stats();
  EXPECT_EQ(stats.cached_tokens, 0);
  EXPECT_EQ(stats.prompt_tokens, (3 * 6 + 2 * 3) * 40);
  EXPECT_EQ(stats.generated_tokens, 6 * (4 + 2 * 9) + 3 * 2 * 2);
}

class AtDepth : public ::testing::TestWithParam<const char*> {};

// Models with recurrent layers or windows also continue from the depth.
TEST_P(AtDepth, TheCacheContainsTheDepth) {
  const BenchTest test{.prompt = 40, .generate = 3, .depth = 64, .parallel = 4};
  Deployment deployment = deployment_for(4 * 128, 4, GetParam());
  ParallelBench bench(deployment, 64);
  const BenchSamples samples = bench.measure(test, {.repetitions = 3});
  EXPECT_EQ(samples.requests.preemptions, 0);
  EXPECT_EQ(bench.engine().stats().cached_tokens, (1 + 3) * 4 * 64);
  EXPECT_EQ(samples.tokens, 4 * 43);
}

INSTANTIATE_TEST_SUITE_P(Models, AtDepth,
                         ::testing::Values(SHOAL_SOURCE_DIR "/data/models/tiny-kjv-5m-q8_0.gguf",
                                           SHOAL_REFERENCE_MODELS "/gemma3.gguf",
                                           SHOAL_REFERENCE_MODELS "/qwen3next.gguf"));

TEST(ParallelBench, CountsRequestsThatLoseTheirMemory) {
  Deployment deployment = deployment_for(128, 4);
  ParallelBench bench(deployment, 64);
  const BenchSamples samples = bench.measure({.prompt = 16, .generate = 60, .parallel = 4}, {.repetitions = 1});
  EXPECT_GT(samples.requests.preemptions, 0);
  EXPECT_EQ(samples.requests.first_ns.size(), 4U);
  EXPECT_EQ(samples.requests.between_ns.size(), 4U * 59);
}

TEST(ParallelBench, RefusesRequestsThatExceedTheCache) {
  Deployment deployment = deployment_for(64, 2);
  ParallelBench bench(deployment, 64);
  EXPECT_THAT([&] { bench.measure({.prompt = 60, .generate = 5, .parallel = 2}, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("np2 pp60 tg5: each request needs 65 tokens, but the cache has "
                                                       "only 64; use a larger context (-c)")));
}

TEST(ParallelBench, OtherBatchesNeedAnEngineOfTheirOwn) {
  Deployment deployment = deployment_for(4 * 64, 4);
  {
    ParallelBench bench(deployment, 8);
    EXPECT_EQ(bench.batch(), 8);
    EXPECT_EQ(bench.measure({.prompt = 40, .generate = 2, .parallel = 4}, {.repetitions = 1}).ns.size(), 1U);
  }
  ASSERT_NE(deployment.plan, nullptr) << "the plan is for batches of 64 tokens";
  ParallelBench bench(deployment, 64);
  EXPECT_EQ(deployment.plan, nullptr);
  EXPECT_EQ(bench.measure({.prompt = 40, .generate = 2, .parallel = 4}, {.repetitions = 1}).ns.size(), 1U);
}

TEST(ParallelBench, StopCallbackEndsMeasurementWithinStep) {
  Deployment deployment = deployment_for(4 * 64, 4);
  ParallelBench bench(deployment, 64);
  std::atomic<int> asked{0};
  EXPECT_THROW(
      bench.measure({.prompt = 40, .generate = 9, .parallel = 4}, {.repetitions = 1000}, [&] { return ++asked > 30; }),
      Interrupted);
  EXPECT_LT(asked, 40);
}

TEST(RequestProgram, MarkdownHasRatesAndTimes) {
  const std::vector<std::string> rows = lines(output("-np 1,4 -p 16 -n 4 -d 0,32 -r 2"));
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_THAT(cells(rows[0]), ElementsAre("model", "size", "params", "devices", "ts", "test", "S_PP t/s", "S_TG t/s",
                                          "S t/s", "TTFT p50 ms", "p99", "ITL p50 ms", "p99"));
  std::vector<std::string> tests;
  for (size_t i = 2; i < rows.size(); ++i) {
    const std::vector<std::string> row = cells(rows[i]);
    ASSERT_EQ(row.size(), 13U);
    tests.push_back(row[5]);
    for (const size_t rate : {6, 7}) EXPECT_THAT(row[rate], ContainsRegex("^[0-9]+[.][0-9][0-9]$"));
    EXPECT_THAT(row[8], ContainsRegex("^[0-9]+[.][0-9][0-9] ± [0-9]+[.][0-9][0-9]$"));
    for (size_t time = 9; time < 13; ++time) EXPECT_THAT(row[time], ContainsRegex("^[0-9]+[.][0-9]$"));
    EXPECT_EQ(rows[i].size(), rows[0].size() + 1) << "the plus-minus sign has two bytes";
  }
  EXPECT_THAT(tests, ElementsAre("np1 pp16 tg4", "np4 pp16 tg4", "np1 pp16 tg4 @ d32", "np4 pp16 tg4 @ d32"));
}

TEST(RequestProgram, JsonHasFieldsOfLlamaBatchedBench) {
  for (const std::string format : {"json", "jsonl"}) {
    const std::string text = output("-np 4 -p 16 -n 4 -r 3 -t 1 -o " + format);
    const json parsed = json::parse(text, nullptr, false);
    const json& result = format == "json" ? parsed.at(0) : parsed;
    EXPECT_EQ(result["test"], "np4 pp16 tg4");
    EXPECT_EQ(result["n_parallel"], 4);
    EXPECT_EQ(result["n_prompt"], 16);
    EXPECT_EQ(result["n_gen"], 4);
    EXPECT_EQ(result["candidates"], 40);
    EXPECT_EQ(result["preemptions"], 0);
    EXPECT_NEAR(result["t_pp"].get<double>() + result["t_tg"].get<double>(), result["t"].get<double>(), 1e-8);
    EXPECT_NEAR(result["t"].get<double>(), result["avg_ns"].get<double>() / 1e9, 1e-8);
    EXPECT_EQ(result["speed"], result["avg_ts"]);
    for (const std::string key : {"pp", "tg"}) {
      const auto samples = result[fmt::format("samples_{}_ts", key)].get<std::vector<double>>();
      ASSERT_EQ(samples.size(), 3U);
      EXPECT_NEAR(result[fmt::format("speed_{}", key)].get<double>(),
                  std::accumulate(samples.begin(), samples.end(), 0.0) / 3, 1e-6);
    }
    EXPECT_GT(result["ttft_p50_ns"], 0);
    EXPECT_GE(result["ttft_p99_ns"], result["ttft_p50_ns"]);
    EXPECT_GT(result["itl_p50_ns"], 0);
    EXPECT_GE(result["itl_p99_ns"], result["itl_p50_ns"]);
  }
}

// The prompt gives the only token of each answer.
TEST(RequestProgram, SingleTokensHaveNoGenerationPhase) {
  const json result = json::parse(output("-np 2 -p 16 -n 1 -r 1 -o json"), nullptr, false).at(0);
  EXPECT_EQ(result["speed_tg"], 0);
  EXPECT_TRUE(result["itl_p50_ns"].is_null());
  const std::vector<std::string> rows = lines(output("-np 2 -p 16 -n 1 -r 1"));
  EXPECT_EQ(cells(rows[2])[7], "-");
  EXPECT_EQ(cells(rows[2])[11], "-");
}

TEST(RequestProgram, OtherTestsHaveNoFieldsOfRequests) {
  const json result = json::parse(output("-p 16 -n 0 -r 1 -o json"), nullptr, false).at(0);
  EXPECT_EQ(result["n_parallel"], 0);
  for (const char* key : {"t_pp", "speed_tg", "ttft_p50_ns", "preemptions"}) EXPECT_FALSE(result.contains(key)) << key;
}

TEST(RequestProgram, SweepsBatchesDevicesAndRatios) {
  const std::string text = output("-np 2,4 -ub 16,64 -dev CPU0;CPU0,CPU1 -ts 3,1 -p 24 -n 3 -r 1 --no-warmup -o jsonl");
  std::vector<std::string> found;
  for (const std::string& line : lines(text)) {
    const json one = json::parse(line, nullptr, false);
    ASSERT_FALSE(one.is_discarded()) << line;
    found.push_back(fmt::format("{} {} ub{}", one["devices"].get<std::string>(), one["test"].get<std::string>(),
                                one["n_ubatch"].get<int64_t>()));
  }
  EXPECT_THAT(found, ElementsAre("CPU0 np2 pp24 tg3 ub16", "CPU0 np4 pp24 tg3 ub16", "CPU0 np2 pp24 tg3 ub64",
                                 "CPU0 np4 pp24 tg3 ub64", "CPU0,CPU1 np2 pp24 tg3 ub16", "CPU0,CPU1 np4 pp24 tg3 ub16",
                                 "CPU0,CPU1 np2 pp24 tg3 ub64", "CPU0,CPU1 np4 pp24 tg3 ub64"));
}

TEST(RequestProgram, SmallContextIsShared) {
  const json result = json::parse(output("-np 4 -c 128 -p 16 -n 60 -r 1 -o json"), nullptr, false).at(0);
  EXPECT_GT(result["preemptions"], 0);
}

TEST(RequestProgram, LongTextsOfAllRequestsGiveNoWarning) {
  output("-np 8 -p 200 -n 2 -r 1");  // 1632 tokens in the cache, but the model was trained for 512
  const Finished finished = run(bench_args("-np 2 -p 600 -n 2 -r 1"));
  EXPECT_THAT(finished.err, HasSubstr("warning: a context of 602 exceeds the 512 tokens"));
}

TEST(RequestProgram, HostMaySample) {
  const json result = json::parse(output("-np 2 -p 4 -n 2 -r 1 -o json --sample-on-host"), nullptr, false).at(0);
  EXPECT_EQ(result["candidates"], 0);
}

TEST(RequestProgram, BadInputGivesAOneLineError) {
  const auto expect = [](const std::string& args, int code, const std::string& message) {
    const Finished finished = run(bench_args(args));
    EXPECT_EQ(finished.code, code) << args;
    EXPECT_EQ(finished.out, "") << args;
    EXPECT_THAT(finished.err, StartsWith("shoal: error: "));
    EXPECT_THAT(finished.err, HasSubstr(message));
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  };
  for (const char* value : {"0", "-1", "x", "1,", "1;2", "99999999999"}) {
    expect(fmt::format("-np {}", value), 2, "--parallel must be a whole number from 1 to 2147483647");
  }
  expect(
      "-np 600", 2,
      "np600 pp512 tg128: a batch of 512 tokens has at most 512 requests; use a larger -b and -ub, or a smaller -np");
  expect("-np 8 -b 4", 2, "np8 pp512 tg128: a batch of 4 tokens has at most 4 requests");
  expect("-np 8 -p 0", 2, "with -np, each request has a prompt and an answer; use -p and -n above 0");
  expect("-np 8 -n 8,0", 2, "with -np, each request has a prompt and an answer");
  expect("-np 8 -c 100 -p 90 -n 11", 2, "np8 pp90 tg11: a sequence has 101 tokens, but the context of -c has 100");
  expect("-np 8 -c 4 -p 1 -n 1", 2, "np8 pp1 tg1: the context of -c has only 4 tokens for 8 requests");
  expect("-np 8 -p 2147483647 -n 1", 2, "np8 pp2147483647 tg1: a sequence has at most 2147483647 positions");
  expect("-np 8 -p 1147483647 -n 1", 2, "np8 pp1147483647 tg1: a cache has at most 2147483647 positions");
}

TEST(RequestProgram, ChecksMemoryBeforeLoading) {
  const Finished finished = run(bench_args("-np 512 -p 2000000 -n 1"));
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_THAT(finished.err, HasSubstr("shoal: error: CPU0 needs "));
}

}  // namespace
}  // namespace shoal::tools
