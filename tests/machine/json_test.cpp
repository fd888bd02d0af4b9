// Tests the JSON format of machines (machine/json.cpp).
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "machine/machine.h"

namespace shoal::machine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

constexpr const char* kLeast =
    R"({"version": 1, "devices": [{"name": "GPU", "memory": 80e9, "bandwidth": 2e12, "rates": {"default": 2e14}}]})";

constexpr const char* kWhole = R"({
  "version": 1,
  "name": "desk",
  "domains": [{"name": "socket", "bandwidth": 66e9, "cores": 2}, {"name": "pcie"}],
  "devices": [
    {"name": "CPU0", "identity": "Zen, 1 thread", "domain": "socket", "memory": 1000, "cores": 1, "bandwidth": 39e9,
     "cache_bytes": 1e6, "activation_bandwidth": 1e10, "attention_rate": 1e11, "attention_bandwidth": 2e10,
     "op_seconds": 1e-7, "step_seconds": 2e-6, "run_seconds": 3e-5,
     "products": {"Q4_K": {"streamed": [[1, 2e-11], [8, 3e-11]], "cached": [[1, 1e-11]]}}},
    {"name": "GPU", "count": 2, "type": "GPU", "domain": "pcie", "memory": 24e9, "bandwidth": 1e12,
     "efficiency": 0.5, "rates": {"q4_0": 1e14, "f16": 2e14},
     "products": {"q4_0": {"streamed": [[1, 5e-12]]}}}
  ],
  "collectives": [{"members": ["GPU.1", "CPU0"], "kind": "all_gather", "points": [[0, 1e-5], [4096, 2e-5]]}],
  "algorithms": [{"name": "ring", "latency": 5e-6, "latency_per_rank": 1e-6, "bandwidth": 2e10},
                 {"name": "direct", "one_shot": true, "bandwidth": 1e10}],
  "copy_latency": 1e-5,
  "copy_bandwidth": 1e10,
  "disk_bandwidth": 3e9
})";

TEST(MachineJson, ReadsAllKeys) {
  const MachineModel machine = parse_machine(kWhole, "desk.json");
  EXPECT_EQ(machine.name, "desk");
  EXPECT_THAT(machine.domains, ElementsAre(Domain{"socket", 66e9, 2}, Domain{"pcie", 0, 0}));
  ASSERT_EQ(machine.devices.size(), 3u);
  DeviceModel cpu;
  cpu.name = "CPU0";
  cpu.identity = "Zen, 1 thread";
  cpu.memory = 1000;
  cpu.bandwidth = 39e9;
  cpu.cache_bytes = 1e6;
  cpu.activation_bandwidth = 1e10;
  cpu.attention_rate = 1e11;
  cpu.attention_bandwidth = 2e10;
  cpu.op_seconds = 1e-7;
  cpu.step_seconds = 2e-6;
  cpu.run_seconds = 3e-5;
  cpu.products = {{"q4_K", {{{1, 2e-11}, {8, 3e-11}}, {{1, 1e-11}}}}};
  EXPECT_EQ(machine.devices[0], cpu);
  const DeviceModel& gpu = machine.devices[2];
  EXPECT_EQ(gpu.name, "GPU.1");
  EXPECT_EQ(gpu.type, DeviceType::kGpu);
  EXPECT_EQ(gpu.domain, 1);
  EXPECT_EQ(gpu.memory, 24'000'000'000u);
  EXPECT_EQ(gpu.products.at("q4_0").streamed, (std::vector<ProductPoint>{{1, 5e-12}}))
      << "`products` takes precedence over rates";
  EXPECT_EQ(gpu.products.size(), 2u);
  EXPECT_THAT(machine.collectives,
              ElementsAre(CollectiveTable{{"GPU.1", "CPU0"}, Collective::kAllGather, {{0, 1e-5}, {4096, 2e-5}}}));
  EXPECT_THAT(machine.algorithms, ElementsAre(CollectiveAlgorithm{"ring", false, 5e-6, 1e-6, 2e10},
                                              CollectiveAlgorithm{"direct", true, 0, 0, 1e10}));
  EXPECT_EQ(machine.copy_latency, 1e-5);
  EXPECT_EQ(machine.copy_bandwidth, 1e10);
  EXPECT_EQ(machine.disk_bandwidth, 3e9);
  EXPECT_EQ(machine.network, std::nullopt);
}

constexpr const char* kHosts = R"({
  "version": 1,
  "devices": [{"name": "A", "memory": 1e9, "bandwidth": 1e9, "rates": {"default": 1e9}},
              {"name": "B", "host": 3, "memory": 1e9, "bandwidth": 1e9, "rates": {"default": 1e9}}],
  "network": {"latency": 2e-5, "bandwidth": 1.25e9},
  "links": [{"from": "a", "to": "b", "latency": 2e-5, "bandwidth": 1.25e9}]
})";

TEST(MachineJson, ReadsHostsAndNetwork) {
  const MachineModel machine = parse_machine(kHosts, "x");
  EXPECT_EQ(machine.devices[0].host, 0);
  EXPECT_EQ(machine.devices[1].host, 3);
  EXPECT_EQ(machine.network, (Network{2e-5, 1.25e9}));
  EXPECT_THAT(machine.links, ElementsAre(HostLink{"a", "b", {2e-5, 1.25e9}}));
  EXPECT_EQ(parse_machine(to_json(machine), "y"), machine);
  std::string apart(kHosts);
  apart.erase(apart.find(",\n  \"network\""), apart.rfind('}') - apart.find(",\n  \"network\""));
  EXPECT_THAT(
      [&] { parse_machine(apart, "x"); },
      ThrowsMessage<InvalidArgument>(HasSubstr("expected a \"network\", because devices are on several hosts")));
}

TEST(MachineJson, OptionalKeysHaveDefaults) {
  const MachineModel machine = parse_machine(kLeast, "least.json");
  EXPECT_EQ(machine.name, "least.json");
  EXPECT_THAT(machine.domains, ElementsAre(Domain{"GPU", 0, 0}));
  const DeviceModel& device = machine.devices.at(0);
  EXPECT_EQ(device.name, "GPU");
  EXPECT_EQ(device.identity, "");
  EXPECT_EQ(device.type, DeviceType::kCpu);
  EXPECT_EQ(device.domain, 0);
  EXPECT_EQ(device.cores, 1);
  EXPECT_EQ(device.cache_bytes, 0);
  EXPECT_EQ(device.activation_bandwidth, 2e12);
  EXPECT_EQ(device.attention_bandwidth, 1.6e12);
  EXPECT_DOUBLE_EQ(device.attention_rate, 2e14);
  EXPECT_EQ(device.op_seconds, 1e-6);
  EXPECT_EQ(device.step_seconds, 0);
  EXPECT_EQ(device.run_seconds, 20e-6);
  size_t multiplied = 0;
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const DTypeTraits& type = traits(static_cast<DType>(i));
    multiplied += type.is_float || type.is_quantized ? 1 : 0;
  }
  EXPECT_EQ(device.products.size(), multiplied) << "all dtypes except integers";
  EXPECT_EQ(machine.copy_latency, 20e-6);
  EXPECT_EQ(machine.copy_bandwidth, 5e9);
  EXPECT_EQ(machine.disk_bandwidth, 1e9);
}

TEST(MachineJson, CountKeyCreatesDevicesWithOwnDomains) {
  const MachineModel machine = parse_machine(
      R"({"version": 1, "devices": [{"name": "G", "count": 3, "memory": 1, "bandwidth": 1, "rates": {"f16": 1}},
                                    {"name": "G", "memory": 1, "bandwidth": 1, "rates": {"f16": 1}},
                                    {"name": "H", "count": 1, "memory": 1, "bandwidth": 1, "rates": {"f16": 1}}]})",
      "x");
  std::vector<std::string> names;
  for (const DeviceModel& device : machine.devices) {
    names.push_back(device.name);
    EXPECT_EQ(machine.domains[static_cast<size_t>(device.domain)].name, device.name);
  }
  EXPECT_THAT(names, ElementsAre("G.0", "G.1", "G.2", "G", "H.0"));
  EXPECT_EQ(machine.domains.size(), 5u);
}

// q8_0 has 34 bytes per 32 elements. Products read memory at 0.5e12 bytes/s (`bandwidth` times `efficiency`).
TEST(MachineJson, ProductTimesMatchRatesExactly) {
  for (const double rate : {1e9, 1e12, 2.3e12, 2.6e12, 37e12, 1e15, 1e30}) {
    const std::string text = fmt::format(
        R"({{"version": 1, "devices": [{{"name": "G", "memory": 1, "bandwidth": 1e12, "efficiency": 0.5,
           "rates": {{"q8_0": {}}}}}]}})",
        rate);
    const ProductModel model = parse_machine(text, "x").devices[0].products.at("q8_0");
    for (const double columns : {1, 2, 3, 17, 18, 39, 40, 1062, 1063, 5000, 1000000}) {
      const double expected = std::max(34.0 / 32 / 0.5e12, 2 * columns / rate);
      EXPECT_NEAR(model.seconds(columns, false) / expected, 1, 1e-12) << rate << " " << columns;
    }
  }
}

TEST(MachineJson, SurvivesRoundTrip) {
  for (const char* text : {kLeast, kWhole, kHosts}) {
    const MachineModel machine = parse_machine(text, "origin");
    const std::string spelt = to_json(machine);
    EXPECT_EQ(parse_machine(spelt, "other"), machine) << spelt;
    EXPECT_EQ(to_json(parse_machine(spelt, "other")), spelt);
  }
}

TEST(MachineJson, RandomMachinesSurviveRoundTrip) {
  std::mt19937_64 rng(6);
  std::uniform_real_distribution<double> exponent(-15, 15);
  const auto figure = [&] { return std::pow(10, exponent(rng)); };
  for (int i = 0; i < 50; ++i) {
    MachineModel machine;
    machine.name = "\"odd\"\n\xc3\xa9";
    machine.domains = {{"d0", figure(), figure()}, {"d1", 0, 0}};
    for (int d = 0; d < 3; ++d) {
      DeviceModel device;
      device.name = fmt::format("dev{}", d);
      device.identity = "a, b";
      device.type = DeviceType::kAccelerator;
      device.domain = d % 2;
      device.memory = rng() % (1u << 30) + 1;
      device.cores = figure();
      for (double* value :
           {&device.bandwidth, &device.cache_bytes, &device.activation_bandwidth, &device.attention_rate,
            &device.attention_bandwidth, &device.op_seconds, &device.step_seconds, &device.run_seconds}) {
        *value = figure();
      }
      device.products = {{"q6_K", {{{1, figure()}, {1 + static_cast<int64_t>(rng() % 99) + 1, figure()}}, {}}},
                         {"f32", {{{3, figure()}}, {{4, figure()}}}}};
      machine.devices.push_back(device);
    }
    machine.collectives = {{{"dev2", "dev0"}, Collective::kAllToAll, {{0, 0}, {figure(), figure()}}}};
    machine.algorithms = {{"", true, figure(), 0, figure()}};
    machine.disturbance = "a \"build\" of 1.5 cores";
    EXPECT_EQ(parse_machine(to_json(machine), "x"), machine);
  }
}

/// Replaces `from` by `to` in the complete machine. If `message` is nullptr, the result must be valid. Otherwise, the
/// result must be rejected with `message`.
struct Mistake {
  const char* from;
  const char* to;
  const char* message;
};

const Mistake kMistakes[] = {
    {"\"version\": 1", "\"version\": 2", "version: expected 1, the only supported version, got 2"},
    {"\"version\": 1", "\"version\": \"1\"", "version: expected 1, the only supported version, got \"1\""},
    {"\"version\": 1,", "", "version: expected a value, got nothing"},
    {"\"name\": \"desk\"", "\"name\": 3", "name: expected text, got 3"},
    {"\"name\": \"desk\"", "\"nane\": 3",
     "nane: unknown key; known keys: version, name, disturbance, domains, devices, collectives, algorithms, "
     "copy_latency, copy_bandwidth, disk_bandwidth"},
    {"\"name\": \"desk\"", "\"version\": 1", "the key \"version\" occurs twice in one object"},
    {"\"bandwidth\": 66e9", "\"bandwidth\": -66e9",
     "domains[0].bandwidth: expected a number of 0 or more, got -66000000000.0"},
    {"\"name\": \"pcie\"", "\"name\": \"socket\"", "domains[1].name: expected a unique name, got socket again"},
    {"\"name\": \"pcie\"", "\"name\": \"GPU.0\"", "devices[1].domain: expected one of socket, GPU.0, got \"pcie\""},
    {"[{\"name\": \"socket\", \"bandwidth\": 66e9, \"cores\": 2}, {\"name\": \"pcie\"}]", "[]",
     "domains: expected a list of domains, got []"},
    {"[{\"name\": \"socket\", \"bandwidth\": 66e9, \"cores\": 2}, {\"name\": \"pcie\"}]", "7",
     "domains: expected a list of domains, got 7"},
    {"\"domain\": \"socket\"", "\"domain\": \"sock\"", "devices[0].domain: expected one of socket, pcie, got \"sock\""},
    {"\"name\": \"CPU0\", ", "", "devices[0].name: expected a value, got nothing"},
    {"\"name\": \"CPU0\"", "\"name\": \"\"", "devices[0].name: expected a name without blanks or commas, got \"\""},
    {"\"name\": \"CPU0\"", "\"name\": \"a,b\"",
     "devices[0].name: expected a name without blanks or commas, got \"a,b\""},
    {"\"name\": \"CPU0\"", "\"name\": \"GPU.1\"", "devices[1].name: expected a unique name, got GPU.1 again"},
    {"\"memory\": 1000", "\"memory\": 10.5",
     "devices[0].memory: expected a whole number from 1 to 1152921504606846976, got 10.5"},
    {"\"memory\": 1000, ", "", "devices[0].memory: expected a value, got nothing"},
    {"\"cores\": 1", "\"cores\": 0", "devices[0].cores: expected a positive number, got 0"},
    {"\"bandwidth\": 1e12", "\"bandwidth\": -3", "devices[1].bandwidth: expected a positive number, got -3"},
    {"\"bandwidth\": 1e12", "\"bandwidth\": \"fast\"",
     "devices[1].bandwidth: expected a positive number, got \"fast\""},
    {"\"bandwidth\": 1e12", "\"bandwidth\": null", "devices[1].bandwidth: expected a positive number, got null"},
    {"\"bandwidth\": 1e12", "\"bandwidth\": 1e300", "devices[1].bandwidth: expected a positive number, got 1e+300"},
    {"\"bandwidth\": 1e12", "\"bandwidth\": 1e999", "a number in this text is too large"},
    {"\"bandwidth\": 1e12", "\"bandwidth\": NaN", "invalid JSON at line"},
    {"\"efficiency\": 0.5", "\"efficiency\": 1.5",
     "devices[1].efficiency: expected a number above 0 and at most 1, got 1.5"},
    {"\"count\": 2", "\"count\": 0", "devices[1].count: expected a whole number from 1 to 4096, got 0"},
    {"\"count\": 2", "\"count\": 5000", "devices[1].count: expected a whole number from 1 to 4096, got 5000"},
    {"\"type\": \"GPU\"", "\"type\": \"TPU\"",
     "devices[1].type: expected CPU, GPU, integrated GPU or accelerator, got \"TPU\""},
    {"\"type\": \"GPU\"", "\"type\": \"META\"",
     "devices[1].type: expected CPU, GPU, integrated GPU or accelerator, got \"META\""},
    {"\"op_seconds\": 1e-7", "\"op_seconds\": -1", "devices[0].op_seconds: expected a number of 0 or more, got -1"},
    {"\"op_seconds\"", "\"op_second\"", "devices[0].op_second: unknown key; known keys: name, count"},
    {"\"Q4_K\"", "\"q4_k_m\"",
     "devices[0].products.q4_k_m: expected the name of a dtype of weights, e.g. q4_0, got q4_k_m"},
    {"\"Q4_K\"", "\"i32\"", "devices[0].products.i32: expected the name of a dtype of weights, e.g. q4_0, got i32"},
    {"\"q4_0\": 1e14", "\"default\": {}", "devices[1].rates.default: expected a positive number, got {}"},
    {"\"q4_0\": 1e14", "\"F16\": 1", "devices[1].rates.f16: expected each dtype once, got f16 again"},
    {"\"streamed\": [[1, 2e-11], [8, 3e-11]]", "\"streamed\": []",
     "devices[0].products.Q4_K.streamed: expected a list of [columns, seconds], got []"},
    {"[1, 2e-11]", "[1]", "devices[0].products.Q4_K.streamed[0]: expected [columns, seconds], got [1]"},
    {"[1, 2e-11]", "[9, 2e-11]",
     "devices[0].products.Q4_K.streamed[1][0]: expected more columns than 9 (previous point), got 8"},
    {"[1, 2e-11]", "[8, 2e-11]",
     "devices[0].products.Q4_K.streamed[1][0]: expected more columns than 8 (previous point), got 8"},
    {"[1, 2e-11]", "[1, 0]", "devices[0].products.Q4_K.streamed[0][1]: expected a positive number, got 0"},
    {"\"rates\": {\"q4_0\": 1e14, \"f16\": 2e14},", "", nullptr},
    {"\"rates\": {\"q4_0\": 1e14, \"f16\": 2e14},\n     \"products\": {\"q4_0\": {\"streamed\": [[1, 5e-12]]}}",
     "\"rates\": {}", "devices[1]: expected \"products\" or \"rates\" of at least one dtype, got none"},
    {"[\"GPU.1\", \"CPU0\"]", "[\"GPU\", \"CPU0\"]",
     "collectives[0].members[0]: expected the name of a device, got \"GPU\""},
    {"[\"GPU.1\", \"CPU0\"]", "[\"CPU0\", \"CPU0\"]",
     "collectives[0].members[1]: expected each device once, got \"CPU0\""},
    {"[\"GPU.1\", \"CPU0\"]", "[\"CPU0\"]", "collectives[0].members: expected two devices or more, got [\"CPU0\"]"},
    {"\"all_gather\"", "\"add\"", "collectives[0].kind: expected a collective, e.g. all_reduce, got \"add\""},
    {"[4096, 2e-5]", "[0, 2e-5]", "collectives[0].points[1][0]: expected more bytes than 0 (previous point), got 0"},
    {"[4096, 2e-5]", "[4096, -1]", "collectives[0].points[1][1]: expected a number of 0 or more, got -1"},
    {"\"one_shot\": true", "\"one_shot\": 1", "algorithms[1].one_shot: expected true or false, got 1"},
    {"\"copy_bandwidth\": 1e10", "\"copy_bandwidth\": 0", "copy_bandwidth: expected a positive number, got 0"},
    {"\"disk_bandwidth\": 3e9", "\"disk_bandwidth\": 0", "disk_bandwidth: expected a positive number, got 0"},
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == text.npos) throw std::runtime_error("the machine has no " + from);
  return text.replace(at, from.size(), to);
}

TEST(MachineJson, ErrorsNamePathAndExpectedValue) {
  for (const Mistake& mistake : kMistakes) {
    const std::string text = replaced(kWhole, mistake.from, mistake.to);
    if (mistake.message == nullptr) {
      EXPECT_NO_THROW(parse_machine(text, "m.json")) << mistake.from;
      continue;
    }
    EXPECT_THAT([&] { parse_machine(text, "m.json"); },
                ThrowsMessage<InvalidArgument>(
                    testing::AllOf(HasSubstr(std::string("m.json: ") + mistake.message), Not(HasSubstr("\n")))))
        << mistake.from;
  }
}

TEST(MachineJson, RejectsDuplicateCollectiveTable) {
  const std::string table = R"({"members": ["GPU.1", "CPU0"], "kind": "all_gather", "points": [[0, 1]]}, )";
  const std::string text = replaced(kWhole, R"("collectives": [)", R"("collectives": [)" + table);
  EXPECT_THAT([&] { parse_machine(text, "m"); },
              ThrowsMessage<InvalidArgument>(
                  "m: collectives[1].members: expected each collective once per device set, got all_gather again"));
  EXPECT_EQ(parse_machine(replaced(text, "all_gather", "all_reduce"), "m").collectives.size(), 2u);
}

TEST(MachineJson, RequiresKeyDomainIfADomainHasTheDevicesName) {
  EXPECT_THAT(
      [] { parse_machine(replaced(kLeast, R"("devices")", R"("domains": [{"name": "GPU"}], "devices")"), "m"); },
      ThrowsMessage<InvalidArgument>(
          "m: devices[0]: expected a \"domain\", because a domain has the name of this device, got none"));
  EXPECT_THAT([] { parse_machine(replaced(kLeast, R"("memory")", R"("domain": "x", "memory")"), "m"); },
              ThrowsMessage<InvalidArgument>(
                  "m: devices[0].domain: expected no domain, because the machine lists no domains, got \"x\""));
}

TEST(MachineJson, RejectsTextThatIsNotAMachine) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_machine(text, "m");
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(message(""), "m: invalid JSON at line 1, column 0; see docs/simulation.md for the format");
  EXPECT_EQ(message("{\n  \"version\" 1}"),
            "m: invalid JSON at line 2, column 13; see docs/simulation.md for the format");
  EXPECT_EQ(message("[]"), "m: expected an object, got []");
  EXPECT_EQ(message("null"), "m: expected an object, got null");
  EXPECT_EQ(message("\"\xff\""), "m: invalid JSON at line 1, column 2; see docs/simulation.md for the format");
  EXPECT_EQ(message(std::string(100000, '[') + std::string(100000, ']')),
            "m: lists and objects are nested more than 16 deep");
  EXPECT_EQ(message("{\"version\": 1, \"devices\": []}"), "m: devices: expected a list of devices, got []");
  EXPECT_EQ(message("{\"version\": 1, \"devices\": \"" + std::string(1000, 'x') + "\"}"),
            "m: devices: expected a list of devices, got \"" + std::string(39, 'x') + "...");
}

/// Truncates the text or changes one character. The result is either valid or rejected with a message of one line.
TEST(MachineJson, ErrorsOfDamagedTextAreOneLine) {
  const std::string whole = kWhole;
  std::mt19937_64 rng(1);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    if (i % 2 == 0)
      text.resize(rng() % whole.size());
    else
      text[rng() % whole.size()] = static_cast<char>(rng() % 256);
    try {
      const MachineModel machine = parse_machine(text, "m");
      EXPECT_EQ(parse_machine(to_json(machine), "m"), machine);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shoal::machine
