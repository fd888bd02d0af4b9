// Tests of weights that each member of a meta device stores in its own memory layout (Device::weights_type). Every plan
// must give the same results as with plain weights. The plans contain gathers and views.
#include <gtest/gtest.h>

#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using test::CpuMesh;
using test::Loaded;

/// Runs the graph once with plain weights and once with packed weights, and compares the results of the last node. The
/// graph is planned in ranges that end at `cuts`.
void expect_same(int ranks, const std::string& text, const test::Layouts& layouts, std::vector<int> cuts = {}) {
  CpuMesh mesh(ranks, layouts);
  ASSERT_NE(&mesh.device->weights_type(), &mesh.device->buffer_type());
  std::vector<std::vector<float>> results;
  for (BufferType* type : {&mesh.device->buffer_type(), &mesh.device->weights_type()}) {
    Loaded loaded(text, *type);
    const auto backend = mesh.device->init();
    std::vector<std::unique_ptr<GraphPlan>> plans;
    int begin = 0;
    std::vector<int> ends = cuts;
    ends.push_back(static_cast<int>(loaded.graph.nodes().size()));
    for (const int end : ends) {
      plans.push_back(backend->create_plan(GraphRange{&loaded.graph, begin, end}));
      begin = end;
    }
    loaded.fill_inputs();
    for (const auto& plan : plans) ASSERT_EQ(backend->compute(*plan), Status::kSuccess);
    results.push_back(test::read_floats(*loaded.graph.nodes().back()));
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (size_t i = 0; i < results[0].size(); ++i) ASSERT_NEAR(results[0][i], results[1][i], 1e-4) << text << i;
}

test::Layouts divided(int axis, const std::vector<int64_t>& shares) {
  return {{"w", Layout::split(axis, Partition::from_shares(shares))}};
}

TEST(MetaPackedWeights, AreGatheredLikePlainWeights) {
  for (const char* op : {"soft_max(%w, _, _)", "rms_norm(%w)", "sum_rows(%w)"}) {
    const std::string text = "weight %w f32 [64, 64]\n%y = " + std::string(op) + "\noutput %y\n";
    expect_same(2, text, divided(0, {32, 32}));
    expect_same(3, text, divided(0, {40, 0, 24}));
  }
}

TEST(MetaPackedWeights, AreMultipliedInEveryLayout) {
  const std::string text = "input %x f32 [64, 9]\nweight %w f32 [64, 96]\n%y = mul_mat(%w, %x)\noutput %y\n";
  expect_same(2, text, divided(1, {48, 48}));
  expect_same(2, text, divided(1, {56, 40}));
  expect_same(2, text, divided(0, {32, 32}));
  expect_same(3, text, divided(1, {91, 0, 5}));
}

TEST(MetaPackedWeights, ViewsAreReadInLaterRanges) {
  const std::string text =
      "input %x f32 [64, 3]\nweight %w f32 [64, 96]\n%s = slice(%w) {axis=1, begin=3, length=40}\n%t = scale(%x) "
      "{scale=2}\n"
      "%y = mul_mat(%s, %t)\noutput %y\n";
  expect_same(2, text, {}, {1});
  expect_same(2, text, divided(0, {32, 32}), {1});
}

}  // namespace
}  // namespace shoal::meta
