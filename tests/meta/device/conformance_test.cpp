// Runs the suites of tests/devices/conformance.h on meta devices.
#include "tests/devices/conformance.h"

#include "devices/cpu/cpu_device.h"
#include "meta/device/meta_family.h"

namespace shoal::test {
namespace {

Device* meta_device(const char* params) {
  cpu::configure("devices=8,threads=1");  // all tests use the same CPU devices, because meta devices of earlier tests
                                          // still have these devices as members
  return &meta::family().create_device(params);
}

std::vector<DeviceCase> cases() {
  const auto made = [](const char* params) { return [params] { return meta_device(params); }; };
  return {
      {"META_even", made("devices=CPU0,CPU1 axis=0"), "", {}},
      {"META_uneven", made("devices=CPU0,CPU1 axis=0 split=3,1"), "", {}},
      {"META_empty_member", made("devices=CPU0,CPU1,CPU2 axis=0 split=5,0,2"), "", {}},
  };
}

SHOAL_INSTANTIATE_DEVICE_SUITES(Meta, cases());

}  // namespace
}  // namespace shoal::test
