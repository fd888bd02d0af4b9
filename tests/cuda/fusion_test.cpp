// Which nodes of a plan run together: launches are counted, and values compared with those of the same graph cut
// between all nodes, where none can.
#include "devices/cuda/fusion.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/meta/mesh.h"

namespace shoal::cuda {
namespace {

using Names = std::vector<std::string>;

/// Leaves that the graphs below may use.
const std::pair<const char*, const char*> kLeaves[] = {
    {"%a", "input %a f32 [256, 2]"},
    {"%b", "input %b f32 [256, 2]"},
    {"%prompt", "input %prompt f32 [256, 9]"},
    {"%scale", "weight %scale f32 [256]"},
    {"%token", "input %token f32 [256]"},
    {"%wg", "weight %wg f16 [256, 48]"},
    {"%rows", "input %rows f32 [256, 32]"},
    {"%bias", "weight %bias f32 [48]"},
    {"%wq", "weight %wq q8_0 [256, 64]"},
    {"%wk", "weight %wk q8_0 [256, 32]"},
    {"%bk", "weight %bk f32 [32]"},
    {"%wv", "weight %wv q4_0 [256, 48]"},
    {"%w6", "weight %w6 q6_k [256, 32]"},
    {"%v6", "weight %v6 q6_k [256, 16]"},
    {"%wf", "weight %wf f16 [256, 32]"},
    {"%wb", "weight %wb bf16 [256, 32]"},
    {"%w32", "weight %w32 f32 [256, 48]"},
    {"%gate", "weight %gate q4_k [256, 32]"},
    {"%up", "weight %up q4_k [256, 32]"},
    {"%square", "weight %square q5_0 [256, 256]"},
    {"%each", "input %each f32 [256, 2]"},
    {"%all", "input %all f32 [256, 1, 9]"},
    {"%ids3", "input %ids3 i32 [2]"},
    {"%by", "input %by f32 [1, 2]"},
    {"%more3", "input %more3 i32 [2]"},
    {"%ids4", "input %ids4 i32 [2, 9]"},
    {"%gates", "weight %gates q4_k [256, 48, 3]"},
    {"%ups", "weight %ups q4_k [256, 48, 3]"},
    {"%two_gates", "weight %two_gates q8_0 [256, 70, 2]"},
    {"%two_ups", "weight %two_ups q8_0 [256, 70, 2]"},
};

std::string with_leaves(const std::string& nodes) {
  std::string text;
  for (const auto& [name, declaration] : kLeaves) {
    const std::string used(name);
    for (const char* behind : {",", ")"}) {
      if (nodes.find(used + behind) == std::string::npos) continue;
      text += declaration;
      text += "\n";
      break;
    }
  }
  return text + nodes;
}

const std::string kThreeNodes =
    "%s = unary(%token) {kind=silu}\n%t = unary(%s) {kind=silu}\n%u = unary(%t) {kind=silu}\noutput %u\n";

struct Case {
  std::string name;
  std::string nodes;
  int saved = 0;  ///< launches fewer than of single nodes
  std::vector<int> cuts = {};
  Names shown = {};
  bool exact = false;  ///< the same bits
};
Case exact(std::string name, std::string nodes, int saved, std::vector<int> cuts = {}, Names shown = {}) {
  return {std::move(name), std::move(nodes), saved, std::move(cuts), std::move(shown), true};
}
std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.name;
}

struct Outcome {
  ptrdiff_t launches;
  std::vector<std::vector<float>> values;  ///< of outputs and shown nodes
};

Outcome run(const Case& one, std::vector<int> cuts) {
  test::CudaMesh mesh(1);
  test::Loaded loaded(with_leaves(one.nodes), *mesh.devices()[0]);
  PlanOptions options;
  options.cuts = std::move(cuts);
  std::vector<const Tensor*> seen;
  for (const Tensor* node : loaded.graph.nodes()) {
    const bool shown = std::find(one.shown.begin(), one.shown.end(), node->name) != one.shown.end();
    if (shown) options.shown.push_back(node);
    if (shown || node->is_output) seen.push_back(node);
  }
  const auto plan = mesh.backend(0).create_plan(loaded.graph, options);
  loaded.fill_inputs();
  emulator::record_calls();
  mesh.backend(0).compute_async(*plan);
  mesh.backend(0).synchronize();
  const auto calls = emulator::take_calls();
  Outcome outcome{std::count(calls.begin(), calls.end(), "cudaLaunchKernel"), {}};
  for (const Tensor* node : seen) outcome.values.push_back(test::read_floats(*node));
  return outcome;
}

/// Shown nodes need not stay behind a second cut; here they are outputs.
Outcome run_alone(Case one) {
  for (const std::string& name : std::exchange(one.shown, {})) one.nodes += "output %" + name + "\n";
  TensorContext weights;
  Graph graph("alone");
  parse_graph(with_leaves(one.nodes), graph, weights);
  std::vector<int> cuts(graph.nodes().size() - 1);
  std::iota(cuts.begin(), cuts.end(), 1);
  return run(one, cuts);
}

/// What passes between a plan of nodes [1, 6) with these cuts and its neighbours: forms of columns, by their bits.
std::pair<uint32_t, uint32_t> passed_with(std::vector<int> cuts) {
  test::CudaMesh mesh(1);
  test::Loaded loaded(with_leaves("%before = mul(%token, %scale)\n%u = unary(%token) {kind=silu}\n"
                                  "%x = mul_mat(%w6, %before)\n%n = rms_norm(%u)\n%m = mul(%n, %scale)\n"
                                  "%w = unary(%x) {kind=silu}\n%behind = mul_mat(%square, %m)\noutput %w\n"
                                  "output %behind\n"),
                      *mesh.devices()[0]);
  Backend& backend = mesh.backend(0);
  const auto front = backend.create_plan(GraphRange{&loaded.graph, 0, 1}, {});
  PlanOptions options;
  options.cuts = std::move(cuts);
  options.before = loaded.graph.nodes()[0], options.behind = loaded.graph.nodes()[6];
  const auto plan = backend.create_plan(GraphRange{&loaded.graph, 1, 6}, options);
  const PassedForms passed = plan->passed_forms();
  return {passed.before, passed.behind};
}

// Of four groups for q6_K, of two for q5_0.
TEST(CudaFusionOnce, ColumnsPassAtTheEndsOfAPlanOnly) {
  const uint32_t two = 1, four = 2;
  EXPECT_EQ(passed_with({}), std::pair(four, two));
  EXPECT_EQ(passed_with({2}), std::pair(0u, two));
  EXPECT_EQ(passed_with({5}), std::pair(four, 0u));
}

TEST(CudaFusionOnce, NeighboursOfAPlanAreNodesOutsideOfIt) {
  test::CudaMesh mesh(1);
  const test::Loaded loaded(with_leaves(kThreeNodes), *mesh.devices()[0]),
      other(with_leaves(kThreeNodes), *mesh.devices()[0]);
  const auto nodes = loaded.graph.nodes();
  const auto refused = [&](const Tensor* before, Tensor* behind, const std::string& text) {
    PlanOptions options;
    options.before = before, options.behind = behind;
    EXPECT_THAT(
        [&] {
          mesh.backend(0).create_plan(GraphRange{const_cast<Graph*>(&loaded.graph), 1, 2}, options);
        },
        testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(text)));
  };
  refused(nodes[1], nullptr, "is no node before a plan of nodes [1, 2)");
  refused(loaded.graph.inputs()[0], nullptr, "is no node before");
  refused(other.graph.nodes()[0], nullptr, "is no node before");
  refused(nullptr, nodes[1], "is no node behind");
  refused(nullptr, other.graph.nodes()[2], "is no node behind");
}

class CudaFusion : public testing::TestWithParam<Case> {};

TEST_P(CudaFusion, SavesLaunchesAndNoValues) {
  const Case& one = GetParam();
  const Outcome fused = run(one, one.cuts), alone = run_alone(one);
  EXPECT_EQ(alone.launches - fused.launches, one.saved);
  ASSERT_EQ(fused.values.size(), alone.values.size());
  ASSERT_FALSE(fused.values.empty());
  for (size_t n = 0; n < fused.values.size(); ++n) {
    float largest = 0, worst = 0;
    for (size_t i = 0; i < fused.values[n].size(); ++i) {
      ASSERT_TRUE(std::isfinite(fused.values[n][i])) << n << " " << i;
      largest = std::max(largest, std::abs(alone.values[n][i]));
      worst = std::max(worst, std::abs(fused.values[n][i] - alone.values[n][i]));
    }
    EXPECT_GT(largest, 0) << n;
    EXPECT_LE(worst, one.exact ? 0 : 1e-6F * largest) << n;
  }
}

const std::string kSumAndNorm = "%s = add(%a, %b)\n%n = rms_norm(%s)\n%out = mul(%scale, %n)\noutput %out\noutput %s\n";
const std::string kNorm = "%n = rms_norm(%a)\n%out = mul(%n, %scale)\noutput %out\n";
const std::string kGated = "%g = mul_mat(%gate, %a)\n%u = mul_mat(%up, %a)\n%out = glu(%g, %u)\noutput %out\n";
const std::string kProjections =
    "%q = mul_mat(%wq, %a)\n%k = mul_mat(%wk, %a)\n%v = mul_mat(%wv, %a)\noutput %q\noutput %k\noutput %v\n";
const std::string kGatedExperts =
    "%g = mul_mat_id(%gates, %each, %ids3)\n%u = mul_mat_id(%ups, %each, %ids3)\n%out = glu(%g, %u)\noutput %out\n";
const std::string kWeightedExperts =
    "%p = mul_mat_id(%gates, %each, %ids3)\n%w = mul(%p, %by)\n%t = permute(%w) {axes=[1,0,2,3]}\n"
    "%c = contiguous(%t)\n%out = sum_rows(%c)\noutput %out\n";
/// Of a prompt.
const std::string kBiasedProjections =
    "%p = mul_mat(%wv, %prompt)\n%q = add(%p, %bias)\n%r = mul_mat(%wf, %prompt)\n%s = add(%bk, %r)\n"
    "%t = mul_mat(%wk, %prompt)\n%u = add(%t, %bk)\noutput %q\noutput %s\noutput %u\n";
const std::string kBiased = "%p = mul_mat(%wv, %a)\n%out = add(%p, %bias)\noutput %out\n";

std::vector<Case> cases() {
  return {
      {"norm", kNorm, 1},
      {"norm_is_output", kNorm + "output %n\n", 0},
      {"norm_is_shown", kNorm, 0, {}, {"n"}},
      {"norm_is_read_twice", kNorm + "%e = unary(%n) {kind=silu}\noutput %e\n", 0},
      {"norm_is_read_through_a_view",
       kNorm + "%w = reshape(%n) {shape=[512,1,1,1]}\n%e = unary(%w) {kind=silu}\noutput %e\n", 0},
      {"norm_is_cut", kNorm, 0, {1}},
      {"sum_and_norm", kSumAndNorm, 2},
      {"sum_for_the_norm_alone",
       "%s = add(%a, %b)\n%n = rms_norm(%s)\n%out = mul(%scale, %n)\n%e = unary(%out) {kind=silu}\noutput %e\n", 2},
      {"sum_and_norm_shown", kSumAndNorm, 2, {}, {"s", "out"}},
      {"sum_and_shown_norm", kSumAndNorm, 0, {}, {"n"}},
      {"sum_cut_from_norm", kSumAndNorm, 1, {1}},
      {"norm_cut_from_its_product", kSumAndNorm, 0, {2}},
      {"sum_and_norm_of_other_rows",
       "%s = add(%a, %b)\n%w = reshape(%s) {shape=[512,1,1,1]}\n%n = rms_norm(%w)\n"
       "%m = reshape(%n) {shape=[256,2,1,1]}\n%out = mul(%m, %scale)\noutput %out\noutput %s\n",
       0},
      {"gated", kGated, 3},
      {"gate_is_output", kGated + "output %g\n", 1},  // b is prepared once all the same
      {"up_is_shown", kGated, 1, {}, {"u"}},
      {"gated_cut_from_its_products", kGated, 1, {2}},
      {"gated_of_others", "%g = mul_mat(%gate, %a)\n%u = mul_mat(%up, %b)\n%out = glu(%g, %u)\noutput %out\n", 0},
      {"gated_the_other_way", "%u = mul_mat(%up, %a)\n%g = mul_mat(%gate, %a)\n%out = glu(%g, %u)\noutput %out\n", 1},
      {"bias", kBiased, 1},
      {"residual", "%p = mul_mat(%square, %a)\n%out = add(%b, %p)\noutput %out\n", 1},
      {"residual_is_the_column", "%p = mul_mat(%square, %a)\n%out = add(%a, %p)\noutput %out\n", 1},
      {"product_is_output", kBiased + "output %p\n", 0},
      {"product_is_shown", kBiased, 0, {}, {"p"}},
      {"product_twice", "%p = mul_mat(%square, %a)\n%out = add(%p, %p)\noutput %out\n", 0},
      {"product_is_cut", kBiased, 0, {1}},
      exact("three_products", kProjections, 2),
      exact("three_products_shown", kProjections, 2, {}, {"q", "k"}),
      exact(
          "three_products_read_later",
          "%q = mul_mat(%wq, %a)\n%k = mul_mat(%wk, %a)\n%v = mul_mat(%w6, %a)\n%w = mul_mat(%v6, %a)\n%e = unary(%q) "
          "{kind=silu}\n"
          "%f = unary(%k) {kind=silu}\n%h = unary(%v) {kind=silu}\n%i = unary(%w) {kind=silu}\noutput %e\noutput "
          "%f\noutput %h\noutput %i\n",
          2),
      exact("products_cut", kProjections, 1, {1}, {}),
      exact("products_all_cut", kProjections, 0, {1, 2}, {}),
      exact("products_of_two_forms", "%q = mul_mat(%wq, %a)\n%k = mul_mat(%w6, %a)\noutput %q\noutput %k\n", 0),
      exact("products_of_two_columns", "%q = mul_mat(%wq, %a)\n%k = mul_mat(%wk, %b)\noutput %q\noutput %k\n", 0),
      exact("products_of_a_prompt", "%q = mul_mat(%wq, %prompt)\n%k = mul_mat(%wf, %prompt)\noutput %q\noutput %k\n",
            1),
      exact("biased_products_of_a_prompt", kBiasedProjections, 5),
      {"gated_of_a_prompt",
       "%g = mul_mat(%gate, %prompt)\n%u = mul_mat(%up, %prompt)\n%out = glu(%g, %u)\noutput %out\n", 3},
      {"bias_of_a_prompt", "%p = mul_mat(%wv, %prompt)\n%out = add(%p, %bias)\noutput %out\n", 1},
      {"residual_of_a_prompt", "%p = mul_mat(%square, %prompt)\n%out = add(%prompt, %p)\noutput %out\n", 1},
      {"a_product_before_gated", "%q = mul_mat(%wq, %a)\n" + kGated + "output %q\n", 3},
      {"products_before_a_biased_one",
       "%q = mul_mat(%wq, %a)\n%k = mul_mat(%wk, %a)\n" + kBiased + "output %q\noutput %k\n", 3},
      {"biased_products",
       "%p = mul_mat(%wv, %a)\n%q = add(%p, %bias)\n%r = mul_mat(%wk, %a)\n%s = mul_mat(%wv, %a)\n"
       "%t = add(%bias, %s)\noutput %q\noutput %r\noutput %t\n",
       4},
      // Of one column, which no launch prepares.
      {"token_gated", "%g = mul_mat(%gate, %token)\n%u = mul_mat(%up, %token)\n%out = glu(%g, %u)\noutput %out\n", 2},
      {"token_gated_experts", kGatedExperts, 2},
      {"token_gated_experts_some_elsewhere",
       "%g = mul_mat_id(%gates, %each, %ids3) {ranges=[0:1,5:2]}\n"
       "%u = mul_mat_id(%ups, %each, %ids3) {ranges=[0:1,5:2]}\n%out = glu(%g, %u)\noutput %out\n",
       2},
      {"token_gate_of_experts_is_output", kGatedExperts + "output %g\n", 0},
      {"token_gated_experts_by_other_ids",
       "%g = mul_mat_id(%gates, %each, %ids3)\n%u = mul_mat_id(%ups, %each, %more3)\n%out = glu(%g, %u)\n"
       "output %out\n",
       0},
      {"token_gated_experts_of_other_ranges",
       "%g = mul_mat_id(%gates, %each, %ids3)\n%u = mul_mat_id(%ups, %each, %ids3) {ranges=[0:1,2:2]}\n"
       "%out = glu(%g, %u)\noutput %out\n",
       0},
      {"token_gated_experts_the_other_way",
       "%u = mul_mat_id(%ups, %each, %ids3)\n%g = mul_mat_id(%gates, %each, %ids3)\n%out = glu(%g, %u)\noutput %out\n",
       0},
      {"token_weighted_experts", kWeightedExperts, 3},
      {"token_weighted_experts_shown", kWeightedExperts, 0, {}, {"w"}},
      {"token_weighted_experts_read", kWeightedExperts + "%e = unary(%p) {kind=silu}\noutput %e\n", 0},
      {"token_weighted_experts_cut", kWeightedExperts, 0, {2}},
      {"token_weighted_experts_by_slot",
       "%p = mul_mat_id(%gates, %each, %ids3)\n%w = mul(%p, %by)\n%c = contiguous(%w)\n%out = sum_rows(%c)\n"
       "output %out\n",
       0},
      // Pairs are sorted; of two experts they go by tiles.
      {"gated_experts_of_a_prompt",
       "%g = mul_mat_id(%gates, %all, %ids4)\n%u = mul_mat_id(%ups, %all, %ids4)\n%out = glu(%g, %u)\noutput %out\n",
       5},
      {"gated_experts_of_a_prompt_by_tiles",
       "%g = mul_mat_id(%two_gates, %all, %ids4) {ranges=[0:1,2:1]}\n"
       "%u = mul_mat_id(%two_ups, %all, %ids4) {ranges=[0:1,2:1]}\n%out = glu(%g, %u)\noutput %out\n",
       5},
      {"token_residual", "%p = mul_mat(%square, %token)\n%out = add(%token, %p)\noutput %out\n", 1},
      {"token_products_of_all_forms",
       "%q = mul_mat(%wq, %token)\n%k = mul_mat(%w6, %token)\n%v = mul_mat(%gate, %token)\n"
       "%w = mul_mat(%wv, %token)\noutput %q\noutput %k\noutput %v\noutput %w\n",
       2},
      {"token_norm_and_products",
       "%n = rms_norm(%token)\n%m = mul(%n, %scale)\n%q = mul_mat(%gate, %m)\n%k = mul_mat(%w6, %m)\noutput "
       "%q\noutput "
       "%k\n",
       2},
      {"token_products_with_sums",
       "%p = mul_mat(%wv, %token)\n%q = add(%p, %bias)\n%r = mul_mat(%v6, %token)\n%s = mul_mat(%wv, %token)\n"
       "%t = add(%bias, %s)\noutput %q\noutput %r\noutput %t\n",
       4},
      exact("token_products_of_floats", "%q = mul_mat(%wf, %token)\n%k = mul_mat(%wg, %token)\noutput %q\noutput %k\n",
            1),
      exact("token_and_a_computed_matrix", "%m = add(%rows, %rows)\n%out = mul_mat(%m, %token)\noutput %out\n", 0),
      {"token_products_of_floats_and_integers",
       "%q = mul_mat(%wq, %token)\n%k = mul_mat(%wf, %token)\n%v = mul_mat(%w32, %token)\n%o = add(%v, %bias)\n"
       "output %q\noutput %k\noutput %o\n",
       3},
      exact("token_products_of_other_floats",
            "%k = mul_mat(%wf, %token)\n%v = mul_mat(%wb, %token)\noutput %k\noutput %v\n", 1),
      {"token_five_products",
       "%q = mul_mat(%wq, %token)\n%k = mul_mat(%wk, %token)\n%v = mul_mat(%wv, %token)\n"
       "%w = mul_mat(%w6, %token)\n%x = mul_mat(%v6, %token)\noutput %q\noutput %k\noutput %v\noutput %w\noutput "
       "%x\n",
       3},
  };
}

INSTANTIATE_TEST_SUITE_P(Patterns, CudaFusion, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

constexpr size_t kRoom = 0x100000;

/// A graph whose tensors and workspaces have addresses of their own, where there is no memory.
struct Placed {
  explicit Placed(const std::string& nodes) {
    parse_graph(with_leaves(nodes), graph, weights);
    size_t next = kRoom;
    const auto give = [&] { return reinterpret_cast<std::byte*>(next += kRoom); };
    for (Tensor* leaf : graph.leaves()) leaf->data = give();
    for (Tensor* node : graph.nodes()) node->data = give(), node->workspace = give();
  }
  Tensor& operator[](const std::string& name) {
    for (Tensor* node : graph.nodes()) {
      if (node->name == name) return *node;
    }
    for (Tensor* leaf : graph.leaves()) {
      if (leaf->name == name) return *leaf;
    }
    throw std::runtime_error("no " + name);
  }
  size_t count(const GpuTraits& gpu) {
    std::vector<Tensor*> nodes;
    for (Tensor* node : graph.nodes()) {
      if (!is_view(node->op)) nodes.push_back(node);
    }
    return fuse(nodes, Readers(whole(graph), {}), gpu).nodes.size();
  }

  TensorContext weights;
  Graph graph{"placed"};
};

/// What a graph's first nodes make together, with one thing changed.
template <class Change>
size_t count_with(const std::string& nodes, Change change, const GpuTraits& gpu = {}) {
  Placed placed(nodes);
  change(placed);
  return placed.count(gpu);
}

TEST(CudaFusionPlaces, ResultsOfSumAndNorm) {
  const auto put = [](const char* result, const char* source, size_t offset) {
    return count_with(kSumAndNorm, [&](Placed& p) { p[result].data = p[source].data + offset; });
  };
  for (const char* result : {"s", "out"}) {
    for (const char* source : {"a", "b"}) {
      EXPECT_EQ(put(result, source, 0), 3u) << result << source;
      EXPECT_EQ(put(result, source, 2048), 3u);
      EXPECT_EQ(put(result, source, 16), 1u);
      EXPECT_EQ(put(result, source, 2047), 1u);
    }
    EXPECT_EQ(put(result, "scale", 0), 1u);
  }
  EXPECT_EQ(put("out", "s", 0), 1u);
  const std::string unread = "%s = add(%a, %b)\n%n = rms_norm(%s)\n%out = mul(%scale, %n)\noutput %out\n";
  EXPECT_EQ(count_with(unread, [](Placed& p) { p["out"].data = p["s"].data; }), 3u) << "no other reads s";
  EXPECT_EQ(count_with(unread, [](Placed& p) { p["out"].data = p["s"].data + 4; }), 1u);
  EXPECT_EQ(put("n", "scale", 0), 3u) << "it is not written";
}

TEST(CudaFusionPlaces, ResultsOfGatedProducts) {
  const auto count = [](auto change) { return count_with(kGated, change); };
  EXPECT_EQ(count([](Placed&) {}), 3u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["g"].data; }), 3u) << "g is not written";
  // What stays are two products of one b.
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["a"].data; }), 2u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["up"].data + 8; }), 2u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["g"].workspace; }), 2u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["u"].workspace; }), 3u) << "it is not used";
}

TEST(CudaFusionPlaces, ResultsOfGatedExperts) {
  const auto count = [](auto change) { return count_with(kGatedExperts, change); };
  EXPECT_EQ(count([](Placed&) {}), 3u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["g"].data; }), 3u) << "g is not written";
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["ids3"].data; }), 3u) << "they are read before";
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["each"].data; }), 1u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["ups"].data + 8; }), 1u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["g"].workspace; }), 1u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["u"].workspace; }), 3u) << "it is not used";
}

TEST(CudaFusionPlaces, ResultsOfWeightedExperts) {
  const auto count = [](auto change) {
    return count_with(kWeightedExperts, change, {.compute_capability = 90, .shared_bytes_per_block = 227 * 1024});
  };
  EXPECT_EQ(count([](Placed&) {}), 4u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["p"].data; }), 4u) << "p is not written";
  for (const char* read : {"each", "ids3", "by", "gates"}) {
    EXPECT_EQ(count([&](Placed& p) { p["out"].data = p[read].data; }), 1u) << read;
  }
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["p"].workspace; }), 1u);
}

TEST(CudaFusionPlaces, ResultsOfProductAndSum) {
  const auto count = [](auto change) {
    return count_with("%p = mul_mat(%square, %a)\n%out = add(%b, %p)\noutput %out\n", change);
  };
  EXPECT_EQ(count([](Placed&) {}), 2u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["b"].data; }), 2u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["b"].data + 4; }), 1u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["a"].data; }), 1u);
  EXPECT_EQ(count([](Placed& p) { p["out"].data = p["p"].workspace; }), 1u);
}

TEST(CudaFusionPlaces, ResultsOfProductsOfOneColumn) {
  const auto count = [](auto change) { return count_with(kProjections, change); };
  EXPECT_EQ(count([](Placed&) {}), 3u);
  // Results and matrices on the workspace of the last one: it is left out. On others': they are not used.
  for (const char* one : {"q", "k", "v", "wq", "wk"}) {
    EXPECT_EQ(count([&](Placed& p) { p[one].data = p["v"].workspace; }), 2u) << one;
    EXPECT_EQ(count([&](Placed& p) { p[one].data = p["q"].workspace; }), 3u) << one;
  }
  for (const char* one : {"q", "wk"}) {
    EXPECT_EQ(count([&](Placed& p) { p[one].data = p["v"].workspace, p["k"].workspace = p["v"].workspace; }), 1u);
  }
  EXPECT_EQ(count([](Placed& p) { p["q"].data = p["a"].data; }), 1u);
  EXPECT_EQ(count([](Placed& p) { p["v"].data = p["a"].data + 100; }), 2u);
  EXPECT_EQ(count([](Placed& p) { p["q"].data = p["wk"].data; }), 1u);
  EXPECT_EQ(count([](Placed& p) { p["v"].data = p["wq"].data; }), 2u);
  EXPECT_EQ(count([](Placed& p) { p["v"].data = p["q"].data + 4; }), 2u);
}

TEST(CudaFusionPlaces, ResultsOfBiasedProductsOfAPrompt) {
  const auto count = [](auto change) { return count_with(kBiasedProjections, change); };
  EXPECT_EQ(count([](Placed&) {}), 6u);
  EXPECT_EQ(count([](Placed& p) { p["q"].data = p["p"].data, p["u"].data = p["t"].data; }), 6u) << "in place";
  // On the workspace of the last one: it is left out. On others': they are not used.
  for (const char* one : {"s", "bias", "wf"}) {
    EXPECT_EQ(count([&](Placed& p) { p[one].data = p["t"].workspace; }), 4u) << one;
    EXPECT_EQ(count([&](Placed& p) { p[one].data = p["p"].workspace; }), 6u) << one;
  }
  EXPECT_EQ(count([](Placed& p) { p["u"].data = p["t"].workspace; }), 5u) << "its sum alone is left out";
  EXPECT_EQ(count([](Placed& p) { p["u"].data = p["bias"].data; }), 4u);
  EXPECT_EQ(count([](Placed& p) { p["q"].data = p["bk"].data; }), 2u);
}

}  // namespace
}  // namespace shoal::cuda
