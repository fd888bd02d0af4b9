// Tests of the fusion of nodes in a plan. The tests count launches, and compare values with the values of an unfused
// run of the same graph. In the unfused run, cuts between all nodes prevent fusion.
#include "devices/cuda/fusion.h"

#include <gmock/gmock.h>

#include <utility>

#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/placed_graph.h"
#include "tests/cuda/text_run.h"

namespace shoal::cuda {
namespace {

using Names = std::vector<std::string>;

/// Names and types of the leaves that the graphs below may use.
const std::pair<const char*, const char*> kInputs[] = {
    {"a", "f32 [256, 2]"},     {"b", "f32 [256, 2]"},    {"prompt", "f32 [256, 9]"}, {"token", "f32 [256]"},
    {"rows", "f32 [256, 32]"}, {"each", "f32 [256, 2]"}, {"all", "f32 [256, 1, 9]"}, {"ids3", "i32 [2]"},
    {"by", "f32 [1, 2]"},      {"more3", "i32 [2]"},     {"ids4", "i32 [2, 9]"}};
const std::pair<const char*, const char*> kWeights[] = {
    {"scale", "f32 [256]"},          {"wg", "f16 [256, 48]"},      {"bias", "f32 [48]"},
    {"wq", "q8_0 [256, 64]"},        {"wk", "q8_0 [256, 32]"},     {"bk", "f32 [32]"},
    {"wv", "q4_0 [256, 48]"},        {"w6", "q6_k [256, 32]"},     {"v6", "q6_k [256, 16]"},
    {"wf", "f16 [256, 32]"},         {"wb", "bf16 [256, 32]"},     {"w32", "f32 [256, 48]"},
    {"gate", "q4_k [256, 32]"},      {"up", "q4_k [256, 32]"},     {"square", "q5_0 [256, 256]"},
    {"gates", "q4_k [256, 48, 3]"},  {"ups", "q4_k [256, 48, 3]"}, {"two_gates", "q8_0 [256, 70, 2]"},
    {"two_ups", "q8_0 [256, 70, 2]"}};

std::string with_leaves(const std::string& nodes) {
  std::string text;
  const auto declare = [&](const char* role, const auto& leaves) {
    for (const auto& [name, type] : leaves) {
      const std::string used = std::string("%") + name;
      if (nodes.find(used + ",") == std::string::npos && nodes.find(used + ")") == std::string::npos) continue;
      text += std::string(role) + used + " " + type + "\n";
    }
  };
  declare("input ", kInputs), declare("weight ", kWeights);
  return text + nodes;
}

const std::string kThreeNodes =
    "%s = unary(%token) {kind=silu}\n%t = unary(%s) {kind=silu}\n%u = unary(%t) {kind=silu}\noutput %u\n";

struct Case {
  std::string name;
  std::string nodes;
  int saved = 0;  ///< number of launches that fusion saves
  std::vector<int> cuts = {};
  Names shown = {};
  bool exact = false;  ///< whether values must be equal bit for bit
};
Case exact(std::string name, std::string nodes, int saved, std::vector<int> cuts = {}, Names shown = {}) {
  return {std::move(name), std::move(nodes), saved, std::move(cuts), std::move(shown), true};
}
std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.name;
}

/// Creates a plan of nodes [1, 6) with the given cuts. A form is a layout of a column record (column_record.h). Returns
/// two bit masks of forms: the forms that node 0 passes to the plan, and the forms that the plan passes to node 6.
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

// Weights of type q6_K require columns in form `four` (16 elements per scale). Weights of type q5_0 require columns in
// form `two` (32 elements per scale).
TEST(CudaFusionNeighbours, OnlyFirstAndLastNodeExchangeRecordsWithOtherPlans) {
  const uint32_t two = 1, four = 2;
  EXPECT_EQ(passed_with({}), std::pair(four, two));
  EXPECT_EQ(passed_with({2}), std::pair(0u, two));
  EXPECT_EQ(passed_with({5}), std::pair(four, 0u));
}

TEST(CudaFusionNeighbours, RefusesInvalidNeighboursOfAPlan) {
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
  refused(nodes[1], nullptr, "is not a node before the plan's nodes [1, 2)");
  refused(loaded.graph.inputs()[0], nullptr, "is not a node before the plan's");
  refused(other.graph.nodes()[0], nullptr, "is not a node before the plan's");
  refused(nullptr, nodes[1], "is not a node behind the plan's");
  refused(nullptr, other.graph.nodes()[2], "is not a node behind the plan's");
}

class CudaFusion : public testing::TestWithParam<Case> {};

TEST_P(CudaFusion, SavesLaunchesAndKeepsValues) {
  const Case& one = GetParam();
  const std::string text = with_leaves(one.nodes);
  test::CudaMesh mesh(1);
  const test::Outcome fused = test::run_text(mesh.backend(0), text, {.cuts = one.cuts, .shown = one.shown});
  const test::Outcome alone = test::run_text(mesh.backend(0), text, {.alone = true, .shown = one.shown});
  EXPECT_EQ(alone.launches - fused.launches, one.saved);
  ASSERT_EQ(fused.bytes.size(), alone.bytes.size());
  ASSERT_FALSE(fused.bytes.empty());
  for (const auto& [name, bytes] : fused.bytes) {
    test::expect_close(fused.get<float>(name), alone.get<float>(name), one.exact ? 0 : 1e-6F, name);
  }
}

const std::string kSumForTheNorm = "%s = add(%a, %b)\n%n = rms_norm(%s)\n%out = mul(%scale, %n)\noutput %out\n";
const std::string kSumAndNorm = kSumForTheNorm + "output %s\n";
const std::string kNorm = "%n = rms_norm(%a)\n%out = mul(%n, %scale)\noutput %out\n";
const std::string kGlu = "%out = glu(%g, %u)\noutput %out\n";
const std::string kGated = "%g = mul_mat(%gate, %a)\n%u = mul_mat(%up, %a)\n" + kGlu;
const std::string kGatedExperts = "%g = mul_mat_id(%gates, %each, %ids3)\n%u = mul_mat_id(%ups, %each, %ids3)\n" + kGlu;
const std::string kWeightedExperts =
    "%p = mul_mat_id(%gates, %each, %ids3)\n%w = mul(%p, %by)\n%t = permute(%w) {axes=[1,0,2,3]}\n"
    "%c = contiguous(%t)\n%out = sum_rows(%c)\noutput %out\n";
/// Products of weights and a prompt. A bias is added to each product.
const std::string kBiasedProjections =
    "%p = mul_mat(%wv, %prompt)\n%q = add(%p, %bias)\n%r = mul_mat(%wf, %prompt)\n%s = add(%bk, %r)\n"
    "%t = mul_mat(%wk, %prompt)\n%u = add(%t, %bk)\noutput %q\noutput %s\noutput %u\n";
const std::string kBiased = "%p = mul_mat(%wv, %a)\n%out = add(%p, %bias)\noutput %out\n";
const std::string kResidual = "%p = mul_mat(%square, %a)\n%out = add(%b, %p)\noutput %out\n";
/// Products of one column. A bias is added to some of the products.
const std::string kProductsWithSums =
    "%p = mul_mat(%wv, %a)\n%q = add(%p, %bias)\n%r = mul_mat(%wk, %a)\n%s = mul_mat(%wv, %a)\n"
    "%t = add(%bias, %s)\noutput %q\noutput %r\noutput %t\n";

/// Returns nodes %WEIGHT_x, which are the products of the weights and one column.
std::string products(const Names& weights, const std::string& column, bool outputs = true) {
  std::string nodes, ends;
  for (const std::string& weight : weights) {
    nodes += "%" + weight + "_x = mul_mat(%" + weight + ", %" + column + ")\n";
    if (outputs) ends += "output %" + weight + "_x\n";
  }
  return nodes + ends;
}
const std::string kProjections = products({"wq", "wk", "wv"}, "a");

std::string read(const std::string& name) {
  return "%" + name + "_read = unary(%" + name + ") {kind=silu}\noutput %" + name + "_read\n";
}
/// Returns the nodes with `column` instead of the input %a.
std::string of(const std::string& column, const std::string& nodes) {
  return test::replaced(nodes, "%a)", "%" + column + ")");
}

std::vector<Case> cases() {
  using test::replaced;
  return {
      {"norm", kNorm, 1},
      {"norm_is_output", kNorm + "output %n\n", 0},
      {"norm_is_shown", kNorm, 0, {}, {"n"}},
      {"norm_is_read_twice", kNorm + read("n"), 0},
      {"norm_is_read_through_a_view", kNorm + "%w = reshape(%n) {shape=[512,1,1,1]}\n" + read("w"), 0},
      {"norm_is_cut", kNorm, 0, {1}},
      {"sum_and_norm", kSumAndNorm, 2},
      {"sum_for_the_norm_alone", kSumForTheNorm + read("out"), 2},
      {"sum_and_norm_shown", kSumAndNorm, 2, {}, {"s", "out"}},
      {"sum_and_shown_norm", kSumAndNorm, 0, {}, {"n"}},
      {"sum_cut_from_norm", kSumAndNorm, 1, {1}},
      {"norm_cut_from_its_product", kSumAndNorm, 0, {2}},
      {"sum_and_norm_with_different_rows",
       "%s = add(%a, %b)\n%w = reshape(%s) {shape=[512,1,1,1]}\n%n = rms_norm(%w)\n"
       "%m = reshape(%n) {shape=[256,2,1,1]}\n%out = mul(%m, %scale)\noutput %out\noutput %s\n",
       0},
      {"gated", kGated, 3},
      {"gate_is_output", kGated + "output %g\n", 1},  // one launch converts column %a for both products
      {"up_is_shown", kGated, 1, {}, {"u"}},
      {"gated_cut_from_its_products", kGated, 1, {2}},
      {"gated_with_different_columns", replaced(kGated, "%up, %a", "%up, %b"), 0},
      {"gated_in_reverse_order", "%u = mul_mat(%up, %a)\n%g = mul_mat(%gate, %a)\n" + kGlu, 1},
      {"bias", kBiased, 1},
      {"residual", kResidual, 1},
      {"residual_is_the_column", replaced(kResidual, "%b", "%a"), 1},
      {"product_is_output", kBiased + "output %p\n", 0},
      {"product_is_shown", kBiased, 0, {}, {"p"}},
      {"product_added_to_itself", replaced(kResidual, "%b", "%p"), 0},
      {"product_is_cut", kBiased, 0, {1}},
      exact("three_products", kProjections, 2),
      exact("three_products_shown", kProjections, 2, {}, {"wq_x", "wk_x"}),
      exact("three_products_read_later",
            products({"wq", "wk", "w6", "v6"}, "a", false) + read("wq_x") + read("wk_x") + read("w6_x") + read("v6_x"),
            2),
      exact("products_cut", kProjections, 1, {1}),
      exact("products_all_cut", kProjections, 0, {1, 2}),
      exact("products_of_two_forms", products({"wq", "w6"}, "a"), 0),
      exact("products_of_two_columns", products({"wq"}, "a") + products({"wk"}, "b"), 0),
      exact("products_of_a_prompt", products({"wq", "wf"}, "prompt"), 1),
      exact("biased_products_of_a_prompt", kBiasedProjections, 5),
      {"gated_of_a_prompt", of("prompt", kGated), 3},
      {"bias_of_a_prompt", of("prompt", kBiased), 1},
      {"residual_of_a_prompt", replaced(of("prompt", kResidual), "%b", "%prompt"), 1},
      {"product_before_gated", products({"wq"}, "a") + kGated, 3},
      {"products_before_a_biased_product", products({"wq", "wk"}, "a") + kBiased, 3},
      {"biased_products", kProductsWithSums, 4},
      // A product of a single column needs no launch that prepares the column.
      {"token_gated", of("token", kGated), 2},
      {"token_gated_experts", kGatedExperts, 2},
      {"token_gated_experts_some_foreign", replaced(kGatedExperts, "ids3)", "ids3) {ranges=[0:1,5:2]}"), 2},
      {"token_gate_of_experts_is_output", kGatedExperts + "output %g\n", 0},
      {"token_gated_experts_with_different_ids", replaced(kGatedExperts, "%ups, %each, %ids3", "%ups, %each, %more3"),
       0},
      {"token_gated_experts_with_different_ranges",
       replaced(kGatedExperts, "%ups, %each, %ids3)", "%ups, %each, %ids3) {ranges=[0:1,2:2]}"), 0},
      {"token_gated_experts_in_reverse_order",
       "%u = mul_mat_id(%ups, %each, %ids3)\n%g = mul_mat_id(%gates, %each, %ids3)\n" + kGlu, 0},
      {"token_weighted_experts", kWeightedExperts, 3},
      {"token_weighted_experts_shown", kWeightedExperts, 0, {}, {"w"}},
      {"token_weighted_experts_read", kWeightedExperts + read("p"), 0},
      {"token_weighted_experts_cut", kWeightedExperts, 0, {2}},
      {"token_weighted_experts_by_slot",
       "%p = mul_mat_id(%gates, %each, %ids3)\n%w = mul(%p, %by)\n%c = contiguous(%w)\n%out = sum_rows(%c)\n"
       "output %out\n",
       0},
      // The pairs of a token and an expert are sorted. The products of two experts run as tiles.
      {"gated_experts_of_a_prompt", replaced(kGatedExperts, "%each, %ids3", "%all, %ids4"), 5},
      {"gated_experts_of_a_prompt_by_tiles",
       "%g = mul_mat_id(%two_gates, %all, %ids4) {ranges=[0:1,2:1]}\n"
       "%u = mul_mat_id(%two_ups, %all, %ids4) {ranges=[0:1,2:1]}\n" +
           kGlu,
       5},
      {"token_residual", replaced(of("token", kResidual), "%b", "%token"), 1},
      {"token_products_of_all_forms", products({"wq", "w6", "gate", "wv"}, "token"), 2},
      {"token_norm_and_products",
       of("token", "%n = rms_norm(%a)\n%m = mul(%n, %scale)\n") + products({"gate", "w6"}, "m"), 2},
      {"token_products_with_sums", of("token", replaced(kProductsWithSums, "%wk", "%v6")), 4},
      exact("token_products_of_floats", products({"wf", "wg"}, "token"), 1),
      exact("token_product_with_a_computed_matrix", "%m = add(%rows, %rows)\n%out = mul_mat(%m, %token)\noutput %out\n",
            0),
      {"token_products_of_floats_and_integers",
       products({"wq", "wf"}, "token") + "%v = mul_mat(%w32, %token)\n%o = add(%v, %bias)\noutput %o\n", 3},
      exact("token_products_of_different_floats", products({"wf", "wb"}, "token"), 1),
      {"token_five_products", products({"wq", "wk", "wv", "w6", "v6"}, "token"), 3},
  };
}

INSTANTIATE_TEST_SUITE_P(Patterns, CudaFusion, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

/// Checks the number of fused nodes for each placement of tensors. The placement "out=out" changes nothing.
void expect_places(const std::string& nodes, const std::vector<test::Places>& table, const GpuTraits& gpu = {}) {
  test::expect_fused(with_leaves(nodes), table, gpu);
}

TEST(CudaFusionOverlap, UnsafeOverlapPreventsFusionOfSumAndNorm) {
  for (const std::string put : {"s=a", "s=b", "out=a", "out=b"}) {
    expect_places(kSumAndNorm, {{3, put + " " + put + "+2048"}, {1, put + "+16 " + put + "+2047"}});
  }
  expect_places(kSumAndNorm, {{1, "s=scale out=scale out=s"}, {3, "n=scale"}});  // no kernel writes %n
  expect_places(kSumForTheNorm, {{3, "out=s"}, {1, "out=s+4"}});                 // no other node reads %s
}

TEST(CudaFusionOverlap, UnsafeOverlapPreventsFusionOfGatedProducts) {
  // The fused kernel does not write %g and does not use the workspace of %u. If %out overlaps an operand, only the two
  // products are fused: one launch converts their common `b`.
  expect_places(kGated, {{3, "out=out out=g out=u.work"}, {2, "out=a out=up+8 out=g.work"}});
}

TEST(CudaFusionOverlap, UnsafeOverlapPreventsFusionOfGatedExperts) {
  // The rules for gated products also apply here. In addition, %out may overwrite the ids, because the kernel reads the
  // ids before it writes %out.
  expect_places(kGatedExperts, {{3, "out=out out=g out=ids3 out=u.work"}, {1, "out=each out=ups+8 out=g.work"}});
}

TEST(CudaFusionOverlap, UnsafeOverlapPreventsFusionOfWeightedExperts) {
  expect_places(kWeightedExperts, {{4, "out=out out=p"}, {1, "out=each out=ids3 out=by out=gates out=p.work"}},
                {.compute_capability = 90, .shared_bytes_per_block = 227 * 1024});
}

TEST(CudaFusionOverlap, UnsafeOverlapPreventsFusionOfProductAndAddition) {
  expect_places(kResidual, {{2, "out=out out=b"}, {1, "out=b+4 out=a out=p.work"}});
}

TEST(CudaFusionOverlap, UnsafeOverlapPreventsFusionOfProductsOfOneColumn) {
  // The last product is not fused if a result or matrix overlaps the workspace of this product. The kernel does not use
  // the workspaces of the other products.
  for (const std::string one : {"wq_x", "wk_x", "wv_x", "wq", "wk"}) {
    expect_places(kProjections, {{2, one + "=wv_x.work"}, {3, one + "=wq_x.work"}});
  }
  expect_places(kProjections,
                {{3, "wq=wq"},
                 {2, "wv_x=a+100 wv_x=wq wv_x=wq_x+4"},
                 {1, "wq_x=wv_x.work,wk_x.work=wv_x.work wk=wv_x.work,wk_x.work=wv_x.work wq_x=a wq_x=wk"}});
}

TEST(CudaFusionOverlap, UnsafeOverlapPreventsFusionOfPromptProductsWithBias) {
  expect_places(kBiasedProjections, {{6, "q=q q=p,u=t s=p.work bias=p.work wf=p.work"},
                                     {5, "u=t.work"},  // only the addition %u is not fused
                                     {4, "s=t.work bias=t.work wf=t.work u=bias"},
                                     {2, "q=bk"}});
}

}  // namespace
}  // namespace shoal::cuda
