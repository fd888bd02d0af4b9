#include "meta/machine.h"

#include <gmock/gmock.h>

#include "graph/error.h"
#include "meta/cost.h"

namespace shoal::meta {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ProductModel, IsLevelThenStraightThenInProportion) {
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

TEST(ProductModel, WhatWasNotMeasuredIsAsTheOther) {
  const ProductModel streamed{{{1, 2.0}}, {}}, cached{{}, {{1, 3.0}}};
  EXPECT_EQ(streamed.seconds(1, true), 2);
  EXPECT_EQ(cached.seconds(1, false), 3);
  EXPECT_THROW(ProductModel{}.seconds(1, false), InternalError);
}

/// Devices a, b, c and d.
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

TEST(Machine, IndexOfADevice) {
  EXPECT_EQ(four().index("c"), 2);
  EXPECT_THAT([] { four().index("e"); },
              ThrowsMessage<InvalidArgument>("machine four has no device 'e'; it has a, b, c, d"));
}

TEST(Machine, OneDeviceHasNothingToSay) {
  EXPECT_EQ(four().collective_seconds(Op::kAllReduce, std::vector<int>{2}, 1e9), 0);
}

TEST(Machine, MeasuredCollectives) {
  MachineModel machine = four();
  machine.collectives = {{{"a", "b"}, Op::kAllReduce, {{100, 2.0}, {300, 4.0}, {400, 7.0}}},
                         {{"a", "b", "c", "d"}, Op::kAllReduce, {{100, 50.0}}}};
  machine.algorithms = {{"ring", false, 1000, 0, 1}};
  const auto seconds = [&](double bytes) { return machine.collective_seconds(Op::kAllReduce, kAB, bytes); };
  EXPECT_EQ(seconds(0), 2);
  EXPECT_EQ(seconds(100), 2);
  EXPECT_EQ(seconds(150), 2.5);
  EXPECT_EQ(seconds(300), 4);
  EXPECT_EQ(seconds(350), 5.5);
  EXPECT_EQ(seconds(400), 7);
  EXPECT_EQ(seconds(600), 13) << "as steep as between the last two";
  EXPECT_EQ(machine.collective_seconds(Op::kAllReduce, kAll, 1e6), 50) << "a single point";
  EXPECT_EQ(machine.collective_seconds(Op::kAllReduce, std::vector<int>{0, 2}, 0), 1000) << "other members";
  EXPECT_EQ(machine.collective_seconds(Op::kAllReduce, std::vector<int>{0, 1, 2}, 0), 1000) << "more members";
}

TEST(Machine, NoiseMakesNoLongMessageFree) {
  MachineModel machine = four();
  machine.collectives = {{{"a", "b"}, Op::kAllReduce, {{100, 5.0}, {200, 4.0}}}};
  EXPECT_EQ(machine.collective_seconds(Op::kAllReduce, kAB, 1e9), 4);
}

TEST(Machine, TheFastestAlgorithmIsTaken) {
  MachineModel machine = four();
  machine.algorithms = {{"one shot", true, 1, 0.5, 100}, {"ring", false, 10, 1, 200}};
  const auto seconds = [&](Op kind, double bytes) { return machine.collective_seconds(kind, kAll, bytes); };
  EXPECT_EQ(seconds(Op::kAllReduce, 100), 1 + 1.5 + 3) << "one shot: three times the message";
  EXPECT_EQ(seconds(Op::kAllReduce, 4000), 10 + 3 + 1.5 * 20) << "ring: 2 * 3/4";
  EXPECT_EQ(seconds(Op::kAllGather, 4000), 10 + 3 + 0.75 * 20);
  EXPECT_EQ(seconds(Op::kReduceScatter, 4000), 10 + 3 + 0.75 * 20);
}

TEST(Machine, AnotherKindInProportionToItsTraffic) {
  MachineModel machine = four();
  machine.collectives = {{{"a", "b"}, Op::kAllReduce, {{100, 2.0}}}};
  EXPECT_EQ(machine.collective_seconds(Op::kAllGather, kAB, 100), 1);
  machine.collectives[0].kind = Op::kAllGather;
  EXPECT_EQ(machine.collective_seconds(Op::kAllReduce, kAB, 100), 4);
  EXPECT_EQ(machine.collective_seconds(Op::kReduceScatter, kAB, 100), 2);
  machine.algorithms = {{"ring", false, 10, 0, 1e9}};
  EXPECT_NEAR(machine.collective_seconds(Op::kAllReduce, kAB, 0), 10, 1e-12) << "an algorithm knows the kind";
}

TEST(Machine, WithoutAnyFiguresThoseOfTheCostModel) {
  const CostModel model;
  EXPECT_EQ(four().collective_seconds(Op::kAllReduce, kAll, 1e6), 2 * model.latency + 1.5e6 / model.link_bandwidth);
  EXPECT_EQ(four().collective_seconds(Op::kAllGather, kAll, 1e6), model.latency + 0.75e6 / model.link_bandwidth);
}

}  // namespace
}  // namespace shoal::meta
