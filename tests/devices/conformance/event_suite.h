// Tests of events, which order streams without the host. Not all devices have events.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/devices/conformance/case.h"
#include "tests/support/gate.h"

namespace shoal::test {

class EventSuite : public DeviceFixture {};

TEST_P(EventSuite, UnrecordedEventDoesNotBlock) {
  const auto backend = new_backend();
  const auto event = device().new_event();
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(&event->device(), &device());
  event->wait(*backend);
  event->synchronize();
  backend->synchronize();
}

TEST_P(EventSuite, OneStreamWaitsForAnother) {
  const auto first = new_backend();
  const auto second = new_backend();
  const auto event = device().new_event();
  Tensor& x = placed("x", {256, 1, 1, 1});
  set_floats(x, std::vector<float>(256, 0.0f));
  const std::vector<float> values = ramp(256);
  std::vector<float> seen(256);
  Gate gate;
  ASSERT_TRUE(first->enqueue(gate.task()));
  first->set_async(x, values.data(), 0, 1024);
  event->record(*first);
  event->wait(*second);
  second->get_async(x, seen.data(), 0, 1024);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a read that does not wait for the event would finish in
                                                              // this time
  gate.open = true;
  second->synchronize();
  EXPECT_EQ(seen, values);
}

TEST_P(EventSuite, WaitIgnoresLaterRecords) {
  const auto first = new_backend();
  const auto second = new_backend();
  const auto event = device().new_event();
  event->record(*first);
  event->wait(*second);
  Gate gate;
  ASSERT_TRUE(first->enqueue(gate.task()));
  event->record(*first);
  second->synchronize();  // must not wait for the second record, which the gate delays
  gate.open = true;
  event->synchronize();
  first->synchronize();
}

TEST_P(EventSuite, HostWaitsForAnEvent) {
  const auto backend = new_backend();
  const auto event = device().new_event();
  std::atomic<int> count{0};
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(backend->enqueue(
        {[](void* object, const void*, bool) { ++*static_cast<std::atomic<int>*>(object); }, &count, nullptr}));
  }
  event->record(*backend);
  event->synchronize();
  EXPECT_EQ(count, 200);
}

TEST_P(EventSuite, EventMayBeDestroyedDuringAWait) {
  const auto first = new_backend();
  const auto second = new_backend();
  Gate gate;
  ASSERT_TRUE(first->enqueue(gate.task()));
  {
    const auto event = device().new_event();
    event->record(*first);
    event->wait(*second);
  }
  gate.open = true;
  second->synchronize();
}

/// The waiting stream of the other family calls code of the plug-in. The plug-in must stay loaded until this call ends.
TEST_P(EventSuite, PluginStaysLoadedWhileAStreamWaitsForItsEvent) {
  BackendReg& family = device().reg();
  if (Registry::instance().file_of(family).empty()) return;  // built-in families cannot be unloaded
  const auto other = Registry::instance().device("CPU0").init("threads=1");
  const int before = family.uses();
  Gate gate;
  ASSERT_TRUE(other->enqueue(gate.task()));
  {
    const auto backend = new_backend();
    const auto event = device().new_event();
    event->record(*backend);
    event->wait(*other);
  }
  EXPECT_EQ(family.uses(), before + 1);
  EXPECT_THROW(Registry::instance().unload(family.name()), InvalidArgument);
  gate.open = true;
  other->synchronize();
  EXPECT_EQ(family.uses(), before);
}

TEST_P(EventSuite, FailedStreamReleasesWaitingStreams) {
  const auto first = new_backend();
  const auto second = new_backend();
  const auto event = device().new_event();
  ASSERT_TRUE(first->enqueue({[](void*, const void*, bool failed) {
                                if (!failed) fail<DeviceError>("broken");
                              },
                              nullptr, nullptr}));
  event->record(*first);
  event->wait(*second);
  second->synchronize();
  EXPECT_THROW(first->synchronize(), DeviceError);
}

TEST_P(EventSuite, EventsOrderTheTasksOfTwoStreams) {
  const auto first = new_backend();
  const auto second = new_backend();
  const auto there = device().new_event();
  const auto back = device().new_event();
  static int value;
  value = 0;
  constexpr int kRounds = 1000;
  const auto add = [](void*, const void*, bool) { ++value; };  // without the events, the increments would be a data
                                                               // race
  for (int round = 0; round < kRounds; ++round) {
    back->wait(*first);
    ASSERT_TRUE(first->enqueue({add, nullptr, nullptr}));
    there->record(*first);
    there->wait(*second);
    second->enqueue({add, nullptr, nullptr});
    back->record(*second);
  }
  second->synchronize();
  EXPECT_EQ(value, 2 * kRounds);
}

}  // namespace shoal::test
