// Random integer graphs run with schedulers over meta devices and a simple device. Evaluation callbacks read nodes,
// stop runs, throw, unregister themselves, and run other graphs. All results must be bit-identical to the float64
// reference.
#include <gtest/gtest.h>

#include "tests/support/integer_graph.h"
#include "tests/support/plugin.h"
#include "tests/support/property.h"
#include "tests/support/sched_session.h"

namespace shoal::test {
namespace {

constexpr int kObservedParts = 4;  // number of parts of the test; ctest can run the parts in parallel

std::string check_observed(const RandomCase& one) {
  std::vector<Device*> devices;
  for (int i = 0; i <= 2 * one.ranks + 1; ++i) devices.push_back(&test_device(i));
  return check_schedulers(one, devices);
}

class ObservedProperty : public testing::TestWithParam<int> {};

TEST_P(ObservedProperty, ResultsOfSchedulerMatchReference) {
  check_property({.draw = integer_case, .check = check_observed, .cases = 4000}, GetParam(), kObservedParts);
}

INSTANTIATE_TEST_SUITE_P(Random, ObservedProperty, testing::Range(0, kObservedParts));

}  // namespace
}  // namespace shoal::test
