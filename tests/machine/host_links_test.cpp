// What passes between processes of several hosts (threads here), and through which interfaces, by their counters.
#include "machine/host_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/thread_processes.h"

namespace shoal::machine {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr std::string_view kNetDev =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier "
    "compressed\n"
    "    lo:    5000      10    0    0    0     0          0         0     5000      10    0    0    0     0       0   "
    " 0\n"
    "  eth0:123456789     50    0    0    0     0          0         0    70000      40    0    0    0     0       0   "
    " 0\n"
    "ib0:7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n"
    "broken: 1 2\n";

TEST(HostLinks, BytesSentByInterface) {
  EXPECT_THAT(parse_net_dev(kNetDev), ElementsAre(Pair("eth0", 70000), Pair("ib0", 9), Pair("lo", 5000)));
  EXPECT_TRUE(parse_net_dev("").empty());
}

TEST(HostLinks, InterfacesThatItWentThrough) {
  const SentBytes before{{"eth0", 100}, {"ib0", 5}, {"ib1", 5}, {"lo", 1000}};
  const SentBytes after{{"eth0", 105}, {"ib0", 505}, {"ib1", 605}, {"lo", 1010}, {"new", 900}};
  EXPECT_EQ(busy_interfaces(before, after, 1000), "ib0,ib1,new");
  EXPECT_EQ(busy_interfaces(before, before, 1000), "");
}

/// The links as all processes have them.
std::vector<HostLink> links_of(const std::vector<std::string>& hosts) {
  std::vector<std::vector<HostLink>> all(hosts.size());
  const auto ends = test::in_processes(
      hosts, [&](ProcessGroup& group) { all[static_cast<size_t>(group.own())] = measure_links(group); });
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
  for (const auto& own : all) EXPECT_EQ(own, all[0]);
  return all[0];
}

TEST(HostLinks, EachPairOfHostsOnceAndHostsOfSeveralProcesses) {
  std::multiset<std::string> pairs;
  for (const HostLink& link : links_of({"a", "b", "a", "c", "d"})) {
    pairs.insert(link.from + link.to);
    EXPECT_GT(link.speed.latency, 0);
    EXPECT_GT(link.speed.bandwidth, 0);
    EXPECT_EQ(link.from == link.to ? link.from_interfaces : "", "");
  }
  EXPECT_THAT(pairs, ElementsAre("aa", "ab", "ac", "ad", "bc", "bd", "cd"));
}

TEST(HostLinks, OfOneHost) {
  const std::vector<HostLink> links = links_of({"a", "a", "a"});
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links[0].from + links[0].to, "aa");
  EXPECT_EQ(slowest(links, true), std::nullopt);
  EXPECT_EQ(slowest(links, false), links[0].speed);
}

TEST(HostLinks, TheSlowestOfSeveral) {
  const std::vector<HostLink> links{
      {"a", "b", "", "", {1e-6, 1e9}}, {"a", "c", "", "", {5e-6, 2e9}}, {"a", "a", "", "", {9e-6, 1}}};
  EXPECT_EQ(slowest(links, true), (Network{5e-6, 1e9}));
}

}  // namespace
}  // namespace shoal::machine
