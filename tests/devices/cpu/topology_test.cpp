#include "devices/cpu/topology.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace shoal::cpu {
namespace {

const std::vector<Node> kTwoNodes{{0, {0, 1, 2, 3}}, {2, {8, 9, 10, 11}}};

constexpr size_t kOdd = (size_t{9} << 20) + 12345;  ///< the size of several huge pages plus a remainder

TEST(DivideCores, DefaultIsOneDevicePerNode) {
  const auto sets = divide_cores(kTwoNodes, 0);
  ASSERT_EQ(sets.size(), 2U);
  EXPECT_EQ(sets[1].node, 2);
  EXPECT_EQ(sets[1].cores, (std::vector<int>{8, 9, 10, 11}));
  EXPECT_FALSE(sets[1].shared);
}

TEST(DivideCores, DevicesGetEvenDisjointCoreSets) {
  for (int devices = 1; devices <= 8; ++devices) {
    const auto sets = divide_cores(kTwoNodes, devices);
    ASSERT_EQ(sets.size(), static_cast<size_t>(devices));
    std::multiset<int> all;
    for (const CoreSet& set : sets) {
      EXPECT_FALSE(set.shared);
      EXPECT_GE(set.cores.size(), 8U / static_cast<size_t>(devices));
      EXPECT_LE(set.cores.size(), (8U + static_cast<size_t>(devices) - 1) / static_cast<size_t>(devices));
      all.insert(set.cores.begin(), set.cores.end());
    }
    EXPECT_EQ(all, (std::multiset<int>{0, 1, 2, 3, 8, 9, 10, 11}));
  }
}

TEST(DivideCores, CoreSetsOfSeveralNodesHaveNoNodeNumber) {
  const auto sets = divide_cores(kTwoNodes, 3);
  EXPECT_EQ(sets[0].node, 0);
  EXPECT_EQ(sets[1].node, -1);  // this set has cores 2, 3 and 8
  EXPECT_EQ(sets[2].node, 2);
}

TEST(DivideCores, DevicesThatOutnumberCoresShareCores) {
  const auto sets = divide_cores(kTwoNodes, 20);
  ASSERT_EQ(sets.size(), 20U);
  std::set<int> used;
  for (const CoreSet& set : sets) {
    EXPECT_TRUE(set.shared);
    ASSERT_EQ(set.cores.size(), 1U);
    used.insert(set.cores[0]);
  }
  EXPECT_EQ(used.size(), 8U);
}

TEST(DivideCores, CoreCountsAreProportionalToThreads) {
  const auto counts = [](int devices, const std::vector<int>& threads) {
    std::vector<size_t> sizes;
    std::multiset<int> all;
    for (const CoreSet& set : divide_cores(kTwoNodes, devices, threads)) {
      EXPECT_FALSE(set.shared);
      sizes.push_back(set.cores.size());
      all.insert(set.cores.begin(), set.cores.end());
    }
    EXPECT_EQ(all, (std::multiset<int>{0, 1, 2, 3, 8, 9, 10, 11}));
    return sizes;
  };
  EXPECT_EQ(counts(2, {1, 3}), (std::vector<size_t>{2, 6}));
  EXPECT_EQ(counts(2, {3, 1}), (std::vector<size_t>{6, 2}));
  EXPECT_EQ(counts(3, {1, 3, 4}), (std::vector<size_t>{1, 3, 4}));
  EXPECT_EQ(counts(3, {1, 100, 1}), (std::vector<size_t>{1, 6, 1})) << "every device has a core";
  EXPECT_EQ(counts(3, {7, 7, 7}), (std::vector<size_t>{2, 3, 3})) << "as without threads";
  EXPECT_EQ(counts(3, {5}), (std::vector<size_t>{2, 3, 3})) << "one number for all";
}

TEST(DivideCores, EveryThreadGetsACoreIfCoresSuffice) {
  for (int a = 1; a <= 6; ++a) {
    for (int b = 1; a + b <= 7; ++b) {
      const std::vector<int> threads{a, b, 8 - a - b};
      const auto sets = divide_cores(kTwoNodes, 3, threads);
      for (size_t i = 0; i < 3; ++i) EXPECT_GE(sets[i].cores.size(), static_cast<size_t>(threads[i])) << a << " " << b;
    }
  }
}

TEST(DivideCores, DevicesWithUnevenThreadsShareCoresIfCoresAreFew) {
  std::vector<int> threads(20, 1);
  threads[7] = 1000;
  for (const CoreSet& set : divide_cores(kTwoNodes, 20, threads)) {
    EXPECT_TRUE(set.shared);
    EXPECT_GE(set.cores.size(), 1U);
  }
}

TEST(Machine, HasCoresAndMemory) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_FALSE(cpu_model().empty());
  for (int node : {-1, machine_nodes()[0].number}) {
    const DeviceMemory memory = node_memory(node);
    EXPECT_GT(memory.total, size_t{64} << 20);
    EXPECT_GT(memory.free, 0U);
    EXPECT_LE(memory.free, memory.total);
  }
}

TEST(Machine, BindsOnlyTheCallingThread) {
  const int core = machine_nodes()[0].cores.back();
  bool bound = false;
  cpu_set_t set;
  CPU_ZERO(&set);
  std::thread([&] {
    bound = bind_thread({&core, 1});
    pthread_getaffinity_np(pthread_self(), sizeof(set), &set);
  }).join();
  if (!bound) GTEST_SKIP() << "binding threads is not permitted here";
  EXPECT_EQ(CPU_COUNT(&set), 1);
  EXPECT_TRUE(CPU_ISSET(core, &set));
}

TEST(Machine, AllocatedMemoryIsAlignedOrNull) {
  for (int node : {-1, machine_nodes()[0].number}) {
    for (size_t size : {size_t{0}, size_t{100}, size_t{1000000}, (size_t{4} << 20) - 1, size_t{4} << 20, kOdd}) {
      void* data = allocate_on_node(size, node);
      ASSERT_NE(data, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0U);
      std::memset(data, 1, size);  // writes every byte
      free_memory(data, size);
    }
    for (size_t size : {~size_t{0}, ~size_t{0} - 4096, ~size_t{0} / 2, size_t{1} << 60}) {
      EXPECT_EQ(allocate_on_node(size, node), nullptr) << size;
    }
  }
}

TEST(CoresOfTeam, AreTheDeviceCoresUnlessCoresAreShared) {
  const CoreSet set{0, {machine_nodes()[0].cores.front()}};
  EXPECT_EQ(cores_of_team(set, 1), set.cores);
  EXPECT_GE(cores_of_team({0, set.cores, true}, 1).size(), static_cast<size_t>(usable_cores()))
      << "devices that share cores may use all cores";
}

// Runs a test in a new process with this environment. A process reads the topology of the machine only once, so each
// simulated machine needs a new process.
void run_alone(const std::string& environment, const std::string& test) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      fmt::format("{} '{}' --gtest_also_run_disabled_tests --gtest_filter=ChildProcess.DISABLED_{} 2>&1", environment,
                  program, test);
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output.push_back(static_cast<char>(c));
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << output;
  EXPECT_THAT(output, ::testing::HasSubstr("1 test from 1 test suite ran")) << command;
}

std::vector<int> all_cores() {
  std::vector<int> cores;
  for (const Node& node : machine_nodes()) cores.insert(cores.end(), node.cores.begin(), node.cores.end());
  return cores;
}

TEST(ChildProcess, DISABLED_HasTheExpectedCores) {
  EXPECT_EQ(fmt::format("{}", fmt::join(all_cores(), ",")), std::getenv("TEST_CORES"));
}

TEST(Machine, CoresDoNotDependOnOpenMpSettings) {
  const std::string cores = fmt::format("TEST_CORES={}", fmt::join(all_cores(), ","));
  for (const char* setting : {"OMP_PROC_BIND=false", "OMP_PROC_BIND=true", "OMP_PROC_BIND=spread OMP_PLACES=threads",
                              "OMP_NUM_THREADS=1", "OMP_DYNAMIC=true"}) {
    run_alone(fmt::format("{} {}", cores, setting), "HasTheExpectedCores");
  }
}

TEST(Machine, HasOnlyCoresThatTheProcessMayUse) {
  const int last = all_cores().back();
  bool bound = false;
  std::thread([&] {
    bound = bind_thread({&last, 1});  // child processes inherit the binding
    if (!bound) return;
    for (const char* setting : {"", "OMP_PROC_BIND=true"}) {
      run_alone(fmt::format("TEST_CORES={} {}", last, setting), "HasTheExpectedCores");
    }
  }).join();
  if (!bound) GTEST_SKIP() << "binding threads is not permitted here";
}

TEST(ChildProcess, DISABLED_LargeTeamsUseOtherHardwareThreads) {
  ASSERT_EQ(all_cores(), (std::vector<int>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(hardware_threads(std::vector<int>{2, 8}), (std::vector<int>{2, 8, 3, 9}));
  const auto sets = divide_cores(machine_nodes(), 0);
  ASSERT_EQ(sets.size(), 2U);
  const std::vector<int> cores{6, 8, 10}, all{6, 8, 10, 7, 9, 11};
  EXPECT_EQ(cores_of_team(sets[1], 2), cores) << "all cores of the device, because another process may use some cores";
  EXPECT_EQ(cores_of_team(sets[1], 3), cores);
  EXPECT_EQ(cores_of_team(sets[1], 4), all);
  EXPECT_EQ(cores_of_team(sets[1], 6), all);
  EXPECT_EQ(cores_of_team(sets[1], 7).size(), 12U);
}

TEST(Memory, MemoryOfEverySizeCanBeZeroed) {
  for (const size_t size : {size_t{1}, size_t{5000}, (size_t{8} << 20) + 3, kOdd}) {
    auto* data = static_cast<std::byte*>(allocate_on_node(size, 0));
    ASSERT_NE(data, nullptr);
    std::memset(data, 7, size);
    zero_memory(data, size);
    EXPECT_TRUE(std::all_of(data, data + size, [](std::byte byte) { return byte == std::byte{0}; })) << size;
    free_memory(data, size);
  }
}

TEST(CoresOfTeam, IncludeOtherHardwareThreadsForLargeTeams) {
  run_alone("HWLOC_SYNTHETIC='numa:2 core:3 pu:2'", "LargeTeamsUseOtherHardwareThreads");
}

TEST(ChildProcess, DISABLED_MemoryIsBoundToItsNode) {
  ASSERT_EQ(machine_nodes().size(), 2U);
  for (size_t size : {size_t{100'000}, size_t{6} << 20, kOdd}) {
    void* data = allocate_on_node(size, 0);
    ASSERT_NE(data, nullptr);
    unsigned long nodes[16] = {};  // NOLINT: the system call requires this type
    int mode = -1;
    for (const size_t at : {size_t{0}, size - 1}) {
      ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, static_cast<char*>(data) + at, MPOL_F_ADDR),
                0);
      EXPECT_NE(mode, MPOL_DEFAULT) << size;
      EXPECT_EQ(nodes[0], 1U) << size;
    }
    std::memset(data, 1, size);
    free_memory(data, size);
    std::vector<std::vector<char>> others;  // vectors of many sizes, which can reuse all freed memory
    for (size_t bytes = 8; bytes <= size; bytes += 1 + bytes / 4) {
      others.emplace_back(bytes);
      ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, others.back().data(), MPOL_F_ADDR), 0);
      EXPECT_EQ(mode, MPOL_DEFAULT) << bytes << " bytes on the heap, after freeing " << size << " bytes on a node";
    }
  }
}

TEST(Machine, MemoryIsBoundToItsNode) {
  int mode = -1;
  if (syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) != 0) GTEST_SKIP() << "no memory policies here";
  if (all_cores().size() < 2) GTEST_SKIP() << "two cores are needed to simulate two nodes";
  run_alone("HWLOC_SYNTHETIC='numa:2 core:1 pu:1' HWLOC_THISSYSTEM=1", "MemoryIsBoundToItsNode");
}

/// Returns the value of `key` in /proc/self/smaps for the mapping that contains `data`; "" if there is no such key.
std::string mapping_line(const void* data, const std::string& key) {
  std::ifstream file("/proc/self/smaps");
  const auto address = reinterpret_cast<uintptr_t>(data);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      inside = begin <= address && address < end;
    } else if (inside && line.starts_with(key + ":")) {
      return line.substr(key.size() + 1);
    }
  }
  return "";
}

TEST(Machine, LargeMemoryUsesHugePagesAndIsUnmappedWhenFreed) {
  std::string modes;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), modes);
  auto* data = static_cast<std::byte*>(allocate_on_node(kOdd, machine_nodes()[0].number));
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (2 << 20), 0U);
  for (size_t i = 0; i < kOdd; i += 1000) ASSERT_EQ(data[i], std::byte{0}) << i;
  std::memset(data, 1, kOdd);
  if (modes.find("[never]") == std::string::npos && !modes.empty()) {
    EXPECT_THAT(mapping_line(data, "VmFlags"), ::testing::HasSubstr(" hg"))
        << "the system was not asked for huge pages";
  }
  free_memory(data, kOdd);
  for (std::byte* at : {data, data + kOdd / 2, data + kOdd - 1}) {
    EXPECT_NE(msync(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) / 4096 * 4096), 1, MS_ASYNC), 0)
        << "memory was leaked " << at - data << " bytes from the start";
  }
}

}  // namespace
}  // namespace shoal::cpu
