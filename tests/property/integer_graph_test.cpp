// Tests the generator of integer cases and the CaseModel, which computes the expected results. ranges_test.cpp and
// observed_test.cpp use the generator and the CaseModel.
#include "tests/support/integer_graph.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "graph/text.h"
#include "tests/support/case_model.h"

namespace shoal::test {
namespace {

/// Returns the features of a case that a planner, a scheduler or a kernel could handle wrongly.
std::set<std::string> features(const RandomCase& one) {
  TensorContext weights;
  Graph graph;
  parse_graph(one.graph, graph, weights);
  std::set<std::string> found;
  std::map<const Tensor*, int> users;
  std::map<const Tensor*, int64_t> experts;  ///< key: the ids; value: the number of experts of the first weight that
                                             ///< uses these ids
  std::set<const Tensor*> written;
  for (const Tensor* node : graph.nodes()) {
    found.insert(std::string(name_of(node->op)));
    for (const Tensor* source : node->src) users[source] += source != nullptr;
    const Tensor& x = node->src.empty() ? *node : *node->src[0];
    const bool order = node->op == Op::kArgmax || node->op == Op::kTopK;
    if (order && x.op == Op::kPermute && x.shape[0] == 1) found.insert("order of a permuted axis of length 1");
    if (is_view(node->op) && is_view(x.op)) found.insert("view of a view");
    if (node->op == Op::kMulMatId) {
      const auto [other, first] = experts.emplace(node->src[2], x.shape[2]);
      if (!first && other->second != x.shape[2]) found.insert("one set of ids for different numbers of experts");
      if (!node->src[2]->is_leaf()) found.insert("experts by computed ids");
      if (!std::get<SelectParams>(node->params).ranges.empty()) found.insert("experts in ranges");
    }
    if (node->op == Op::kSlice && std::get<SliceParams>(node->params).step > 1) found.insert("slice with a step");
    if (info(node->op).alias == Alias::kWrites) {
      found.insert(fmt::format("write of {}", name_of(node->dtype)));
      if (node->op == Op::kSetRows) found.insert(fmt::format("ids of {}", name_of(node->src[2]->dtype)));
      if (node->op == Op::kSetRows && node->src[2]->rows() > 1) found.insert("ids per head or batch");
      if (!written.insert(node->storage()).second) found.insert("second write");
    } else if (x.role == Role::kCache) {
      found.insert("cache read before it is written");
    }
  }
  for (const Tensor* input : graph.inputs()) {
    if (users[input] > 1) found.insert("input with several users");
  }
  for (const Tensor* leaf : weights.tensors()) {
    const auto layout = one.layouts.find(leaf->name);
    if (layout == one.layouts.end()) continue;
    if (layout->second.is_split()) found.insert(fmt::format("split on axis {}", layout->second.axis));
    if (layout->second.is_partial()) found.insert(fmt::format("partial {}", name_of(leaf->dtype)));
    if (layout->second.is_partial() && leaf->role == Role::kCache) {
      found.insert(fmt::format("partial cache of {}", name_of(leaf->dtype)));
    }
    const bool experts_split = leaf->name.starts_with("experts") && layout->second.is_split(2);
    if (experts_split && layout->second.partition.local_length(0) == 0) found.insert("no experts on rank 0");
  }
  return found;
}

TEST(IntegerCases, ContainEveryFeature) {
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < 400; ++seed) found.merge(features(integer_case(seed)));
  for (const char* feature : {"order of a permuted axis of length 1",
                              "view of a view",
                              "write of f32",
                              "write of f16",
                              "write of bf16",
                              "ids of i32",
                              "ids of i64",
                              "second write",
                              "cache read before it is written",
                              "input with several users",
                              "split on axis 0",
                              "split on axis 1",
                              "split on axis 2",
                              "split on axis 3",
                              "partial f32",
                              "partial f16",
                              "partial bf16",
                              "partial i32",
                              "partial cache of f32",
                              "partial cache of f16",
                              "partial cache of bf16",
                              "no experts on rank 0",
                              "experts by computed ids",
                              "experts in ranges",
                              "one set of ids for different numbers of experts",
                              "mul_mat",
                              "mul_mat_id",
                              "get_rows",
                              "set_rows",
                              "set_slice",
                              "slice with a step",
                              "ids per head or batch",
                              "add",
                              "sub",
                              "mul",
                              "scale",
                              "unary",
                              "clamp",
                              "glu",
                              "sum_rows",
                              "argmax",
                              "top_k",
                              "cast",
                              "contiguous",
                              "concat",
                              "repeat",
                              "fill",
                              "reshape",
                              "slice",
                              "permute"}) {
    EXPECT_TRUE(found.contains(feature)) << feature;
  }
}

TEST(IntegerCases, DependOnlyOnSeed) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(to_string(integer_case(seed)), to_string(integer_case(seed)));
    EXPECT_NE(to_string(integer_case(seed)), to_string(integer_case(seed + 1)));
  }
}

/// All values are whole numbers below 2^24. So f32 sums are exact in any order.
TEST(IntegerCases, ContainOnlyExactWholeNumbers) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomCase one = integer_case(seed);
    TensorContext weights;
    Graph graph;
    parse_graph(one.graph, graph, weights);
    CaseModel model(one);
    for (uint64_t run = 0; run < 3; ++run) {
      model.evaluate(run);
      model.done();
      for (const Tensor* node : graph.nodes()) {
        for (const double value : model.node(node->name)) {
          ASSERT_TRUE(value == std::nearbyint(value) && std::abs(value) < 1 << 24) << node->name << ": " << value;
        }
      }
    }
  }
}

TEST(CaseModel, CachesKeepRowsOfCompletedRuns) {
  RandomCase one{1, 1, "input %x f32 [2, 1]\ninput %slots3.i i32 [1]\ncache %c f32 [2, 3]\n", {}, {}, 0.0, true};
  one.graph += "%old = scale(%c) {scale=1}\n%y = set_rows(%c, %x, %slots3.i)\noutput %old\noutput %y\n";
  CaseModel model(one);
  const Values before = model.leaf("c");
  model.evaluate(0);
  const Values after = model.results().at("c").values;
  EXPECT_EQ(model.node("old"), before);
  EXPECT_EQ(model.node("y"), after);
  EXPECT_NE(after, before);
  model.evaluate(1);  // done() did not confirm the first run
  EXPECT_EQ(model.node("old"), before);
  model.evaluate(0);
  model.done();
  model.evaluate(1);
  EXPECT_EQ(model.node("old"), after);
}

}  // namespace
}  // namespace shoal::test
