// Tests of meshes whose devices all belong to another process. Threads act as processes. The communicator of such a
// mesh has the traits that the other process sends. The process without ranks would compute different traits.
#include "collectives/absent_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "collectives/factory.h"
#include "processes/remote_device.h"
#include "tests/support/thread_processes.h"

namespace shoal::collectives {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(AbsentCommunicator, HasTraitsSentByOwningProcess) {
  const auto ends = test::in_processes({"a", "b"}, [](ProcessGroup& group) {
    std::vector<Device*> own;
    if (group.own() == 1) own.push_back(Registry::instance().find_device("CPU0"));
    const std::vector<Device*> mesh = gather_devices(group, own);
    EXPECT_EQ(are_absent(mesh), group.own() == 0);
    const Options staged{.implementation = "staged"}, other{.implementation = "host"};
    const CommunicatorFactory factory = communicator_for(mesh);
    const CommunicatorTraits here = describe_host_communicator(mesh, other);
    share_traits(group, std::vector<std::vector<Device*>>{mesh}, staged);
    const CommunicatorTraits there = describe_staged_communicator(mesh, staged);
    ASSERT_NE(there, here);
    EXPECT_EQ(factory.describe(mesh, other), group.own() == 0 ? there : here);
    if (group.own() != 0) return;
    const std::unique_ptr<Backend> backend = mesh[0]->init();
    const auto absent = factory(std::vector<Backend*>{backend.get()}, other);
    EXPECT_EQ(absent->describe(), there);
    EXPECT_THAT([&] { absent->enqueue(0, {}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("belongs to another process")));
  });
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
}

// All processes construct the communicator, even the process without ranks. The result is an ordinary communicator, not
// an absent communicator.
TEST(AbsentCommunicator, IsNotUsedIfEveryProcessCreatesARealCommunicator) {
  const auto ends = test::in_processes({"a", "b"}, [](ProcessGroup& group) {
    std::vector<Device*> own;
    if (group.own() == 1) own.push_back(Registry::instance().find_device("CPU0"));
    const std::vector<Device*> mesh = gather_devices(group, own);
    const std::unique_ptr<Backend> backend = mesh[0]->init();
    const auto made =
        communicator_for(mesh)(std::vector<Backend*>{backend.get()}, {.implementation = "auto", .processes = &group});
    EXPECT_EQ(made->name(), "mpi");
    group.gather("", "test");  // waits until both processes have made the communicator
  });
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
}

}  // namespace
}  // namespace shoal::collectives
