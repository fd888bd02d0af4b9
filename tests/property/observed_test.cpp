// Random integer graphs on schedulers over meta devices and simple devices, with evaluation callbacks that observe,
// stop, throw and unregister themselves. Results equal the float64 reference to the last bit.
#include <gtest/gtest.h>

#include "tests/support/integer_graph.h"
#include "tests/support/plugin.h"
#include "tests/support/property.h"
#include "tests/support/sched_session.h"

namespace shoal::test {
namespace {

constexpr int kObservedParts = 4;  // parts of the test that ctest can run in parallel

std::string check_observed(const RandomCase& one) {
  std::vector<Device*> devices;
  for (int i = 0; i <= 2 * one.ranks + 1; ++i) devices.push_back(&test_device(i));
  return check_schedulers(one, devices);
}

class ObservedProperty : public testing::TestWithParam<int> {};

TEST_P(ObservedProperty, EqualsReference) {
  check_property({.draw = integer_case, .check = check_observed, .cases = 4000}, GetParam(), kObservedParts);
}

INSTANTIATE_TEST_SUITE_P(Random, ObservedProperty, testing::Range(0, kObservedParts));

}  // namespace
}  // namespace shoal::test
