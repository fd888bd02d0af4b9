#include "meta/plan/propagate.h"

#include <gmock/gmock.h>

#include "graph/ops/ops.h"
#include "graph/text.h"
#include "tests/meta/layouts.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/plan/propagation_text.h"
#include "tests/support/random_graph.h"

namespace shoal::meta {
namespace {

using testing::ElementsAre;

/// A graph that is parsed from text. Its leaves have the given layouts, from which the layouts of the nodes are
/// propagated. A leaf without a given layout is mirrored.
struct Propagated {
  Propagated(const std::string& text, int ranks, std::map<std::string, Layout> layouts, const CostModel& model = {})
      : layouts(std::move(layouts)) {
    parse_graph(text, graph, weights);
    const auto leaf_layout = [&](const Tensor& tensor) {
      ++asked[tensor.name];
      return layout_of(tensor);
    };
    result = propagate(whole(graph), ranks, leaf_layout, model);
  }
  Layout layout_of(const Tensor& tensor) const {
    if (!tensor.is_leaf()) return result.at(&tensor).result;
    const auto it = layouts.find(tensor.name);
    return it == layouts.end() ? Layout::mirrored() : it->second;
  }
  std::string of(std::string_view name) const { return choice(name).result.to_string(); }
  const NodeChoice& choice(std::string_view name) const { return result.at(graph.find(name)); }
  std::vector<std::string> sources(std::string_view name) const {
    std::vector<std::string> texts;
    for (const Layout& layout : choice(name).sources) texts.push_back(layout.to_string());
    return texts;
  }
  TensorContext weights;
  Graph graph{"propagated"};
  std::map<std::string, Layout> layouts;
  std::map<std::string, int> asked;
  Propagation result;
};

TEST(Propagate, FeedForwardMatchesHeaderExample) {
  const Propagated p(test::kFeedForward, 2,
                     {{"gate", split(1, 2, "384:{0} 384:{1}")},
                      {"up", split(1, 2, "384:{0} 384:{1}")},
                      {"down", split(0, 2, "384:{0} 384:{1}")}});
  EXPECT_EQ(p.of("g"), "split 0 [384:{0} 384:{1}]");
  EXPECT_EQ(p.of("u"), "split 0 [384:{0} 384:{1}]");
  EXPECT_EQ(p.of("h"), "split 0 [384:{0} 384:{1}]");
  EXPECT_EQ(p.of("y"), "partial");
  EXPECT_EQ(p.of("r"), "mirrored");
  EXPECT_EQ(p.of("n"), "mirrored");
  EXPECT_THAT(p.sources("g"), ElementsAre("split 1 [384:{0} 384:{1}]", "mirrored"));
  EXPECT_THAT(p.sources("y"), ElementsAre("split 0 [384:{0} 384:{1}]", "split 0 [384:{0} 384:{1}]"));
  EXPECT_THAT(p.sources("r"), ElementsAre("mirrored", "mirrored"));
  EXPECT_THAT(p.sources("n"), ElementsAre("mirrored"));
  EXPECT_GE(p.choice("g").factor, 0);
  EXPECT_EQ(p.choice("g").partition, parse_partition(2, "384:{0} 384:{1}"));
  EXPECT_EQ(p.choice("n").factor, -1);
}

TEST(Propagate, PrintsOneLinePerNode) {
  Propagated p(test::kFeedForward, 2,
               {{"gate", split(1, 2, "384:{0} 384:{1}")},
                {"up", split(1, 2, "384:{0} 384:{1}")},
                {"down", split(0, 2, "384:{0} 384:{1}")}});
  EXPECT_EQ(
      to_string(p.result, whole(p.graph)),
      R"(g            mul_mat    split m [384:{0} 384:{1}]: split 1 [384:{0} 384:{1}], mirrored -> split 0 [384:{0} 384:{1}]
u            mul_mat    split m [384:{0} 384:{1}]: split 1 [384:{0} 384:{1}], mirrored -> split 0 [384:{0} 384:{1}]
h            glu        split a [384:{0} 384:{1}]: split 0 [384:{0} 384:{1}], split 0 [384:{0} 384:{1}] -> split 0 [384:{0} 384:{1}]
y            mul_mat    split k [384:{0} 384:{1}]: split 0 [384:{0} 384:{1}], split 0 [384:{0} 384:{1}] -> partial
r            add        whole: mirrored, mirrored -> mirrored
n            rms_norm   whole: mirrored -> mirrored
)");
}

TEST(Propagate, StrategiesDoNotDependOnShares) {
  for (const char* runs : {"767:{0} 1:{1}", "768:{1}", "1:{1} 700:{0} 67:{1}"}) {
    const Propagated p(test::kFeedForward, 2,
                       {{"gate", split(1, 2, runs)}, {"up", split(1, 2, runs)}, {"down", split(0, 2, runs)}});
    EXPECT_EQ(p.of("h"), split(0, 2, runs).to_string());
    EXPECT_EQ(p.of("y"), "partial");
    EXPECT_EQ(p.of("r"), "mirrored");
  }
}

TEST(Propagate, AsksCallbackOnceForEachLeaf) {
  const Propagated p(test::kFeedForward, 2, {});
  EXPECT_THAT(p.asked, ElementsAre(testing::Pair("down", 1), testing::Pair("gate", 1), testing::Pair("up", 1),
                                   testing::Pair("x", 1)));
}

TEST(Propagate, KeepsGraphsWithMirroredLeavesMirrored) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const test::RandomCase one = test::random_case(seed);
    if (one.graph.find("= reshard(") != std::string::npos) continue;  // such a graph requires split layouts
    const Propagated p(one.graph, one.ranks, {});
    for (const auto& [node, choice] : p.result) {
      ASSERT_TRUE(choice.result.is_mirrored()) << node->name << " " << choice.result.to_string() << " seed " << seed;
    }
  }
}

TEST(Propagate, EveryNodeHasValidLayouts) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const test::RandomCase one = test::random_case(seed);
    SCOPED_TRACE(seed);
    const Propagated p(one.graph, one.ranks, one.layouts);
    for (const Tensor* node : p.graph.nodes()) {
      const NodeChoice& choice = p.choice(node->name);
      check_layout(choice.result, node->dtype, node->shape, one.ranks, node->name);
      ASSERT_EQ(choice.sources.size(), node->src.size());
      for (size_t i = 0; i < node->src.size(); ++i) {
        if (node->src[i] == nullptr) continue;
        check_layout(choice.sources[i], node->src[i]->dtype, node->src[i]->shape, one.ranks, node->src[i]->name);
      }
      if (info(node->op).alias == Alias::kWrites) {
        EXPECT_EQ(choice.result, p.layout_of(*node->src[0])) << "a write keeps the layout of the cache";
      }
    }
  }
}

TEST(Propagate, IsDeterministic) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const test::RandomCase one = test::random_case(seed);
    const Propagated a(one.graph, one.ranks, one.layouts), b(one.graph, one.ranks, one.layouts);
    for (const Tensor* node : a.graph.nodes()) ASSERT_EQ(a.of(node->name), b.of(node->name)) << seed;
  }
}

TEST(Propagate, SplitsMirroredBias) {
  // Splitting a mirrored weight needs no collective. This also holds for a large weight and for several runs per rank.
  const Propagated cut(R"(
input %x f32 [64]
weight %w f32 [64, 6144]
weight %bias f32 [6144]
%y = mul_mat(%w, %x)
%z = add(%y, %bias)
%o = unary(%z) {kind=silu}
output %o
)",
                       2, {{"w", split(1, 2, "2048:{0} 2048:{1} 1024:{0} 1024:{1}")}});
  EXPECT_EQ(cut.of("z"), "split 0 [2048:{0} 2048:{1} 1024:{0} 1024:{1}]");
}

/// An output head that uses the table of the token embedding. Every rank has the whole table.
const std::string kTiedHead = R"(
input %x f32 [64]
weight %w f32 [64, 512]
weight %v f32 [512, 64]
weight %table f32 [64, 32000]
%h = mul_mat(%w, %x)
%y = mul_mat(%v, %h)
%logits = mul_mat(%table, %y)
)";

std::map<std::string, Layout> tied_head_layouts() {
  return {{"w", split(1, 2, "256:{0} 256:{1}")}, {"v", split(0, 2, "256:{0} 256:{1}")}};
}

TEST(Propagate, DividesTiedOutputHeadIfOnlyTopKReadsLogits) {
  const std::string graph = kTiedHead + R"(
%ids = top_k(%logits) {k=40}
%elements = reshape(%logits) {shape=[1,32000,1,1]}
%best = get_rows(%elements, %ids)
output %ids
output %best
)";
  const Propagated p(graph, 2, tied_head_layouts());
  EXPECT_EQ(p.of("logits"), "split 0 [16000:{0} 16000:{1}]");
  EXPECT_TRUE(p.choice("ids").by_candidates);
  EXPECT_EQ(p.of("ids"), "mirrored");
  EXPECT_TRUE(p.choice("best").selected);
  EXPECT_EQ(p.of("best"), "mirrored") << "candidates are gathered with their indices";
  EXPECT_THAT(to_string(p.result, whole(const_cast<Graph&>(p.graph))),
              testing::HasSubstr("ids          top_k      candidates [16000:{0} 16000:{1}]: split 0 [16000:{0} "
                                 "16000:{1}] -> mirrored"));
  // Another node needs all logits. So every rank computes all logits, as in a graph without a selection.
  const Propagated whole_too(graph + "%p = soft_max(%logits, _, _)\noutput %p\n", 2, tied_head_layouts());
  EXPECT_EQ(whole_too.of("logits"), "mirrored");
  EXPECT_FALSE(whole_too.choice("ids").by_candidates);
}

TEST(Propagate, DividesTiedOutputHeadWithScaleAndSoftcap) {
  const std::string graph = kTiedHead + R"(
%of_cap = scale(%logits) {scale=0.5}
%bent = unary(%of_cap) {kind=tanh}
%capped = clamp(%bent) {min=-1,max=1}
)";
  const std::string selected = R"(
%ids = top_k(%capped) {k=40}
%elements = reshape(%capped) {shape=[1,32000,1,1]}
%best = get_rows(%elements, %ids)
output %ids
output %best
)";
  for (const std::string& rest : {std::string("output %capped\n"), selected}) {
    const Propagated p(graph + rest, 2, tied_head_layouts());
    for (const char* node : {"logits", "of_cap", "bent", "capped"}) {
      EXPECT_EQ(p.of(node), "split 0 [16000:{0} 16000:{1}]") << node;
    }
  }
  const Propagated p(graph + selected, 2, tied_head_layouts());
  EXPECT_TRUE(p.choice("ids").by_candidates);
  // Another node needs all logits.
  EXPECT_EQ(Propagated(graph + "%p = soft_max(%bent, _, _)\noutput %capped\noutput %p\n", 2, tied_head_layouts())
                .of("logits"),
            "mirrored");
}

TEST(Propagate, ReducesPartialSumOnceForAllUsers) {
  // %a could read %y as a partial sum. But %n needs the complete sum, so %a also reads the complete sum. The plan then
  // reduces %y only once.
  const Propagated p(R"(
input %x f32 [8, 3]
weight %w f32 [8, 8]
%y = mul_mat(%w, %x)
%n = rms_norm(%y)
%a = add(%y, %x)
%z = rms_norm(%a)
output %n
output %z
)",
                     2, {{"w", split(0, 2, "5:{0} 3:{1}")}});
  EXPECT_EQ(p.of("y"), "partial");
  EXPECT_THAT(p.sources("n"), ElementsAre("mirrored"));
  EXPECT_THAT(p.sources("a"), ElementsAre("mirrored", "mirrored"));
  EXPECT_EQ(p.of("a"), "mirrored");
}

TEST(Propagate, AddsPartialSumsBeforeReduction) {
  const Propagated p(R"(
input %x f32 [8, 3]
weight %v f32 [8, 8]
weight %w f32 [8, 8]
%y = mul_mat(%v, %x)
%z = mul_mat(%w, %x)
%a = add(%y, %z)
%n = rms_norm(%a)
output %n
)",
                     2, {{"v", split(0, 2, "5:{0} 3:{1}")}, {"w", split(0, 2, "4:{0} 4:{1}")}});
  EXPECT_THAT(p.sources("a"), ElementsAre("partial", "partial"));
  EXPECT_EQ(p.of("a"), "partial");
}

TEST(Propagate, UsesOfTiedEmbeddingHaveDifferentStrategies) {
  // A tied embedding that is split by rows. The lookup gives a partial sum, and the product gives split rows.
  const Propagated p(R"(
input %ids i32 [3]
weight %e f32 [8, 10]
%x = get_rows(%e, %ids)
%n = rms_norm(%x)
%l = mul_mat(%e, %n)
output %l
)",
                     2, {{"e", split(1, 2, "7:{0} 3:{1}")}});
  EXPECT_EQ(p.of("x"), "partial");
  EXPECT_EQ(p.of("n"), "mirrored");
  EXPECT_EQ(p.of("l"), "split 0 [7:{0} 3:{1}]");
}

TEST(Propagate, RangeUsesLayoutsOfEarlierRanges) {
  TensorContext weights;
  Graph graph("ranges");
  parse_graph(test::kFeedForward, graph, weights);
  const Layout half = split(0, 2, "384:{0} 384:{1}");
  const auto outside = [&](const Tensor& tensor) {
    if (tensor.name == "h" || tensor.name == "down") return half;
    EXPECT_EQ(tensor.name, "x") << "the range reads no other tensor";
    return Layout::mirrored();
  };
  const Propagation p = propagate({&graph, 3, 6}, 2, outside);
  EXPECT_EQ(p.size(), 3u);
  EXPECT_TRUE(p.at(graph.find("y")).result.is_partial());
  EXPECT_TRUE(p.at(graph.find("n")).result.is_mirrored());
}

TEST(Propagate, GathersWeightOnlyIfItsTransferIsCheap) {
  // The weight is split on k, and x is split on columns. One strategy redistributes x along k and reduces the sum.
  // Another strategy gathers the weight. Propagation chooses the second strategy if the transfer of a weight is cheap.
  constexpr const char* kText = R"(
weight %w f32 [64, 4]
cache %x f32 [64, 4096]
%y = mul_mat(%w, %x)
%n = rms_norm(%y)
output %n
)";
  const std::map<std::string, Layout> layouts{{"w", split(0, 2, "32:{0} 32:{1}")},
                                              {"x", split(1, 2, "4000:{0} 96:{1}")}};
  CostModel model;
  model.weight_penalty = 0;
  EXPECT_EQ(Propagated(kText, 2, layouts, model).of("y"), "split 1 [4000:{0} 96:{1}]");
  model.weight_penalty = 1e6;
  EXPECT_NE(Propagated(kText, 2, layouts, model).sources("y")[0], "mirrored");
}

TEST(CheapestSource, PrefersExistingLayoutThenLeastTraffic) {
  TensorContext context;
  const Tensor& x = *context.add("x", DType::kF32, {1024, 4, 1, 1});
  const CostModel model;
  const Layout half = split(0, 2, "512:{0} 512:{1}"), other = split(0, 2, "256:{0} 768:{1}");
  const auto cheapest = [&](std::vector<Layout> available, const Layout& target) {
    return cheapest_source(available, target, x, 2, model);
  };
  EXPECT_EQ(cheapest({half, Layout::mirrored()}, Layout::mirrored()), 1u);
  EXPECT_EQ(cheapest({half, Layout::mirrored()}, half), 0u);
  EXPECT_EQ(cheapest({half, Layout::mirrored()}, other), 1u) << "slices of a mirrored source need no collective";
  EXPECT_EQ(cheapest({Layout::partial(), half}, Layout::mirrored()), 1u) << "gathering costs half as much as reducing";
  EXPECT_EQ(cheapest({half, half}, other), 0u) << "the first of two sources with equal costs";
}

/// Two ranks that multiply with `rate` operations/s, and links of `bandwidth` bytes/s.
CostModel model_of(double rate, double bandwidth) {
  auto machine = std::make_shared<machine::MachineModel>();
  for (const char* name : {"A", "B"}) {
    machine::DeviceModel device;
    device.name = name;
    device.bandwidth = device.activation_bandwidth = device.attention_bandwidth = 1e12;
    device.attention_rate = rate;
    machine::add_products(device, rate, device.bandwidth);
    machine->devices.push_back(std::move(device));
  }
  machine->algorithms.push_back({"ring", false, 1e-6, 0, bandwidth});
  return CostModel::of(std::move(machine), std::vector<std::string>{"A", "B"});
}

TEST(Propagate, DividesProductOnlyIfLinksAreFast) {
  // The cache is split on the contracted axis. A divided product gives a partial sum [1024, 512]. If the product is not
  // divided, the plan gathers 64 x 512 values of the cache, and every rank computes the whole product.
  constexpr const char* kText = R"(
weight %w f32 [64, 1024]
cache %x f32 [64, 512]
%y = mul_mat(%w, %x)
%n = rms_norm(%y)
output %n
)";
  const std::map<std::string, Layout> layouts{{"x", split(0, 2, "32:{0} 32:{1}")}};
  EXPECT_EQ(Propagated(kText, 2, layouts, model_of(1e9, 1e12)).of("y"), "partial") << "slow ranks, fast links";
  EXPECT_EQ(Propagated(kText, 2, layouts, model_of(1e15, 1e8)).of("y"), "mirrored") << "fast ranks, slow links";
}

TEST(Propagate, SlowestRankDeterminesComputeCost) {
  // The slower rank determines the time of an evenly divided product.
  auto machine = std::make_shared<machine::MachineModel>();
  for (const double rate : {1e12, 1e9}) {
    machine::DeviceModel device;
    device.name = rate > 1e10 ? "fast" : "slow";
    device.bandwidth = device.activation_bandwidth = 1e15;
    machine::add_products(device, rate, device.bandwidth);
    machine->devices.push_back(std::move(device));
  }
  const CostModel model = CostModel::of(machine, std::vector{machine->devices[0].name, machine->devices[1].name});
  TensorContext context;
  Graph graph;
  const Tensor& y = *mul_mat(graph, context.add("w", DType::kF32, {1024, 64, 1, 1}),
                             graph.input("x", DType::kF32, {1024, 1000, 1, 1}));
  const double all = 2.0 * 1024 * 64 * 1000;
  EXPECT_NEAR(compute_cost(model, y, nullptr), all / 1e9, 1e-3);
  const Partition even = parse_partition(2, "32:{0} 32:{1}"), first = parse_partition(2, "64:{0}");
  EXPECT_NEAR(compute_cost(model, y, &even), all / 2e9, 1e-3);
  EXPECT_NEAR(compute_cost(model, y, &first), all / 1e12, 1e-4);
}

}  // namespace
}  // namespace shoal::meta
