// Tests with random cases. A case has a graph, split states of its weights, and 1 to 16 ranks. The ranks belong to 2 to
// 4 processes on 1 to 4 hosts. Each process must get the same results as one device, and all processes must get the
// same bits. Threads with their own process groups act as processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/plugin.h"
#include "tests/support/property.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

constexpr int kProcessParts = 10;

/// The number of ranks of each process, and the host name of each process.
struct Division {
  std::vector<int> ranks;
  std::vector<std::string> hosts;
};

Division divide_ranks(const RandomCase& one) {
  std::mt19937_64 random(one.seed);
  const auto below = [&](size_t count) { return static_cast<size_t>(random() % count); };
  Division division{std::vector<int>(2 + below(3), 0), {}};
  for (int rank = 0; rank < one.ranks; ++rank) ++division.ranks[below(division.ranks.size())];
  const size_t hosts = 1 + below(division.ranks.size());
  for (size_t process = 0; process < division.ranks.size(); ++process) {
    division.hosts.push_back(std::string(1, static_cast<char>('a' + below(hosts))));
  }
  return division;
}

std::string check_on_processes(const RandomCase& one) {
  std::vector<Device*> devices;
  for (int i = 0; i < one.ranks; ++i) devices.push_back(&test_device(i));
  const Division division = divide_ranks(one);
  try {
    return difference(run_on_one(one, *devices[0]), run_on_processes(one, devices, division.ranks, division.hosts),
                      one.tolerance);
  } catch (const std::exception& error) {
    return error.what();
  }
}

class ProcessesProperty : public testing::TestWithParam<int> {};

TEST_P(ProcessesProperty, ProcessesGiveSameResultsAsOneDevice) {
  if (plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  check_property({.draw = random_case, .check = check_on_processes, .cases = 500}, GetParam(), kProcessParts);
}

INSTANTIATE_TEST_SUITE_P(Random, ProcessesProperty, testing::Range(0, kProcessParts));

}  // namespace
}  // namespace shoal::test
