// Three ways to divide tokens or samples with constraints, on 1 to 8 devices with even, uneven and zero shares. The
// results must equal the results of one device. examples/ has the same patterns.
#include <gtest/gtest.h>

#include <numeric>

#include "devices/allocate.h"
#include "graph/text.h"
#include "tests/support/plugin.h"
#include "tests/support/property.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

using meta::Layout;
using meta::Partition;

enum class Shares { kEven, kUneven, kZero };

/// Divides `length` in whole units. kUneven: rank r has a share of r + 1. kZero: only every second rank has a share.
Partition divided(int ranks, Shares shares, int64_t length, int64_t unit = 1) {
  std::vector<double> ratio(static_cast<size_t>(ranks), 1);
  if (shares == Shares::kUneven) std::iota(ratio.begin(), ratio.end(), 1);
  for (size_t rank = 0; shares == Shares::kZero && rank + 1 < ratio.size(); rank += 2) ratio[rank] = 0;
  return Partition::by_ratio(length, unit, ratio);
}

struct Pattern {
  std::string graph;
  std::map<std::string, Layout> layouts, required;
  /// Number of collectives if every rank has a share.
  int reduce_scatters = 0, all_gathers = 0;
};

/// The samples (axis 1 of x) are divided. Every rank has all weights.
Pattern data_parallel(int ranks, Shares shares) {
  return {R"(
weight %up f32 [16, 24]
weight %down f32 [24, 16]
input %x f32 [16, 12]
%h = mul_mat(%up, %x)
%a = unary(%h) {kind=relu}
%d = mul_mat(%down, %a)
%r = add(%x, %d)
%y = rms_norm(%r)
output %y
)",
          {},
          {{"x", Layout::split(1, divided(ranks, shares, 12))}}};
}

/// Two feed-forward layers. The hidden elements are divided in the products, and the tokens between the products.
Pattern sequence_parallel(int ranks, Shares shares) {
  const Layout tokens = Layout::split(1, divided(ranks, shares, 12));
  const Partition hidden = divided(ranks, shares == Shares::kZero ? Shares::kUneven : shares, 48);
  return {R"(
weight %up1 f32 [16, 48]
weight %down1 f32 [48, 16]
weight %norm f32 [16]
weight %up2 f32 [16, 48]
weight %down2 f32 [48, 16]
input %x f32 [16, 12]
%h1 = mul_mat(%up1, %x)
%a1 = unary(%h1) {kind=relu}
%y1 = mul_mat(%down1, %a1)
%r1 = add(%x, %y1)
%n = rms_norm(%r1)
%m = mul(%n, %norm)
%h2 = mul_mat(%up2, %m)
%a2 = unary(%h2) {kind=relu}
%y2 = mul_mat(%down2, %a2)
%r2 = add(%r1, %y2)
output %r2
)",
          {{"up1", Layout::split(1, hidden)},
           {"down1", Layout::split(0, hidden)},
           {"up2", Layout::split(1, hidden)},
           {"down2", Layout::split(0, hidden)}},
          {{"y1", tokens}, {"y2", tokens}},
          2,
          1};
}

/// Each rank computes the keys and values of its tokens, attends to them with the queries of all tokens, and merges the
/// results for its tokens. The 16 tokens are 8 parts of 2 tokens.
Pattern context_parallel(int ranks, Shares shares) {
  const Partition tokens = divided(ranks, shares, 16, 2);
  return {R"(
weight %wq f32 [12, 32]
weight %wk f32 [12, 32]
weight %wv f32 [12, 32]
weight %wo f32 [32, 12]
input %x f32 [12, 16]
%q = mul_mat(%wq, %x)
%q.heads = reshape(%q) {shape=[8,4,16,1]}
%q.by_head = permute(%q.heads) {axes=[0,2,1,3]}
%k = mul_mat(%wk, %x)
%k.heads = reshape(%k) {shape=[8,4,2,8]}
%k.parts = permute(%k.heads) {axes=[0,2,1,3]}
%v = mul_mat(%wv, %x)
%v.heads = reshape(%v) {shape=[8,4,2,8]}
%v.parts = permute(%v.heads) {axes=[0,2,1,3]}
%each = attention(%q.by_head, %k.parts, %v.parts, _, _, _) {scale=0.35, parts=8}
%last = slice(%each) {axis=0, begin=8, length=1}
%lse = permute(%last) {axes=[3,1,2,0]}
%merged = merge_attention(%each, %lse)
%flat = reshape(%merged) {shape=[32,16,1,1]}
%y = mul_mat(%wo, %flat)
output %y
)",
          {},
          {{"x", Layout::split(1, tokens)}, {"merged", Layout::split(2, tokens)}},
          1,
          2};
}

using Make = Pattern (*)(int ranks, Shares shares);
using Param = std::tuple<Make, int, Shares>;

class LayoutPatterns : public testing::TestWithParam<Param> {};

TEST_P(LayoutPatterns, GiveResultsOfOneDevice) {
  const auto [make, ranks, shares] = GetParam();
  const Pattern pattern = make(ranks, shares);
  RandomCase one;
  one.ranks = ranks;
  one.graph = pattern.graph;
  one.layouts = pattern.layouts;
  for (const auto& [name, layout] : pattern.required) one.constraints.emplace(name, meta::LayoutConstraint{layout});
  std::vector<Device*> members;
  for (int i = 0; i < ranks; ++i) members.push_back(&test_device(i));
  EXPECT_EQ(check_case(one, members), "");

  Graph graph;
  TensorContext weights;
  parse_graph(one.graph, graph, weights);
  const auto device = meta_device(one, members);
  const auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);
  const auto backend = device->init();
  const auto planned = backend->create_plan(graph);
  const meta::Plan& plan = meta::plan_of(*planned);
  for (const auto& [name, layout] : pattern.required) {
    EXPECT_EQ(plan.layout(*graph.find(name)), ranks == 1 ? Layout::mirrored() : layout) << name;
  }
  EXPECT_EQ(plan.count(Collective::kAllReduce), 0) << to_string(plan);
  if (ranks == 1 || shares == Shares::kZero) return;
  EXPECT_EQ(plan.count(Collective::kReduceScatter), pattern.reduce_scatters) << to_string(plan);
  EXPECT_EQ(plan.count(Collective::kAllGather), pattern.all_gathers) << to_string(plan);
}

std::string name_of_case(const testing::TestParamInfo<Param>& info) {
  const auto [make, ranks, shares] = info.param;
  const char* pattern = make == data_parallel       ? "DataParallel"
                        : make == sequence_parallel ? "SequenceParallel"
                                                    : "ContextParallel";
  constexpr const char* kNames[] = {"Even", "Uneven", "Zero"};
  return std::string(pattern) + kNames[static_cast<int>(shares)] + "On" + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(OnDevices, LayoutPatterns,
                         testing::Combine(testing::Values(data_parallel, sequence_parallel, context_parallel),
                                          testing::Range(1, 9),
                                          testing::Values(Shares::kEven, Shares::kUneven, Shares::kZero)),
                         name_of_case);

}  // namespace
}  // namespace shoal::test
