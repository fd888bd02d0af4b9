// Tests with random cases. A case has a graph, split states of its weights, and 1 to 16 ranks. The meta device must
// give the same results as one device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "graph/text.h"
#include "tests/support/plugin.h"
#include "tests/support/property.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

constexpr int kShards = 20;  // number of parts of the test; ctest can run the parts in parallel

std::vector<Device*> some_devices() {
  std::vector<Device*> found;
  for (int i = 0; i < 16; ++i) found.push_back(&test_device(i));
  return found;
}

class MetaProperty : public testing::TestWithParam<int> {};

TEST_P(MetaProperty, MetaDeviceGivesSameResultsAsOneDevice) {
  const auto members = some_devices();
  check_property({random_case, [&](const RandomCase& one) { return check_case(one, members); }}, GetParam(), kShards);
}

INSTANTIATE_TEST_SUITE_P(Random, MetaProperty, testing::Range(0, kShards));

template <class Kind>
std::string kind_of(std::string_view op, Kind kind) {
  return fmt::format("{} of kind {}", op, static_cast<int>(kind));
}

/// Collects the features of graphs and layouts that a planner could handle wrongly.
class Features {
 public:
  void add(const RandomCase& one) {
    Graph graph;
    TensorContext weights;
    parse_graph(one.graph, graph, weights);
    for (const Tensor* node : graph.nodes()) add_node(*node);
    for (const Tensor* leaf : weights.tensors()) {
      if (leaf->empty()) found_.insert("an empty leaf");
      const auto layout = one.layouts.find(leaf->name);
      if (layout != one.layouts.end()) add_layout(*leaf, layout->second);
    }
    if (!one.segments.empty()) found_.insert("segments");
    for (const auto& [name, segments] : one.segments) {
      if (segments.size() > 1 && name.starts_with("fused") && segments[0] == segments[1])
        found_.insert("equal segments");
    }
  }
  const std::set<std::string>& found() const { return found_; }

 private:
  void add_node(const Tensor& node) {
    const std::string op(name_of(node.op));
    found_.insert(op);
    if (node.empty()) found_.insert("an empty " + op);
    if (node.dtype != DType::kF32) found_.insert(op + " to " + std::string(name_of(node.dtype)));
    if (node.op == Op::kUnary) found_.insert(kind_of(op, std::get<UnaryParams>(node.params).kind));
    if (node.op == Op::kGlu) found_.insert(kind_of(op, std::get<GluParams>(node.params).kind));
    if (node.op == Op::kSlice && std::get<SliceParams>(node.params).step > 1) found_.insert("slice with a step");
    if (node.op == Op::kSetRows) {
      if (node.src[2]->rows() > 1) found_.insert("set_rows with ids per head or batch");
      if (node.src[2]->dtype == DType::kI64) found_.insert("set_rows with i64 ids");
    }
    if (writes(node) && writes(*node.src[0])) {
      found_.insert(op + " after " + std::string(name_of(node.src[0]->op)));
    }
    if (node.op == Op::kMulMatId) {
      if (!std::get<SelectParams>(node.params).ranges.empty()) found_.insert("experts in ranges");
      if (!node.src[2]->is_leaf()) found_.insert("experts by computed ids");
    }
    if (const auto* conv = std::get_if<ConvParams>(&node.params)) add_groups(op, conv->groups, node.src[0]->shape[2]);
    if (const auto* conv = std::get_if<ConvTransposeParams>(&node.params)) {
      add_groups(op, conv->groups, node.src[0]->shape[3] / conv->groups);
    }
    if (node.op == Op::kAttention) add_attention(node);
    if (node.op == Op::kGetRows && node.src[1]->shape[1] > 1) found_.insert("get_rows with ids on two axes");
    if (node.op == Op::kGetRows && !node.src[0]->is_leaf()) found_.insert("get_rows of a computed table");
    if (node.op == Op::kRope) {
      const auto& params = std::get<RopeParams>(node.params);
      if (node.src[2] != nullptr) found_.insert("rope with factors");
      if (params.offset > 0) found_.insert("rope at an offset");
      if (params.ext_factor != 0.0f) found_.insert("rope, YaRN");
      if (params.ext_factor == 0.0f && params.freq_scale != 1.0f) found_.insert("rope, linear");
    }
  }

  static bool writes(const Tensor& node) { return info(node.op).alias == Alias::kWrites; }

  void add_groups(const std::string& op, int64_t groups, int64_t channels) {
    found_.insert(op + (groups == 1 ? " of one group" : channels == 1 ? ", depthwise" : " in groups"));
  }

  void add_attention(const Tensor& node) {
    const Tensor* k = node.src[1];
    if (node.src[4] != nullptr && node.src[4]->shape[2] > 1) found_.insert("attention with a mask per head");
    if (node.src[4] != nullptr && node.src[4]->shape[3] > 1) found_.insert("attention with a mask per batch");
    bool view = false;
    for (; is_view(k->op); k = k->src[0]) view = true;
    if (node.src[2]->storage() == node.src[1]->storage()) found_.insert("attention to values that are parts of keys");
    if (writes(*k)) found_.insert(view ? "attention to a view of a written cache" : "attention to a written cache");
  }

  void add_layout(const Tensor& leaf, const meta::Layout& layout) {
    if (layout.is_partial()) found_.insert("partial " + std::string(name_of(leaf.dtype)));
    const auto runs = layout.partition.runs();
    if (std::any_of(runs.begin(), runs.end(), [](const meta::Run& run) { return run.owners.size() > 1; }))
      found_.insert("shared runs");
  }

  std::set<std::string> found_;
};

TEST(RandomCases, ContainEveryFeature) {
  Features features;
  for (uint64_t seed = 0; seed < 600; ++seed) features.add(random_case(seed));
  std::set<std::string> wanted{"segments",
                               "equal segments",
                               "shared runs",
                               "partial f32",
                               "partial f16",
                               "partial bf16",
                               "partial i32",
                               "an empty leaf",
                               "an empty mul_mat",
                               "an empty reshape",
                               "add to i32",
                               "sub to i32",
                               "mul to i32",
                               "get_rows to i32",
                               "concat to i32",
                               "add to f16",
                               "mul to bf16",
                               "experts in ranges",
                               "experts by computed ids",
                               "set_rows after set_rows",
                               "set_rows after set_slice",
                               "set_slice after set_rows",
                               "set_slice after set_slice",
                               "set_rows with i64 ids",
                               "set_rows with ids per head or batch",
                               "attention with a mask per head",
                               "attention with a mask per batch",
                               "slice with a step",
                               "mul_mat to f16",
                               "mul_mat to bf16",
                               "rms_norm to f16",
                               "rms_norm to bf16",
                               "layer_norm to f16",
                               "layer_norm to bf16",
                               "attention to a view of a written cache",
                               "attention to a written cache",
                               "attention to values that are parts of keys",
                               "conv_2d of one group",
                               "conv_2d, depthwise",
                               "conv_2d in groups",
                               "conv_transpose_2d of one group",
                               "conv_transpose_2d, depthwise",
                               "conv_transpose_2d in groups",
                               "get_rows with ids on two axes",
                               "get_rows of a computed table",
                               "rope with factors",
                               "rope at an offset",
                               "rope, linear",
                               "rope, YaRN"};
  for (int i = 0; i < kOpCount; ++i) {  // the cases must contain every op that a user's graph may contain
    const OpInfo& row = info(static_cast<Op>(i));
    if (row.op == Op::kExternal) continue;  // tests/meta/device/external_op_test.cpp
    if (row.kind == OpKind::kCompute || row.kind == OpKind::kView) wanted.insert(std::string(row.name));
  }
  for (int i = 0; i < static_cast<int>(UnaryKind::kCount); ++i) {
    wanted.insert(kind_of("unary", static_cast<UnaryKind>(i)));
  }
  for (int i = 0; i < static_cast<int>(GluKind::kCount); ++i) {
    wanted.insert(kind_of("glu", static_cast<GluKind>(i)));
  }
  for (const std::string& feature : wanted) {
    EXPECT_TRUE(features.found().contains(feature)) << feature << " is never drawn (tests/support/random_graph.cpp)";
  }
}

}  // namespace
}  // namespace shoal::test
