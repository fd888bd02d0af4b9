#include "machine/machine.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace shoal::machine {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ProductModel, InterpolatesPointsAndExtrapolatesInProportion) {
  const ProductModel model{{{1, 2.0}, {5, 4.0}, {10, 20.0}}, {{2, 1.0}}};
  EXPECT_EQ(model.seconds(0.5, false), 2);
  EXPECT_EQ(model.seconds(1, false), 2);
  EXPECT_EQ(model.seconds(2, false), 2.5);
  EXPECT_EQ(model.seconds(5, false), 4);
  EXPECT_EQ(model.seconds(7.5, false), 12);
  EXPECT_EQ(model.seconds(10, false), 20);
  EXPECT_EQ(model.seconds(25, false), 50);
  EXPECT_EQ(model.seconds(1, true), 1);
  EXPECT_EQ(model.seconds(3, true), 1.5);
}

TEST(ProductModel, MissingTableFallsBackToOtherTable) {
  const ProductModel streamed{{{1, 2.0}}, {}}, cached{{}, {{1, 3.0}}};
  EXPECT_EQ(streamed.seconds(1, true), 2);
  EXPECT_EQ(cached.seconds(1, false), 3);
  EXPECT_THROW(ProductModel{}.seconds(1, false), InternalError);
}

/// A machine with the devices `a`, `b`, `c` and `d`.
MachineModel four() {
  MachineModel machine;
  machine.name = "four";
  for (const char* name : {"a", "b", "c", "d"}) {
    DeviceModel device;
    device.name = name;
    device.domain = static_cast<int>(machine.domains.size());
    machine.domains.push_back({name, 0, 0});
    machine.devices.push_back(device);
  }
  return machine;
}

const std::vector<int> kAB{0, 1}, kAll{0, 1, 2, 3};

TEST(Machine, FindsDeviceByName) {
  EXPECT_EQ(four().index("c"), 2);
  EXPECT_THAT([] { four().index("e"); },
              ThrowsMessage<InvalidArgument>("machine four has no device 'e'; it has a, b, c, d"));
}

TEST(Machine, SingleDeviceNeedsNoCollective) {
  EXPECT_EQ(four().collective_seconds(Collective::kAllReduce, std::vector<int>{2}, 1e9), 0);
}

TEST(Machine, InterpolatesMeasuredCollectives) {
  MachineModel machine = four();
  machine.collectives = {{{"a", "b"}, Collective::kAllReduce, {{100, 2.0}, {300, 4.0}, {400, 7.0}}},
                         {{"a", "b", "c", "d"}, Collective::kAllReduce, {{100, 50.0}}}};
  machine.algorithms = {{"ring", false, 1000, 0, 1}};
  const auto seconds = [&](double bytes) { return machine.collective_seconds(Collective::kAllReduce, kAB, bytes); };
  EXPECT_EQ(seconds(0), 2);
  EXPECT_EQ(seconds(100), 2);
  EXPECT_EQ(seconds(150), 2.5);
  EXPECT_EQ(seconds(300), 4);
  EXPECT_EQ(seconds(350), 5.5);
  EXPECT_EQ(seconds(400), 7);
  EXPECT_EQ(seconds(600), 13) << "extrapolates the last two points";
  EXPECT_EQ(machine.collective_seconds(Collective::kAllReduce, kAll, 1e6), 50) << "the table has a single point";
  EXPECT_EQ(machine.collective_seconds(Collective::kAllReduce, std::vector<int>{0, 2}, 0), 1000)
      << "the measured set has other members";
  EXPECT_EQ(machine.collective_seconds(Collective::kAllReduce, std::vector<int>{0, 1, 2}, 0), 1000)
      << "the measured set has fewer members";
}

TEST(Machine, OrderOfMeasuredMembersIsIrrelevant) {
  MachineModel machine = four();
  machine.collectives = {{{"a", "b", "c"}, Collective::kAllReduce, {{100, 2.0}}}};
  machine.algorithms = {{"ring", false, 1000, 0, 1}};
  const auto seconds = [&](const std::vector<int>& members) {
    return machine.collective_seconds(Collective::kAllReduce, members, 100);
  };
  EXPECT_EQ(seconds({2, 1, 0}), 2);
  EXPECT_EQ(seconds({0, 2, 1}), 2);
  machine.collectives.push_back({{"c", "b", "a"}, Collective::kAllReduce, {{100, 5.0}}});
  EXPECT_EQ(seconds({2, 1, 0}), 5) << "a table with the members in the same order takes precedence";
  EXPECT_EQ(seconds({0, 1, 2}), 2);
}

/// A machine of `count` devices with equal identities (DeviceModel::identity). The devices share one domain (memory
/// bandwidth and cores), or each device has its own domain.
MachineModel alike_devices(int count, bool one_domain) {
  MachineModel machine;
  for (int i = 0; i < count; ++i) {
    DeviceModel device;
    device.name = "d" + std::to_string(i);
    device.identity = "alike";
    device.run_seconds = 1;
    device.domain = one_domain ? 0 : i;
    if (i == 0 || !one_domain) machine.domains.push_back({device.name, 0, 0});
    machine.devices.push_back(device);
  }
  return machine;
}

/// Adds a measured all-reduce of the first `count` devices.
void add_set(MachineModel& machine, int count, double seconds) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(machine.devices[static_cast<size_t>(i)].name);
  machine.collectives.push_back({names, Collective::kAllReduce, {{100, seconds}}});
}

std::vector<int> range(int from, int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(from + i);
  return out;
}

void expect_seconds(const MachineModel& machine, const std::vector<int>& members, double seconds) {
  EXPECT_DOUBLE_EQ(machine.collective_seconds(Collective::kAllReduce, members, 100), seconds);
}

TEST(Machine, UnmeasuredDeviceSetsUseMeanOfEquivalentDeviceSets) {
  MachineModel machine = alike_devices(5, true);
  machine.algorithms = {{"fitted", false, 1000, 0, 1}};
  add_set(machine, 2, 20);
  add_set(machine, 4, 40);
  expect_seconds(machine, range(1, 4), 40);
  expect_seconds(machine, range(3, 2), 20);
  machine.collectives.push_back({{"d1", "d2"}, Collective::kAllReduce, {{100, 30.0}}});
  expect_seconds(machine, {3, 4}, 25);
  expect_seconds(machine, {2, 1}, 30);
}

TEST(Machine, InterpolatesBetweenNumbersOfDevices) {
  for (const bool one_domain : {true, false}) {
    MachineModel machine = alike_devices(8, one_domain);
    machine.algorithms = {{"fitted", false, 1000, 0, 1}};
    add_set(machine, 2, 20);
    add_set(machine, 4, 50);
    expect_seconds(machine, range(1, 3), 35);
    expect_seconds(machine, range(0, 8), 110);
    add_set(machine, 8, 70);
    expect_seconds(machine, range(0, 5), 55);
    expect_seconds(machine, range(1, 7), 65);
  }
  MachineModel falling = alike_devices(5, true);
  add_set(falling, 2, 20);
  add_set(falling, 3, 10);
  expect_seconds(falling, range(0, 5), 10);
  MachineModel one = alike_devices(5, true);
  add_set(one, 4, 20);
  expect_seconds(one, range(0, 2), 20);
  expect_seconds(one, range(0, 5), 20);
}

TEST(Machine, PrefersMeasurementsOfSetsWithEqualDomains) {
  MachineModel machine = alike_devices(8, true);  // the code below divides these devices among two NUMA nodes
  machine.domains.push_back({"second", 0, 0});
  for (size_t i = 0; i < 8; ++i) machine.devices[i].identity = "8 cores, node " + std::to_string(i / 4) + "; one of 8";
  for (size_t i = 4; i < 8; ++i) machine.devices[i].domain = 1;
  add_set(machine, 2, 20);
  add_set(machine, 4, 40);
  add_set(machine, 8, 80);
  machine.collectives.push_back({{"d0", "d4"}, Collective::kAllReduce, {{100, 30.0}}});
  expect_seconds(machine, range(4, 4), 40);
  expect_seconds(machine, {3, 7}, 30);
  expect_seconds(machine, {5, 6}, 20);
}

TEST(Machine, SetsOfTwoDeviceKindsPreferMeasurementsOfBothKinds) {
  MachineModel machine = alike_devices(5, false);
  machine.devices[0].identity = "host";
  machine.algorithms = {{"fitted", false, 1000, 0, 1e9}};
  std::vector<CollectiveAlgorithm> algorithms;
  const auto add = [&](const std::vector<int>& members, double seconds) {
    std::vector<std::string> names;
    for (const int i : members) names.push_back(machine.devices[static_cast<size_t>(i)].name);
    machine.collectives.push_back({names, Collective::kAllReduce, {{100, seconds}}});
  };
  add({1, 2}, 2);
  add({1, 2, 3, 4}, 4);
  EXPECT_NEAR(machine.collective_seconds(Collective::kAllReduce, std::vector<int>{0, 1, 2}, 0), 1000, 1e-9);
  std::swap(machine.algorithms, algorithms);
  expect_seconds(machine, {0, 1, 2}, 3);  // without algorithms, the time is interpolated between all measured sets
  std::swap(machine.algorithms, algorithms);
  add({0, 1}, 20);
  add({0, 1, 2, 3, 4}, 50);
  expect_seconds(machine, {2, 3}, 2);
  expect_seconds(machine, {1, 3, 4}, 3);
  expect_seconds(machine, {0, 3}, 20);
  expect_seconds(machine, {0, 1, 2}, 30);
}

TEST(Machine, DevicesWithoutIdentityIgnoreMeasurementsOfOtherDevices) {
  MachineModel machine = alike_devices(4, true);
  for (DeviceModel& device : machine.devices) device.identity.clear();
  machine.algorithms = {{"fitted", false, 1000, 0, 1}};
  add_set(machine, 2, 20);
  EXPECT_EQ(machine.collective_seconds(Collective::kAllReduce, range(1, 2), 0), 1000);
}

TEST(Machine, NoiseDoesNotMakeLongMessagesFaster) {
  MachineModel machine = four();
  machine.collectives = {{{"a", "b"}, Collective::kAllReduce, {{100, 5.0}, {200, 4.0}}}};
  EXPECT_EQ(machine.collective_seconds(Collective::kAllReduce, kAB, 1e9), 4);
}

TEST(Machine, UsesTimeOfFastestAlgorithm) {
  MachineModel machine = four();
  machine.algorithms = {{"one shot", true, 1, 0.5, 100}, {"ring", false, 10, 1, 200}};
  const auto seconds = [&](Collective kind, double bytes) { return machine.collective_seconds(kind, kAll, bytes); };
  EXPECT_EQ(seconds(Collective::kAllReduce, 100), 1 + 1.5 + 3)
      << "the one-shot algorithm transfers the message three times";
  EXPECT_EQ(seconds(Collective::kAllReduce, 4000), 10 + 3 + 1.5 * 20)
      << "the ring algorithm transfers 2 * 3 / 4 of the message";
  EXPECT_EQ(seconds(Collective::kAllGather, 4000), 10 + 3 + 0.75 * 20);
  EXPECT_EQ(seconds(Collective::kReduceScatter, 4000), 10 + 3 + 0.75 * 20);
}

TEST(Machine, UnmeasuredCollectiveUsesScaledTimeOfMeasuredCollective) {
  MachineModel machine = four();
  machine.collectives = {{{"a", "b"}, Collective::kAllReduce, {{100, 2.0}}}};
  EXPECT_EQ(machine.collective_seconds(Collective::kAllGather, kAB, 100), 1);
  machine.collectives[0].kind = Collective::kAllGather;
  EXPECT_EQ(machine.collective_seconds(Collective::kAllReduce, kAB, 100), 4);
  EXPECT_EQ(machine.collective_seconds(Collective::kReduceScatter, kAB, 100), 2);
  machine.algorithms = {{"ring", false, 10, 0, 1e9}};
  EXPECT_NEAR(machine.collective_seconds(Collective::kAllReduce, kAB, 0), 10, 1e-12)
      << "an algorithm exists for this collective";
}

TEST(Machine, CollectivesUseDefaultTimesWithoutMeasurements) {
  EXPECT_DOUBLE_EQ(four().collective_seconds(Collective::kAllReduce, kAll, 1e6), 20e-6 + 1.5e6 / 10e9);
  EXPECT_DOUBLE_EQ(four().collective_seconds(Collective::kAllGather, kAll, 1e6), 10e-6 + 0.75e6 / 10e9);
  EXPECT_DOUBLE_EQ(four().collective_seconds(Collective::kAllToAll, kAll, 1e6), 10e-6 + 0.75e6 / 4 / 10e9);
}

/// Each of two hosts has the devices `a` and `b`. The link between the hosts has a latency of 10 us and a bandwidth of
/// 1e9 bytes/s. The link between the devices of a host has a latency of 1 us and a bandwidth of 1e10 bytes/s.
MachineModel two_hosts() {
  MachineModel one = four();
  one.devices.resize(2);
  one.domains.resize(2);
  for (DeviceModel& device : one.devices) device.run_seconds = 5e-6;
  one.algorithms = {{"ring", false, 1e-6, 0, 1e10}};
  one.collectives = {{{"b", "a"}, Collective::kAllGather, {{0, 7e-6}}}};
  return several_hosts(one, 2, {10e-6, 1e9});
}

TEST(SeveralHosts, DevicesOfLaterHostsHaveHostPrefix) {
  const MachineModel machine = two_hosts();
  ASSERT_EQ(machine.devices.size(), 4u);
  EXPECT_EQ(machine.index("1:b"), 3);
  EXPECT_EQ(machine.devices[3].host, 1);
  EXPECT_EQ(machine.domains[static_cast<size_t>(machine.devices[3].domain)].name, "1:b");
  EXPECT_EQ(machine.collectives[1].members, (std::vector<std::string>{"1:b", "1:a"}));
  EXPECT_EQ(machine.by_host(std::vector<int>{2, 0, 3}), (std::vector<std::vector<int>>{{2, 3}, {0}}));
  EXPECT_EQ(four().by_host(kAll), (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
}

TEST(SeveralHosts, CollectiveTimeIsSumOfTimesWithinAndBetweenHosts) {
  const MachineModel machine = two_hosts();
  const auto seconds = [&](Collective kind, const std::vector<int>& members, double bytes) {
    return machine.collective_seconds(kind, members, bytes);
  };
  const double inside = 1e-6 + 1e4 / 1e10;
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllReduce, kAB, 1e4), inside);
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllReduce, {2, 3}, 1e4), inside);
  // With one device per host, the hosts exchange one message. If a host has several devices, the time within the slower
  // host is added.
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllReduce, {0, 2}, 1e4), 10e-6 + 1e4 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllReduce, {0, 2, 3}, 1e4), inside + 10e-6 + 1e4 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllReduce, kAll, 1e4), inside + 10e-6 + 1e4 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllGather, kAll, 1e4), 7e-6 + 10e-6 + 1e4 / 2 / 1e9);
}

TEST(SeveralHosts, RunTimeOnSeveralHostsIncludesNetworkLatency) {
  const MachineModel machine = two_hosts();
  EXPECT_DOUBLE_EQ(machine.run_seconds(std::vector<int>{2}), 5e-6);
  EXPECT_DOUBLE_EQ(machine.run_seconds(std::vector<int>{2, 3}), 5e-6);
  EXPECT_DOUBLE_EQ(machine.run_seconds(kAll), 15e-6);
}

TEST(SeveralHosts, MeasuredTimesBetweenHostsReplaceComputedTimes) {
  MachineModel machine = two_hosts();
  machine.collectives.push_back({{"a", "1:a"}, Collective::kAllReduce, {{0, 3e-6}}});
  const std::vector<int> measured{0, 2};
  EXPECT_DOUBLE_EQ(machine.collective_seconds(Collective::kAllReduce, measured, 1e4), 3e-6);
}

TEST(SeveralHosts, MeasurementsBetweenHostsDoNotApplyWithinHost) {
  MachineModel machine = two_hosts();
  for (DeviceModel& device : machine.devices) device.identity = "one kind";
  machine.collectives = {{{"a", "1:a"}, Collective::kAllReduce, {{0, 3e-3}}}};
  EXPECT_LT(machine.collective_seconds(Collective::kAllReduce, kAB, 1e4), 1e-3);
}

}  // namespace
}  // namespace shoal::machine
