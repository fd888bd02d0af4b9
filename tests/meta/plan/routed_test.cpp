#include "meta/plan/routed.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "graph/ops/ops.h"
#include "graph/text.h"
#include "meta/plan/plan.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/meta/layouts.h"
#include "tests/meta/plan/propagation_text.h"
#include "tests/support/device_session.h"
#include "tests/support/run_case.h"
#include "tests/support/tensors.h"

namespace shoal::meta {
namespace {

using testing::HasSubstr;

constexpr const char* kExperts = R"(
input %x f32 [8, 1, 5]
input %ids6.e i32 [2, 5]
input %weights f32 [1, 2, 5]
weight %gate f32 [8, 4, 6]
weight %gate_bias f32 [4, 6]
weight %up f32 [8, 4, 6]
weight %up_bias f32 [4, 6]
weight %down f32 [4, 8, 6]
%flat = reshape(%ids6.e) {shape=[10,1,1,1]}
%g = mul_mat_id(%gate, %x, %ids6.e)
%gb = get_rows(%gate_bias, %flat)
%gr = reshape(%gb) {shape=[4,2,5,1]}
%gs = add(%g, %gr)
%u = mul_mat_id(%up, %x, %ids6.e)
%ub = get_rows(%up_bias, %flat)
%ur = reshape(%ub) {shape=[4,2,5,1]}
%us = add(%u, %ur)
%gc = clamp(%gs) {min=-inf,max=7}
%h = glu(%gc, %us) {kind=geglu_quick}
%once = unary(%gc) {kind=gelu_quick}
%sum = add(%h, %once)
%d = mul_mat_id(%down, %sum, %ids6.e)
%w = mul(%d, %weights)
%p = permute(%w) {axes=[1,0,2,3]}
%c = contiguous(%p)
%all = sum_rows(%c)
%r = reshape(%all) {shape=[8,5,1,1]}
%y = rms_norm(%r)
output %y
)";

/// Three experts. Each expert is cut into two slices, and each slice has its own products.
constexpr const char* kSlices = R"(
input %x f32 [8, 1, 5]
input %ids3.e i32 [2, 5]
weight %gate f32 [8, 2, 6]
weight %up f32 [8, 2, 6]
weight %down f32 [2, 8, 6]
%g0 = mul_mat_id(%gate, %x, %ids3.e) {ranges=[0:3,1099511627776:3]}
%u0 = mul_mat_id(%up, %x, %ids3.e) {ranges=[0:3,1099511627776:3]}
%h0 = glu(%g0, %u0) {kind=swiglu}
%d0 = mul_mat_id(%down, %h0, %ids3.e) {ranges=[0:3,1099511627776:3]}
%p0 = permute(%d0) {axes=[1,0,2,3]}
%c0 = contiguous(%p0)
%s0 = sum_rows(%c0)
%g1 = mul_mat_id(%gate, %x, %ids3.e) {ranges=[1099511627776:3,0:3]}
%u1 = mul_mat_id(%up, %x, %ids3.e) {ranges=[1099511627776:3,0:3]}
%h1 = glu(%g1, %u1) {kind=swiglu}
%d1 = mul_mat_id(%down, %h1, %ids3.e) {ranges=[1099511627776:3,0:3]}
%p1 = permute(%d1) {axes=[1,0,2,3]}
%c1 = contiguous(%p1)
%s1 = sum_rows(%c1)
%s = add(%s0, %s1)
%r = reshape(%s) {shape=[8,5,1,1]}
%y = rms_norm(%r)
output %y
)";

/// A graph with experts that are divided among the ranks.
struct Divided {
  Divided(int ranks, const std::string& runs, const std::string& text = kExperts) : ranks(ranks), text(text) {
    const Partition experts = parse_partition(ranks, runs);
    for (const char* matrix : {"gate", "up", "down"}) layouts.emplace(matrix, Layout::split(2, experts));
    for (const char* table : {"gate_bias", "up_bias"}) layouts.emplace(table, Layout::split(1, experts));
  }

  std::string propagated() const {
    Graph graph("experts");
    TensorContext weights;
    parse_graph(text, graph, weights);
    const auto leaf = [&](const Tensor& tensor) {
      const auto found = layouts.find(tensor.name);
      return found == layouts.end() ? Layout::mirrored() : found->second;
    };
    return to_string(propagate(whole(graph), ranks, leaf), whole(graph));
  }

  int collectives() const {
    return count([](const Plan& plan) {
      return std::count_if(plan.steps.begin(), plan.steps.end(),
                           [](const Step& step) { return step.kind == StepKind::kCollective; });
    });
  }

  /// Number of nodes with this op in the local graph of a rank.
  int nodes(Op op, int rank) const {
    return count([&](const Plan& plan) {
      const auto all = plan.ranks[static_cast<size_t>(rank)].graph->nodes();
      return std::count_if(all.begin(), all.end(), [&](const Tensor* node) { return node->op == op; });
    });
  }

  template <class Count>
  int count(const Count& of) const {
    Graph graph("experts");
    TensorContext weights;
    parse_graph(text, graph, weights);
    ShardStore store(ranks);
    for (const Tensor* weight : weights.tensors()) {
      const auto found = layouts.find(weight->name);
      store.declare(*weight, found == layouts.end() ? Layout::mirrored() : found->second);
    }
    const auto devices = members();
    const Plan plan = make_plan(whole(graph), {[&](const Tensor& tensor) { return store.find(tensor); }, {}, rule_text},
                                std::span(devices).first(static_cast<size_t>(ranks)));
    return static_cast<int>(of(plan));
  }

  test::RandomCase random_case(uint64_t seed) const { return {seed, ranks, text, layouts, {}, test::kTight}; }

  std::string differs(uint64_t seed = 1) const { return test::check_case(random_case(seed), members()); }

  /// Like differs(), but with random ranges, random segments and random nodes in PlanOptions::shown.
  std::string differs_in_pieces(uint64_t seed) const {
    auto devices = members();
    devices.resize(static_cast<size_t>(ranks));
    const test::RandomCase one = random_case(seed);
    return test::check_on_device(one, *test::meta_device(one, devices));
  }

  static std::vector<Device*> members() {
    std::vector<Device*> found;
    for (int i = 0; i < 8; ++i) found.push_back(&Registry::instance().device(fmt::format("CPU{}", i)));
    return found;
  }

  int ranks;
  std::string text;
  std::map<std::string, Layout> layouts;
};

class Routed : public testing::Test {
  test::CpuConfiguration configuration_{"devices=8,threads=1"};
};

TEST_F(Routed, DividedExpertsNeedOneReduction) {
  for (const auto& [ranks, runs] :
       std::vector<std::pair<int, std::string>>{{2, "3:{0} 3:{1}"},
                                                {2, "1:{0} 5:{1}"},
                                                {2, "6:{1}"},
                                                {3, "2:{0} 4:{2}"},
                                                {3, "1:{2} 2:{0} 2:{1} 1:{0}"},
                                                {6, "1:{5} 1:{4} 1:{3} 1:{2} 1:{1} 1:{0}"},
                                                {8, "1:{0} 1:{1} 1:{2} 1:{3} 1:{6} 1:{7}"}}) {
    const Divided divided(ranks, runs);
    EXPECT_EQ(divided.collectives(), 1) << runs << "\n" << divided.propagated();
    for (uint64_t seed = 1; seed < 4; ++seed) EXPECT_EQ(divided.differs(seed), "") << runs;
  }
}

TEST_F(Routed, PrintsTheStrategyOfDividedExperts) {
  const std::string text = Divided(2, "3:{0} 3:{1}").propagated();
  EXPECT_THAT(text, HasSubstr("h            glu        by expert: partial, partial -> partial\n"));
  EXPECT_THAT(text, HasSubstr("gs           add        by expert: partial, partial -> partial\n"));
  EXPECT_THAT(text,
              HasSubstr("d            mul_mat_id split e [3:{0} 3:{1}]: split 2 [3:{0} 3:{1}], partial, mirrored"));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// A rank without experts omits the products and all nodes that depend on the products.
TEST_F(Routed, ZeroProductsArePruned) {
  const Divided divided(3, "2:{0} 4:{2}");
  for (const auto& [op, count] : std::vector<std::pair<Op, int>>{
           {Op::kMulMatId, 3}, {Op::kGetRows, 2}, {Op::kGlu, 1}, {Op::kContiguous, 1}, {Op::kSumRows, 1}}) {
    EXPECT_EQ(divided.nodes(op, 0), count) << name_of(op);
    EXPECT_EQ(divided.nodes(op, 1), 0) << name_of(op);
    EXPECT_EQ(divided.nodes(op, 2), count) << name_of(op);
  }
  EXPECT_EQ(divided.nodes(Op::kFill, 1), 1) << "rank 1 contributes zeros to the reduction";
  EXPECT_EQ(divided.nodes(Op::kFill, 0), 0);
}

TEST_F(Routed, RanksComputeOnlyProductsOfTheirSlices) {
  for (const auto& [ranks, runs] : std::vector<std::pair<int, std::string>>{
           {4, "2:{0} 1:{2} 2:{1} 1:{3}"}, {2, "3:{0} 3:{1}"}, {3, "3:{0} 2:{1} 1:{2}"}}) {
    const Divided divided(ranks, runs, kSlices);
    EXPECT_EQ(divided.collectives(), 1) << runs;
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(divided.nodes(Op::kMulMatId, rank), 3) << runs;
      EXPECT_EQ(divided.nodes(Op::kGlu, rank), 1) << runs;
      EXPECT_EQ(divided.nodes(Op::kAdd, rank), 0) << runs;
    }
    for (uint64_t seed = 1; seed < 4; ++seed) EXPECT_EQ(divided.differs(seed), "") << runs;
  }
  // Rank 0 has experts of both slices.
  const Divided both(2, "2:{0} 1:{1} 3:{0}", kSlices);
  EXPECT_EQ(both.nodes(Op::kMulMatId, 0), 6);
  EXPECT_EQ(both.nodes(Op::kMulMatId, 1), 3);
  EXPECT_EQ(both.collectives(), 1);
  EXPECT_EQ(both.differs(), "");
}

TEST_F(Routed, PrunedValuesCanBeRead) {
  for (const Divided& divided : {Divided(3, "2:{0} 4:{2}"), Divided(2, "6:{1}"), Divided(2, "3:{0} 3:{1}", kSlices),
                                 Divided(3, "3:{0} 2:{1} 1:{2}", kSlices)}) {
    for (uint64_t seed = 1; seed <= 12; ++seed) EXPECT_EQ(divided.differs_in_pieces(seed), "") << seed << divided.text;
  }
  for (const char* read : {"h", "d", "w", "c", "all"}) {
    const Divided divided(3, "2:{0} 4:{2}", fmt::format("{}output %{}\n", kExperts, read));
    EXPECT_EQ(divided.differs(), "") << read;
    EXPECT_EQ(divided.differs_in_pieces(7), "") << read;
  }
}

/// The plan reduces a sum before a node that would change rows of zeros in this sum.
TEST_F(Routed, SumIsReducedBeforeNodesThatCannotBeRouted) {
  const auto check = [](const std::string& from, const std::string& to) {
    const Divided divided(2, "2:{0} 4:{1}", replaced(kExperts, from, to));
    EXPECT_GT(divided.collectives(), 1) << to;
    EXPECT_EQ(divided.differs(), "") << to;
  };
  check("%once = unary(%gc) {kind=gelu_quick}", "%once = unary(%gc) {kind=exp}");
  check("%once = unary(%gc) {kind=gelu_quick}", "%once = scale(%gc) {scale=2,bias=1}");
  check("%gc = clamp(%gs) {min=-inf,max=7}", "%gc = clamp(%gs) {min=0.5,max=7}");
  check("%sum = add(%h, %once)", "%sum = add(%h, %weights)");
  check("%h = glu(%gc, %us) {kind=geglu_quick}", "%h = div(%gc, %us)");
  // The changed node uses ids of other tokens or ids in another order. So the plan needs more than one collective.
  check("%d = mul_mat_id(%down, %sum, %ids6.e)", "input %ids6.f i32 [2, 5]\n%d = mul_mat_id(%down, %sum, %ids6.f)");
  check("%ub = get_rows(%up_bias, %flat)", "input %ids6.g i32 [10]\n%ub = get_rows(%up_bias, %ids6.g)");
  // The last product of the first slice uses the experts of the second slice.
  const Divided crossed(2, "3:{0} 3:{1}",
                        replaced(kSlices, "%d0 = mul_mat_id(%down, %h0, %ids3.e) {ranges=[0:3,1099511627776:3]}",
                                 "%d0 = mul_mat_id(%down, %h0, %ids3.e) {ranges=[1099511627776:3,0:3]}"));
  EXPECT_GT(crossed.collectives(), 1);
  EXPECT_EQ(crossed.differs(), "");
  // The experts of `down` are divided differently from the experts of `gate` and `up`.
  Divided other(2, "2:{0} 4:{1}");
  other.layouts["down"] = Layout::split(2, parse_partition(2, "3:{0} 3:{1}"));
  EXPECT_GT(other.collectives(), 1);
  EXPECT_EQ(other.differs(), "");
  other.layouts["down"] = Layout::split(0, parse_partition(2, "1:{0} 3:{1}"));
  EXPECT_EQ(other.differs(), "");
}

TEST_F(Routed, AnyOpBetweenProductsGivesSameResultsAsOneDevice) {
  const char* const kNodes[] = {"unary(%us) {kind=silu}",
                                "unary(%us) {kind=softplus}",
                                "scale(%us) {scale=3}",
                                "mul(%us, %us)",
                                "mul(%us, %weights)",
                                "div(%us, %gain)",
                                "add(%us, %gain)",
                                "sub(%gs, %us)",
                                "rms_norm(%us)",
                                "contiguous(%us)",
                                "glu(%us, %gain)",
                                "glu(%gain, %us)",
                                "cast(%us) {dtype=f32}",
                                "soft_max(%us, _, _)",
                                "reshape(%us) {shape=[4,2,5,1]}"};
  std::mt19937 random(3);
  for (const char* node : kNodes) {
    const std::string text = replaced(kExperts, "%gc = clamp(%gs) {min=-inf,max=7}",
                                      fmt::format("input %gain f32 [4, 2, 5]\n%gc = {}", node));
    for (const char* runs : {"3:{0} 3:{1}", "5:{1} 1:{0}"}) {
      EXPECT_EQ(Divided(2, runs, text).differs(random()), "") << node;
    }
  }
}

/// The table of functions with f(0) = 0 is correct and complete.
TEST_F(Routed, TableOfZeroPreservingFunctionsIsComplete) {
  const auto backend = Registry::instance().device("CPU0").init("");
  for (int kind = 0; kind < static_cast<int>(UnaryKind::kCount); ++kind) {
    Graph graph("zero");
    Tensor* x = graph.input("x", DType::kF32, {1, 1, 1, 1});
    Tensor* y = graph.output(unary(graph, x, static_cast<UnaryKind>(kind), "y"));
    test::TensorValues leaves{{x, {0.0}}};
    EXPECT_EQ(keeps_zeros(*y, 0), test::run_graph(*backend, graph, leaves).at(y)[0] == 0)
        << to_string(*y) << ": see kZeroPreserving in meta/plan/routed.cpp";
  }
}

}  // namespace
}  // namespace shoal::meta
