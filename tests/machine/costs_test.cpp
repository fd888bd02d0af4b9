#include "machine/costs.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/text.h"
#include "tests/support/external_ops.h"

namespace shoal::machine {
namespace {

using testing::ThrowsMessage;

/// A device whose rates all differ, so that a wrong rate changes the cost.
DeviceModel device() {
  DeviceModel device;
  device.name = "dev";
  device.bandwidth = 1000;
  device.activation_bandwidth = 10;
  device.attention_rate = 100;
  device.attention_bandwidth = 50;
  device.products = {{"f32", {{{1, 2.0}, {5, 6.0}}, {{1, 0.5}}}}, {"q8_0", {{{1, 3.0}}, {}}}};
  return device;
}

struct Case {
  const char* what;
  const char* graph;
  double seconds;
  double bytes;
};

const Case kCases[] = {
    {"a product of one column", "weight %w f32 [4, 3]\ninput %x f32 [4]\n%n = mul_mat(%w, %x)", 12 * 2, 48},
    {"a product of three columns", "weight %w f32 [4, 3]\ninput %x f32 [4, 3]\n%n = mul_mat(%w, %x)", 12 * 4, 48},
    {"a product of ten columns", "weight %w f32 [4, 3]\ninput %x f32 [4, 10]\n%n = mul_mat(%w, %x)", 12 * 12, 48},
    {"quantised weights", "weight %w q8_0 [64, 3]\ninput %x f32 [64]\n%n = mul_mat(%w, %x)", 192 * 3, 6 * 34},
    {"two weight matrices for six input matrices",
     "weight %w f32 [4, 3, 2]\ninput %x f32 [4, 1, 6]\n%n = mul_mat(%w, %x)", 24 * 4, 96},
    {"no weights", "weight %w f32 [0, 3]\ninput %x f32 [0, 2]\n%n = mul_mat(%w, %x)", 0, 0},
    {"no columns", "weight %w f32 [4, 3]\ninput %x f32 [4, 0]\n%n = mul_mat(%w, %x)", 0, 0},
    // One token selects 2 of 8 experts. Four tokens use 8 (1 - 0.75^4) = 5.46875 experts on average. These experts
    // multiply 8 columns in total.
    {"two experts of eight",
     "weight %w f32 [4, 3, 8]\ninput %x f32 [4, 1, 1]\ninput %i i32 [2, 1]\n%n = mul_mat_id(%w, %x, %i)", 24 * 2, 96},
    {"four tokens with two experts of eight",
     "weight %w f32 [4, 3, 8]\ninput %x f32 [4, 1, 4]\ninput %i i32 [2, 4]\n%n = mul_mat_id(%w, %x, %i)",
     12 * 5.46875 * (2 + 8 / 5.46875 - 1), 48 * 5.46875},
    {"all experts", "weight %w f32 [4, 3, 2]\ninput %x f32 [4, 1, 3]\ninput %i i32 [2, 3]\n%n = mul_mat_id(%w, %x, %i)",
     24 * 4, 96},
    // Each weight is multiplied by one column for each of 2 * 3 * 2 pixels.
    {"a convolution", "weight %w f32 [3, 1, 2, 4]\ninput %x f32 [4, 3, 2, 2]\n%n = conv_2d(%w, %x)", 24 * 14.4, 96},
    {"a transposed convolution with f16 weights",
     "weight %w f16 [3, 1, 2, 4]\ninput %x f32 [2, 1, 4, 1]\n%n = conv_transpose_2d(%w, %x)", 24 * 3, 48},
    // For each of 3 heads, a cache row has a key of 2 * 8 bytes and a value of 2 * 4 bytes. The query attends to 4
    // rows.
    {"attention of one query",
     "input %q f32 [8, 1, 6]\ncache %k f16 [8, 10, 3]\ncache %v f16 [4, 10, 3]\n%n = attention(%q, %k, %v, _, _, _)",
     2 * 12 * 4 * 6 / 100.0, 4 * 3 * 24},
    {"attention of one query and one head",
     "input %q f32 [8, 1, 1]\ncache %k f32 [8, 10, 1]\ncache %v f32 [4, 10, 1]\n%n = attention(%q, %k, %v, _, _, _)",
     4 * 48 / 50.0, 4 * 48},
    {"attention to values that are parts of keys",
     "input %q f32 [8, 1, 1]\ncache %k f32 [8, 10, 1]\n%v = slice(%k) {axis=0, begin=0, length=4}\n"
     "%n = attention(%q, %k, %v, _, _, _)",
     4 * 32 / 50.0, 4 * 32},
    {"attention of many queries",
     "input %q f32 [8, 50, 6]\ncache %k f16 [8, 10, 3]\ncache %v f16 [4, 10, 3]\n%n = attention(%q, %k, %v, _, _, _)",
     2 * 12 * 4 * 300 / 100.0, 4 * 3 * 24},
    {"attention in a window",
     "input %q f32 [8, 1, 6]\ncache %k f16 [8, 10, 3]\ncache %v f16 [4, 10, 3]\ninput %ids1.p i32 [1]\n"
     "%n = attention(%q, %k, %v, %ids1.p, _, _) {window=3}",
     2 * 12 * 3 * 6 / 100.0, 3 * 3 * 24},
    {"attention with fewer rows than the average",
     "input %q f32 [8, 1, 6]\ncache %k f16 [8, 2, 3]\ncache %v f16 [4, 2, 3]\n%n = attention(%q, %k, %v, _, _, _)",
     2 * 12 * 2 * 6 / 100.0, 2 * 3 * 24},
    {"attention to one of two parts, with queries for both",
     "input %q f32 [8, 1, 6]\ncache %k f16 [8, 10, 3]\ncache %v f16 [4, 10, 3]\n"
     "%n = attention(%q, %k, %v, _, _, _) {parts=2}",
     2 * 12 * 2 * 6 / 100.0, 2 * 3 * 24},
    {"attention to both of two parts",
     "input %q f32 [8, 1, 6]\ncache %k f16 [8, 10, 3, 2]\ncache %v f16 [4, 10, 3, 2]\n"
     "%n = attention(%q, %k, %v, _, _, _) {parts=2}",
     2 * 12 * 2 * 12 / 100.0, 2 * 2 * 3 * 24},
    // For one token, memory traffic determines the time. The node writes a result with 5 columns of 4 elements for each
    // of 2 heads. The node reads `q`, `k`, `v`, `decay`, `beta`, the state and a position.
    {"a state and one token",
     "input %q f32 [4, 1, 1]\ninput %v f32 [4, 2, 1]\ninput %a f32 [2, 1]\ninput %s f32 [4, 4, 2]\ninput %p i32 [1]\n"
     "%n = gated_delta(%q, %q, %v, %a, %a, %s, %p)",
     4 * (40 + 4 + 4 + 8 + 2 + 2 + 32 + 1) / 10.0, 0},
    {"a state in one of five slots",
     "input %q f32 [4, 1, 1]\ninput %v f32 [4, 2, 1]\ninput %a f32 [2, 1]\ninput %s f32 [4, 20, 2]\n"
     "input %p i32 [1]\ninput %t i32 [1]\ninput %l i32 [1]\n%n = gated_delta(%q, %q, %v, %a, %a, %s, %p, %t, %l)",
     4 * (40 + 4 + 4 + 8 + 2 + 2 + 32 + 1 + 1 + 1) / 10.0, 0},
    {"states of two sequences in five slots",
     "input %x f32 [3, 5]\ninput %w f32 [3, 3]\ninput %s f32 [3, 10]\ninput %p i32 [5]\ninput %l i32 [2]\n"
     "%n = causal_conv(%x, %w, %s, %p, %p, %l)",
     4 * (27 + 15 + 9 + 12 + 5 + 5 + 2) / 10.0, 0},
    {"a state of many slots and many tokens",
     "input %q f32 [64, 1, 100]\ninput %a f32 [1, 100]\ninput %s f32 [64, 640, 1]\ninput %p i32 [100]\n"
     "input %l i32 [2]\n%n = gated_delta(%q, %q, %q, %a, %a, %s, %p, %p, %l)",
     6 * 64 * 64 * 100 / 100.0, 0},
    {"a state and many tokens",
     "input %q f32 [64, 1, 100]\ninput %a f32 [1, 100]\ninput %s f32 [64, 64, 1]\ninput %p i32 [100]\n"
     "%n = gated_delta(%q, %q, %q, %a, %a, %s, %p)",
     6 * 64 * 64 * 100 / 100.0, 0},
    {"rows that are gathered", "weight %w q8_0 [32, 1000]\ninput %i i32 [2]\n%n = get_rows(%w, %i)",
     (2 * 34 + 8 + 2 * 128) / 10.0, 0},
    {"rows that are written",
     "cache %c f16 [8, 100, 2]\ninput %x f32 [8, 3, 2]\ninput %i i32 [3]\n%n = set_rows(%c, %x, %i)",
     (48 * 4 + 12 + 48 * 2) / 10.0, 0},
    {"a slice that is written", "cache %c f16 [8, 100, 2]\ninput %x f32 [8, 3, 2]\n%n = set_slice(%c, %x)",
     (48 * 4 + 48 * 2) / 10.0, 0},
    {"a sum", "input %a f32 [4, 5]\ninput %b f32 [4]\n%n = add(%a, %b)", (80 + 16 + 80) / 10.0, 0},
    {"a norm", "input %a f32 [4, 5]\n%n = rms_norm(%a)", 160 / 10.0, 0},
    {"an external op", "input %a f32 [4, 5]\ninput %b f32 [4]\n%n = external(%a, %b) {op=\"test.dot\"}",
     (80 + 16 + 20) / 10.0, 0},
    {"an optional source that is absent", "input %a f32 [4, 5]\n%n = soft_max(%a, _, _)", 160 / 10.0, 0},
};

TEST(EstimateCost, NodeCostsMatchFormulas) {
  test::register_test_ops();
  for (const Case& one : kCases) {
    Graph graph;
    TensorContext weights;
    parse_graph(one.graph, graph, weights);
    const Tensor& node = *graph.find("n");
    const NodeCost cost = node_cost(device(), node, 4, false);
    EXPECT_DOUBLE_EQ(cost.seconds, one.seconds) << one.what;
    EXPECT_DOUBLE_EQ(cost.bytes, one.bytes) << one.what;
    DeviceModel slow = device();
    slow.op_seconds = 1000;
    EXPECT_DOUBLE_EQ(node_cost(slow, node, 4, false).seconds, node.empty() ? 0 : one.seconds + 1000) << one.what;
    EXPECT_EQ(node_cost(device(), node, 4, true).bytes, 0) << one.what;
  }
}

NodeCost cost_of(const std::string& text, double kv_rows, bool in_cache) {
  Graph graph;
  TensorContext weights;
  parse_graph(text, graph, weights);
  return node_cost(device(), *graph.find("n"), kv_rows, in_cache);
}

TEST(EstimateCost, WeightsInCacheUseCachedProductTimes) {
  EXPECT_EQ(cost_of("weight %w f32 [4, 3]\ninput %x f32 [4]\n%n = mul_mat(%w, %x)", 0, true).seconds, 6);
  EXPECT_EQ(cost_of("weight %w q8_0 [32, 3]\ninput %x f32 [32]\n%n = mul_mat(%w, %x)", 0, true).seconds, 288);
}

TEST(EstimateCost, ZeroKvRowsCountAsWholeCache) {
  const char* text =
      "input %q f32 [8, 1, 1]\ncache %k f32 [8, 10, 1]\ncache %v f32 [4, 10, 1]\n"
      "%n = attention(%q, %k, %v, _, _, _)";
  EXPECT_EQ(cost_of(text, 0, false).bytes, 480);
  EXPECT_EQ(cost_of(text, 10, false).bytes, 480);
  EXPECT_EQ(cost_of(text, 2.5, false).bytes, 120);
}

TEST(EstimateCost, ViewsAndCollectivesAreFree) {
  for (const char* node : {"reshape(%x) {shape=[8,1,1,1]}", "slice(%x) {axis=0,begin=1,length=2}",
                           "permute(%x) {axes=[1,0,2,3]}", "all_reduce(%x) {rank=0}"}) {
    DeviceModel model = device();
    model.op_seconds = 1;
    Graph graph;
    TensorContext weights;
    parse_graph(fmt::format("input %x f32 [4, 2]\n%n = {}", node), graph, weights);
    const NodeCost cost = node_cost(model, *graph.find("n"), 0, false);
    EXPECT_EQ(cost.seconds, 0) << node;
    EXPECT_EQ(cost.bytes, 0) << node;
  }
}

TEST(EstimateCost, RejectsDtypeWithoutMeasuredProducts) {
  EXPECT_THAT([] { cost_of("weight %w f16 [4, 3]\ninput %x f32 [4]\n%n = mul_mat(%w, %x)", 0, false); },
              ThrowsMessage<InvalidArgument>(
                  "device dev of the machine has no \"products\" for f16 weights, which n needs; probe the machine "
                  "again, or add a \"default\" to the \"rates\" of the device"));
}

TEST(EstimateCost, WorkingSetCountsSharedWeightsOnce) {
  Graph graph;
  TensorContext weights;
  parse_graph(R"(
input %x f32 [8, 1, 1]
input %i i32 [2, 1]
weight %w f32 [8, 8]
weight %e f32 [8, 8, 4]
weight %scale f32 [8]
cache %k f16 [8, 100, 1]
cache %v f16 [8, 100, 1]
%a = mul_mat(%w, %x)
%b = mul_mat(%w, %a)
%t = permute(%w) {axes=[1,0,2,3]}
%c = contiguous(%t)
%s = mul(%b, %scale)
%d = mul_mat_id(%e, %x, %i)
%h = attention(%x, %k, %v, _, _, _)
)",
              graph, weights);
  EXPECT_EQ(working_set(graph, 10), 256 + 4 * 256 + 10 * 32);
}

/// This device has two of eight experts. A token selects two of the eight experts. So a token uses half an expert of
/// this device on average.
TEST(EstimateCost, CountsExpectedUseOfLocalExperts) {
  const auto cost = [](const char* tokens, int64_t experts) {
    Graph graph;
    TensorContext weights;
    parse_graph(fmt::format("weight %w f32 [4, 3, 2]\ninput %x f32 [4, 1, {0}]\ninput %i i32 [2, {0}]\n"
                            "%n = mul_mat_id(%w, %x, %i) {{ranges=[4:2]}}",
                            tokens),
                graph, weights);
    const DeviceModel model = device();
    const ProductTable products(model);
    const Tensor& node = *graph.find("n");
    return std::pair(node_cost(model, products, node, 0, false, experts),
                     pair_seconds(model, products, node, false, experts));
  };
  const auto [one, pair] = cost("1", 8);
  EXPECT_DOUBLE_EQ(one.seconds, 12 * 0.5 * 2);
  EXPECT_DOUBLE_EQ(one.bytes, 48 * 0.5);
  EXPECT_DOUBLE_EQ(pair, 12 * 2) << "an expert";
  const auto [four, later] = cost("4", 8);
  EXPECT_DOUBLE_EQ(four.seconds, 12 * 5.46875 / 4 * (2 + 8 / 5.46875 - 1));
  EXPECT_LT(later, pair) << "most experts are read anyway";
  EXPECT_GT(later, 12) << "each pair adds one column";
  EXPECT_EQ(cost("4", 0).second, 0) << "with all experts here, no pair is elsewhere";
  EXPECT_DOUBLE_EQ(cost("1", 0).first.seconds, 12 * 2 * 2);
}

TEST(UsedExperts, EqualMeanForRandomSelections) {
  TensorContext context;
  Graph graph;
  const Tensor* experts = context.add("e", DType::kF32, {4, 3, 8, 1});
  EXPECT_DOUBLE_EQ(used_experts(*experts, *graph.input("one", DType::kI32, {2, 1, 1, 1})), 0.25);
  EXPECT_DOUBLE_EQ(used_experts(*experts, *graph.input("four", DType::kI32, {2, 4, 1, 1})), 5.46875 / 8);
  EXPECT_DOUBLE_EQ(used_experts(*experts, *graph.input("all", DType::kI32, {8, 1, 1, 1})), 1);
}

}  // namespace
}  // namespace shoal::machine
