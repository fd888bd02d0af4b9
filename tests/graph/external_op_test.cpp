#include "graph/external_op.h"

#include <gmock/gmock.h>

#include <memory>
#include <thread>

#include "base/error.h"
#include "graph/memory_plan.h"
#include "graph/ops/ops.h"
#include "graph/text.h"
#include "tests/support/external_ops.h"

namespace shoal {
namespace {

using test::OpOfTest;
using test::RegisteredOp;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::ThrowsMessage;

void copy_first(const shoal_op_node* node, const shoal_op_launch* launch) {
  const auto [begin, end] = test::share(*launch, test::count(*node->result));
  for (int64_t i = begin; i < end; ++i) test::floats(*node->result)[i] = test::floats(node->sources[0])[i];
}

TEST(ExternalOp, RejectsBadRegistrations) {
  const auto refuses = [](void (*change)(OpOfTest&), const char* message) {
    OpOfTest one("graph.bad", nullptr, 1, test::infer_like_first, copy_first);
    change(one);
    EXPECT_THAT([&] { register_op(one.op); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refuses([](OpOfTest& one) { one.op.size = 8; }, "set it to sizeof(shoal_op)");
  refuses([](OpOfTest& one) { one.op.name = "two words"; }, "expected a name of letters, digits, '_', '.' and '-'");
  refuses([](OpOfTest& one) { one.op.name = nullptr; }, "got ''");
  refuses([](OpOfTest& one) { one.op.infer = nullptr; }, "[register_op graph.bad] expected the function infer");
  refuses([](OpOfTest& one) { one.op.max_sources = 17; }, "max_sources <= 16, got 1 and 17");
  refuses([](OpOfTest& one) { one.op.min_sources = 2; }, "got 2 and 1");
  refuses([](OpOfTest& one) { one.op.kernels = nullptr; }, "expected an array of kernels");
  refuses([](OpOfTest& one) { one.kernel.run = nullptr; }, "expected a family and the function run in kernel 0");
  refuses([](OpOfTest& one) { one.kernel.size = 4; }, "sizeof(shoal_op_kernel)");
  EXPECT_EQ(find_op("graph.bad"), nullptr);
}

TEST(ExternalOp, RejectsTakenNames) {
  const RegisteredOp first("graph.taken", nullptr, 1, test::infer_like_first, copy_first);
  EXPECT_THAT([&] { register_op(first.op); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("[register_op graph.taken] an op of this name is already "
                                                             "registered by the program"),
                                                   HasSubstr("use another name"))));
}

TEST(ExternalOp, RegistersAllOpsOfAPluginOrNone) {
  const OpOfTest a("graph.a", nullptr, 1, test::infer_like_first, copy_first);
  const shoal_op twice[] = {a.op, a.op};
  EXPECT_THAT(
      [&] {
        register_ops({sizeof(shoal_ops), SHOAL_OPS_VERSION, "pair", twice, 2});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("already registered by this plug-in")));
  EXPECT_EQ(find_op("graph.a"), nullptr);
  register_ops({sizeof(shoal_ops), SHOAL_OPS_VERSION, "pair", twice, 1});
  EXPECT_EQ(find_op("graph.a")->owner, "pair");
  EXPECT_THAT(registered_ops(), Contains("graph.a"));
  unregister_ops("pair");
  EXPECT_EQ(find_op("graph.a"), nullptr);
}

/// A struct of a later version has further members.
struct LaterOp {
  shoal_op known;
  void* later = nullptr;
};

TEST(ExternalOp, AcceptsStructsOfLaterVersions) {
  const OpOfTest one("graph.later", nullptr, 1, test::infer_like_first, copy_first);
  LaterOp later[] = {{one.op}, {one.op}};
  later[0].known.size = later[1].known.size = sizeof(LaterOp);
  later[1].known.name = "graph.later2";
  register_ops({sizeof(shoal_ops), SHOAL_OPS_VERSION, "later", &later[0].known, 2});
  EXPECT_NE(find_op("graph.later2"), nullptr);
  unregister_ops("later");
}

TEST(ExternalOp, StaysRegisteredWhileAGraphUsesIt) {
  const OpOfTest one("graph.used", nullptr, 1, test::infer_like_first, copy_first);
  register_op(one.op);
  auto graph = std::make_unique<Graph>();
  external(*graph, "graph.used", {graph->input("x", DType::kF32, {4, 1, 1, 1})});
  EXPECT_THAT([] { unregister_op("graph.used"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("1 graphs have nodes of the op; destroy these graphs")));
  graph.reset();
  unregister_op("graph.used");
  EXPECT_THAT([] { unregister_op("graph.used"); }, ThrowsMessage<InvalidArgument>(HasSubstr("no external op")));
  // The name is free again.
  register_op(one.op);
  unregister_op("graph.used");
}

TEST(ExternalOp, ReportsNodesThatDoNotFit) {
  test::register_test_ops();
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {4, 3, 1, 1});
  Tensor* y = graph.input("y", DType::kF32, {4, 2, 1, 1});
  EXPECT_THAT(
      [&] { external(graph, "test.nothing", {x}); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("expected a registered op, got 'test.nothing' (registered: "),
                                           HasSubstr("test.lerp"), HasSubstr("call register_op()"))));
  EXPECT_THAT(
      [&] { external(graph, "test.lerp", {x}, "1", "n"); },
      ThrowsMessage<InvalidArgument>(HasSubstr("[external n] expected 2 sources for op 'test.lerp', got 1")));
  EXPECT_THAT(
      [&] {
        external(graph, "test.lerp", {x, y}, "1", "n");
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("[external n] expected two sources of equal shape (op 'test.lerp')"
                                               " (x0: x f32 [4, 3], x1: y f32 [4, 2])")));
  EXPECT_TRUE(graph.nodes().empty());
}

TEST(ExternalOp, RejectsQuantisedResults) {
  const RegisteredOp one("graph.quantised", nullptr, 1, test::infer_like_first, copy_first);
  Graph graph;
  EXPECT_THAT(
      [&] {
        external(graph, "graph.quantised", {graph.input("x", DType::kQ8_0, {32, 1, 1, 1})});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("a plain result dtype from op 'graph.quantised', got number 8")));
}

TEST(ExternalOp, CopiesSourcesThatAreNotContiguous) {
  test::register_test_ops();
  Graph graph;
  Tensor* x = transpose(graph, graph.input("x", DType::kF32, {4, 3, 1, 1}));
  const Tensor* y = external(graph, "test.reverse", {x});
  EXPECT_EQ(y->src[0]->op, Op::kContiguous);
  EXPECT_THAT(
      [&] {
        graph.add_node(Op::kExternal, ExternalParams{"test.reverse", ""}, {x});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("add a node `contiguous` before source 0")));
}

TEST(ExternalOp, IsPrintedAndParsed) {
  test::register_test_ops();
  Graph graph, back;
  TensorContext weights;
  Tensor* x = graph.input("x", DType::kF32, {4, 3, 1, 1});
  external(graph, "test.lerp", {x, x}, "0.5", "y");
  const std::string text = to_string(graph);
  EXPECT_THAT(text, HasSubstr("%y = external(%x, %x) {op=\"test.lerp\", args=\"0.5\"}"));
  parse_graph(text, back, weights);
  EXPECT_EQ(to_string(back), text);
  EXPECT_EQ(back.nodes()[0]->params, graph.nodes()[0]->params);
}

TEST(ExternalOp, CallDescribesTheNode) {
  test::register_test_ops();
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {4, 3, 1, 1});
  const ExternalCall call(*external(graph, "test.lerp", {x, x}, "0.5", "y"));
  const shoal_op_node& node = *call.node();
  EXPECT_EQ(std::string(node.op) + node.name + node.args, "test.lerpy0.5");
  EXPECT_EQ(node.source_count, 2);
  EXPECT_EQ(node.sources[1].dtype, SHOAL_OP_F32);
  EXPECT_EQ(node.sources[1].shape[1], 3);
  EXPECT_EQ(node.sources[1].strides[1], 16);
  EXPECT_EQ(node.result->strides[2], 48);
}

TEST(ExternalOp, RegistrationAndUseFromSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const std::string name = "graph.thread" + std::to_string(t);
      for (int i = 0; i < 50; ++i) {
        const RegisteredOp one(name.c_str(), nullptr, 1, test::infer_like_first, copy_first);
        Graph graph;
        external(graph, name, {graph.input("x", DType::kF32, {4, 1, 1, 1})});
        EXPECT_EQ(op_of(*graph.nodes()[0]).name, name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace shoal
