// The conformance suites, which every device must pass. A test program includes this header in one source file and
// lists its devices:
//
//   namespace shoal::test {
//   SHOAL_INSTANTIATE_DEVICE_SUITES(Cpu, cpu_cases());   // cpu_cases() returns std::vector<DeviceCase>
//   }
//
// If the machine does not have a device, the tests of this device are skipped with a message. If a device exists but
// its creation fails, the tests fail. A device can exclude tests that do not apply to it. Each exclusion has a reason.
#pragma once

#include "tests/devices/conformance/backend_suite.h"
#include "tests/devices/conformance/buffer_suite.h"
#include "tests/devices/conformance/device_suite.h"
#include "tests/devices/conformance/event_suite.h"
#include "tests/devices/conformance/lifetime_suite.h"
#include "tests/devices/conformance/plan_suite.h"

#define SHOAL_INSTANTIATE_DEVICE_SUITES(prefix, cases)                                  \
  INSTANTIATE_TEST_SUITE_P(prefix, BufferSuite, testing::ValuesIn(cases), case_name);   \
  INSTANTIATE_TEST_SUITE_P(prefix, BackendSuite, testing::ValuesIn(cases), case_name);  \
  INSTANTIATE_TEST_SUITE_P(prefix, PlanSuite, testing::ValuesIn(cases), case_name);     \
  INSTANTIATE_TEST_SUITE_P(prefix, EventSuite, testing::ValuesIn(cases), case_name);    \
  INSTANTIATE_TEST_SUITE_P(prefix, LifetimeSuite, testing::ValuesIn(cases), case_name); \
  INSTANTIATE_TEST_SUITE_P(prefix, DeviceSuite, testing::ValuesIn(cases), case_name)
