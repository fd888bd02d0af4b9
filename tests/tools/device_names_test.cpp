// The devices that no names are given for.
#include "tools/device_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "devices/sim/sim_device.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::array kOrder{DeviceType::kGpu, DeviceType::kIntegratedGpu, DeviceType::kCpu};

std::string first_of(const std::vector<std::pair<std::string, DeviceType>>& devices) {
  std::vector<Device*> listed;
  for (const auto& [name, type] : devices) listed.push_back(&sim::family().provide({name, "test", type, 1 << 20}));
  return names_of_first(listed, kOrder);
}

TEST(DeviceNames, AreOfTheFastestKindThereIs) {
  EXPECT_EQ(first_of({{"A0", DeviceType::kCpu}, {"A1", DeviceType::kGpu}, {"A2", DeviceType::kGpu}}), "A1,A2");
  EXPECT_EQ(first_of({{"B0", DeviceType::kCpu}, {"B1", DeviceType::kIntegratedGpu}, {"B2", DeviceType::kGpu}}), "B2");
  EXPECT_EQ(first_of({{"C0", DeviceType::kCpu}, {"C1", DeviceType::kIntegratedGpu}}), "C1");
  EXPECT_EQ(first_of({{"D0", DeviceType::kCpu}, {"D1", DeviceType::kCpu}}), "D0,D1");
  EXPECT_EQ(first_of({{"E0", DeviceType::kAccelerator}}), "");
}

TEST(DeviceNames, AllAreTheCpusWithoutAGpu) {
  const json all{"CPU0", "CPU1", "CPU2", "CPU3"};
  const auto run_on = [](const std::vector<std::string>& flags) {
    std::vector<std::string> args{"run", "-m", kModel, "-p", "x", "-n", "1", "--output", "json"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Finished finished = run(args);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.code == 0 ? json::parse(finished.out)["devices"] : json();
  };
  EXPECT_EQ(run_on({"--devices", "all"}), all);
  EXPECT_EQ(run_on({"-dev", "ALL", "-ts", "1,2,3,4"}), all);
  EXPECT_EQ(run_on({}), json({"CPU0"}));
}

TEST(DeviceNames, AllIsTheSameForEveryCommand) {
  const Finished plan = run({"plan", "-m", kModel, "-dev", "all", "--output", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json::parse(plan.out)["memory"].size(), 4u);
  const Finished bench =
      run({"bench", "-m", kModel, "-dev", "CPU0;all", "-p", "8", "-n", "0", "-r", "1", "-o", "json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json rows = json::parse(bench.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[1].dump(), HasSubstr("CPU0,CPU1,CPU2,CPU3"));
  const Finished compared = run({"compare", "-m", kModel, "-dev", "all", "-p", "x"}, {.cpu_devices = "2"});
  EXPECT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.out, HasSubstr("{0}"));
}

TEST(DeviceNames, AllOfADescribedMachine) {
  const Finished plan = run({"plan", "-m", kModel, "-dev", "all", "--machine", "RTX4090x2-pcie", "--output", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json::parse(plan.out)["memory"].size(), 2u);
}

}  // namespace
}  // namespace shoal::tools
