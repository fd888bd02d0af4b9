// Tests links between processes on several hosts. In these tests, the processes are threads.
#include "tuning/probe/probe_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/thread_processes.h"

namespace shoal::probe {
namespace {

using testing::ElementsAre;

/// Returns the measured links. Checks that all processes have the same links.
std::vector<HostLink> links_of(const std::vector<std::string>& hosts) {
  std::vector<std::vector<HostLink>> all(hosts.size());
  const auto ends = test::in_processes(
      hosts, [&](ProcessGroup& group) { all[static_cast<size_t>(group.own())] = measure_links(group); });
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
  for (const auto& own : all) EXPECT_EQ(own, all[0]);
  return all[0];
}

TEST(HostLinks, CoverEveryPairOfHostsAndProcessesOfSameHost) {
  std::multiset<std::string> pairs;
  for (const HostLink& link : links_of({"a", "b", "a", "c", "d"})) {
    pairs.insert(link.from + link.to);
    EXPECT_GT(link.speed.latency, 0);
    EXPECT_GT(link.speed.bandwidth, 0);
  }
  EXPECT_THAT(pairs, ElementsAre("aa", "ab", "ac", "ad", "bc", "bd", "cd"));
}

TEST(HostLinks, SingleHostHasOneInternalLink) {
  const std::vector<HostLink> links = links_of({"a", "a", "a"});
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links[0].from + links[0].to, "aa");
  EXPECT_EQ(slowest(links, true), std::nullopt);
  EXPECT_EQ(slowest(links, false), links[0].speed);
}

TEST(HostLinks, SlowestLinkHasWorstLatencyAndBandwidth) {
  const std::vector<HostLink> links{{"a", "b", {1e-6, 1e9}}, {"a", "c", {5e-6, 2e9}}, {"a", "a", {9e-6, 1}}};
  EXPECT_EQ(slowest(links, true), (Network{5e-6, 1e9}));
}

}  // namespace
}  // namespace shoal::probe
