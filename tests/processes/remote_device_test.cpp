// Tests devices of other processes. The processes are threads here and have the same CPU devices.
#include "processes/remote_device.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/support/thread_processes.h"

namespace shoal {
namespace {

/// Each process reports the total memory of two devices: CPU0 of process 1 and its own CPU0.
std::vector<std::array<size_t, 2>> total_memory(const std::vector<std::string>& hosts) {
  Device* const device = Registry::instance().find_device("CPU0");
  std::vector<std::array<size_t, 2>> totals(hosts.size());
  for (const test::ProcessEnd& end : test::in_processes(hosts, [&](ProcessGroup& group) {
         const std::vector<Device*> all = gather_devices(group, {&device, 1});
         ASSERT_EQ(all.size(), hosts.size());
         group.gather("", "test");  // waits until all processes have called gather_devices()
         totals[static_cast<size_t>(group.own())] = {all[1]->memory().total,
                                                     all[static_cast<size_t>(group.own())]->memory().total};
       })) {
    EXPECT_EQ(end.what(), "");
  }
  return totals;
}

TEST(RemoteDevices, ProcessesOfAHostDivideItsMemory) {
  const size_t whole = Registry::instance().find_device("CPU0")->memory().total;
  for (const auto& totals : total_memory({"a", "b"})) EXPECT_EQ(totals, (std::array{whole, whole}));
  for (const auto& totals : total_memory({"a", "a", "a"})) EXPECT_EQ(totals, (std::array{whole / 3, whole / 3}));
}

TEST(RemoteDevices, ProcessesThatShareMemoryAreCountedPerNumaNode) {
  const auto sharers = [](const std::vector<std::set<int>>& nodes) {
    std::vector<int> of_each;
    for (size_t own = 0; own < nodes.size(); ++own) of_each.push_back(memory_sharers(nodes, own));
    return of_each;
  };
  EXPECT_EQ(sharers({{0}, {1}}), (std::vector{1, 1}));
  EXPECT_EQ(sharers({{0}, {1}, {0}, {1}}), (std::vector{2, 2, 2, 2}));
  EXPECT_EQ(sharers({{0}, {1}, {0, 1}}), (std::vector{2, 2, 3}));
  EXPECT_EQ(sharers({{-1}, {-1}}), (std::vector{2, 2})) << "the machine has one NUMA node";
  EXPECT_EQ(sharers({{0}, {1}, {-1}}), (std::vector{2, 2, 3}))
      << "a device on cores of several nodes counts the memory of all nodes";
  EXPECT_EQ(sharers({{0}, {}}), (std::vector{1, 0})) << "the second process has only GPUs";
}

}  // namespace
}  // namespace shoal
