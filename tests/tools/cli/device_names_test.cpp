// Tests of the default devices, and of the reported reasons for missing devices.
#include "tools/cli/device_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "devices/functions.h"
#include "tests/tools/child.h"
#include "tuning/sim_device.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string all_of_these(const std::vector<std::pair<std::string, DeviceType>>& devices) {
  std::vector<Device*> listed;
  for (const auto& [name, type] : devices) listed.push_back(&sim::family().provide({name, "test", type, 1 << 20}));
  return all_of(listed);
}

TEST(DeviceNames, DefaultsAreDevicesOfTheFastestType) {
  EXPECT_EQ(all_of_these({{"A0", DeviceType::kCpu}, {"A1", DeviceType::kGpu}, {"A2", DeviceType::kGpu}}), "A1,A2");
  EXPECT_EQ(all_of_these({{"B0", DeviceType::kCpu}, {"B1", DeviceType::kIntegratedGpu}, {"B2", DeviceType::kGpu}}),
            "B2");
  EXPECT_EQ(all_of_these({{"C0", DeviceType::kCpu}, {"C1", DeviceType::kIntegratedGpu}}), "C1");
  EXPECT_EQ(all_of_these({{"D0", DeviceType::kCpu}, {"D1", DeviceType::kCpu}}), "D0,D1");
}

TEST(DeviceNames, KeywordAllOmitsAccelerators) {
  EXPECT_EQ(all_of_these({{"E0", DeviceType::kAccelerator}}), "");
  EXPECT_EQ(all_of_these({{"F0", DeviceType::kAccelerator}, {"F1", DeviceType::kCpu}}), "F1");
}

TEST(DeviceNames, KeywordAllSelectsCpusOnMachineWithoutGpu) {
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

TEST(DeviceNames, KeywordAllMeansSameDevicesInEveryCommand) {
  const Finished plan = run({"plan", "-m", kModel, "-dev", "all", "--output", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json::parse(plan.out)["memory"].size(), 4u);
  const Finished bench =
      run({"bench", "-m", kModel, "-dev", "CPU0;all", "-p", "8", "-n", "0", "-r", "1", "-o", "json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  const json rows = json::parse(bench.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[1].dump(), HasSubstr("CPU0,CPU1,CPU2,CPU3"));
  const Finished comm = run({"bench-comm", "-dev", "all", "-b", "1K", "-e", "1K", "-n", "1", "-o", "json"});
  ASSERT_EQ(comm.code, 0) << comm.err;
  EXPECT_THAT(comm.out, HasSubstr("CPU3"));
  const Finished compared = run({"compare", "-m", kModel, "-dev", "all", "-p", "x"}, {.cpu_devices = "2"});
  EXPECT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.out, HasSubstr("{0}"));
}

TEST(DeviceNames, AllMeansEveryDeviceOfDescribedMachine) {
  const Finished plan = run({"plan", "-m", kModel, "-dev", "all", "--machine", "RTX4090x2-pcie", "--output", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json::parse(plan.out)["memory"].size(), 2u);
  const Finished simulated = run({"simulate", "-m", kModel, "-dev", "RTX4090.1;all", "--machine", "RTX4090x2-pcie",
                                  "-p", "8", "-n", "0", "-o", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_THAT(json::parse(simulated.out)[1].dump(), HasSubstr("RTX4090.0,RTX4090.1"));
}

TEST(DeviceNames, DefaultsOmitDevicesOfABrokenPlugin) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "libshoal-cuda.so") << "text";
  const auto err = [&folder](const std::vector<std::string>& more) {
    std::vector<std::string> args{"run", "-m", kModel, "-p", "x", "-n", "1", "--output", "json"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished finished = run(args, {.variables = {{"SHOAL_PLUGIN_PATH", folder.path()}}});
    EXPECT_EQ(finished.code, 0);
    return finished.err;
  };
  EXPECT_EQ(err({"-dev", "CPU0"}), "");
  for (const std::vector<std::string>& devices : {std::vector<std::string>{}, {"-dev", "all"}}) {
    const std::string warned = err(devices);
    EXPECT_THAT(warned, HasSubstr("shoal: warning: the devices of plug-in " + folder.path().string()));
    EXPECT_THAT(warned,
                HasSubstr("libshoal-cuda.so are not used, because this plug-in cannot be loaded: the file is not a"));
    EXPECT_EQ(std::count(warned.begin(), warned.end(), '\n'), 1) << warned;
  }
}

TEST(DeviceNames, ErrorOfMissingDeviceReportsBrokenPlugin) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "libshoal-cuda.so") << "text";
  const ChildOptions around{.variables = {{"SHOAL_PLUGIN_PATH", folder.path()}}};
  const auto error = [&around](const char* device) {
    return run({"run", "-m", kModel, "-p", "x", "-dev", device}, around).err;
  };
  const std::string plugin = (folder.path() / "libshoal-cuda.so").string();
  const std::string unknown = error("cuda0");
  EXPECT_THAT(unknown, HasSubstr("there is no device 'cuda0'; there are: CPU0, CPU1, CPU2, CPU3; "));
  EXPECT_THAT(unknown, HasSubstr("; plug-in " + plugin + ": the file is not a shared object"));
  EXPECT_THAT(error("GPU0"), testing::Not(HasSubstr("plug-in")));
}

TEST(TransportPlugin, PipeAsPluginIsAnError) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder.path() / "libshoal-mpi.so").c_str(), 0600), 0);
  const Finished finished = run({"run", "-m", kModel, "-p", "x"},
                                {.variables = {{"SHOAL_PLUGIN_PATH", folder.path()}, {"OMPI_COMM_WORLD_SIZE", "2"}}});
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.err, HasSubstr("libshoal-mpi.so is a pipe"));
}

/// A backend family without devices. The features of the family contain the reason.
struct BareFamily : BackendReg {
  static inline const char* driver = "";
  static std::vector<functions::Feature> features() {
    return {{"cuda_driver", driver}, {"no_devices", "CUDA driver version is insufficient"}};
  }
  std::string name() const override { return "BARE"; }
  std::span<Device* const> devices() const override { return {}; }
  void* function(std::string_view wanted) const override {
    return wanted == functions::kFeatures.name ? reinterpret_cast<void*>(features) : nullptr;
  }
};

TEST(DeviceNames, ReportsAMissingDriver) {
  BareFamily::driver = "none";
  EXPECT_EQ(lack_of_devices(BareFamily()), "no NVIDIA driver is installed");
  BareFamily::driver = "11.2";
  EXPECT_EQ(lack_of_devices(BareFamily()), "CUDA driver version is insufficient");
}

}  // namespace
}  // namespace shoal::tools
