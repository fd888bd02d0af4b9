// Random integer graphs run on one CPU device and on a meta device, in all modes of tests/support/device_session.h.
// Between runs, weights move to new memory and caches keep their values. In some runs, HeldBackend objects delay the
// start of the queued work. All results must be bit-identical to the float64 reference.
#include <gtest/gtest.h>

#include "tests/support/device_session.h"
#include "tests/support/integer_graph.h"
#include "tests/support/plugin.h"
#include "tests/support/property.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

constexpr int kParts = 4;  // number of parts of the test; ctest can run the parts in parallel

std::string check_ranges(const RandomCase& one) {
  std::vector<Device*> members;
  for (int i = 0; i < one.ranks; ++i) members.push_back(&test_device(i));
  const std::string alone = check_on_device(one, *members[0]);
  return alone.empty() ? check_on_device(one, *meta_device(one, members)) : alone;
}

class RangesProperty : public testing::TestWithParam<int> {};

TEST_P(RangesProperty, ResultsEqualReference) {
  check_property({.draw = integer_case, .check = check_ranges, .cases = 4000}, GetParam(), kParts);
}

INSTANTIATE_TEST_SUITE_P(Random, RangesProperty, testing::Range(0, kParts));

}  // namespace
}  // namespace shoal::test
