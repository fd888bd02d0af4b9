#include "machine/catalogue.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "tests/support/temporary.h"

namespace shoal::machine {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> names_of(const MachineModel& machine) {
  std::vector<std::string> names;
  for (const DeviceModel& device : machine.devices) names.push_back(device.name);
  return names;
}

/// Seconds of an all_reduce among all devices.
double all_reduce(const std::string& machine, double bytes) {
  const MachineModel model = make_machine(machine);
  std::vector<int> members(model.devices.size());
  std::iota(members.begin(), members.end(), 0);
  return model.collective_seconds(Collective::kAllReduce, members, bytes);
}

TEST(Machines, NameDefinesDevices) {
  const MachineModel machine = make_machine("H200x8-nvlink");
  EXPECT_EQ(machine.name, "H200x8-nvlink4");
  ASSERT_EQ(machine.devices.size(), 8u);
  EXPECT_EQ(machine.devices[7].name, "H200.7");
  EXPECT_EQ(machine.devices[7].domain, 7) << "each device has its own domain";
  EXPECT_EQ(machine.devices[0].type, DeviceType::kGpu);
  EXPECT_NEAR(static_cast<double>(machine.devices[0].memory), 141 * 1.0737e9, 2e9);
  EXPECT_EQ(make_machine("h200X8-NVLINK"), machine) << "names are case-insensitive";
  EXPECT_EQ(make_machine("H200x8"), machine) << "NVLink is the default, as it is faster than PCIe";
  EXPECT_EQ(names_of(make_machine("L40S")), std::vector<std::string>{"L40S.0"});
}

TEST(Machines, MachineMayHaveDifferentGpus) {
  const MachineModel machine = make_machine("RTX4090+RTX3090x2+RTX4090-pcie");
  EXPECT_EQ(names_of(machine), (std::vector<std::string>{"RTX4090.0", "RTX3090.0", "RTX3090.1", "RTX4090.1"}));
  EXPECT_EQ(machine.name, "RTX4090+RTX3090x2+RTX4090-pcie4");
  EXPECT_GT(machine.devices[0].bandwidth, machine.devices[1].bandwidth);
  EXPECT_EQ(make_machine("RTX5090+RTX4090").name, "RTX5090+RTX4090-pcie4") << "the older of the two PCIe generations";
}

TEST(Machines, GpuNamesMayContainDashes) {
  EXPECT_EQ(make_machine("A100-PCIe").devices.size(), 1u);
  EXPECT_EQ(make_machine("A100-PCIex4-pcie").name, "A100-PCIex4-pcie4-p2p");
  EXPECT_EQ(make_machine("A100-PCIex2-nvlink").name, "A100-PCIex2-nvlink-bridge");
  EXPECT_EQ(make_machine("H100+H100-PCIe").name, "H100+H100-PCIe-pcie5-p2p");
}

TEST(Machines, DefaultLinkDependsOnGpus) {
  EXPECT_EQ(make_machine("RTX4090x2").name, "RTX4090x2-pcie4") << "the driver of this GPU has no peer access";
  EXPECT_EQ(make_machine("RTX4090x2-pcie-p2p").name, "RTX4090x2-pcie4-p2p");
  EXPECT_EQ(make_machine("L40Sx4-pcie").name, "L40Sx4-pcie4-p2p");
  EXPECT_EQ(make_machine("L40Sx4-pcie-host").name, "L40Sx4-pcie4");
  EXPECT_EQ(make_machine("RTX5090x2-pcie4").name, "RTX5090x2-pcie4");
  EXPECT_EQ(make_machine("RTX3090x2").name, "RTX3090x2-nvlink-bridge");
  EXPECT_EQ(make_machine("RTX3090x4").name, "RTX3090x4-pcie4");
}

TEST(Machines, HostIsLastDevice) {
  const MachineModel machine = make_machine("rtx4090x4+epyc9654-pcie");
  EXPECT_EQ(machine.name, "RTX4090x4+EPYC9654-pcie4");
  ASSERT_EQ(machine.devices.size(), 5u);
  const DeviceModel& host = machine.devices.back();
  EXPECT_EQ(host.name, "EPYC9654");
  EXPECT_EQ(host.type, DeviceType::kCpu);
  EXPECT_EQ(make_machine("RTX4090x4+EPYC9654"), machine) << "the default link depends only on the GPUs";
  EXPECT_EQ(make_machine("L4+Ryzen9950X").name, "L4+Ryzen9950X");
  // The host reads weights at most at the bandwidth of its memory. Host memory is larger and slower than GPU memory.
  const double bytes = 18.0 / 32, seconds = host.products.at("q4_0").seconds(1, false);
  EXPECT_LT(bytes / seconds, 460.8e9);
  EXPECT_GT(bytes / seconds, 0.5 * 460.8e9);
  EXPECT_GT(host.memory, machine.devices[0].memory * 8);
  EXPECT_GT(seconds, machine.devices[0].products.at("q4_0").seconds(1, false));
  EXPECT_GT(host.products.at("q4_0").seconds(512, false),
            8 * machine.devices[0].products.at("q4_0").seconds(512, false));
  for (const std::string& name : catalogue_hosts()) EXPECT_EQ(make_machine("L4x2+" + name).devices.size(), 3u) << name;
}

TEST(Machines, ErrorsListGpusHostsAndLinks) {
  const auto refuses = [](const std::string& name, const auto& text) {
    EXPECT_THAT([&] { make_machine(name); }, ThrowsMessage<InvalidArgument>(text)) << name;
  };
  refuses("TPUx4",
          AllOf(HasSubstr("machine 'TPUx4': unknown GPU 'TPUx4'; GPUs: H200, H100"), HasSubstr("path of a JSON file")));
  refuses("", HasSubstr("unknown GPU ''; GPUs: "));
  refuses("H200x0", HasSubstr("expected 1 to 64 H200, got 0"));
  refuses("H200x65", HasSubstr("expected 1 to 64 H200, got 65"));
  refuses("H200x40+H200x40", HasSubstr("expected at most 64 GPUs, got 80"));
  refuses("H200xlarge", HasSubstr("unknown GPU 'H200xlarge'"));
  refuses("H200+", HasSubstr("unknown GPU ''"));
  refuses("EPYC9654", AllOf(HasSubstr("unknown GPU 'EPYC9654'"), HasSubstr("end of a name): EPYC9654, ")));
  refuses("EPYC9654+H200", HasSubstr("unknown GPU 'EPYC9654'"));
  refuses("H200x8-infiniband", HasSubstr("there is no link 'infiniband'; use one of nvlink, pcie"));
  refuses("RTX4090x2-nvlink", HasSubstr("NVLink connects no RTX4090 GPUs; write -pcie instead of -nvlink"));
  refuses("RTX3090x4-nvlink", HasSubstr("NVLink connects at most 2 GPUs, all of model RTX3090"));
  refuses("H100+H200-nvlink", HasSubstr("NVLink connects"));
  EXPECT_THAT(catalogue_gpus(), Contains("B200"));
  for (const std::string& gpu : catalogue_gpus()) EXPECT_EQ(make_machine(gpu).devices.size(), 1u) << gpu;
  for (const std::string& link : catalogue_links()) EXPECT_NO_THROW(make_machine("H100x2-" + link)) << link;
}

TEST(Machines, NewerLinksAreFaster) {
  for (const double bytes : {4096.0, 16384.0, 1e6, 16e6, 1e9}) {
    const double nvlink5 = all_reduce("B200x8", bytes), nvlink4 = all_reduce("H200x8", bytes);
    const double nvlink3 = all_reduce("A100x8", bytes), pcie = all_reduce("H200x8-pcie", bytes);
    EXPECT_LE(nvlink5, nvlink4) << bytes;
    EXPECT_LT(nvlink4, nvlink3) << bytes;
    EXPECT_LT(nvlink3, pcie) << bytes;
    EXPECT_LT(pcie, all_reduce("H200x8-pcie-host", bytes)) << bytes;
    EXPECT_LT(all_reduce("H200x2", bytes), nvlink4) << "two devices are faster than eight, " << bytes;
  }
}

// If a GPU had no value for a cost, the predicted time of a plan step could fall when the step grows.
TEST(Machines, EveryGpuHasAllPerformanceValues) {
  for (const std::string& gpu : catalogue_gpus()) {
    const DeviceModel device = make_machine(gpu).devices.front();
    EXPECT_GT(device.memory, size_t{10} << 30) << gpu;
    for (const double value : {device.bandwidth, device.activation_bandwidth, device.attention_rate,
                               device.attention_bandwidth, device.op_seconds, device.run_seconds}) {
      EXPECT_GT(value, 0) << gpu;
    }
    EXPECT_LT(device.attention_bandwidth, device.bandwidth) << gpu;
    for (const char* dtype : {"f32", "f16", "bf16", "q4_0", "q8_0", "q4_K", "q6_K"}) {
      ASSERT_TRUE(device.products.contains(dtype)) << gpu << " " << dtype;
      const ProductModel& product = device.products.at(dtype);
      EXPECT_LT(product.seconds(1, false), product.seconds(2, false)) << gpu << " " << dtype;
      EXPECT_LT(product.seconds(512, false), 512 * product.seconds(1, false)) << gpu << " " << dtype;
    }
    EXPECT_LT(device.products.at("q4_K").seconds(1, false), device.products.at("f16").seconds(1, false)) << gpu;
    EXPECT_LT(device.products.at("f16").seconds(1, false), device.products.at("f32").seconds(1, false)) << gpu;
  }
}

TEST(Machines, ReadsDescriptionsFromFiles) {
  const std::string path = test::temporary("machine.json");
  std::ofstream(path) << R"({"version": 1, "name": "two", "devices": [{"name": "X", "count": 2, "memory": 1e9,
                             "bandwidth": 1e11, "rates": {"default": 1e12}}]})";
  EXPECT_EQ(names_of(find_machine(path)), (std::vector<std::string>{"X.0", "X.1"}));
  // find_machine() reads the text of to_json().
  std::ofstream(path) << to_json(make_machine("RTX4090x2-pcie"));
  EXPECT_EQ(find_machine(path), make_machine("RTX4090x2-pcie"));
  // find_machine() also reads the output and the machine file of `shoal probe`. The first machine in the machine file
  // is the latest.
  const std::string text = to_json(make_machine("L4")), other = to_json(make_machine("L40S"));
  std::ofstream(path) << R"({"file": "somewhere", "machine": )" << text << "}";
  EXPECT_EQ(find_machine(path), make_machine("L4"));
  std::ofstream(path) << R"({"version": 1, "machines": [{"machine": )" << text << R"(}, {"machine": )" << other
                      << "}]}";
  EXPECT_EQ(find_machine(path), make_machine("L4"));
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const char* key : {"machine", "machines", "devices"}) {
    std::ofstream(path) << "{\"" << key << "\": [{\"machine\": " << deep << "}]}";
    EXPECT_THAT([&] { find_machine(path); },
                ThrowsMessage<InvalidArgument>(path + ": lists and objects are nested more than 16 deep"));
  }
  std::ofstream(path) << "{";
  EXPECT_THAT([&] { find_machine(path); }, ThrowsMessage<InvalidArgument>(HasSubstr(path)));
  std::filesystem::remove(path);
}

TEST(Machines, ErrorsExplainUnreadableFiles) {
  const auto refuses = [](const std::string& path, const std::string& fault) {
    const auto message = AllOf(HasSubstr(path + ": " + fault), HasSubstr("docs/simulation.md"));
    EXPECT_THAT([&] { find_machine(path); }, ThrowsMessage<InvalidArgument>(message));
  };
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "m.json";
  refuses(path, "cannot open the description of a machine: No such file or directory");
  refuses(folder.path(), "is a directory, not a description of a machine");
  std::filesystem::create_directory(path);
  refuses(path, "is a directory");
  std::filesystem::remove(path);
  for (const char* nothing : {"", " \n\t\r\n"}) {
    std::ofstream(path) << nothing;
    refuses(path, "is empty");
  }
  refuses(path + "/m.json", "cannot open the description of a machine: Not a directory");
  std::ofstream(path) << "hello";
  refuses(path, "invalid JSON at line 1, column 1");
  refuses("/dev/null", "is empty");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("m.json", path);
  refuses(path, "cannot open the description of a machine: Too many levels of symbolic links");
  std::filesystem::remove(path);
  if (geteuid() == 0) return;  // root can read every file
  std::ofstream(path) << "{}";
  std::filesystem::permissions(path, std::filesystem::perms::none);
  refuses(path, "cannot open the description of a machine: Permission denied");
}

}  // namespace
}  // namespace shoal::machine
