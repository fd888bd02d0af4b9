// Tests of a scheduler whose backends are meta devices and CPU devices.
#include <gmock/gmock.h>

#include <numeric>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "sched/scheduler.h"
#include "tests/meta/llama_graph.h"
#include "tests/sched/proxy.h"
#include "tests/sched/rig.h"
#include "tests/support/gate.h"

namespace shoal::sched {
namespace {

using test::Homes;
using test::ProxyDevice;
using test::Rig;
using test::World;
using testing::HasSubstr;

struct ScheduledMeta : testing::Test {
  /// Runs the small decoder six times, alternately with 5 tokens and 1 token. Compares the results with the results on
  /// one device.
  void check(const std::vector<Backend*>& backends, const Homes& homes, int splits) {
    World world(homes), one({{"*", &Rig::cpu(7)}});
    Scheduler scheduler(backends, {.copies = 2});
    const auto reference = Rig::cpu(7).init();
    std::vector<Graph*> graphs, expected;
    for (int64_t tokens : {5, 1}) {
      graphs.push_back(&world.add(test::llama_graph(tokens)));
      expected.push_back(&one.add(test::llama_graph(tokens)));
    }
    ASSERT_TRUE(scheduler.reserve(*graphs[0]));
    std::vector<size_t> reserved;
    for (int b = 0; b < scheduler.backends(); ++b) reserved.push_back(scheduler.buffer_size(b));
    for (int run = 0; run < 6; ++run) {
      Graph &graph = *graphs[run % 2], &same = *expected[run % 2];
      scheduler.allocate(graph);
      reference->plans().plan(same);
      world.fill_inputs(graph);
      one.fill_inputs(same);
      ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
      ASSERT_EQ(reference->compute(same), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::outputs(same));
      EXPECT_EQ(scheduler.splits(), splits) << to_string(scheduler.schedule());
    }
    for (const char* cache : {"ck", "cv"}) {
      EXPECT_TRUE(test::close_to(test::read_values(*world.weights.find(cache)),
                                 test::read_values(*one.weights.find(cache)), {1e-6}));
    }
    EXPECT_EQ(scheduler.plans_made(), 2U);
    for (int b = 0; b < scheduler.backends(); ++b)
      EXPECT_EQ(scheduler.buffer_size(b), reserved[static_cast<size_t>(b)]);
  }

  Rig rig{8};
  std::unique_ptr<meta::MetaDevice> mesh = Rig::mesh({0, 1, 2}, test::llama_layouts({2, 1, 1}));
  std::unique_ptr<Backend> meta = mesh->init();
  std::unique_ptr<Backend> cpu = Rig::cpu(3).init();
};

TEST_F(ScheduledMeta, RunsAsOnlyBackend) {
  check({meta.get()}, {{"*", mesh.get()}}, 1);
}

TEST_F(ScheduledMeta, RunsWithOutputHeadOnCpu) {
  check({meta.get(), cpu.get()}, {{"head", &Rig::cpu(3)}, {"*", mesh.get()}}, 2);
}

TEST_F(ScheduledMeta, RunsWithEmbeddingAndAttentionOnCpu) {
  check({meta.get(), cpu.get()},
        {{"embd", &Rig::cpu(3)}, {"w*", &Rig::cpu(3)}, {"c*", &Rig::cpu(3)}, {"*", mesh.get()}}, 4);
}

TEST_F(ScheduledMeta, RunsWithCachesOnCpu) {
  check({meta.get(), cpu.get()}, {{"ck", &Rig::cpu(3)}, {"cv", &Rig::cpu(3)}, {"*", mesh.get()}}, 3);
}

TEST_F(ScheduledMeta, RunsWithCpuAsFirstBackend) {
  check({cpu.get(), meta.get()}, {{"gate", &Rig::cpu(3)}, {"up", &Rig::cpu(3)}, {"*", mesh.get()}}, 3);
}

TEST_F(ScheduledMeta, RunsWithSecondMetaDevice) {
  const auto other = Rig::mesh({4, 5}, test::llama_layouts({1, 3}));
  const auto other_backend = other->init();
  const Homes homes{{"ffn_norm", other.get()}, {"gate", other.get()},     {"up", other.get()}, {"down", other.get()},
                    {"head", &Rig::cpu(3)},    {"out_norm", other.get()}, {"*", mesh.get()}};
  check({meta.get(), other_backend.get(), cpu.get()}, homes, 3);
}

/// Before node `n` of this graph, only rank 0 uses `e`, in the partial sum `o0`. After `n`, every rank uses `e`.
/// Between the two uses, a planner could reuse the memory of `e` for `m0` to `m2`.
const char* const kUsedByOneThenByAll = R"(
input %x f32 [8, 2]
input %e f32 [8, 2]
weight %w0 f32 [8, 8]
weight %wm f32 [8, 8]
weight %wh f32 [8, 8]
weight %w1 f32 [8, 8]
%y = mul_mat(%w0, %x)
%o0 = add(%y, %e)
%m0 = mul_mat(%wm, %x)
%m1 = mul_mat(%wm, %m0)
%m2 = mul_mat(%wm, %m1)
%n = rms_norm(%m2)
%h = mul_mat(%wh, %n)
%p = mul_mat(%w1, %h)
%q = mul(%p, %e)
output %o0
output %q
)";

/// Tests of an input that some ranks use in an earlier segment than other ranks. The scheduler must write the input
/// before the first of these segments.
struct MetaInputs : testing::Test {
  void check(const Homes& homes, const EvalCallback& observer) {
    World world(homes);
    Graph& graph = world.add(kUsedByOneThenByAll);
    Scheduler scheduler({meta.get(), cpu.get()});
    if (observer) scheduler.set_eval_callback(observer);
    scheduler.allocate(graph);
    EXPECT_GT(scheduler.scheduled().plan(0)->segments(), 1) << to_string(scheduler.schedule());
    for (int run = 0; run < 2; ++run) {
      world.fill_inputs(graph);
      ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::on_one(kUsedByOneThenByAll, Rig::cpu(3)));
    }
  }

  Rig rig{4};
  std::unique_ptr<meta::MetaDevice> mesh =
      Rig::mesh({0, 1}, {{"w0", meta::Layout::split(0, meta::Partition::even(2, 8))},
                         {"w1", meta::Layout::split(1, meta::Partition::even(2, 8))}});
  std::unique_ptr<Backend> meta = mesh->init();
  std::unique_ptr<Backend> cpu = Rig::cpu(2).init();
};

TEST_F(MetaInputs, KeepValuesWhileOtherBackendRunsNode) {
  check({{"wh", &Rig::cpu(2)}, {"*", mesh.get()}}, {});
}

TEST_F(MetaInputs, KeepValuesWhileHostReadsObservedNode) {
  check({{"*", mesh.get()}}, [](const Tensor& node, bool ask) { return !ask || node.name == "n"; });
}

/// On the second rank, the addend of the sum is the copy of w1 itself. No node of this rank reads the copy, but the
/// copy must not be overwritten.
TEST(MetaCopies, WeightCopyInPartialOutputIsNotOverwritten) {
  const std::string text = R"(
weight %w1 f32 [64]
weight %w2 f32 [64]
%s = add(%w2, %w1)
%m0 = scale(%w2) {scale=2}
%m1 = scale(%m0) {scale=3}
output %s
output %m1
)";
  const Rig rig{4};
  const auto mesh = Rig::mesh({0, 1}, {{"w1", meta::Layout::partial()}});
  const auto meta = mesh->init(), cpu = Rig::cpu(2).init();
  World world({{"w1", &Rig::cpu(2)}, {"*", mesh.get()}});
  Graph& graph = world.add(text);
  Scheduler scheduler({meta.get(), cpu.get()});
  scheduler.set_backend(*graph.find("s"), meta.get());
  ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
  EXPECT_TRUE(meta::layout_of(*graph.find("s")).is_partial()) << to_string(scheduler.schedule());
  test::expect_close(test::outputs(graph), test::on_one(text, Rig::cpu(3)));
}

TEST_F(ScheduledMeta, RunsOpUnsupportedByMemberOnCpu) {
  ProxyDevice picky{Rig::cpu(1), "PICKY"};
  picky.reads_all = true;
  picky.refuses = [](const Tensor& node) { return node.op == Op::kGlu; };
  const auto mixed = meta::MetaDevice::create({&Rig::cpu(0), &picky}, test::callback_for(test::llama_layouts({2, 2})));
  const auto backend = mixed->init();
  check({backend.get(), cpu.get()}, {{"*", mixed.get()}}, 3);
}

TEST_F(ScheduledMeta, RefusesOpUnsupportedByMember) {
  ProxyDevice picky{Rig::cpu(1), "PICKY"};
  picky.refuses = [](const Tensor& node) { return node.op == Op::kGlu; };
  const auto mixed = meta::MetaDevice::create({&Rig::cpu(0), &picky}, test::callback_for(test::llama_layouts({2, 2})));
  const auto backend = mixed->init();
  EXPECT_THAT(
      [&] {
        check({backend.get()}, {{"*", mixed.get()}}, 1);
      },
      ThrowsMessage<DeviceError>(
          HasSubstr("; every member of a meta device must be able to run the node: leave out members that cannot, or "
                    "add")));
}

TEST_F(ScheduledMeta, RunsLargeBatchesWithWeightsOnCpu) {
  ProxyDevice first{Rig::cpu(0), "FIRST"}, second{Rig::cpu(1), "SECOND"};
  first.wants = second.wants = [](const Tensor& node) { return node.op == Op::kMulMat && node.shape[1] >= 4; };
  first.reads_all = second.reads_all = true;
  const auto mixed = meta::MetaDevice::create({&first, &second}, test::callback_for(test::llama_layouts({3, 1})));
  const auto backend = mixed->init();
  World world({{"*", &Rig::cpu(3)}});
  Scheduler scheduler({backend.get(), cpu.get()});
  for (int64_t tokens : {6, 1}) {
    const std::string text = test::llama_graph(tokens);
    Graph& graph = world.add(text);
    scheduler.allocate(graph);
    for (int run = 0; run < 2; ++run) {
      world.fill_inputs(graph);
      world.fill_caches();
      ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::on_one(text, Rig::cpu(7)));
    }
    Backend* expected = tokens > 1 ? backend.get() : cpu.get();
    EXPECT_EQ(scheduler.backend_of(*graph.find("g")), expected);
    EXPECT_EQ(scheduler.backend_of(*graph.find("heads")), cpu.get()) << "the node runs on the backend of the caches";
  }
}

TEST_F(ScheduledMeta, QueuedRunsDoNotBlockHost) {
  World world({{"gate", &Rig::cpu(3)}, {"*", mesh.get()}});
  const std::string text = test::llama_graph(3);
  Graph& graph = world.add(text);
  const auto expected = test::on_one(text, Rig::cpu(7));
  Scheduler scheduler({meta.get(), cpu.get()}, {.copies = 2});
  scheduler.allocate(graph);
  const Tensor& logits = *graph.find("logits");
  for (Backend* held : {meta->members()[0], meta->members()[2], cpu.get()}) {
    world.fill_inputs(graph);
    test::Gate gate;
    ASSERT_TRUE(held->enqueue(gate.task()));
    std::vector<std::vector<float>> seen(2, std::vector<float>(static_cast<size_t>(logits.elements())));
    for (auto& values : seen) {
      scheduler.compute_async(graph);
      scheduler.get_async(logits, values.data(), 0, logits.bytes());
    }
    gate.open = true;
    scheduler.synchronize();
    for (const auto& values : seen) {
      EXPECT_TRUE(test::close_to({values.begin(), values.end()}, expected.at("logits"), {1e-9}));
    }
  }
}

TEST_F(ScheduledMeta, SharesWeightsBetweenTwoContexts) {
  World world({{"head", &Rig::cpu(3)}, {"*", mesh.get()}});
  const auto meta2 = mesh->init(), cpu2 = Rig::cpu(3).init();
  Graph& a = world.add(test::llama_graph(4, "", "_a"));
  Graph& b = world.add(test::llama_graph(1, "", "_b"));
  Scheduler first({meta.get(), cpu.get()}), second({meta2.get(), cpu2.get()});
  const auto expected_a = test::on_one(test::llama_graph(4, "", "_a"), Rig::cpu(7));
  const auto expected_b = test::on_one(test::llama_graph(1, "", "_b"), Rig::cpu(7));
  first.allocate(a);
  second.allocate(b);
  world.fill_inputs(a);
  world.fill_inputs(b);
  for (int run = 0; run < 10; ++run) {
    world.fill_caches();
    first.compute_async(a);
    second.compute_async(b);
    first.synchronize();
    second.synchronize();
    test::expect_close(test::outputs(a), expected_a);
    test::expect_close(test::outputs(b), expected_b);
  }
}

}  // namespace
}  // namespace shoal::sched
