// Tests messages, shared memory and failures of a process group. The processes are threads here.
#include "processes/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "tests/support/thread_processes.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<std::string> kHosts{"a", "b", "a", "c"};

void expect_no_failure(const std::vector<test::ProcessEnd>& ends) {
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
}

TEST(ProcessGroup, KnowsHostAndNodeOfEachProcess) {
  expect_no_failure(test::in_processes(kHosts, [](ProcessGroup& group) {
    EXPECT_EQ(group.size(), 4);
    EXPECT_EQ(group.nodes(), 3);
    std::vector<int> nodes;
    for (int process = 0; process < 4; ++process) nodes.push_back(group.node(process));
    EXPECT_THAT(nodes, ElementsAre(0, 1, 0, 2)) << "in the order of their first processes";
    EXPECT_THAT(group.processes_of(0), ElementsAre(0, 2));
    EXPECT_EQ(group.describe(3), "process 3 (c)");
  }));
}

TEST(ProcessGroup, WorksWithOneProcess) {
  expect_no_failure(test::in_processes({"a"}, [](ProcessGroup& group) {
    EXPECT_THAT(group.gather("x", "test"), ElementsAre("x"));
    EXPECT_EQ(group.share(100).size(), 100U);
    EXPECT_THAT([&] { group.fail("no"); }, ThrowsMessage<CommError>("process 0 (a): no"));
  }));
}

TEST(ProcessGroup, GathersAndBroadcastsTextsOfAnyLength) {
  expect_no_failure(test::in_processes(kHosts, [](ProcessGroup& group) {
    for (int round = 0; round < 20; ++round) {
      const auto text_of = [&](int process) { return std::string(static_cast<size_t>(process * 1000 + round), 'a'); };
      const std::vector<std::string> texts = group.gather(text_of(group.own()), "test");
      for (int process = 0; process < 4; ++process) EXPECT_EQ(texts[static_cast<size_t>(process)], text_of(process));
      EXPECT_EQ(group.broadcast(fmt::format("{} of {}", round, group.own()), "test"), fmt::format("{} of 0", round));
    }
  }));
}

// Each pair of processes exchanges messages in both directions. Several messages have the same tag, and some are empty.
TEST(ProcessGroup, ExchangesMessagesInOrder) {
  test::ThreadHub hub(kHosts);
  expect_no_failure(test::in_processes(hub, [](ProcessGroup& group) {
    const int channel = group.open_channel();
    constexpr int kEach = 3;
    std::vector<std::vector<int>> sent, received;
    std::vector<Message> messages;
    for (int peer = 0; peer < group.size(); ++peer) {
      for (int i = 0; i < kEach && peer != group.own(); ++i) {
        const auto size = static_cast<size_t>(i == 1 ? 0 : 100 * (i + 1));
        sent.emplace_back(size, 1000 * group.own() + 10 * peer + i);
        received.emplace_back(size, -1);
        const auto add = [&](bool sends, std::vector<int>& data) {
          messages.push_back({sends, peer, channel, reinterpret_cast<std::byte*>(data.data()), size * sizeof(int)});
        };
        add(true, sent.back()), add(false, received.back());
      }
    }
    group.exchange(messages, "test");
    size_t index = 0;
    for (int peer = 0; peer < group.size(); ++peer) {
      for (int i = 0; i < kEach && peer != group.own(); ++i) {
        EXPECT_THAT(received[index++], Each(1000 * peer + 10 * group.own() + i));
      }
    }
  }));
  EXPECT_EQ(hub.left_over(), 0U);
}

// Some message lengths are multiples of the piece length, and some are not. The transport refuses messages that are
// longer than a piece.
TEST(ProcessGroup, SplitsLongMessagesIntoPieces) {
  constexpr size_t kPiece = 1024;
  test::ThreadHub hub({"a", "b"}, kPiece);
  std::vector<std::thread> processes;
  for (int own = 0; own < 2; ++own) {
    processes.emplace_back([&hub, own] {
      ProcessGroup group(hub.transport(own), std::chrono::seconds(60), kPiece);
      const int tag = group.open_channel();
      std::vector<std::vector<int>> sent, received, expected;
      std::vector<Message> messages;
      for (const size_t bytes : {0, 1020, 1024, 1028, 2048, 9500}) {
        const auto from = [&](int process) {
          std::vector<int> values(bytes / sizeof(int));
          std::iota(values.begin(), values.end(), static_cast<int>(bytes) + 100'000 * process);
          return values;
        };
        sent.push_back(from(own)), expected.push_back(from(1 - own));
        received.emplace_back(bytes / sizeof(int));
      }
      const auto add = [&](bool sends, std::vector<int>& data) {
        messages.push_back({sends, 1 - own, tag, reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(int)});
      };
      for (auto& data : sent) add(true, data);
      for (auto& data : received) add(false, data);
      group.exchange(messages, "test");
      EXPECT_EQ(received, expected);
      group.leave();
    });
  }
  for (std::thread& process : processes) process.join();
  EXPECT_EQ(hub.left_over(), 0U);
}

TEST(ProcessGroup, ChannelsAndPairsOfProcessesHaveDistinctTags) {
  expect_no_failure(test::in_processes({"a", "b", "c"}, [](ProcessGroup& group) {
    const int first = group.open_channel(), second = group.open_channel();
    EXPECT_EQ(second - first, ProcessGroup::kTagsOfChannel);
    const int peer = (group.own() + 1) % 3, other = (group.own() + 2) % 3;
    const int tag = group.passage_tag(peer);
    EXPECT_EQ(group.passage_tag(peer), tag + 1);
    EXPECT_EQ(group.passage_tag(other), tag) << "each pair of processes counts its own tags";
    EXPECT_GE(tag, second + ProcessGroup::kTagsOfChannel);
    std::byte value{static_cast<unsigned char>(group.own())};
    const int next = group.own() == 0 ? 1 : 0;
    if (group.own() == 0) group.send(next, first, {&value, 1}, "test");
    if (group.own() == 1) {
      group.receive(next, first, {&value, 1}, "test");
      EXPECT_EQ(value, std::byte{0});
    }
  }));
}

TEST(ProcessGroup, ProcessesOfANodeShareMemory) {
  constexpr size_t kSize = 100'000;
  expect_no_failure(test::in_processes(kHosts, [&](ProcessGroup& group) {
    const SharedMemory first = group.share(kSize), second = group.share(1);
    ASSERT_EQ(first.size(), kSize);
    EXPECT_TRUE(std::all_of(first.data(), first.data() + kSize, [](std::byte one) { return one == std::byte{0}; }));
    group.gather("", "test");  // waits until all processes have finished their checks
    first.data()[group.own()] = std::byte{7};
    group.gather("", "test");
    for (int process = 0; process < 4; ++process) {
      const bool is_near = group.node(process) == group.node(group.own());
      EXPECT_EQ(first.data()[process], std::byte{static_cast<unsigned char>(is_near ? 7 : 0)}) << process;
    }
  }));
}

TEST(ProcessGroup, FailureReachesAllProcessesWithOneMessage) {
  std::atomic<int> told{0};
  const auto ends = test::in_processes(kHosts, [&](ProcessGroup& group) {
    const int forgotten = group.on_failure([](const std::string&) { ADD_FAILURE() << "forgotten"; });
    group.remove_callback(forgotten);
    group.on_failure([&](const std::string& message) { told += message == "process 2 (a): out of order" ? 1 : 100; });
    if (group.own() == 2) group.fail("out of order");
    std::byte nothing{};
    group.receive((group.own() + 1) % 4, group.open_channel(), {&nothing, 1}, "test");  // no process sends this message
  });
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "process 2 (a): out of order");
  EXPECT_EQ(told, 4);
}

// After remove_callback() returns, a caller may destroy the data that the callback uses.
TEST(ProcessGroup, UnregisteringWaitsForTheRunningCallback) {
  test::in_processes({"a", "b"}, [](ProcessGroup& group) {
    std::atomic<bool> began{false}, ended{false};
    const int callback = group.on_failure([&](const std::string&) {
      began = true;
      std::this_thread::sleep_for(milliseconds(50));
      ended = true;
    });
    std::atomic<int> own{0};
    own = group.on_failure([&](const std::string&) { group.remove_callback(own); });
    group.gather("", "ready");
    std::thread failing;
    if (group.own() == 0) failing = std::thread([&] { EXPECT_THROW(group.fail("no"), CommError); });
    while (!began) std::this_thread::yield();
    group.remove_callback(callback);
    EXPECT_TRUE(ended);
    group.remove_callback(own);
    if (failing.joinable()) failing.join();
  });
}

TEST(ProcessGroup, ReportsOnlyFirstFailure) {
  test::in_processes({"a", "b"}, [](ProcessGroup& group) {
    while (group.own() == 1 && !group.has_failed()) std::this_thread::sleep_for(milliseconds(1));
    for (const char* reason : {"first", "second"}) {
      EXPECT_THAT([&] { group.fail(reason); }, ThrowsMessage<CommError>("process 0 (a): first"));
    }
    std::string late;
    group.on_failure([&](const std::string& message) { late = message; });
    EXPECT_EQ(late, "process 0 (a): first") << "a callback registered after the failure is called immediately";
    EXPECT_THROW(group.gather("", "test"), CommError);
    EXPECT_THROW(group.leave(), CommError);
  });
}

TEST(ProcessGroup, ErrorNamesProcessThatDoesNotAnswer) {
  const auto ends = test::in_processes({"a", "b"}, [](ProcessGroup& group) {
    if (group.own() == 1) {
      while (!group.has_failed()) std::this_thread::sleep_for(milliseconds(1));
      group.throw_if_failed();
    }
    std::byte value{};
    group.exchange({{{false, 1, group.open_channel(), &value, 1}}}, "all_reduce x", milliseconds(100));
  });
  for (const test::ProcessEnd& end : ends) {
    EXPECT_THAT(end.what(),
                HasSubstr("process 0 (a): [all_reduce x] process 1 (b) did not answer within 0.100 s; check"));
  }
}

TEST(ProcessGroup, ErrorNamesDisconnectedProcess) {
  test::ThreadHub hub({"a", "b", "c"});
  const auto ends = test::in_processes(
      hub,
      [&](ProcessGroup& group) {
        if (group.own() == 1) hub.cut_off(1);
        std::byte value{};
        group.receive((group.own() + 1) % 3, group.open_channel(), {&value, 1}, "test");
      },
      milliseconds(1200));
  for (const int process : {0, 2}) {
    EXPECT_THAT(ends[static_cast<size_t>(process)].what(), HasSubstr("process 1 (b) has been silent for 1.2 s"));
  }
  EXPECT_THAT(ends[1].what(), HasSubstr("has been silent for 1.2 s"))
      << "process 1 receives no messages of the other processes";
}

TEST(ProcessGroup, IdleProcessesAreNotReportedAsFailed) {
  expect_no_failure(test::in_processes({"a", "b"}, [](ProcessGroup& group) {
    std::this_thread::sleep_for(milliseconds(300));
    group.gather("", "test");
  }));
  test::ThreadHub hub({"a", "b"});
  expect_no_failure(test::in_processes(
      hub,
      [](ProcessGroup& group) {
        if (group.own() == 1) std::this_thread::sleep_for(milliseconds(2500));
        group.gather("", "test");
      },
      milliseconds(1500)));
}

TEST(ProcessGroup, LeavingWaitsForAllProcesses) {
  test::ThreadHub hub({"a", "b"});
  std::atomic<bool> comes{false};
  std::thread late([&] {
    ProcessGroup group(hub.transport(1), std::chrono::seconds(60));
    std::this_thread::sleep_for(milliseconds(100));
    comes = true;
    group.leave();
  });
  ProcessGroup group(hub.transport(0), std::chrono::seconds(60));
  group.leave();
  EXPECT_TRUE(comes);
  late.join();
}

}  // namespace
}  // namespace shoal
