// The commands, run as users run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kPrompt = "But the LORD is in";

json run_json(std::vector<std::string> args) {
  args.insert(args.end(), {"--output", "json"});
  Finished finished = run(args);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return json::parse(finished.out);
}

TEST(Run, PrintsTheTextAndHowLongItTook) {
  Finished finished = run({"run", "-m", kModel, "-p", kPrompt, "-n", "12", "--temp", "0"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.out, " the heavens, and in the earth is filled\n");
  EXPECT_THAT(finished.err, HasSubstr("prompt 6 tokens"));
  EXPECT_THAT(finished.err, HasSubstr("generated 12 tokens"));
}

TEST(Run, JsonHasTokensTextTimingsAndLogits) {
  json result = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "5", "--temp", "0", "--top-logits", "3", "-dev",
                          "CPU0,CPU1", "-ts", "3,1"});
  EXPECT_EQ(result["prompt_tokens"], json({1, 527, 261, 345, 340, 290}));
  EXPECT_EQ(result["tokens"], json({261, 743, 959, 967, 270}));
  EXPECT_EQ(result["text"], " the heavens, and");
  EXPECT_EQ(result["devices"], json({"CPU0", "CPU1"}));
  EXPECT_EQ(result["stop"], "count");
  ASSERT_EQ(result["top_logits"].size(), 3u);
  EXPECT_EQ(result["top_logits"][0][0], 261);
  EXPECT_NEAR(result["top_logits"][0][1].get<double>(), 6.5048, 0.25);
  for (const char* key : {"load_ms", "prompt_tokens_per_second", "generation_tokens_per_second"}) {
    EXPECT_GT(result["timings"][key].get<double>(), 0.0) << key;
  }
}

TEST(Run, TakesTokensInsteadOfText) {
  json text = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "8", "--temp", "0"});
  json ids = run_json({"run", "-m", kModel, "--prompt-tokens", "1,527,261,345,340,290", "-n", "8", "--temp", "0"});
  EXPECT_EQ(text["tokens"], ids["tokens"]);
}

TEST(Run, SameSeedSameText) {
  auto sampled = [](const char* seed) {
    return run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "40", "--temp", "1.5", "--seed", seed, "--top-k", "0"});
  };
  json first = sampled("7");
  EXPECT_EQ(first["seed"], 7);
  EXPECT_EQ(first["tokens"], sampled("7")["tokens"]);
  EXPECT_NE(first["tokens"], sampled("8")["tokens"]);
}

TEST(Run, WithoutASeedReportsTheOneItTook) {
  json first = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "20", "--temp", "1.5"});
  json again = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "20", "--temp", "1.5", "--seed",
                         std::to_string(first["seed"].get<uint64_t>())});
  EXPECT_EQ(first["tokens"], again["tokens"]);
}

TEST(Run, StopsWhenTheContextIsFull) {
  json result = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "-1", "-c", "10", "--temp", "0", "--ignore-eos"});
  EXPECT_EQ(result["context"], 10);
  EXPECT_EQ(result["stop"], "context");
  // 6 of the prompt and 4 more fit; the fifth comes from the logits of the last.
  EXPECT_EQ(result["tokens"].size(), 5u);
}

TEST(Run, GeneratesNothingWhenAskedTo) {
  json result = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "0", "--top-logits", "1"});
  EXPECT_EQ(result["tokens"].size(), 0u);
  EXPECT_EQ(result["text"], "");
  EXPECT_EQ(result["top_logits"][0][0], 261);
}

TEST(Run, FlagsOfTheFieldWork) {
  for (const char* flags : {"-dev CPU1,CPU2 -ts 1,2 -c 64 -t 1 -n 4 -ub 2 -ctk q8_0 -ctv f32",
                            "--devices CPU1,CPU2 --tensor-split 1,2 --ctx-size 64 --threads 1 --predict 4 "
                            "--ubatch-size 2 --cache-type-k q8_0 --cache-type-v f32",
                            "-dev=cpu1,cpu2 -ts=1,2 -c64 -t1 -n4 -ub=2 -ctk=q8_0 -ctv=f32"}) {
    std::vector<std::string> args{"run", "-m", kModel, "-p", kPrompt, "--temp", "0"};
    for (const std::string& word : words(flags)) args.push_back(word);
    json result = run_json(args);
    EXPECT_EQ(result["tokens"], json({261, 743, 959, 967})) << flags;
    EXPECT_EQ(result["devices"], json({"CPU1", "CPU2"}));
    EXPECT_EQ(result["context"], 64);
  }
}

TEST(Run, EndsCleanlyOnCtrlC) {
  // Far too many tokens to come to an end by itself.
  Child child({"run", "-m", kModel, "-p", kPrompt, "-n", "-1", "-c", "200000", "--ignore-eos"});
  for (int i = 0; i < 600 && child.out().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  child.interrupt();
  EXPECT_EQ(child.wait(), 130);
  EXPECT_TRUE(child.out().ends_with("\n"));
  EXPECT_THAT(child.err(), HasSubstr("tokens/s"));
}

TEST(Tokenize, GoesBothWays) {
  json tokens = run_json({"tokenize", "-m", kModel, "-p", kPrompt});
  EXPECT_EQ(tokens["tokens"], json({1, 527, 261, 345, 340, 290}));
  EXPECT_EQ(tokens["pieces"][1], "\u2581But");
  json text = run_json({"detokenize", "-m", kModel, "--ids", "1,527,261,345,340,290"});
  EXPECT_EQ(text["text"], kPrompt);
  EXPECT_EQ(run({"detokenize", "-m", kModel, "--ids", "1,527,261,345,340,290"}).out, std::string(kPrompt) + "\n");
}

TEST(Devices, ListsEachWithMemoryAndCaps) {
  json devices = run_json({"devices"});
  ASSERT_EQ(devices.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(devices[i]["name"], "CPU" + std::to_string(i));
    EXPECT_EQ(devices[i]["type"], "CPU");
    EXPECT_GT(devices[i]["memory"]["free"].get<size_t>(), 0u);
    EXPECT_THAT(devices[i]["caps"], ::testing::Contains("async"));
  }
  EXPECT_THAT(run({"devices"}).out, HasSubstr("CPU3"));
}

TEST(Plan, ShowsLayoutsStepsMemoryAndTraffic) {
  json plan = run_json({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", "3,1", "-c", "128"});
  EXPECT_EQ(plan["context"], 128);
  EXPECT_EQ(plan["collectives_per_token"]["counts"], json({{"all_reduce", 12}}));
  EXPECT_EQ(plan["collectives_per_token"]["bytes"], 12 * 1024);
  bool found = false;
  for (const json& tensor : plan["tensors"]) {
    if (tensor["name"] != "blk.2.attn_q.weight") continue;
    found = true;
    EXPECT_EQ(tensor["layout"], "split 1 [192:{0} 64:{1}]");
  }
  EXPECT_TRUE(found);
  // 6 layers of keys and values, f16 [32, 128, 3] and [32, 128, 1].
  EXPECT_EQ(plan["memory"][0]["kv"], 12 * 32 * 128 * 3 * 2);
  EXPECT_EQ(plan["memory"][1]["kv"], 12 * 32 * 128 * 1 * 2);
  for (const json& use : plan["memory"]) {
    size_t sum = 0;
    for (const char* part : {"weights", "kv", "compute", "communication"}) sum += use[part].get<size_t>();
    EXPECT_EQ(use["total"].get<size_t>(), sum);
    EXPECT_GT(use["free"].get<size_t>(), 0u);
  }
  std::string text = run({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", "3,1"}).out;
  EXPECT_THAT(text, HasSubstr("split 1 [192:{0} 64:{1}]"));
  EXPECT_THAT(text, HasSubstr("12 all_reduce"));
  EXPECT_THAT(text, HasSubstr("communication"));
}

TEST(Plan, OfOneDeviceHasNoCollectives) {
  json plan = run_json({"plan", "-m", kModel});
  EXPECT_EQ(plan["collectives_per_token"]["bytes"], 0);
  EXPECT_EQ(plan["memory"][0]["communication"], 0);
}

TEST(Compare, AgreesNodeByNodeAndFailsAboveTheThreshold) {
  json result = run_json({"compare", "-m", kModel, "-dev", "CPU0,CPU1,CPU2", "-ts", "5,0,2"});
  EXPECT_GT(result["nodes"].size(), 100u);
  EXPECT_LE(result["worst"]["nmse"].get<double>(), 1e-4);
  Finished strict = run({"compare", "-m", kModel, "-dev", "CPU0,CPU1,CPU2", "-ts", "5,0,2", "--threshold", "0"});
  EXPECT_EQ(strict.code, 1);
  EXPECT_THAT(strict.out, HasSubstr("worst: "));
  EXPECT_THAT(strict.err, HasSubstr("--threshold"));
}

TEST(Help, OfTheProgramAndOfACommand) {
  Finished help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("tokenize"));
  EXPECT_THAT(run({"run", "--help"}).out, HasSubstr("--tensor-split"));
  EXPECT_THAT(run({"--version"}).out, HasSubstr("shoal 0."));
}

}  // namespace
}  // namespace shoal::tools
