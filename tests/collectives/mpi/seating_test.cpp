// Tests the process, the node and the seat (index within its node) of each rank. Also tests is_crowded(), which checks
// whether a node has more threads than cores.
#include "collectives/mpi/seating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "devices/cpu/topology.h"
#include "tests/collectives/mpi/process_mesh.h"
#include "tests/support/thread_processes.h"

namespace shoal::collectives::mpi {
namespace {

using testing::ElementsAre;

TEST(Seating, EveryProcessAssignsRanksToSameNodes) {
  for (const test::ProcessEnd& end : test::in_processes({"z", "b", "z", "c", "b"}, [](ProcessGroup& group) {
         ProcessMesh mesh(group, {4, 0, 1, 2, 0});
         const Seating seating(devices_of(mesh.backends()), group);
         EXPECT_THAT(seating.process, ElementsAre(4, 0, 1, 2, 0));
         EXPECT_THAT(seating.node, ElementsAre(1, 0, 1, 0, 0)) << "nodes are in the order of their first processes";
         EXPECT_THAT(seating.seat, ElementsAre(0, 0, 1, 1, 2));
         EXPECT_THAT(seating.members, ElementsAre(ElementsAre(1, 3, 4), ElementsAre(0, 2)));
         EXPECT_EQ(seating.leader(1), 0);
         EXPECT_EQ(seating.names[3], "2:NULL0 on z");
         EXPECT_EQ(seating.own_process, group.own());
         EXPECT_EQ(seating.own_node, (std::vector{0, 1, 0, -1, 1})[static_cast<size_t>(group.own())]);
       })) {
    EXPECT_EQ(end.what(), "");
  }
}

TEST(Crowding, CountsThreadsOfAllProcessesOfANode) {
  const int cores = cpu::usable_cores();
  for (const test::ProcessEnd& end : test::in_processes({"a", "a", "b"}, [&](ProcessGroup& group) {
         const bool has_neighbour = group.own() != 2;
         EXPECT_EQ(is_crowded(group, cores), has_neighbour);
         EXPECT_EQ(is_crowded(group, group.own() == 1 ? 0 : cores), false);
         EXPECT_EQ(is_crowded(group, cores + 1), true);
       })) {
    EXPECT_EQ(end.what(), "");
  }
}

}  // namespace
}  // namespace shoal::collectives::mpi
