// Tests of finished plans of meta devices. The tests move plans to other graphs, stop runs, and read results through
// aliases. The last tests copy tensors between streams of meta devices.
#include "meta/device/meta_plan.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "meta/device/meta_backend.h"
#include "tests/meta/layouts.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using namespace std::chrono_literals;

/// The decoder on two ranks. Any number of graphs can use the weights and caches of the decoder.
struct MetaPlan : testing::Test {
  MetaPlan() {
    auto first = graph();
    memory = allocate_tensors(context.tensors(), mesh.device->buffer_type(), Usage::kWeights);
    for (Tensor* leaf : context.tensors()) fill(*leaf);
    const auto plan = backend->create_plan(*first);
    expected = run(*first, *plan);
  }
  /// A new graph of the decoder. All graphs have the same weights.
  std::unique_ptr<Graph> graph(int64_t tokens = 2) {
    TensorContext own;
    Graph text("text");
    parse_graph(test::llama_graph(tokens), text, own);
    auto made = std::make_unique<Graph>("llama");
    std::map<const Tensor*, Tensor*> copies;
    for (Tensor* leaf : own.tensors()) {
      Tensor* known = context.find(leaf->name);
      copies[leaf] = known != nullptr ? known : context.add(leaf->name, leaf->dtype, leaf->shape, leaf->role);
    }
    for (Tensor* input : text.inputs()) copies[input] = made->input(input->name, input->dtype, input->shape);
    for (Tensor* node : text.nodes()) {
      std::vector<Tensor*> sources;
      for (Tensor* source : node->src) sources.push_back(source == nullptr ? nullptr : copies.at(source));
      copies[node] = made->add_node(node->op, node->params, std::move(sources), node->name);
      if (node->is_output) made->output(copies[node]);
    }
    return made;
  }
  static void fill(Tensor& leaf) {
    const auto bytes = test::leaf_data(leaf, 1);
    tensor_set(leaf, bytes.data(), 0, bytes.size());
  }
  std::vector<float> run(Graph& graph, GraphPlan& plan) {
    for (Tensor* input : graph.inputs()) fill(*input);
    EXPECT_EQ(backend->compute(plan), Status::kSuccess);
    return test::read_floats(*graph.find("logits"));
  }

  test::CpuMesh mesh{2, test::llama_layouts({3, 1}), {.member_params = {}, .comm_timeout = 20s}};
  TensorContext context;
  std::unique_ptr<Buffer> memory;
  const std::unique_ptr<Backend> backend = mesh.device->init("threads=1");
  std::vector<float> expected;
};

TEST_F(MetaPlan, MovesUnchangedToEqualGraph) {
  auto old = graph();
  const auto plan = backend->create_plan(*old, {{7, 20}, {old->nodes()[3]}});
  const std::string text = to_string(plan_of(*plan));
  const auto free = mesh.free();
  for (int i = 0; i < 4; ++i) {
    auto next = graph();
    if (i % 2 == 0) old.reset();
    ASSERT_TRUE(backend->update_plan(*plan, *next));
    EXPECT_EQ(run(*next, *plan), expected);
    EXPECT_EQ(to_string(plan_of(*plan)), text);
    EXPECT_EQ(plan_of(*plan).graph_uid, next->uid());
    EXPECT_TRUE(plan_of(*plan).layout(*next->find("logits")).is_split());
    EXPECT_EQ(mesh.free(), free);
    old = std::move(next);
  }
}

TEST_F(MetaPlan, CannotMoveToDifferentGraph) {
  auto own = graph();
  auto other = graph(3);
  auto planned = graph();
  const auto plan = backend->create_plan(*own);
  const auto another = backend->create_plan(*planned);
  EXPECT_FALSE(backend->update_plan(*plan, *other));
  EXPECT_EQ(other->find("logits")->buffer, nullptr);
  EXPECT_THROW(backend->update_plan(*plan, *planned), InvalidArgument) << "the graph already has a plan";
  EXPECT_EQ(run(*own, *plan), expected);
  EXPECT_EQ(run(*planned, *another), expected);
}

TEST_F(MetaPlan, CannotMoveIfWeightsHaveNewMemory) {
  auto own = graph();
  const auto plan = backend->create_plan(*own);
  memory->reset();
  for (Tensor* leaf : context.tensors()) leaf->buffer = nullptr, leaf->data = nullptr;
  memory = allocate_tensors(context.tensors(), mesh.device->buffer_type(), Usage::kWeights);
  auto next = graph();
  EXPECT_FALSE(backend->update_plan(*plan, *next));
}

TEST_F(MetaPlan, PlansOfRangesMoveInOrder) {
  auto own = graph();
  const int count = static_cast<int>(own->nodes().size());
  const auto first = backend->create_plan({own.get(), 0, 12}, {{5}});
  const auto second = backend->create_plan({own.get(), 12, count}, {{20}});
  auto next = graph();
  EXPECT_FALSE(backend->update_plan(*second, *next)) << "the sources of this range have no memory in the new graph yet";
  ASSERT_TRUE(backend->update_plan(*first, *next));
  ASSERT_TRUE(backend->update_plan(*second, *next));
  own.reset();
  for (Tensor* input : next->inputs()) fill(*input);
  for (GraphPlan* part : {first.get(), second.get()}) backend->compute_async(*part);
  backend->synchronize();
  EXPECT_EQ(test::read_floats(*next->find("logits")), expected);
  // The plan of the later range reads results of the plan of the earlier range. The graph `last` has another plan for
  // the earlier range, so the plan of the later range cannot move to `last`.
  auto last = graph();
  const auto begin = backend->create_plan({last.get(), 0, 12});
  EXPECT_FALSE(backend->update_plan(*second, *last));
}

TEST_F(MetaPlan, AbortOfOneRankStopsAllRanks) {
  auto own = graph();
  const auto plan = backend->create_plan(*own, {{15}});
  for (int stop = 0; stop < 40; stop += 3) {
    SCOPED_TRACE(stop);
    std::atomic<int> asked{0};
    ASSERT_TRUE(backend->set_abort_callback([&] { return asked++ == stop; }));  // returns true for only one call, so
                                                                                // the callback stops one rank
    for (Tensor* input : own->inputs()) fill(*input);
    const auto begin = std::chrono::steady_clock::now();
    for (int segment : {0, 1}) backend->compute_async(*plan, segment, segment + 1);
    EXPECT_THROW(backend->synchronize(), Aborted)
        << "the error is the abort, not a failure that follows from the abort";
    EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
    asked = 0;
    EXPECT_EQ(backend->compute(*plan), Status::kAborted);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << "no rank waited for the timeout";
    ASSERT_TRUE(backend->set_abort_callback({}));
    EXPECT_EQ(run(*own, *plan), expected);
  }
}

TEST_F(MetaPlan, AliasOfPartialTensorReadsWholeSum) {
  auto own = graph();
  const Tensor* sum = own->find("ffn_out");
  const auto plan = backend->create_plan(*own, {{sum->id + 1}, {sum}});
  ASSERT_TRUE(plan_of(*plan).layout(*sum).is_partial());
  auto user = graph();
  Tensor& name = *user->find("ffn_out");
  sum->buffer->alias(name, *sum);
  for (Tensor* input : own->inputs()) fill(*input);
  backend->compute_async(*plan, 0, 1);
  std::vector<float> queued(static_cast<size_t>(name.elements()));
  backend->get_async(name, queued.data(), 0, name.bytes());
  backend->synchronize();
  EXPECT_EQ(test::read_floats(name), test::read_floats(*sum));
  EXPECT_EQ(queued, test::read_floats(*sum));
  EXPECT_NE(test::read_floats(shard(*sum, 0)), queued) << "an addend is not the sum";
  name.buffer->unplace(name);
  EXPECT_EQ(name.buffer, nullptr);
  EXPECT_EQ(queued, test::read_floats(*sum));
  EXPECT_THROW(context.tensors()[0]->buffer->unplace(*context.tensors()[0]), InvalidArgument)
      << "this tensor is not an alias";
}

/// Tensors of the same shape on two meta devices, with equal or different layouts.
struct MetaCopies : testing::TestWithParam<const char*> {
  static Layout split(int axis, std::string_view runs) { return Layout::split(axis, parse_partition(2, runs)); }
  MetaCopies() {
    const test::Layouts layouts{
        {"alike", split(1, "5:{0} 2:{1}")}, {"other", split(0, "3:{0} 97:{1}")}, {"partial", Layout::partial()}};
    second = MetaDevice::create({mesh.members[1], mesh.members[2]}, test::callback_for(layouts));
    x = context.add("x", DType::kF32, {100, 7, 1, 1});
    y = context.add(GetParam(), DType::kF32, {100, 7, 1, 1});
    first = MetaDevice::create({mesh.members[0], mesh.members[1]}, test::callback_for({{"x", layouts.at("alike")}}));
    x_memory = allocate_tensors({&x, 1}, first->buffer_type(), Usage::kWeights);
    y_memory = allocate_tensors({&y, 1}, second->buffer_type(), Usage::kWeights);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  }
  test::CpuMesh mesh{3};
  std::unique_ptr<MetaDevice> first, second;
  TensorContext context;
  Tensor *x, *y;
  std::unique_ptr<Buffer> x_memory, y_memory;
  std::vector<float> values = std::vector<float>(700), zeros = std::vector<float>(700);
};

TEST_P(MetaCopies, AreMadeInStreamOrderWithoutBlockingHost) {
  const auto from = first->init("threads=1"), to = second->init("threads=1");
  for (int round = 0; round < 4; ++round) {
    std::vector<float> before(700), after(700), source(700);
    test::Gate gate;
    Backend& held = round < 2 ? *from : *to;
    ASSERT_TRUE(held.members()[static_cast<size_t>(round % 2)]->enqueue(gate.task()));
    from->set_async(*x, values.data(), 0, 2800);
    to->set_async(*y, zeros.data(), 0, 2800);
    to->get_async(*y, before.data(), 0, 2800);
    from->copy_async(*x, *to, *y);
    from->set_async(*x, zeros.data(), 0, 2800);
    from->get_async(*x, source.data(), 0, 2800);
    to->get_async(*y, after.data(), 0, 2800);
    gate.open = true;
    from->synchronize();
    to->synchronize();
    EXPECT_EQ(before, zeros);
    EXPECT_EQ(after, values);
    EXPECT_EQ(source, zeros);
  }
}

TEST_P(MetaCopies, AreCorrectWithBlockingCalls) {
  tensor_set(*x, values.data(), 0, 2800);
  tensor_copy(*x, *y);
  EXPECT_EQ(test::read_floats(*y), values);
  tensor_set(*x, zeros.data(), 0, 2800);
  tensor_copy(*y, *x);
  EXPECT_EQ(test::read_floats(*x), values);
}

TEST_P(MetaCopies, AreCorrectBetweenTensorsOfOneBackend) {
  Tensor* z = context.add("z", DType::kF32, {100, 7, 1, 1});
  const auto memory = allocate_tensors({&z, 1}, second->buffer_type(), Usage::kWeights);
  const auto backend = second->init("threads=1");
  std::vector<float> seen(700);
  for (size_t held : {0u, 1u}) {
    test::Gate gate;
    ASSERT_TRUE(backend->members()[held]->enqueue(gate.task()));
    backend->set_async(*y, values.data(), 0, 2800);
    backend->copy_async(*y, *backend, *z);
    backend->set_async(*y, zeros.data(), 0, 2800);
    backend->get_async(*z, seen.data(), 0, 2800);
    gate.open = true;
    backend->synchronize();
    EXPECT_EQ(seen, values);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MetaCopies, testing::Values("alike", "other", "partial", "mirrored"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::meta
