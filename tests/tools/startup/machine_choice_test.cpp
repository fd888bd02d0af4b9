// A plan for a described machine uses the local devices with the described names. Missing devices are simulated.
#include "tools/startup/machine_choice.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;

constexpr int64_t kMemory = 7'000'000'000;

/// Description of a machine with devices of these names.
std::string description(const std::vector<std::string>& names) {
  std::string devices;
  for (const std::string& name : names) {
    devices += fmt::format(R"({}{{"name": "{}", "memory": {}, "bandwidth": 1e10, "rates": {{"default": 1e12}}}})",
                           devices.empty() ? "" : ", ", name, kMemory);
  }
  return R"({"version": 1, "devices": [)" + devices + "]}";
}

/// The memory section of a plan for the described machine, without --devices.
json memory_of(const std::vector<std::string>& names, const ChildOptions& around) {
  const test::TemporaryFile file("described.json", description(names));
  const Finished plan = run({"plan", "-m", kModel, "--machine", file.path, "--output", "json"}, around);
  EXPECT_EQ(plan.code, 0) << plan.err;
  return plan.code == 0 ? json::parse(plan.out)["memory"] : json::array();
}

TEST(MachineChoice, LocalDevicesDivideMemoryOfMachine) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "two CPU devices need two cores";
  const json memory = memory_of({"CPU0", "CPU1"}, {.cpu_devices = std::nullopt});
  ASSERT_EQ(memory.size(), 2u);
  double free = 0;
  for (const json& row : memory) free += row["free"].get<double>();
  const double installed = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  EXPECT_LE(free, installed) << "each device counts only its own memory";
}

TEST(MachineChoice, ProbeErrorNamesTheFlagIfMemoryIsShort) {
  cpu::configure("devices=1,threads=1,memory=7M");
  const std::vector<Device*> devices{&Registry::instance().device("CPU0")};
  probe::ProbeOptions options;
  options.quick = true;
  EXPECT_THAT([&] { probe_devices(devices, options); },
              testing::ThrowsMessage<OutOfMemory>(
                  testing::EndsWith("free: release memory on the device, or omit the device (--devices)")));
  cpu::configure("");
}

TEST(MachineChoice, SimulatesMissingDevices) {
  const json memory = memory_of({"BOX.0", "BOX.1"}, {});
  ASSERT_EQ(memory.size(), 2u);
  for (const json& row : memory) EXPECT_EQ(row["free"], kMemory);
}

TEST(MachineChoice, NamesInMachineDescriptionAreCaseSensitive) {
  const json memory = memory_of({"cpu0", "CPU1"}, {});
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0]["device"], "cpu0");
  EXPECT_EQ(memory[0]["free"], kMemory) << "the memory comes from the description";
  EXPECT_EQ(memory[1]["device"], "CPU1");
}

}  // namespace
}  // namespace shoal::tools
