#include "sched/graph_copy.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/text.h"
#include "tests/meta/llama_graph.h"
#include "tests/sched/rig.h"

namespace shoal::sched {
namespace {

using test::Rig;
using test::World;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct GraphCopies : testing::Test {
  /// Runs the graph and its copy with the same inputs and compares the outputs.
  static void expect_equal(Graph& graph, Backend& backend, GraphCopy& copy, Backend& other) {
    const auto plan = backend.create_plan(graph);
    const auto copied = other.create_plan(copy.graph());
    for (Tensor* input : graph.inputs()) {
      const auto bytes = test::leaf_data(*input, 1);
      tensor_set(*input, bytes.data(), 0, bytes.size());
    }
    copy.copy_inputs();
    ASSERT_EQ(backend.compute(*plan), Status::kSuccess);
    ASSERT_EQ(other.compute(*copied), Status::kSuccess);
    for (const Tensor* node : graph.nodes()) {
      if (!node->is_output) continue;
      EXPECT_TRUE(test::close_to(test::read_values(*copy.find(*node)), test::read_values(*node), {1e-9})) << node->name;
    }
  }
  Rig rig{4};
  std::unique_ptr<meta::MetaDevice> mesh = Rig::mesh({1, 2}, test::llama_layouts({1, 3}));
  World world{{{"*", &Rig::cpu(0)}}};
  std::unique_ptr<Backend> backend = Rig::cpu(0).init();
};

TEST_F(GraphCopies, HaveAllTensorsAndTheirData) {
  Graph& graph = world.add(test::llama_graph(3));
  for (Device* device : {&Rig::cpu(3), &Rig::cpu(0), static_cast<Device*>(mesh.get())}) {
    LeafCopies leaves(*device);
    GraphCopy copy(graph, leaves);
    EXPECT_EQ(to_string(copy.graph()), to_string(graph));
    EXPECT_EQ(copy.graph().name(), graph.name());
    for (const Tensor* leaf : graph.leaves()) {
      if (!leaf->is_persistent()) continue;
      const Tensor& other = *copy.find(*leaf);
      EXPECT_NE(&other, leaf);
      EXPECT_EQ(&other.buffer->type(), &device->buffer_type());
      EXPECT_EQ(other.buffer->usage(), leaf->role == Role::kWeight ? Usage::kWeights : Usage::kAny);
      EXPECT_EQ(test::read_values(other), test::read_values(*leaf)) << leaf->name;
    }
    const auto other = device->init();
    expect_equal(graph, *backend, copy, *other);
  }
  LeafCopies leaves(*mesh);
  leaves.add(graph);
  EXPECT_EQ(meta::layout_of(*leaves.find(*world.weights.find("wq"))).to_string(), "split 1 [16:{0} 48:{1}]");
}

TEST_F(GraphCopies, AreIndependentAndFreedByDestruction) {
  Graph& graph = world.add(test::llama_graph(3));
  const size_t free = Rig::cpu(3).memory().free;
  {
    LeafCopies leaves(Rig::cpu(3));
    GraphCopy copy(graph, leaves);
    EXPECT_LE(Rig::cpu(3).memory().free + 20000, free);
    const auto before = test::read_values(*world.weights.find("wq"));
    copy.find(*world.weights.find("wq"))->buffer->clear(0);
    EXPECT_EQ(test::read_values(*world.weights.find("wq")), before);
    const auto other = Rig::cpu(3).init();
    const auto plan = other->create_plan(copy.graph());
    EXPECT_EQ(graph.find("logits")->buffer, nullptr) << "the original has no plan";
  }
  EXPECT_EQ(Rig::cpu(3).memory().free, free);
}

TEST_F(GraphCopies, ShareCopiesOfLeaves) {
  Graph &prompt = world.add(test::llama_graph(5)), &token = world.add(test::llama_graph(1));
  LeafCopies leaves(*mesh);
  GraphCopy first(prompt, leaves);
  GraphCopy second(token, leaves);
  EXPECT_EQ(leaves.originals().size(), 14U);
  const Tensor& cache = *world.weights.find("ck");
  EXPECT_EQ(first.find(cache), second.find(cache));
  EXPECT_EQ(first.find(*token.find("logits")), nullptr) << "logits is a node of another graph";
  const auto other = mesh->init();
  expect_equal(prompt, *backend, first, *other);
  expect_equal(token, *backend, second, *other);
  EXPECT_TRUE(test::close_to(test::read_values(*leaves.find(cache)), test::read_values(cache), {1e-6}));
}

TEST_F(GraphCopies, KeepLeavesWithEqualNamesApart) {
  TensorContext one, two;
  Graph graph("twins");
  parse_graph("weight %w f32 [8]\n", graph, one);
  parse_graph("weight %w f32 [8]\n", graph, two);
  std::vector<Tensor*> weights{one.find("w"), two.find("w")};
  const auto memory = allocate_tensors(weights, Rig::cpu(0).buffer_type(), Usage::kWeights);
  for (int i : {0, 1}) test::write_values(*weights[static_cast<size_t>(i)], test::Values(8, i + 1.0));
  Tensor* sum = graph.output(graph.add_node(Op::kAdd, {}, weights, "sum"));
  LeafCopies leaves(*mesh);
  GraphCopy copy(graph, leaves);
  EXPECT_NE(copy.find(*weights[0]), copy.find(*weights[1]));
  const auto other = mesh->init();
  ASSERT_EQ(other->compute(copy.graph()), Status::kSuccess);
  EXPECT_EQ(test::read_values(*copy.find(*sum)), test::Values(8, 3.0));
}

TEST_F(GraphCopies, DestroyCopiedLeavesAfterError) {
  Graph& graph = world.add(test::llama_graph(3));
  Graph other("other");
  TensorContext unplaced;
  parse_graph("weight %here f32 [8]\n%y = scale(%here) {scale=2}\noutput %y\n", other, unplaced);
  LeafCopies leaves(Rig::cpu(3));
  const size_t free = Rig::cpu(3).memory().free;
  EXPECT_THAT([&] { GraphCopy(other, leaves); },
              ThrowsMessage<InvalidArgument>(HasSubstr("here f32 [8] has no memory")));
  EXPECT_TRUE(leaves.originals().empty());
  Tensor* here = unplaced.find("here");
  const auto memory = allocate_tensors({&here, 1}, Rig::cpu(0).buffer_type(), Usage::kWeights);
  GraphCopy copy(other, leaves);
  EXPECT_NE(copy.find(*here), nullptr);

  auto& small = Registry::instance().find_family("NULL")->create_device("fail_alloc_after=2K");
  LeafCopies too_many(small);
  EXPECT_THROW(GraphCopy(graph, too_many), OutOfMemory);
  EXPECT_TRUE(too_many.originals().empty());
  EXPECT_EQ(small.memory().free, small.memory().total);
  EXPECT_NO_THROW(GraphCopy(other, too_many));
  EXPECT_LT(Rig::cpu(3).memory().free, free);
}

}  // namespace
}  // namespace shoal::sched
