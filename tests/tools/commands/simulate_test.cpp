// Tests of shoal simulate in a child process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/models/hollow_model.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using test::TemporaryFile;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Model files with the shapes of Llama 3 in Q4_K_M, without weights.
struct Simulate : testing::Test {
  static void SetUpTestSuite() {
    small_ = test::temporary("simulate-8b.gguf");
    large_ = test::temporary("simulate-70b.gguf");
    models::HollowModel(32, 4096, 14336, 32, 8, 128256).write(small_);
    models::HollowModel(80, 8192, 28672, 64, 8, 128256).write(large_);
  }
  static void TearDownTestSuite() {
    std::filesystem::remove(small_);
    std::filesystem::remove(large_);
  }
  static json rows(std::vector<std::string> args) {
    args.insert(args.begin(), "simulate");
    args.insert(args.end(), {"-o", "json"});
    const Finished finished = run(args);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out, nullptr, false);
  }
  /// Predicted generation speed in tokens per second. The key is the number of devices.
  static std::map<int64_t, double> generation(const std::string& model, const std::string& machine,
                                              const std::string& counts) {
    std::map<int64_t, double> rates;
    for (const json& row : rows({"-m", model, "--machine", machine, "-p", "0", "--device-counts", counts})) {
      rates[static_cast<int64_t>(row["memory"].size())] = row["avg_ts"].is_null() ? 0 : row["avg_ts"].get<double>();
    }
    return rates;
  }
  static void refuses(std::vector<std::string> args, const testing::Matcher<const std::string&>& message) {
    args.insert(args.begin(), "simulate");
    const Finished finished = run(args);
    EXPECT_NE(finished.code, 0);
    EXPECT_THAT(finished.err, message);
    EXPECT_THAT(finished.err, Not(HasSubstr("\nshoal"))) << "one line";
  }
  inline static std::string small_, large_;
};

TEST_F(Simulate, PrintsTableInStyleOfBench) {
  const Finished finished = run({"simulate", "-m", small_, "--machine", "H200x2-nvlink"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_THAT(finished.out, AllOf(HasSubstr("| llama 8.0B"), HasSubstr("| t/s (simulated) |"), HasSubstr("pp512 |"),
                                  HasSubstr("tg128 |"), HasSubstr("| H200.0,H200.1 | even |")));
  EXPECT_THAT(finished.out, HasSubstr("simulated: H200x2-nvlink4, not measured"));
  EXPECT_THAT(finished.out, Not(HasSubstr("±"))) << "simulated results have no standard deviation";
}

TEST_F(Simulate, PredictsRequestsAtTheSameTime) {
  const json found =
      rows({"-m", small_, "--machine", "H200x2-nvlink", "--device-counts", "2", "-np", "1,8", "-p", "256", "-n", "64"});
  ASSERT_EQ(found.size(), 2);
  for (const json& row : found) {
    const double requests = row["n_parallel"];
    EXPECT_EQ(row["test"], fmt::format("np{} pp256 tg64", row["n_parallel"].get<int64_t>()));
    EXPECT_NEAR(row["t"], row["t_pp"].get<double>() + row["t_tg"].get<double>(), 1e-7);
    EXPECT_NEAR(row["speed"].get<double>() * row["t"].get<double>(), requests * (256 + 64), 1e-3);
    EXPECT_NEAR(row["speed_tg"].get<double>() * row["t_tg"].get<double>(), requests * 64, 1e-3);
    EXPECT_NEAR(row["speed_pp"].get<double>() * row["t_pp"].get<double>(), requests * 256, 1e-3);
    EXPECT_TRUE(row["ttft_p50_ns"].is_null());
    const double parts = row["part_compute"].get<double>() + row["part_collectives"].get<double>() +
                         row["part_waiting"].get<double>() + row["part_host"].get<double>();
    EXPECT_NEAR(parts, 1, 1e-6);
  }
  EXPECT_GT(found[1]["speed_tg"], 4 * found[0]["speed_tg"].get<double>()) << "a step reads each weight once";
  EXPECT_NEAR(found[1]["speed_pp"], found[0]["speed_pp"].get<double>(), 0.01 * found[0]["speed_pp"].get<double>());
  EXPECT_GT(found[1]["collectives"], found[0]["collectives"].get<int64_t>());
}

TEST_F(Simulate, PrintsOnlyRatesOfRequests) {
  const Finished finished = run({"simulate", "-m", small_, "--machine", "H200x2-nvlink", "-np", "4"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr("|  S_PP t/s |  S_TG t/s |  S t/s (simulated) |"),
                                  HasSubstr("np4 pp512 tg128"), Not(HasSubstr("TTFT"))));
  const Finished large = run({"simulate", "-m", large_, "--machine", "RTX4090x2-pcie", "-np", "4"});
  EXPECT_EQ(large.code, 0) << large.err;
  EXPECT_THAT(large.out, ContainsRegex("\\| +- \\| +- \\| +does not fit \\|"));
  refuses(
      {"-m", small_, "--machine", "H200x2-nvlink", "-np", "4", "-c", "1024"},
      HasSubstr("np4 pp512 tg128: a sequence has 640 tokens, but the context of 1024 tokens has only 256 tokens for "
                "each sequence; use a larger context (-c), fewer tokens or fewer requests (-np)"));
}

TEST_F(Simulate, MarksEveryRowAsSimulated) {
  for (const json& row : rows({"-m", small_, "--machine", "H100x4"})) {
    EXPECT_EQ(row["simulated"], "H100x4-nvlink4");
    EXPECT_EQ(row["backends"], "SIM");
    EXPECT_TRUE(row["fits"]);
    EXPECT_GT(row["avg_ts"], 0);
    double parts = 0;
    for (const char* part : {"part_compute", "part_collectives", "part_waiting", "part_host"}) {
      EXPECT_GE(row[part], 0) << part;
      parts += row[part].get<double>();
    }
    EXPECT_NEAR(parts, 1, 1e-6);
    EXPECT_EQ(row["part_collectives"] > 0, row["memory"].size() > 1);
    for (const json& memory : row["memory"]) {
      EXPECT_EQ(memory["total"], memory["weights"].get<int64_t>() + memory["kv"].get<int64_t>() +
                                     memory["compute"].get<int64_t>() + memory["communication"].get<int64_t>());
    }
  }
  const Finished lines = run({"simulate", "-m", small_, "--machine", "H100", "-o", "jsonl", "-n", "0"});
  EXPECT_EQ(json::parse(lines.out)["simulated"], "H100");
}

TEST_F(Simulate, MoreDevicesHaveDiminishingReturns) {
  auto rates = generation(large_, "H200x8-nvlink", "1,2,4,8");
  ASSERT_EQ(rates.size(), 4u);
  EXPECT_GT(rates[2], 1.4 * rates[1]);
  EXPECT_GT(rates[8], rates[4]);
  EXPECT_GT(rates[2] / rates[1], rates[4] / rates[2]);
  EXPECT_GT(rates[4] / rates[2], rates[8] / rates[4]);
}

TEST_F(Simulate, SlowerLinksReduceTokensPerSecond) {
  const auto nvlink = generation(small_, "H100x8-nvlink", "8"), pcie = generation(small_, "H100x8-pcie", "8");
  const auto host = generation(small_, "H100x8-pcie-host", "1,8");
  EXPECT_GT(nvlink.at(8), pcie.at(8));
  EXPECT_GT(pcie.at(8), host.at(8));
  EXPECT_EQ(generation(small_, "H100x8-nvlink", "1").at(1), host.at(1)) << "one device needs no link";
}

TEST_F(Simulate, ReportsSetupsThatDoNotFit) {
  const std::vector<std::string> args{"-m", large_, "--machine", "RTX4090x4-pcie", "-p", "0", "-n", "16"};
  const json all = rows(args);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_FALSE(all[0]["fits"]);
  EXPECT_TRUE(all[0]["avg_ts"].is_null());
  EXPECT_TRUE(all[0]["speed_up"].is_null());
  EXPECT_TRUE(all[0]["part_collectives"].is_null() && all[0]["part_waiting"].is_null());
  EXPECT_TRUE(all[1]["fits"]) << "two devices have 48 GB";
  EXPECT_EQ(all[1]["speed_up"], 1.0) << "the speed-up is relative to the first setup that fits";
  EXPECT_GT(all[2]["speed_up"], 1.0);
  std::vector<std::string> text = args;
  text.insert(text.begin(), "simulate");
  const Finished finished = run(text);
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.out, AllOf(ContainsRegex("[|]    does not fit [|] +- [|] +- [|] +- [|]"),
                                  HasSubstr("tg16 on RTX4090.0 does not fit: RTX4090.0 needs")));
  std::vector<std::string> long_context = args;
  long_context.insert(long_context.end(), {"-c", "131072", "--device-counts", "2"});
  EXPECT_FALSE(rows(long_context)[0]["fits"]) << "the cache takes the remaining memory";
}

/// Returns the text below the table, from " does not fit: " on; "" if all setups fit.
std::string remedy(std::vector<std::string> args) {
  args.insert(args.begin(), "simulate");
  const Finished finished = run(args);
  EXPECT_EQ(finished.code, 0) << finished.err;
  const size_t begin = finished.out.find(" does not fit: ");
  return begin == std::string::npos ? "" : finished.out.substr(begin);
}

TEST_F(Simulate, ReportsTheSameHostMemoryAsPlan) {
  // The GPU computes the largest batch. For smaller batches, the host computes the products with its experts.
  const TemporaryFile file("simulate_host.gguf");
  models::HollowModel experts(4, 2048, 1024, 32, 8, 1024);
  experts.h.experts = 64, experts.h.experts_used = 8;
  experts.write(file.path);
  const std::vector<std::string> flags{
      "-m", file.path, "--machine", "RTX4090x4+EPYC9654", "--devices", "RTX4090.0", "--cpu-moe", "-c", "2048"};
  std::vector<std::string> plan = flags, simulate = flags;
  plan.insert(plan.begin(), "plan");
  plan.insert(plan.end(), {"--output", "json"});
  simulate.insert(simulate.end(), {"-p", "512", "-n", "0"});
  const Finished planned = run(plan);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const json expected = json::parse(planned.out).at("memory");
  EXPECT_GT(expected.at(1).at("compute"), 1 << 20);
  EXPECT_EQ(rows(simulate).at(0).at("memory"), expected);
}

TEST_F(Simulate, NamesDevicesThatLackMemory) {
  const std::string weights = remedy({"-m", large_, "--machine", "RTX4090", "-p", "512", "-n", "0"});
  EXPECT_THAT(weights,
              ContainsRegex("RTX4090.0 needs .* free; see `shoal plan --recommend --machine RTX4090` for placements"));
  EXPECT_EQ(remedy({"-m", large_, "--machine", "RTX4090x2", "-p", "512", "-n", "0", "--device-counts", "2"}), "");
  const std::vector<std::string> two{"-m", large_, "--machine", "RTX4090x2", "--device-counts", "2", "-p", "0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), two.begin(), two.end());
    return more;
  };
  EXPECT_THAT(remedy(with({"-n", "16", "-c", "200000"})), ContainsRegex("RTX4090.0 needs .*, RTX4090.1 needs .*; see"));
  EXPECT_THAT(remedy(with({"-n", "16", "-ts", "3,1"})),
              AllOf(HasSubstr("RTX4090.0 needs"), Not(HasSubstr("RTX4090.1"))));
  EXPECT_EQ(remedy(with({"-n", "16", "-ts", "auto"})), "");
}

TEST_F(Simulate, WarnsOfContextBeyondTraining) {
  const auto warning = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", "-m", small_, "--machine", "H200", "-n", "0"});
    return run(more).err;
  };
  const std::string text =
      "shoal: warning: a context of 1000000 exceeds the 8192 tokens that the model was trained for";
  EXPECT_THAT(warning({"-p", "512,1000000"}), StartsWith(text));
  EXPECT_THAT(warning({"-p", "512", "-d", "0,999488"}), StartsWith(text));
  EXPECT_THAT(warning({"-p", "512", "-c", "1000000"}), StartsWith(text));
  const std::string one = warning({"-p", "512,9000,1000000", "--device-counts", "1"});
  EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 1) << one;
  EXPECT_EQ(warning({"-p", "8192"}), "");
}

TEST_F(Simulate, UsesTheRequestedExpertSplit) {
  const TemporaryFile file("simulate_experts.gguf");
  models::HollowModel experts(4, 2048, 1024, 32, 8, 1024);
  experts.h.experts = 64, experts.h.experts_used = 8;
  experts.write(file.path);
  const auto prompt = [&](const char* way) {
    const json all =
        rows({"-m", file.path, "--machine", "H200x8-nvlink", "--device-counts", "8", "-n", "0", "--expert-split", way});
    return all[0]["avg_ts"].get<double>();
  };
  const double inside = prompt("inside"), whole = prompt("whole");
  EXPECT_NE(inside, whole);
  EXPECT_GE(prompt("auto"), std::max(inside, whole));
}

TEST_F(Simulate, WarnsOfSplitFlagsWithoutEffect) {
  const auto warning = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", "-m", small_, "--machine", "H200", "-n", "0"});
    return run(more).err;
  };
  EXPECT_EQ(warning({"--expert-split", "whole"}),
            "shoal: warning: --expert-split whole has no effect: the model has no experts\n");
  EXPECT_EQ(warning({"--latent-split", "rows"}),
            "shoal: warning: --latent-split rows has no effect: the model has no latent attention\n");
  EXPECT_EQ(warning({"--expert-split", "auto", "--latent-split", "auto"}), "");
  const std::string alone =
      run({"simulate", "-m", SHOAL_REFERENCE_MODELS "/deepseek2.gguf", "--machine", "H200x2-nvlink", "-p", "8", "-n",
           "0", "-sm", "layer", "--expert-split", "whole", "--latent-split", "rows"})
          .err;
  EXPECT_EQ(alone,
            "shoal: warning: --expert-split whole has no effect: no two devices act as one\n"
            "shoal: warning: --latent-split rows has no effect: no two devices act as one\n");
}

TEST_F(Simulate, TableColumnsAlign) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"-ts", "auto"},
                                               {"-ts", "0.505986219,0.494013781;auto;3,1", "--device-counts", "2"},
                                               {"-p", "1000000", "-n", "1000000", "-d", "1000000"}}) {
    std::vector<std::string> args{"simulate", "-m", small_, "--machine", "RTX4090+L4-pcie"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished finished = run(args);
    EXPECT_EQ(finished.code, 0) << finished.err;
    std::istringstream lines(finished.out.substr(0, finished.out.find("\n\n")));
    std::string first, line;
    for (std::getline(lines, first); std::getline(lines, line);) {
      EXPECT_EQ(line.size(), first.size()) << line;
      for (size_t i = 0; i < std::min(line.size(), first.size()); ++i) {
        EXPECT_EQ(line[i] == '|', first[i] == '|') << line;
      }
    }
    EXPECT_THAT(finished.out, Not(ContainsRegex("[0-9][.][0-9]{4}"))) << "at most three decimals";
  }
  // The JSON formats contain all digits of the shares.
  const json found =
      rows({"-m", small_, "--machine", "RTX4090+L4-pcie", "--device-counts", "2", "-ts", "0.505986219,0.494013781"});
  EXPECT_EQ(found[0]["tensor_split"], "0.505986219,0.494013781");
}

TEST_F(Simulate, SupportsLayerSplit) {
  const std::vector<std::string> args{"-m", large_, "--machine", "RTX4090x2-pcie", "--device-counts", "2", "-p", "0"};
  std::vector<std::string> by_layer = args;
  by_layer.insert(by_layer.end(), {"-sm", "layer"});
  const json tensor = rows(args), layer = rows(by_layer);
  EXPECT_GT(tensor[0]["avg_ts"], layer[0]["avg_ts"]) << "both devices work at the same time";
  EXPECT_GT(layer[0]["part_waiting"], 0.4) << "one device waits for the other";
  EXPECT_GT(layer[0]["copies_ns"], 0);
  EXPECT_EQ(layer[0]["split_mode"], "layer");
}

TEST_F(Simulate, SupportsUnevenAndAutoShares) {
  const std::vector<std::string> args{"-m", small_, "--machine", "RTX4090+L4-pcie", "--device-counts", "2", "-p", "0"};
  const auto with = [&](const std::string& shares) {
    std::vector<std::string> all = args;
    all.insert(all.end(), {"-ts", shares});
    return rows(all)[0];
  };
  const double even = rows(args)[0]["avg_ts"], uneven = with("3,1")["avg_ts"];
  EXPECT_GT(uneven, even) << "the L4 has a third of the bandwidth";
  const json found = with("auto");
  EXPECT_GE(found["avg_ts"].get<double>(), 0.99 * uneven);
  EXPECT_NE(found["tensor_split"], "");
}

TEST_F(Simulate, ReportsNumberOfGpuLayers) {
  const std::vector<std::string> args{"-m", small_, "--machine", "RTX4090+EPYC9654", "-p", "0", "-ngl", "20"};
  EXPECT_EQ(rows(args)[0]["n_gpu_layers"], 20);
  EXPECT_EQ(rows({"-m", small_, "--machine", "RTX4090", "-p", "0"})[0]["n_gpu_layers"], -1);
  std::vector<std::string> text = args;
  text.insert(text.begin(), "simulate");
  EXPECT_THAT(run(text).out, HasSubstr("|  ngl |"));
}

TEST_F(Simulate, ReadsMachinesFromFiles) {
  const TemporaryFile file("simulate.json",
                           R"({"version": 1, "name": "mine", "devices": [{"name": "CPU0", "memory": 64e9,
      "bandwidth": 50e9, "rates": {"default": 2e12}}, {"name": "BOX", "count": 2, "memory": 16e9, "bandwidth": 4e11,
      "type": "GPU", "rates": {"default": 5e13}}],
      "algorithms": [{"name": "wire", "latency": 1e-5, "bandwidth": 1e9}]})");
  const json all = rows({"-m", small_, "--machine", file.path, "-p", "0", "-dev", "CPU0;BOX.0,BOX.1"});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["devices"], "CPU0") << "the CPU of the described machine";
  EXPECT_EQ(all[0]["simulated"], "mine");
  // Each generated token requires a read of 4.6 GB of weights at 0.8 x 50 GB/s.
  EXPECT_NEAR(all[0]["avg_ts"].get<double>(), 8.5, 1);
  EXPECT_GT(all[1]["avg_ts"], 5 * all[0]["avg_ts"].get<double>());
  // The file contains no descriptions of devices, so the rows contain the device names.
  EXPECT_EQ(all[1]["cpu_info"], "simulated CPU0, 59.6 GiB");
  EXPECT_EQ(all[1]["gpu_info"], "simulated BOX, 14.9 GiB");
  EXPECT_EQ(rows({"-m", small_, "--machine", "L4", "-p", "0"})[0]["gpu_info"], "simulated L4, 22.0 GiB");
}

TEST_F(Simulate, RejectsInvalidRequests) {
  refuses({"-m", small_}, HasSubstr("--machine is required"));
  refuses({"-m", small_, "--machine", "H900"}, HasSubstr("unknown GPU 'H900'; GPUs: H200"));
  refuses({"-m", small_, "--machine", "nothing.json"},
          HasSubstr("nothing.json: cannot open the description of a machine: No such file"));
  const TemporaryFile empty("empty.json", "");
  refuses({"-m", small_, "--machine", empty.path}, HasSubstr("empty.json: is empty; use a JSON file"));
  refuses({"-m", small_, "--machine", "/"},
          HasSubstr("/: is a directory, not a description of a machine; use a JSON file"));
  refuses({"-m", small_, "--machine", "H200x2", "--device-counts", "4"},
          HasSubstr("--device-counts 4: machine H200x2-nvlink4 has only 2 device(s)"));
  refuses({"-m", small_, "--machine", "H200x2", "--device-counts", "0"}, HasSubstr("--device-counts"));
  refuses({"-m", small_, "--machine", "H200x2", "--device-counts", "2", "-dev", "H200.0"},
          HasSubstr("give only one of them"));
  refuses({"-m", small_, "--machine", "H200x2", "-dev", "H100.0"},
          HasSubstr("machine H200x2-nvlink4 has no device 'H100.0'; it has H200.0, H200.1"));
  refuses({"-m", small_, "--machine", "H200x2", "-ts", "1,2,3"}, HasSubstr("--tensor-split"));
  refuses({"-m", small_, "--machine", "H200x2", "-p", "0", "-n", "0"}, HasSubstr("nothing to measure"));
  refuses({"-m", small_, "--machine", "H200x2", "-o", "xml"}, HasSubstr("md, json or jsonl"));
  refuses({"-m", "/nowhere.gguf", "--machine", "H200x2"}, HasSubstr("/nowhere.gguf"));
}

TEST_F(Simulate, SimulatesHostsWithANetwork) {
  const auto of = [](const std::string& devices, const std::string& mode, const std::string& network) {
    return rows({"-m", large_, "--machine", "H100x4", "--hosts", "2", "--network", network, "-p", "0", "-sm", mode,
                 "--devices", devices})[0];
  };
  const auto rate = [](const json& row) { return row["avg_ts"].get<double>(); };
  const json fast = of("all", "tensor", "400gbit,2us"), slow = of("all", "tensor", "1gbit,100us");
  EXPECT_EQ(slow["simulated"], "2 x H100x4-nvlink4 (1 Gbit/s, 100 us)");
  EXPECT_EQ(slow["memory"].size(), 8u);
  EXPECT_EQ(slow["memory"][7]["device"], "1:H100.3");
  const json one = of("H100.0,H100.1,H100.2,H100.3", "tensor", "1gbit,100us");
  EXPECT_GT(rate(fast), rate(one));
  EXPECT_LT(rate(slow), rate(one) / 4) << "160 collectives take at least 100 us each";
  // Each token needs three messages between the hosts, and each message takes 100 us.
  const json layers = of("@0,@1", "layer", "1gbit,100us"), near = of("@0,@1", "layer", "1gbit,0.001us");
  EXPECT_GT(rate(layers), 0.9 * rate(one));
  const double more = 1e6 / rate(layers) - 1e6 / rate(near);
  EXPECT_NEAR(more, 300, 10) << "microseconds: the message to the other host, the copy between layers, the result";
  const json inside = of("H100.0,H100.1", "layer", "1gbit,100us");
  EXPECT_EQ(rate(inside), rate(of("H100.0,H100.1", "layer", "1gbit,0.001us")));
  const Finished table = run({"simulate", "-m", small_, "--machine", "H100x4", "--hosts", "2", "--network",
                              "100gbit,20us", "-sm", "layer", "--devices", "@0,@1;all"});
  EXPECT_THAT(table.out, AllOf(HasSubstr("| @0,@1 "), HasSubstr("| H100.0-3,1:H100.0-3 |")));
}

TEST_F(Simulate, RejectsHostsWithoutANetwork) {
  const std::vector<std::string> machine{"-m", small_, "--machine", "H100x2"};
  const auto with = [&](std::vector<std::string> args) {
    args.insert(args.begin(), machine.begin(), machine.end());
    return args;
  };
  refuses(with({"--hosts", "2"}), HasSubstr("--hosts needs --network, such as --network 100gbit,20us"));
  refuses(with({"--network", "1gbit,1us"}), HasSubstr("--network needs several hosts; give their number with --hosts"));
  for (const char* bad : {"1gbit", "1gb,1us", "1gbit,1", "x,1us", "1gbit,1us,1us"}) {
    refuses(with({"--hosts", "2", "--network", bad}), HasSubstr("--network"));
  }
  refuses(with({"--devices", "@1"}), HasSubstr("--devices @1: machine H100x2-nvlink4 has no host 1; set the number"));
}

}  // namespace
}  // namespace shoal::tools
