// Tests of commands, each in a child process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Sends the signal during a run, and returns the JSON output. `evaluated` names a token count in "timings", which must
/// be above 0.
json interrupted_json(std::vector<std::string> args, int signal, const char* evaluated) {
  args.insert(args.end(), {"--output", "json"});
  const Finished ended = run_interrupted(args, signal, [evaluated](const Finished& run) {
    const json result = json::parse(run.out, nullptr, false);
    return result.is_object() && result["timings"][evaluated] > 0;
  });
  EXPECT_EQ(ended.code, 128 + signal);
  EXPECT_FALSE(ended.killed);
  return json::parse(ended.out, nullptr, false);
}

TEST(Run, PrintsTextAndTimings) {
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

TEST(Run, AcceptsTokenIdsInsteadOfText) {
  json text = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "8", "--temp", "0"});
  json ids = run_json({"run", "-m", kModel, "--prompt-tokens", "1,527,261,345,340,290", "-n", "8", "--temp", "0"});
  EXPECT_EQ(text["tokens"], ids["tokens"]);
}

TEST(Run, SameSeedGivesSameText) {
  auto sampled = [](const char* seed) {
    return run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "40", "--temp", "1.5", "--seed", seed, "--top-k", "0"});
  };
  json first = sampled("7");
  EXPECT_EQ(first["seed"], 7);
  EXPECT_EQ(first["tokens"], sampled("7")["tokens"]);
  EXPECT_NE(first["tokens"], sampled("8")["tokens"]);
}

TEST(Run, DeviceSamplingGivesSameTokensAsHostSampling) {
  for (const auto& [names, ratio] : {std::pair("CPU0", "1"), {"CPU0,CPU1", "1,1"}, {"CPU0,CPU1,CPU2", "5,0,2"}}) {
    for (const auto& [temp, listed] : {std::pair("0", "0"), {"1.5", "3"}, {"1.5", "50"}}) {
      std::vector<std::string> args{"run", "-m",  kModel,   "-p", kPrompt,  "-n", "30",           "-dev", names,
                                    "-ts", ratio, "--temp", temp, "--seed", "7",  "--top-logits", listed};
      json on_devices = run_json(args);
      args.push_back("--sample-on-host");
      json on_host = run_json(args);
      EXPECT_EQ(on_devices["tokens"], on_host["tokens"]) << names << " " << temp;
      EXPECT_EQ(on_devices["top_logits"], on_host["top_logits"]) << names << " " << listed;
    }
  }
}

TEST(Run, ReportsTheRandomSeed) {
  json first = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "20", "--temp", "1.5"});
  json again = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "20", "--temp", "1.5", "--seed",
                         std::to_string(first["seed"].get<uint64_t>())});
  EXPECT_EQ(first["tokens"], again["tokens"]);
}

TEST(Run, SeedMinusOneIsRandom) {
  auto seed = [] {
    return run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "1", "--seed", "-1"})["seed"].get<uint64_t>();
  };
  EXPECT_NE(seed(), seed());
}

TEST(Run, ReadsCountsAsDecimal) {
  EXPECT_EQ(run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "010", "--ignore-eos"})["tokens"].size(), 10u);
}

TEST(Run, ValuesMayLookLikeFlags) {
  json prompt = run_json({"tokenize", "-m", kModel, "-p", "-ts"});
  EXPECT_EQ(prompt["prompt"], "-ts");
  EXPECT_EQ(prompt["tokens"], json({1, 952, 1022, 954, 959}));
  json empty = run_json({"run", "-m", kModel, "--prompt=", "--ignore-eos", "-n", "3", "--temp", "0"});
  EXPECT_EQ(empty["prompt_tokens"], json({1}));
  EXPECT_EQ(empty["tokens"].size(), 3u);
}

TEST(Run, IgnoresBlanksInLists) {
  json result = run_json({"run", "-m", kModel, "--prompt-tokens", "1, 527 ,261", "-n", "0", "-dev", "CPU0, CPU2"});
  EXPECT_EQ(result["prompt_tokens"], json({1, 527, 261}));
  EXPECT_EQ(result["devices"], json({"CPU0", "CPU2"}));
}

TEST(Run, AcceptsHugeShares) {
  EXPECT_EQ(run({"run", "-m", kModel, "-p", "x", "-n", "1", "-dev", "CPU0,CPU1", "-ts", "1e308,1e308"}).code, 0);
}

TEST(Run, PrintsTopLogits) {
  Finished finished = run({"run", "-m", kModel, "-p", kPrompt, "-n", "2", "--temp", "0", "--top-logits", "2"});
  EXPECT_EQ(finished.out, " the heaven\n");
  EXPECT_THAT(finished.err, ::testing::ContainsRegex("6\\.[0-9]+ +261  \u2581the\n"));
}

TEST(Run, WarnsOfContextBeyondTraining) {
  Finished larger = run({"run", "-m", kModel, "-p", "x", "-n", "1", "-c", "513"});
  EXPECT_EQ(larger.code, 0);
  EXPECT_THAT(larger.err, HasSubstr("shoal: warning: a context of 513 exceeds the 512 tokens that the model"));
  EXPECT_THAT(run({"run", "-m", kModel, "-p", "x", "-n", "1", "-c", "512"}).err, Not(HasSubstr("warning")));
}

TEST(Run, TimingsCountOnlyComputedTokens) {
  json result = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "5", "--ignore-eos", "-ub", "4"});
  EXPECT_EQ(result["timings"]["prompt_evaluated"], 6);
  // The first of the five tokens is sampled from the logits of the prompt.
  EXPECT_EQ(result["timings"]["generation_evaluated"], 4);
  // The next run evaluates a long prompt token by token, and a signal interrupts the run.
  std::string ids = "1";
  for (int i = 1; i < 20000; ++i) ids += ",261";
  json ended = interrupted_json({"run", "-m", kModel, "--prompt-tokens", ids, "-ub", "1", "-c", "20000"}, SIGINT,
                                "prompt_evaluated");
  EXPECT_EQ(ended["stop"], "interrupted");
  EXPECT_GT(ended["timings"]["prompt_evaluated"], 0);
  EXPECT_LT(ended["timings"]["prompt_evaluated"], 20000);
  EXPECT_EQ(ended["timings"]["generation_evaluated"], 0);
}

TEST(Run, GuessesDoNotChangeTheText) {
  for (const std::string& model : {std::string(kModel), std::string(SHOAL_REFERENCE_MODELS "/qwen35.gguf")}) {
    std::vector<std::string> args{
        "run", "-m", model, "--prompt-tokens", "5,6,7,8,5,6,7", "-n", "40", "--temp", "0", "--ignore-eos", "-c", "128"};
    const json plain = run_json(args);
    args.insert(args.end(), {"--draft", "8"});
    EXPECT_EQ(run_json(args)["tokens"], plain["tokens"]) << model;
    EXPECT_EQ(plain["tokens"].size(), 40u);
  }
}

TEST(Run, StopsWhenTheContextIsFull) {
  json result = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "-1", "-c", "10", "--temp", "0", "--ignore-eos"});
  EXPECT_EQ(result["context"], 10);
  EXPECT_EQ(result["stop"], "context");
  // The context holds 6 prompt tokens and 4 generated tokens. The fifth generated token comes from the last logits.
  EXPECT_EQ(result["tokens"].size(), 5u);
}

TEST(Run, ReportsTheStopReason) {
  const auto err = [](const std::vector<std::string>& more) {
    std::vector<std::string> args{"run", "-m", kModel, "-p", kPrompt, "--temp", "0"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args).err;
  };
  EXPECT_THAT(err({"-n", "9", "-c", "6", "--ignore-eos"}),
              HasSubstr("; generated 1 token; stopped: the context of 6 tokens is full (-c)\n"));
  EXPECT_THAT(err({"-n", "-1", "-c", "10", "--ignore-eos"}), HasSubstr("; stopped: the context of 10 tokens is full"));
  EXPECT_THAT(err({"-n", "1"}), ::testing::EndsWith("; generated 1 token\n"));
  EXPECT_THAT(err({"-n", "4"}), Not(HasSubstr("stopped")));
}

TEST(Run, StopsBeforeAStopText) {
  const std::vector<std::string> args{"run", "-m", kModel, "-p", kPrompt, "-n", "40", "--temp", "0"};
  const std::string whole = run_json(args)["text"];
  ASSERT_GT(whole.size(), 30u);
  const std::string stop = whole.substr(20, 5), expected = whole.substr(0, whole.find(stop));
  std::vector<std::string> stopped = args;
  stopped.insert(stopped.end(), {"--stop", "not in it", "--stop", stop});
  const json found = run_json(stopped);
  EXPECT_EQ(found["text"], expected);
  EXPECT_EQ(found["stop"], "stop_text");
  const Finished text = run(stopped);
  EXPECT_EQ(text.out, expected + "\n");
  EXPECT_THAT(text.err, HasSubstr("; stopped: stop text"));
  // If the generated text ends with the first characters of a stop text, these characters are also printed.
  stopped.back() = whole.substr(whole.size() - 3) + "and more";
  EXPECT_EQ(run_json(stopped)["text"], whole);
}

TEST(Run, PenaltiesAndBiasesChangeTheText) {
  const std::vector<std::string> args{"run", "-m", kModel, "-p", kPrompt, "-n", "40", "--temp", "0"};
  const auto tokens = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = args;
    all.insert(all.end(), more.begin(), more.end());
    return run_json(all)["tokens"].get<std::vector<int32_t>>();
  };
  const std::vector<int32_t> usual = tokens({});
  const std::string first = std::to_string(usual[0]);
  EXPECT_NE(tokens({"--logit-bias", first + "=-1e9"})[0], usual[0]);
  const std::vector<int32_t> biased = tokens({"--logit-bias", first + "=100"});
  EXPECT_EQ(std::count(biased.begin(), biased.end(), usual[0]), 40);
  for (const std::vector<std::string>& penalty : std::vector<std::vector<std::string>>{
           {"--presence-penalty", "100"}, {"--frequency-penalty", "100", "--penalty-last-n", "-1"}}) {
    std::vector<int32_t> all = tokens(penalty);  // no token repeats within the range of the penalty
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
    EXPECT_EQ(all.size(), 40u);
  }
  EXPECT_EQ(tokens({"--presence-penalty", "3"}), tokens({"--presence-penalty", "3", "--sample-on-host"}));
  EXPECT_EQ(run({"run", "-m", kModel, "-p", "a", "--stop", ""}).code, 2);
}

TEST(Run, GeneratesNothingForZeroTokens) {
  json result = run_json({"run", "-m", kModel, "-p", kPrompt, "-n", "0", "--top-logits", "1"});
  EXPECT_EQ(result["tokens"].size(), 0u);
  EXPECT_EQ(result["text"], "");
  EXPECT_EQ(result["top_logits"][0][0], 261);
}

TEST(Run, AcceptsLlamaCppFlags) {
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

TEST(Run, ExitsCleanlyOnCtrlC) {
  // With -n -1 and a large context, the run still generates tokens when the signal arrives.
  Child child({"run", "-m", kModel, "-p", kPrompt, "-n", "-1", "-c", "200000", "--ignore-eos"});
  for (int i = 0; i < 600 && child.out().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_FALSE(child.killed());
  EXPECT_TRUE(child.out().ends_with("\n"));
  EXPECT_THAT(child.err(), HasSubstr("tokens/s"));
}

TEST(Run, ExitsCleanlyOnSigterm) {
  json result = interrupted_json({"run", "-m", kModel, "-p", kPrompt, "-n", "-1", "-c", "50000", "--ignore-eos"},
                                 SIGTERM, "generation_evaluated");
  EXPECT_EQ(result["stop"], "interrupted");
  EXPECT_GT(result["tokens"].size(), 0u);
}

TEST(Run, KeepsIgnoredSignalsIgnored) {
  // 600 tokens take long enough for the signal to arrive during the run.
  Child child({"run", "-m", kModel, "-p", kPrompt, "-n", "600", "-c", "1000", "--ignore-eos"},
              {.ignores_interrupts = true});
  for (int i = 0; i < 600 && child.out().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(child.err(), HasSubstr("generated 600 tokens"));
}

TEST(Run, CreatesCpuDevicesNamedInDeviceList) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "this test needs several cores";
  for (std::optional<std::string> count : {std::optional<std::string>(), {"0"}, {""}}) {
    Finished finished = run({"run", "-m", kModel, "-p", "x", "-n", "1", "-dev", "CPU0,CPU1"}, {.cpu_devices = count});
    EXPECT_EQ(finished.code, 0) << count.value_or("unset") << ": " << finished.err;
  }
}

TEST(Tokenize, RoundTripsWithDetokenize) {
  json tokens = run_json({"tokenize", "-m", kModel, "-p", kPrompt});
  EXPECT_EQ(tokens["tokens"], json({1, 527, 261, 345, 340, 290}));
  EXPECT_EQ(tokens["pieces"][1], "\u2581But");
  json text = run_json({"detokenize", "-m", kModel, "--ids", "1,527,261,345,340,290"});
  EXPECT_EQ(text["text"], kPrompt);
  EXPECT_EQ(run({"detokenize", "-m", kModel, "--ids", "1,527,261,345,340,290"}).out, std::string(kPrompt) + "\n");
  EXPECT_EQ(run_json({"detokenize", "-m", kModel, "--ids", ""})["text"], "");
}

TEST(Devices, ListsMemoryAndCapabilities) {
  json devices = run_json({"devices"})["devices"];
  ASSERT_EQ(devices.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(devices[i]["name"], "CPU" + std::to_string(i));
    EXPECT_EQ(devices[i]["type"], "CPU");
    EXPECT_GT(devices[i]["memory"]["free"].get<size_t>(), 0u);
    EXPECT_THAT(devices[i]["caps"], ::testing::Contains("async"));
  }
  EXPECT_THAT(run({"devices"}).out, HasSubstr("CPU3"));
}

TEST(Devices, ListsFeaturesOfBackendFamilies) {
  json families = run_json({"devices"})["families"];
  ASSERT_GE(families.size(), 1u);
  EXPECT_EQ(families[0]["name"], "CPU");
  EXPECT_EQ(families[0]["plugin"], "");
  json features = families[0]["features"];
  EXPECT_THAT(features["isa_usable"].get<std::string>(), HasSubstr(features["isa"].get<std::string>()));
  EXPECT_THAT(run({"devices"}).out, HasSubstr("CPU: isa=" + features["isa"].get<std::string>() + " "));
}

TEST(Devices, ReportsTheReasonForMissingGpus) {
  const Finished version = run({"--version"}), devices = run({"devices"});
  const std::string cuda = version.out.substr(version.out.find("\nCUDA: "));
  if (!cuda.starts_with("\nCUDA: no, ")) GTEST_SKIP() << "this machine has CUDA";
  EXPECT_THAT(devices.out, HasSubstr(cuda));
}

TEST(Devices, UnusablePluginFromFlagIsAnError) {
  Finished finished = run({"devices", "--plugin", kModel});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, HasSubstr("shoal: error: [plug-in "));
  EXPECT_THAT(finished.err, HasSubstr("the file is not a shared object"));
  EXPECT_EQ(run({"run", "-m", kModel, "-p", "In", "-n", "1", "--plugin", "not/there.so"}).code, 1);
}

TEST(Devices, UnusablePluginInSearchPathIsListed) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "libshoal-text.so") << "text";
  setenv("SHOAL_PLUGIN_PATH", folder.path().c_str(), 1);
  json skipped = run_json({"devices"})["skipped_plugins"];
  Finished text = run({"devices"});
  unsetenv("SHOAL_PLUGIN_PATH");
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_THAT(skipped[0]["file"].get<std::string>(), HasSubstr("libshoal-text.so"));
  EXPECT_THAT(skipped[0]["reason"].get<std::string>(), HasSubstr("not a shared object"));
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("libshoal-text.so: the file is not a shared object"));
}

TEST(Plan, PrintsLayoutsCollectivesAndMemory) {
  json plan = run_json({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", "3,1", "-c", "128"});
  EXPECT_EQ(plan["context"], 128);
  // The devices select the 40 best of 1024 tokens. Each device sends 40 logits and 40 token ids.
  EXPECT_EQ(plan["collectives_per_token"]["counts"], json({{"all_reduce", 12}, {"all_gather", 1}}));
  EXPECT_EQ(plan["collectives_per_token"]["bytes"], 12 * 1024 + 2 * 40 * 8);
  bool found = false;
  for (const json& tensor : plan["tensors"]) {
    if (tensor["name"] != "blk.2.attn_q.weight") continue;
    found = true;
    EXPECT_EQ(tensor["layout"], "split 1 [192:{0} 64:{1}]");
  }
  EXPECT_TRUE(found);
  // Each of the 6 layers has keys and values in f16. Their shape is [32, 128, 3] on the first device and [32, 128, 1]
  // on the second device.
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
  EXPECT_THAT(text, Not(HasSubstr("does not fit")));
  EXPECT_EQ(plan["fits"], true);
}

TEST(Plan, TrafficDependsOnSamplingFlags) {
  const auto traffic = [](std::vector<std::string> more) {
    std::vector<std::string> args{"plan", "-m", kModel, "-dev", "CPU0,CPU1"};
    args.insert(args.end(), more.begin(), more.end());
    return run_json(args)["collectives_per_token"];
  };
  EXPECT_EQ(traffic({"--sample-on-host"})["counts"], json({{"all_reduce", 12}}));
  EXPECT_EQ(traffic({"--sample-on-host"})["bytes"], 12 * 1024);
  EXPECT_EQ(traffic({"--top-k", "0"})["bytes"], 12 * 1024);
  EXPECT_EQ(traffic({"--top-k", "5"})["bytes"], 12 * 1024 + 2 * 5 * 8);
  const std::string text = run({"plan", "-m", kModel, "-dev", "CPU0,CPU1"}).out;
  EXPECT_THAT(text, HasSubstr("all_gather      candidates.candidates  f32 x 160  640 bytes"));
}

TEST(Plan, RankFlagPrintsTheLocalGraph) {
  std::vector<std::string> args{"plan", "-m", kModel, "-dev", "CPU0,CPU1"};
  std::string without = run(args).out;
  args.insert(args.end(), {"--rank", "1"});
  std::string local = run_json(args)["local_graph"];
  EXPECT_THAT(local, HasSubstr("blk.0.q"));
  EXPECT_THAT(run(args).out, HasSubstr(local));
  EXPECT_THAT(without, Not(HasSubstr(local)));
}

TEST(Plan, ReportsDevicesWithTooLittleMemory) {
  std::vector<std::string> args{"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-ts", "1,0", "-c", "2000000000"};
  Finished text = run(args);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("does not fit: CPU0 would need more memory than is free"));
  EXPECT_THAT(text.err, HasSubstr("warning: a context of 2000000000"));
  EXPECT_EQ(run_json(args)["fits"], false);
}

TEST(Plan, ScratchMemoryDependsOnThreads) {
  auto compute = [](const char* threads) -> int64_t {
    return run_json({"plan", "-m", kModel, "-dev", "CPU0,CPU1", "-t", threads})["memory"][0]["compute"];
  };
  EXPECT_GT(compute("16"), compute("1"));
}

TEST(Plan, OneDeviceHasNoCollectives) {
  json plan = run_json({"plan", "-m", kModel});
  EXPECT_EQ(plan["collectives_per_token"]["bytes"], 0);
  EXPECT_EQ(plan["memory"][0]["communication"], 0);
}

TEST(Compare, FailsOnlyIfErrorExceedsThreshold) {
  json result = run_json({"compare", "-m", kModel, "-dev", "CPU0,CPU1,CPU2", "-ts", "5,0,2"});
  std::map<std::string, int> nodes, caches;
  for (const json& node : result["nodes"]) {
    ++(node["op"] == "cache" ? caches : nodes)[node["step"]];
    EXPECT_NE(node["op"], "set_rows");  // the comparison lists caches instead of set_rows nodes
  }
  EXPECT_GT(nodes["prompt"], 100);
  EXPECT_EQ(nodes["prompt"], nodes["token"]);
  EXPECT_EQ(caches, (std::map<std::string, int>{{"prompt", 12}, {"token", 12}}));
  EXPECT_LE(result["worst"]["nmse"].get<double>(), 1e-3);
  EXPECT_GT(result["worst"]["nmse"].get<double>(), 0.0);
  Finished strict = run({"compare", "-m", kModel, "-dev", "CPU0,CPU1,CPU2", "-ts", "5,0,2", "--threshold", "0"});
  EXPECT_EQ(strict.code, 1);
  EXPECT_THAT(strict.out, HasSubstr("worst: "));
  EXPECT_THAT(strict.err, HasSubstr("--threshold"));
}

TEST(Compare, SupportsQuantisedCaches) {
  json result = run_json({"compare", "-m", kModel, "-dev", "CPU0,CPU1", "-ctk", "q8_0", "-ctv", "q8_0"});
  EXPECT_LE(result["worst"]["nmse"].get<double>(), 1e-4);
}

}  // namespace
}  // namespace shoal::tools
