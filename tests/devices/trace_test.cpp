#include "devices/trace.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "devices/device.h"
#include "devices/functions.h"
#include "graph/ops/ops.h"
#include "tests/devices/cpu_configuration.h"

namespace shoal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> names(const Tracer& tracer) {
  std::vector<std::string> names;
  for (const TraceEvent& event : tracer.events()) names.push_back(event.name);
  return names;
}

TraceSpan span(std::string_view name, int64_t begin = 0) {
  TraceSpan span;
  span.describe(TraceKind::kHost, {name});
  span.begin_ns = span.end_ns = begin;
  return span;
}

TEST(TraceSpan, JoinsAndTruncatesNames) {
  TraceSpan span;
  EXPECT_FALSE(span.is_shown());
  span.describe(TraceKind::kCopy, {"set ", "", "tokens"}, 12);
  EXPECT_STREQ(span.name.data(), "set tokens");
  EXPECT_EQ(span.bytes, 12);
  span.describe(TraceKind::kCopy, {"x", std::string(200, 'y'), "z"});
  EXPECT_EQ(std::string(span.name.data()), "x" + std::string(span.name.size() - 2, 'y'));
  span.describe(TraceKind::kCopy, {});
  EXPECT_FALSE(span.is_shown());
}

TEST(TraceSpan, NameContainsRangeOfNodes) {
  TraceSpan span;
  span.describe_nodes("", 0, 19);
  EXPECT_STREQ(span.name.data(), "nodes 0-18");
  span.describe_nodes("step 3", 1234567890, 1234567891);
  EXPECT_STREQ(span.name.data(), "step 3: node 1234567890");
  EXPECT_EQ(span.kind, TraceKind::kCompute);
}

TEST(CurrentSpan, IsPerThread) {
  EXPECT_EQ(current_span(), nullptr);
  TraceSpan outer, inner;
  const CurrentSpan first(outer);
  {
    const CurrentSpan second(inner);
    EXPECT_EQ(current_span(), &inner);
    std::thread([] { EXPECT_EQ(current_span(), nullptr); }).join();
  }
  EXPECT_EQ(current_span(), &outer);
}

TEST(Tracer, GivesRowsUniqueNames) {
  Tracer tracer;
  {
    const TraceRowUse a = tracer.row("CPU0"), b = tracer.row("CPU1"), c = tracer.row("CPU0");
    a->add(span("one"));
    b->add(span("two"));
    c->add(span("three"));
    EXPECT_EQ(c->name(), "CPU0 #2");
  }
  const TraceRowUse again = tracer.row("CPU0");
  again->add(span("four"));
  EXPECT_EQ(again->name(), "CPU0");
  EXPECT_THAT(names(tracer), ElementsAre("one", "four", "two", "three"));
  EXPECT_EQ(tracer.events()[1].row, "CPU0");
}

TEST(Tracer, MeasuresTimesFromItsConstruction) {
  const int64_t before = trace_clock();
  Tracer tracer;
  const int64_t after = trace_clock();
  tracer.row("x")->add(span("event", after + 1000));
  EXPECT_GE(tracer.events()[0].begin_ns, 1000);
  EXPECT_LE(tracer.events()[0].begin_ns, 1000 + after - before);
}

TEST(Tracer, KeepsFirstSpansAndCountsLostSpans) {
  Tracer tracer(1000);  // the capacity is rounded up to four chunks
  const TraceRowUse row = tracer.row("x"), other = tracer.row("y");
  other->add(span("the other"));
  for (int i = 0; i < 5000; ++i) row->add(span(std::to_string(i)));
  const auto events = tracer.events();
  ASSERT_EQ(events.size(), 769U);
  EXPECT_EQ(tracer.lost(), 5000 - 768);
  for (size_t i = 0; i < 768; ++i) EXPECT_EQ(events[i].name, std::to_string(i));
  other->add(span("fits into its chunk"));
  EXPECT_EQ(tracer.events().size(), 770U);
}

TEST(Tracer, MayBeReadWhileThreadsWrite) {
  Tracer tracer;
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&tracer, w] {
      const TraceRowUse row = tracer.row(std::to_string(w));
      for (int i = 0; i < 3000; ++i) row->add(span(std::to_string(i), i));
    });
  }
  std::thread reader([&] {
    while (!done) {
      std::string row;
      int next = 0;
      for (const TraceEvent& event : tracer.events()) {
        if (event.row != row) row = event.row, next = 0;
        EXPECT_EQ(event.name, std::to_string(next++));
      }
    }
  });
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_EQ(tracer.events().size(), 9000U);
}

TEST(TraceScope, RecordsItsLifetime) {
  Tracer tracer;
  const TraceRowUse row = tracer.row("host");
  { const TraceScope scope(row.get(), TraceKind::kWait, {"wait for ", "logits"}, 4); }
  { const TraceScope scope(nullptr, TraceKind::kWait, {"nothing"}); }
  const auto events = tracer.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "wait for logits");
  EXPECT_EQ(events[0].kind, TraceKind::kWait);
  EXPECT_GE(events[0].end_ns, events[0].begin_ns);
}

/// A graph with two products, with its plan and values.
class Product {
 public:
  explicit Product(Backend& backend) : backend_(backend) {
    x_ = graph_.input("x", DType::kF32, {64, 8, 1, 1});
    Tensor* w = graph_.input("w", DType::kF32, {64, 64, 1, 1});
    y_ = graph_.output(mul_mat(graph_, w, mul_mat(graph_, w, x_), "y"));
    plan_ = backend_.create_plan(graph_);
  }
  void run() {
    backend_.set_async(*x_, values_.data(), 0, x_->bytes());
    backend_.compute_async(*plan_);
    backend_.get_async(*y_, values_.data(), 0, y_->bytes());
    backend_.synchronize();
  }

 private:
  Backend& backend_;
  Graph graph_;
  Tensor *x_, *y_;
  std::unique_ptr<GraphPlan> plan_;
  std::vector<float> values_ = std::vector<float>(512, 1.0F);
};

void expect_in_order(const std::vector<TraceEvent>& events) {
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_LE(events[i].begin_ns, events[i].end_ns) << events[i].name;
    if (i > 0 && events[i].row == events[i - 1].row) {
      EXPECT_LE(events[i - 1].end_ns, events[i].begin_ns) << events[i].name;
    }
  }
}

TEST(TracedBackend, RecordsCopiesAndComputationsOnlyWhileTraced) {
  const test::CpuConfiguration configuration("devices=2,threads=2");
  Tracer tracer;
  const auto backend = Registry::instance().device("CPU0").init();
  Product product(*backend);
  product.run();
  EXPECT_THAT(names(tracer), IsEmpty());
  backend->set_tracer(&tracer);
  product.run();
  backend->set_tracer(nullptr);
  product.run();
  EXPECT_THAT(names(tracer), ElementsAre("set x", "nodes 0-1", "get y"));
  backend->set_tracer(&tracer);
  product.run();
  const auto events = tracer.events();
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(events[0].kind, TraceKind::kCopy);
  EXPECT_EQ(events[0].bytes, 2048);
  EXPECT_EQ(events[1].kind, TraceKind::kCompute);
  for (const TraceEvent& event : events) EXPECT_EQ(event.row, "CPU0");
  expect_in_order(events);
}

TEST(TracedBackend, SpansOfQueuedWorkHaveNoGap) {
  const test::CpuConfiguration configuration("devices=1,threads=1");
  Tracer tracer;
  const auto backend = Registry::instance().device("CPU0").init();
  Product product(*backend);
  backend->set_tracer(&tracer);
  {
    const HeldBackend held(*backend);
    backend->enqueue({[](void*, const void*, bool) { current_span()->describe(TraceKind::kCollective, {"mine"}, 7); },
                      nullptr, nullptr});
    backend->enqueue({[](void*, const void*, bool) { current_span()->describe(TraceKind::kCollective, {"mine too"}); },
                      nullptr, nullptr});
    backend->enqueue({[](void*, const void*, bool) {}, nullptr, nullptr});
  }
  backend->synchronize();
  const auto events = tracer.events();
  ASSERT_EQ(events.size(), 2U) << "a task without a description is not recorded";
  EXPECT_EQ(events[0].name, "mine");
  EXPECT_EQ(events[0].bytes, 7);
  EXPECT_EQ(events[0].end_ns, events[1].begin_ns);
  expect_in_order(events);
}

TEST(TracedBackend, RecordsWaitsForOtherStreams) {
  const test::CpuConfiguration configuration("devices=2,threads=1");
  Tracer tracer;
  const auto first = Registry::instance().device("CPU0").init(), second = Registry::instance().device("CPU1").init();
  first->set_tracer(&tracer);
  second->set_tracer(&tracer);
  std::atomic<bool> go{false};
  const auto wait_for_host = [](void* flag, const void*, bool) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  const auto event = first->device().new_event();
  first->enqueue({wait_for_host, &go, nullptr});
  event->record(*first);
  event->wait(*second);
  // Gives the second stream time to begin its wait, then unblocks the first stream.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  go = true;
  go.notify_all();
  second->synchronize();
  const auto events = tracer.events();
  if (events.empty()) GTEST_SKIP() << "the second stream did not run within 20 ms";
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].row, "CPU1");
  EXPECT_EQ(events[0].kind, TraceKind::kWait);
  first->synchronize();
}

TEST(TracedBackend, CountsSlowdownAsWork) {
  const test::CpuConfiguration configuration("devices=1,slowdown=50");
  Tracer tracer;
  const auto backend = Registry::instance().device("CPU0").init();
  Product product(*backend);
  std::vector<int64_t> asked;
  backend->set_abort_callback([&asked] { return asked.push_back(trace_clock()), false; });
  backend->set_tracer(&tracer);
  product.run();
  // The device calls the callback before each of the two nodes, and possibly while it waits. The first node runs
  // between the first two calls. So the time between these calls is work.
  ASSERT_GE(asked.size(), 2U);
  const TraceEvent run = tracer.events().at(1);
  EXPECT_GE(run.end_ns - run.begin_ns, 50 * (asked[1] - asked[0]));
}

TEST(TracedBackend, RecordsFailedRuns) {
  const test::CpuConfiguration configuration("devices=1");
  Tracer tracer;
  const auto backend = Registry::instance().device("CPU0").init();
  Product product(*backend);
  backend->set_tracer(&tracer);
  backend->set_abort_callback([] { return true; });
  EXPECT_THROW(product.run(), Aborted);
  EXPECT_THAT(names(tracer), ElementsAre("set x", "nodes 0-1")) << "work after the failure did not run";
}

TEST(TracedBackend, KeepsItsRowWhenTheThreadCountChanges) {
  const test::CpuConfiguration configuration("devices=1,threads=1");
  Tracer tracer;
  {
    const auto backend = Registry::instance().device("CPU0").init();
    backend->set_tracer(&tracer);
    const auto set_threads = find_function(backend->device().reg(), functions::kSetThreads);
    ASSERT_NE(set_threads, nullptr);
    set_threads(*backend, 2);
    Product product(*backend);
    product.run();
    EXPECT_EQ(tracer.events().size(), 3U);
  }
  EXPECT_EQ(tracer.row("CPU0")->name(), "CPU0") << "the destroyed backend has released its row";
}

}  // namespace
}  // namespace shoal
