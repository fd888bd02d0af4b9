#include <gmock/gmock.h>

#include "base/error.h"
#include "devices/cpu/cpu_backend.h"
#include "devices/cpu/cpu_device.h"
#include "devices/device.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/support/null/null_device.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Registry, FamilyNamesIgnoreCase) {
  Registry& registry = Registry::instance();
  ASSERT_NE(registry.find_family("cpu"), nullptr);
  EXPECT_EQ(registry.find_family("Cpu")->name(), "CPU");
  ASSERT_NE(registry.find_family("NULL"), nullptr);
  EXPECT_EQ(registry.find_family("nonsense"), nullptr);
  EXPECT_GE(registry.families().size(), 2U);
}

TEST(Registry, DeviceNamesIgnoreCase) {
  const test::CpuConfiguration configuration("devices=3");
  Registry& registry = Registry::instance();
  ASSERT_NE(registry.find_device("cpu2"), nullptr);
  EXPECT_EQ(registry.find_device("Cpu2"), &registry.device("CPU2"));
  EXPECT_EQ(registry.find_device("CPU3"), nullptr);
  EXPECT_EQ(registry.device_list("CPU2,cpu0"),
            (std::vector<Device*>{&registry.device("CPU2"), &registry.device("CPU0")}));
}

TEST(Registry, UnknownNameErrorListsDevices) {
  const test::CpuConfiguration configuration("devices=2");
  Registry& registry = Registry::instance();
  const auto message = HasSubstr("there is no device 'CUDA0'; there are: CPU0, CPU1");
  EXPECT_THAT([&] { registry.device("CUDA0"); }, ThrowsMessage<InvalidArgument>(message));
  EXPECT_THAT([&] { registry.init("CUDA0:threads=1"); }, ThrowsMessage<InvalidArgument>(message));
  EXPECT_THAT([&] { registry.device_list("CPU0,,CPU1"); }, ThrowsMessage<InvalidArgument>(HasSubstr("''")));
  EXPECT_THAT([&] { registry.device_list("CPU0,cpu0"); }, ThrowsMessage<InvalidArgument>(HasSubstr("named twice")));
}

TEST(Registry, MakesBackendsFromText) {
  Registry& registry = Registry::instance();
  const auto backend = registry.init("CPU0:threads=2");
  EXPECT_EQ(dynamic_cast<cpu::CpuBackend&>(*backend).threads(), 2);
  EXPECT_EQ(registry.init("cpu0")->name(), "CPU0");
  EXPECT_THROW(registry.init("CPU0:threads=0"), InvalidArgument);
  EXPECT_THROW(registry.init("CPU0:threads=two"), InvalidArgument);
  EXPECT_THAT([&] { registry.init("CPU:threads=2"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("fixed list of devices")));
  // The family NULL has no fixed list of devices, so init() creates a device.
  EXPECT_NE(registry.init("null:stall_ms=0"), nullptr);
}

TEST(Registry, FindsNullDevicesByNameOnly) {
  Registry& registry = Registry::instance();
  EXPECT_NE(registry.find_device("null0"), nullptr);
  for (const Device* device : registry.devices()) EXPECT_NE(device->name(), "NULL0");
  EXPECT_NE(registry.best().type(), DeviceType::kAccelerator);
}

TEST(Registry, FindsDevicesByType) {
  EXPECT_EQ(Registry::instance().first_of(DeviceType::kCpu)->name(), "CPU0");
  EXPECT_EQ(Registry::instance().first_of(DeviceType::kMeta), nullptr);
}

TEST(Registry, FamiliesAndDevicesCanBeFoundByIndex) {
  const test::CpuConfiguration configuration("devices=2");
  Registry& registry = Registry::instance();
  ASSERT_EQ(registry.family_count(), registry.families().size());
  EXPECT_EQ(registry.family(0).name(), "CPU");
  EXPECT_EQ(&registry.family(registry.family_count() - 1), registry.families().back());
  EXPECT_THROW(registry.family(registry.family_count()), InvalidArgument);
  EXPECT_EQ(registry.device_count(), registry.devices().size());
  EXPECT_EQ(registry.device(size_t{1}).name(), "CPU1");
  EXPECT_THROW(registry.device(registry.device_count()), InvalidArgument);
  EXPECT_EQ(registry.devices(DeviceType::kCpu), registry.device_list("CPU0,CPU1"));
  EXPECT_TRUE(registry.devices(DeviceType::kGpu).empty());
}

TEST(Registry, MakesBackendsByTypeOrForTheBestDevice) {
  Registry& registry = Registry::instance();
  EXPECT_EQ(registry.init(DeviceType::kCpu)->name(), "CPU0");
  EXPECT_EQ(dynamic_cast<cpu::CpuBackend&>(*registry.init(DeviceType::kCpu, "threads=3")).threads(), 3);
  EXPECT_EQ(&registry.init("best")->device(), &registry.best());
  EXPECT_EQ(dynamic_cast<cpu::CpuBackend&>(*registry.init("Best:threads=3")).threads(), 3);
  EXPECT_THAT([&] { registry.init(DeviceType::kIntegratedGpu); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no device of type integrated GPU; there are: CPU0 (CPU)")));
}

TEST(Registry, AddsDevicesMadeByCallers) {
  Registry& registry = Registry::instance();
  // The device is never destroyed, because add_device() requires that the device exists until the process ends.
  static null::NullDevice& guest = *new null::NullDevice(*registry.find_family("NULL"), "META(A,B)", {});
  registry.add_device(guest);
  EXPECT_EQ(registry.find_device("meta(a,b)"), &guest);
  EXPECT_EQ(registry.device_list("CPU0,META(A,B)").back(), &guest);
  EXPECT_THROW(registry.add_device(guest), InvalidArgument);
  EXPECT_THROW(registry.add(null::make_family()), InvalidArgument);
}

}  // namespace
}  // namespace shoal
