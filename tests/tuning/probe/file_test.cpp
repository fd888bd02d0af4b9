#include "tuning/probe/file.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/user_file.h"
#include "devices/cpu/cpu_device.h"
#include "machine/catalogue.h"
#include "tests/support/temporary.h"
#include "tuning/probe/probe.h"

namespace shoal::probe {
namespace {

using ::testing::HasSubstr;

/// Provides a temporary folder for the machine file, and four CPU devices.
class MachineFile : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("SHOAL_MACHINE_FILE", (folder_.path() / "deep" / "machine.json").c_str(), 1);
    cpu::configure("devices=4,threads=1");
    devices_ = Registry::instance().device_list("CPU0,CPU1,CPU2,CPU3");
  }
  void TearDown() override {
    unsetenv("SHOAL_MACHINE_FILE");
    cpu::configure("");
  }

  std::span<Device* const> first(size_t count) const { return std::span(devices_).first(count); }

  /// A measured machine with the first `count` devices. The tests recognise the machine by its `bandwidth`.
  MachineModel machine(size_t count, double bandwidth, std::vector<std::string> dtypes = {"q4_0"}) const {
    MachineModel machine;
    machine.name = "local";
    machine.domains = {{"node0", bandwidth, 2}};
    for (const Device* device : first(count)) {
      DeviceModel& model = machine.devices.emplace_back();
      model.name = device->name();
      model.identity = probe_identity(*device, 0);
      model.memory = 1 << 30;
      model.bandwidth = bandwidth;
      model.activation_bandwidth = model.attention_bandwidth = model.attention_rate = bandwidth;
      for (const std::string& dtype : dtypes) model.products[dtype].streamed = {{1, 1e-11}, {512, 1e-9}};
    }
    return machine;
  }

  static std::optional<MachineModel> find_machine(std::span<Device* const> devices, int threads,
                                                  std::span<const DType> dtypes = {}, std::string_view comm = {}) {
    const auto found = find_measured(devices, threads, dtypes, comm);
    return found ? std::optional(found->machine) : std::nullopt;
  }

  static std::string text() { return test::text_of(machine_file()); }
  static void write(const std::string& text) {
    std::filesystem::create_directories(machine_file().parent_path());
    std::ofstream(machine_file()) << text;
  }

  const test::TemporaryFolder folder_;
  std::vector<Device*> devices_;
};

TEST_F(MachineFile, ReturnsSavedMachine) {
  EXPECT_EQ(find_machine(first(2), 0), std::nullopt);
  const MachineModel saved = machine(2, 30e9);
  save_machine(saved);
  EXPECT_EQ(find_machine(first(2), 0), saved);
  EXPECT_THAT(find_measured(first(2), 0)->measured, ::testing::ContainsRegex("^20.* UTC$"));
}

TEST_F(MachineFile, FindsSubsetOfMeasuredDevices) {
  save_machine(machine(3, 30e9));
  EXPECT_TRUE(find_machine(first(1), 0));
  EXPECT_TRUE(find_machine(first(3), 0));
  EXPECT_FALSE(find_machine(first(4), 0));
  const std::vector<Device*> last{devices_[2]};
  EXPECT_TRUE(find_machine(last, 0));
}

TEST_F(MachineFile, IgnoresMachinesWithOtherHardware) {
  save_machine(machine(2, 30e9));
  EXPECT_TRUE(find_machine(first(2), 1)) << "the default is one thread";
  EXPECT_FALSE(find_machine(first(2), 2));
  cpu::configure("devices=3,threads=1");
  EXPECT_FALSE(find_machine(Registry::instance().device_list("CPU0,CPU1"), 0)) << "the cores differ";
}

TEST_F(MachineFile, RequiresRequestedWeightTypes) {
  save_machine(machine(2, 30e9, {"q4_0", "q6_K"}));
  const std::vector<DType> known{DType::kQ4_0, DType::kQ6_K}, more{DType::kQ4_0, DType::kF16};
  EXPECT_TRUE(find_machine(first(2), 0, known));
  EXPECT_FALSE(find_machine(first(2), 0, more));
}

/// A device that supports only one type of weights.
class Choosy final : public Device {
 public:
  Choosy(Device& inner, DType dtype) : inner_(inner), dtype_(dtype) {}
  std::string name() const override { return inner_.name(); }
  std::string description() const override { return inner_.description(); }
  DeviceType type() const override { return DeviceType::kGpu; }
  DeviceMemory memory() const override { return inner_.memory(); }
  DeviceProps props() const override { return inner_.props(); }
  BackendReg& reg() const override { return inner_.reg(); }
  std::unique_ptr<Backend> init(std::string_view params) override { return inner_.init(params); }
  BufferType& buffer_type() override { return inner_.buffer_type(); }
  bool supports_op(const Tensor& node) const override { return node.src[0]->dtype == dtype_; }

 private:
  Device& inner_;
  DType dtype_;
};

TEST_F(MachineFile, IgnoresTypesThatDeviceDoesNotSupport) {
  Choosy choosy(*devices_[0], DType::kQ4_0);
  const std::vector<Device*> all{&choosy};
  const std::vector<DType> wanted{DType::kQ4_0, DType::kF16};
  MachineModel known = machine(1, 30e9, {"q4_0"});
  known.devices[0].identity = probe_identity(choosy, 0);
  save_machine(known);
  nlohmann::json json = nlohmann::json::parse(text());
  json["machines"][0]["places"]["CPU0"] = probe_place(choosy);
  write(json.dump());
  EXPECT_TRUE(find_machine(all, 0, wanted)) << "another probe could not measure more types";
  known.devices[0].identity = probe_identity(*devices_[0], 0);
  save_machine(known);
  EXPECT_TRUE(find_machine(first(1), 0, std::vector<DType>{DType::kQ4_0}));
  EXPECT_FALSE(find_machine(first(1), 0, wanted)) << "CPU0 supports f16, but the saved machine lacks f16";
}

TEST_F(MachineFile, KeepsOlderEntriesWithOtherDevicesOrTypes) {
  save_machine(machine(4, 10e9));
  save_machine(machine(2, 20e9));
  save_machine(machine(1, 30e9, {"q8_0"}));
  EXPECT_EQ(find_machine(first(4), 0)->devices[0].bandwidth, 10e9);
  EXPECT_EQ(find_machine(first(2), 0)->devices[0].bandwidth, 20e9);
  EXPECT_EQ(find_machine(first(1), 0)->devices[0].bandwidth, 30e9);
  save_machine(machine(4, 40e9, {"q4_0", "q8_0"}));
  EXPECT_EQ(find_machine(first(1), 0)->devices[0].bandwidth, 40e9);
}

TEST_F(MachineFile, FileDescribesLatestMachine) {
  MachineModel other = machine(2, 20e9);
  other.devices.erase(other.devices.begin());
  for (const MachineModel& latest : {machine(1, 30e9), other, machine(3, 10e9)}) {
    save_machine(latest);
    // The test reads a copy, because save_machine() refuses to replace a file that the process has read.
    const std::filesystem::path copy = folder_.path() / "copy.json";
    std::filesystem::copy_file(machine_file(), copy, std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(machine::find_machine(copy.string()), latest);
  }
}

TEST_F(MachineFile, IgnoresMachinesMeasuredOnOtherCores) {
  save_machine(machine(2, 30e9));
  nlohmann::json json = nlohmann::json::parse(text());
  EXPECT_THAT(json["machines"][0]["places"]["CPU1"].get<std::string>(), ::testing::StartsWith("cores "));
  json["machines"][0]["places"]["CPU1"] = "cores 77";
  write(json.dump());
  EXPECT_TRUE(find_machine(first(1), 0)) << "the first device has the same cores";
  EXPECT_FALSE(find_machine(first(2), 0)) << "the second device has other cores";
  save_machine(machine(2, 20e9));
  EXPECT_EQ(nlohmann::json::parse(text())["machines"].size(), 2u)
      << "the entry is useful if the process runs on cores 77 again";
  json["machines"][0].erase("places");
  write(json.dump());
  EXPECT_FALSE(find_machine(first(1), 0)) << "the cores of the measurement are unknown";
}

TEST_F(MachineFile, IgnoresMachinesMeasuredWithOtherCollectives) {
  save_machine(machine(2, 30e9));
  setenv("SHOAL_COMM", "host", 1);
  EXPECT_TRUE(find_machine(first(1), 0)) << "one device has no collectives";
  EXPECT_FALSE(find_machine(first(2), 0));
  save_machine(machine(2, 20e9));
  EXPECT_EQ(find_machine(first(2), 0)->devices[0].bandwidth, 20e9);
  setenv("SHOAL_COMM_WIRE", "bf16", 1);
  EXPECT_FALSE(find_machine(first(2), 0));
  unsetenv("SHOAL_COMM_WIRE");
  EXPECT_EQ(find_machine(first(2), 0, {}, "auto")->devices[0].bandwidth, 30e9) << "the argument overrides SHOAL_COMM";
  unsetenv("SHOAL_COMM");
  EXPECT_EQ(find_machine(first(2), 0)->devices[0].bandwidth, 30e9);
  EXPECT_EQ(find_machine(first(2), 0, {}, "host")->devices[0].bandwidth, 20e9);
  EXPECT_FALSE(find_machine(first(2), 0, {}, "staged"));
  save_machine(machine(2, 10e9), "staged");
  EXPECT_EQ(find_machine(first(2), 0, {}, "staged")->devices[0].bandwidth, 10e9);
}

TEST_F(MachineFile, RequiresMeasurementOfEquivalentDeviceSet) {
  MachineModel known = machine(4, 30e9);
  known.devices[0].identity += ", other";  // this identity differs from the identity of CPU0
  const auto set = [](std::vector<std::string> members) {
    return machine::CollectiveTable{std::move(members), Collective::kAllReduce, {{1024, 1e-4}}};
  };
  known.collectives = {set({"CPU0", "CPU1"}), set({"CPU0", "CPU1", "CPU2", "CPU3"})};
  save_machine(known);
  const std::vector<Device*> two{devices_[1], devices_[2]}, three{devices_[3], devices_[2], devices_[1]};
  EXPECT_TRUE(find_machine(std::vector<Device*>{devices_[3]}, 0));
  EXPECT_FALSE(find_machine(two, 0)) << "each measured set also contains a device with another identity";
  known.collectives.push_back(set({"CPU2", "CPU3"}));
  save_machine(known);
  EXPECT_TRUE(find_machine(two, 0)) << "an equal set was measured";
  EXPECT_FALSE(find_machine(three, 0)) << "no measured set is as large";
  known.collectives.push_back(set({"CPU1", "CPU2", "CPU3"}));
  save_machine(known);
  EXPECT_TRUE(find_machine(three, 0)) << "the order is irrelevant";
}

TEST_F(MachineFile, IgnoresEntriesOfOtherVersions) {
  save_machine(machine(2, 30e9));
  nlohmann::json json = nlohmann::json::parse(text());
  json["machines"][0]["program"] = "0.0.7";
  write(json.dump());
  EXPECT_FALSE(find_machine(first(2), 0));
  save_machine(machine(2, 20e9));
  EXPECT_EQ(find_machine(first(2), 0)->devices[0].bandwidth, 20e9);
  EXPECT_THAT(text(), HasSubstr("0.0.7")) << "version 0.0.7 of the program may still be in use";
  json = nlohmann::json::parse(text());
  json["version"] = 99;
  write(json.dump());
  EXPECT_FALSE(find_machine(first(2), 0));
}

TEST_F(MachineFile, IgnoresEntriesWithUnknownFields) {
  save_machine(machine(2, 30e9));
  nlohmann::json json = nlohmann::json::parse(text());
  json["machines"][0]["machine"]["devices"][0]["products"]["q4_0"]["contention"] = 1.5;  // a field of older versions
  write(json.dump());
  EXPECT_FALSE(find_machine(first(2), 0));
  save_machine(machine(2, 20e9));
  EXPECT_TRUE(find_machine(first(2), 0));
}

TEST_F(MachineFile, KeepsOnlyLatestEntries) {
  save_machine(machine(1, 5e9));
  for (int i = 0; i < 40; ++i) save_machine(machine(2, 1e9 + i));
  EXPECT_EQ(nlohmann::json::parse(text())["machines"].size(), 2u) << "one entry per set of devices";
  EXPECT_EQ(find_machine(first(2), 0)->devices[0].bandwidth, 1e9 + 39);
  const std::vector<std::string> dtypes{"q4_0", "q8_0", "f16", "f32", "q6_K"};
  for (size_t types = 1; types <= 20; ++types) {
    std::vector<std::string> some;
    for (size_t i = 0; i < dtypes.size(); ++i) {
      if ((types >> i & 1) != 0) some.push_back(dtypes[i]);
    }
    save_machine(machine(2, 1e9, some));
  }
  EXPECT_EQ(nlohmann::json::parse(text())["machines"].size(), 16u);
}

TEST_F(MachineFile, ReplacesDamagedFile) {
  save_machine(machine(2, 30e9));
  const std::string good = text();
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() / 2), std::string("{\"version\": 1, \"machines\": 7}"),
        std::string("{\"version\": 1, \"machines\": [1, null, {}]}"),
        std::string("{\"version\": \"1\", \"machines\": []}")}) {
    write(bad);
    EXPECT_FALSE(find_machine(first(2), 0)) << bad;
    save_machine(machine(2, 30e9));
    EXPECT_TRUE(find_machine(first(2), 0)) << bad;
  }
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& machines : {deep, R"([{"program": )" + deep + "}]", R"([{"machine": )" + deep + "}]"}) {
    write(R"({"version": 1, "machines": )" + machines + "}");
    EXPECT_FALSE(find_machine(first(2), 0)) << machines.substr(0, 20);
    save_machine(machine(2, 30e9));
    EXPECT_TRUE(find_machine(first(2), 0)) << machines.substr(0, 20);
  }
  nlohmann::json json = nlohmann::json::parse(good);
  json["machines"][0]["machine"]["devices"][0]["bandwidth"] = -3;
  write(json.dump());
  EXPECT_FALSE(find_machine(first(2), 0));
}

TEST_F(MachineFile, IgnoresFilesOfOtherFormats) {
  for (const std::string& other : {std::string("[]"), std::string("{\"version\": 1}"), std::string("GGUF\x03\0", 6),
                                   std::string("\xff\xfe\x00", 3)}) {
    write(other);
    EXPECT_FALSE(find_machine(first(2), 0)) << other;
  }
}

TEST_F(MachineFile, IgnoresFolderAtPathOfFile) {
  std::filesystem::create_directories(machine_file());
  EXPECT_EQ(find_machine(first(2), 0), std::nullopt);
  EXPECT_THROW(check_machine_file(), DeviceError);
  EXPECT_THROW(save_machine(machine(2, 30e9)), DeviceError);
}

TEST_F(MachineFile, IgnoresCharacterDeviceAsMachineFile) {
  setenv("SHOAL_MACHINE_FILE", "/dev/full", 1);
  EXPECT_EQ(find_machine(first(2), 0), std::nullopt) << "reading /dev/full never ends";
  EXPECT_THROW(check_machine_file(), DeviceError);
  EXPECT_THROW(save_machine(machine(2, 30e9)), DeviceError);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST_F(MachineFile, WriteErrorNamesPathAndVariable) {
  setenv("SHOAL_MACHINE_FILE", "/proc/nowhere/machine.json", 1);
  try {
    save_machine(machine(1, 30e9));
    FAIL() << "save_machine() did not throw";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/proc/nowhere/machine.json: cannot be written"));
    EXPECT_THAT(error.what(), HasSubstr("SHOAL_MACHINE_FILE"));
  }
  EXPECT_FALSE(find_machine(first(1), 0));
}

TEST_F(MachineFile, ConcurrentWritersLeaveValidFile) {
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) save_machine(machine(2, 1e9 * (t + 1)));
    });
  }
  for (int i = 0; i < 50; ++i) {
    const auto found = find_machine(first(2), 0);
    if (found) {
      EXPECT_GE(found->devices[0].bandwidth, 1e9);
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(find_machine(first(2), 0));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(machine_file().parent_path())) {
    static_cast<void>(entry);
    ++files;
  }
  EXPECT_EQ(files, 1u) << "temporary files are left";
}

TEST(MachineFilePath, FollowsEnvironmentVariables) {
  const char* home = std::getenv("XDG_CACHE_HOME");
  const std::string before = home != nullptr ? home : "";
  setenv("SHOAL_MACHINE_FILE", "/some/file.json", 1);
  EXPECT_EQ(machine_file(), "/some/file.json");
  unsetenv("SHOAL_MACHINE_FILE");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(machine_file(), "/cache/shoal/machine.json");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(machine_file(), std::string(std::getenv("HOME")) + "/.cache/shoal/machine.json");
  if (!before.empty()) setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace shoal::probe
