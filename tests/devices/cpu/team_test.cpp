// Tests of the cores on which the threads of a team run. Each thread asks the system for its own affinity.
#include "devices/cpu/team.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "devices/cpu/topology.h"
#include "tests/devices/cpu_configuration.h"

namespace shoal::cpu {
namespace {

using Cores = std::vector<int>;

Cores cores_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  Cores cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

Cores sorted(Cores cores) {
  std::sort(cores.begin(), cores.end());
  return cores;
}

Cores all_cores() {
  Cores cores;
  for (const Node& node : machine_nodes()) cores.insert(cores.end(), node.cores.begin(), node.cores.end());
  return cores;
}

bool binding_works() {
  const Cores before = cores_of_this_thread(), one{before.front()};
  const bool works = bind_thread(one) && cores_of_this_thread() == one;
  bind_thread(before);
  return works;
}

/// For each thread of a team, returns the cores that the thread may use.
std::vector<Cores> cores_of_threads(int threads, const Cores& cores) {
  static std::vector<Cores> seen;
  static std::atomic<int> arrived;
  seen.assign(static_cast<size_t>(threads), {});
  arrived = 0;
  Tensor node;
  const Step step{[](const TeamContext& ctx, Tensor&) {
                    seen[static_cast<size_t>(ctx.part)] = cores_of_this_thread();
                    ++arrived;
                    while (arrived < ctx.parts) std::this_thread::yield();  // waits until each thread runs one part
                  },
                  &node};
  std::thread([&] {  // a new thread, because the team changes the affinity of its leading thread
    Team team(threads, cores);
    team.lead([&] { team.run({&step, 1}, threads); });
  })
      .join();
  return seen;
}

TEST(Team, AllThreadsRunOnTheGivenCores) {
  if (!binding_works()) GTEST_SKIP() << "binding threads is not permitted here";
  const Cores cores = all_cores(), last{cores.back()};
  for (int threads : {1, 2, 3}) {
    for (const Cores& seen : cores_of_threads(threads, cores)) EXPECT_EQ(seen, sorted(cores));
    for (const Cores& seen : cores_of_threads(threads, last)) EXPECT_EQ(seen, last);
  }
}

/// For each device, returns the cores that the first thread of its team may use.
std::vector<Cores> cores_of_devices(int devices, const char* params) {
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Cores> cores(static_cast<size_t>(devices));
  for (int i = 0; i < devices; ++i) {
    backends.push_back(Registry::instance().device("CPU" + std::to_string(i)).init(params));
    backends.back()->enqueue(
        {[](void* object, const void*, bool) { *static_cast<Cores*>(object) = cores_of_this_thread(); },
         &cores[static_cast<size_t>(i)], nullptr});
  }
  for (auto& backend : backends) backend->synchronize();
  return cores;
}

TEST(Team, DevicesHaveDisjointCores) {
  if (!binding_works()) GTEST_SKIP() << "binding threads is not permitted here";
  const Cores all = all_cores();
  if (all.size() < 2) GTEST_SKIP() << "one core";
  const test::CpuConfiguration configuration("devices=2");
  const auto seen = cores_of_devices(2, "");
  Cores common;
  std::set_intersection(seen[0].begin(), seen[0].end(), seen[1].begin(), seen[1].end(), std::back_inserter(common));
  EXPECT_EQ(common, Cores());
  EXPECT_FALSE(seen[0].empty() || seen[1].empty());
}

TEST(Team, DevicesThatOutnumberCoresAreNotBound) {
  if (!binding_works()) GTEST_SKIP() << "binding threads is not permitted here";
  const int devices = static_cast<int>(all_cores().size()) + 1;
  const test::CpuConfiguration configuration("devices=" + std::to_string(devices));
  const Cores all = sorted(hardware_threads(all_cores()));
  for (const Cores& seen : cores_of_devices(devices, "threads=1")) EXPECT_EQ(seen, all);
}

TEST(Team, ThreadsThatOutnumberCoresUseAllCores) {
  if (!binding_works()) GTEST_SKIP() << "binding threads is not permitted here";
  const test::CpuConfiguration configuration("devices=1");
  const Cores all = sorted(hardware_threads(all_cores()));
  const std::string threads = "threads=" + std::to_string(all.size() + 1);
  EXPECT_EQ(cores_of_devices(1, threads.c_str()).front(), all);
}

}  // namespace
}  // namespace shoal::cpu
