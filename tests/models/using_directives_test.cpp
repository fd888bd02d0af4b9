// Checks that using-directives for shoal and shoal::models make no name ambiguous. The test passes if this file
// compiles.
#include <gtest/gtest.h>

#include "devices/allocate.h"
#include "models/session/session.h"

namespace using_directives {

using namespace shoal;
using namespace shoal::models;

TEST(UsingDirectives, LeaveNamesUnambiguous) {
  const std::pair<MemoryPlace*, const Placement*> places{};
  const std::tuple<Graph*, Tensor*, Device*, Backend*, Buffer*, GraphPlan*, PlanOptions*, MemoryPlan*> of_shoal{};
  const std::tuple<Model*, Session*, SessionOptions*, PlacementOptions*, DeviceGroups*> of_models{};
  EXPECT_EQ(places.second, nullptr);
  EXPECT_EQ(std::get<Graph*>(of_shoal), nullptr);
  EXPECT_EQ(std::get<Model*>(of_models), nullptr);
}

}  // namespace using_directives
