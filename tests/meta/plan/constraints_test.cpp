#include "meta/plan/constraints.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Constraints = std::map<std::string, LayoutConstraint>;

/// A plan without memory on two null devices.
struct Wanted {
  Wanted(const std::string& text, const test::Layouts& layouts, const Constraints& constraints, bool whole = false)
      : store(2) {
    parse_graph(text, graph, weights);
    for (const Tensor* leaf : weights.tensors()) {
      const auto it = layouts.find(leaf->name);
      store.declare(*leaf, it == layouts.end() ? Layout::mirrored() : it->second);
    }
    PlanContext context{[this](const Tensor& tensor) { return store.find(tensor); }};
    context.results_are_whole = whole;
    context.constraints = [&](const Tensor& tensor) -> std::optional<LayoutConstraint> {
      const auto found = constraints.find(tensor.name);
      return found == constraints.end() ? std::nullopt : std::optional(found->second);
    };
    const std::vector<Device*> devices(2, &Registry::instance().device("NULL0"));
    plan = make_plan(shoal::whole(graph), context, devices);
  }
  std::string of(std::string_view name) const { return plan.layout(*graph.find(name)).to_string(); }
  std::vector<std::string> collectives() const {
    std::vector<std::string> found;
    for (const Step& step : plan.steps) {
      if (step.kind == StepKind::kCollective)
        found.push_back(fmt::format("{} {}", name_of(step.collective), step.tensor));
    }
    return found;
  }

  TensorContext weights;
  Graph graph{"constrained"};
  ShardStore store;
  Plan plan;
};

LayoutConstraint required(Layout layout) {
  return {std::move(layout)};
}
LayoutConstraint hint(Layout layout, double factor = kHintFactor) {
  return {std::move(layout), false, factor};
}
Layout on_axis(int axis, std::string_view runs) {
  return split(axis, 2, runs);
}

/// y and z are partial sums of 2 ranks.
constexpr const char* kSums = R"(
weight %down f32 [64, 8]
weight %other f32 [64, 8]
input %h f32 [64, 4]
%y = mul_mat(%down, %h)
%z = mul_mat(%other, %h)
%r = add(%y, %z)
output %r
)";
const test::Layouts kSumLayouts{{"down", on_axis(0, "48:{0} 16:{1}")}, {"other", on_axis(0, "48:{0} 16:{1}")}};

TEST(Constraints, WithoutThemOnlyTheLastSumIsPartial) {
  const Wanted free(kSums, kSumLayouts, {});
  EXPECT_EQ(free.of("r"), "partial");
  EXPECT_THAT(free.collectives(), ElementsAre());
  EXPECT_TRUE(free.plan.constraints.empty());
  EXPECT_EQ(constraints_text(free.plan), "");
}

TEST(Constraints, RequiredSplitOfASumIsAReduceScatter) {
  const Wanted one(kSums, kSumLayouts, {{"r", required(on_axis(1, "3:{0} 1:{1}"))}});
  EXPECT_EQ(one.of("y"), "partial");
  EXPECT_EQ(one.of("r"), "split 1 [3:{0} 1:{1}]");
  EXPECT_THAT(one.collectives(), ElementsAre("reduce_scatter r"));
  EXPECT_EQ(one.plan.shards.at(one.graph.find("r")).local[0]->shape, (Shape{8, 3, 1, 1}));
  EXPECT_EQ(constraints_text(one.plan), R"(constraints, and the conversions that they cause
  tensor                       kind         layout                           conversions        bytes microseconds
  r                            requirement  split 1 [3:{0} 1:{1}]                      1          128         10.0
)");
  EXPECT_THAT(to_string(one.plan), HasSubstr(constraints_text(one.plan)));
}

TEST(Constraints, RequirementHoldsForReadersThatCouldTakePartialSums) {
  const Wanted one(kSums, kSumLayouts, {{"y", required(Layout::mirrored())}});
  EXPECT_EQ(one.of("y"), "mirrored");
  EXPECT_EQ(one.of("r"), "partial");
  EXPECT_THAT(one.collectives(), ElementsAre("all_reduce y"));
}

TEST(Constraints, JsonHasTheSameContent) {
  const Wanted one(kSums, kSumLayouts,
                    {{"r", required(on_axis(1, "3:{0} 1:{1}"))}, {"z", hint(Layout::mirrored(), 1e-6)}});
  const auto json = nlohmann::json::parse(to_json(one.plan)).at("constraints");
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0].at("tensor"), "z");
  EXPECT_EQ(json[0].at("kind"), "hint");
  EXPECT_EQ(json[0].at("followed"), false);
  EXPECT_EQ(json[1].at("kind"), "requirement");
  EXPECT_EQ(json[1].at("layout"), "split 1 [3:{0} 1:{1}]");
  EXPECT_EQ(json[1].at("followed"), true);
  EXPECT_EQ(json[1].at("conversions"), 1);
  EXPECT_EQ(json[1].at("bytes"), 128);
  EXPECT_GT(json[1].at("seconds").get<double>(), 0);
  EXPECT_FALSE(nlohmann::json::parse(to_json(Wanted(kSums, kSumLayouts, {}).plan)).contains("constraints"));
}

/// All sources are mirrored. Without constraints, every rank computes all of these nodes.
constexpr const char* kMirrored = R"(
weight %w f32 [16, 8]
input %x f32 [16, 6]
%y = mul_mat(%w, %x)
%c = concat(%y, %y) {axis=1}
%n = rms_norm(%c)
output %n
)";

TEST(Constraints, NodeComputesOnlyItsRequiredShard) {
  const Wanted one(kMirrored, {}, {{"y", required(on_axis(1, "4:{0} 2:{1}"))}});
  EXPECT_EQ(one.of("n"), "split 1 [4:{0} 2:{1} 4:{0} 2:{1}]");
  EXPECT_THAT(one.collectives(), ElementsAre());
  for (const int rank : {0, 1}) {
    for (const Tensor* node : one.plan.ranks[static_cast<size_t>(rank)].graph->nodes()) {
      if (node->op != Op::kMulMat) continue;
      EXPECT_EQ(node->shape[1], rank == 0 ? 4 : 2);
    }
  }
  EXPECT_EQ(one.plan.constraints[0].conversions, 0);
}

TEST(Constraints, ConcatTakesSlicesOfItsSources) {
  const Wanted one(kMirrored, {}, {{"c", required(on_axis(1, "7:{0} 5:{1}"))}});
  EXPECT_EQ(one.of("n"), "split 1 [7:{0} 5:{1}]");
  EXPECT_THAT(one.collectives(), ElementsAre());
}

TEST(Constraints, InputHasItsRequiredLayout) {
  const Wanted one(kMirrored, {}, {{"x", required(on_axis(1, "1:{0} 5:{1}"))}});
  EXPECT_EQ(one.of("x"), "split 1 [1:{0} 5:{1}]");
  EXPECT_EQ(one.of("y"), "split 1 [1:{0} 5:{1}]");
  EXPECT_EQ(one.plan.shards.at(one.graph.find("x")).local[1]->shape, (Shape{16, 5, 1, 1}));
}

constexpr const char* kNorm = "input %x f32 [16, 6]\n%n = rms_norm(%x)\noutput %n";

TEST(Constraints, CostOfAnInputIncludesConversionsForItsReaders) {
  const Wanted one(kNorm, {}, {{"x", required(on_axis(0, "8:{0} 8:{1}"))}, {"n", required(Layout::mirrored())}});
  EXPECT_EQ(one.of("x"), "split 0 [8:{0} 8:{1}]");
  EXPECT_THAT(one.collectives(), ElementsAre("all_gather x"));
  EXPECT_EQ(one.plan.constraints[0].bytes, 16 * 6 * 4);
  EXPECT_EQ(one.plan.constraints[1].bytes, 0);
}

TEST(Constraints, HintIsFollowedIfItsCostIsAtMostItsFactor) {
  // Rows of a norm must be whole, so this hint gathers the rows of x.
  const auto split_rows = on_axis(0, "8:{0} 8:{1}");
  constexpr const char* kScaled = "input %x f32 [16, 6]\n%y = scale(%x) {scale=2}\n%n = rms_norm(%y)\noutput %n";
  EXPECT_EQ(Wanted(kScaled, {}, {{"n", hint(split_rows)}}).of("n"), "split 0 [8:{0} 8:{1}]") << "a slice is free";
  EXPECT_EQ(Wanted(kScaled, {}, {{"y", hint(split_rows)}}).of("y"), "split 0 [8:{0} 8:{1}]") << "y costs less";
  const Constraints with_x{{"x", required(split_rows)}, {"n", hint(Layout::partial(), 1.0)}};
  EXPECT_EQ(Wanted(kScaled, {}, with_x).of("n"), "mirrored");
  const Constraints for_more{{"x", required(split_rows)}, {"n", hint(Layout::partial(), 1e9)}};
  EXPECT_EQ(Wanted(kScaled, {}, for_more).of("n"), "partial");
}

TEST(Constraints, HintForAnInputDependsOnItsFirstReader) {
  const auto halves = on_axis(0, "8:{0} 8:{1}"), tokens = on_axis(1, "3:{0} 3:{1}");
  EXPECT_EQ(Wanted(kMirrored, {}, {{"x", hint(tokens)}}).of("x"), "split 1 [3:{0} 3:{1}]");
  const Wanted dropped(kNorm, {}, {{"x", hint(halves)}});
  EXPECT_EQ(dropped.of("x"), "mirrored");
  EXPECT_THAT(constraints_text(dropped.plan), HasSubstr("hint         split 0 [8:{0} 8:{1}]            not followed"));
  EXPECT_EQ(Wanted(kNorm, {}, {{"x", hint(halves, 1e9)}}).of("x"), "split 0 [8:{0} 8:{1}]");
}

TEST(Constraints, ReshardHasTheLayoutOfItsText) {
  const Wanted one(R"(
weight %w f32 [64, 8]
input %h f32 [64, 5]
%y = mul_mat(%w, %h)
%s = reshard(%y) {layout="axis 1"}
%n = rms_norm(%s)
%m = reshard(%n) {layout="mirrored"}
%u = reshard(%m) {layout="axis 0 [6:{0} 2:{1}]"}
%v = reshard(%u) {layout="split 0 [6:{0} 2:{1}]"}
output %v
)",
                    {{"w", on_axis(0, "48:{0} 16:{1}")}}, {});
  EXPECT_EQ(one.of("y"), "partial");
  EXPECT_EQ(one.of("n"), "split 1 [3:{0} 2:{1}]");
  EXPECT_EQ(one.of("m"), "mirrored");
  EXPECT_EQ(one.of("u"), "split 0 [6:{0} 2:{1}]");
  EXPECT_EQ(one.of("v"), one.of("u"));
  EXPECT_THAT(one.collectives(), ElementsAre("reduce_scatter y", "all_gather n"));
  ASSERT_EQ(one.plan.constraints.size(), 4u);
  EXPECT_EQ(one.plan.constraints[0].bytes, 8 * 5 * 4);
  EXPECT_EQ(one.plan.constraints[1].bytes, 8 * 5 * 4) << "the gather belongs to the second reshard";
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Constraints, ConflictsNameBothSides) {
  constexpr const char* kWrite = R"(
cache %k f32 [8, 16]
input %rows f32 [8, 2]
input %ids i32 [2]
%w = set_rows(%k, %rows, %ids)
)";
  const Layout by_rows = on_axis(1, "8:{0} 8:{1}"), by_axis_0 = on_axis(0, "4:{0} 4:{1}");
  EXPECT_EQ(error_of([&] {
              Wanted(kWrite, {{"k", by_rows}}, {{"w", required(by_axis_0)}});
            }),
            "the required layout 'split 0 [4:{0} 4:{1}]' of w contradicts the layout 'split 1 [8:{0} 8:{1}]' of the "
            "cache k, into which set_rows writes; require the layout of the cache for w, or read the result through "
            "reshard()");
  EXPECT_EQ(Wanted(kWrite, {{"k", by_rows}}, {{"w", hint(by_axis_0, 1e9)}}).of("w"), by_rows.to_string());
  EXPECT_EQ(Wanted(kWrite, {{"k", by_rows}}, {{"w", required(by_rows)}}).of("w"), by_rows.to_string());
  EXPECT_EQ(error_of([&] {
              Wanted(kSums, kSumLayouts, {{"r", required(by_axis_0)}}, true);
            }),
            "the required layout 'split 0 [4:{0} 4:{1}]' of r contradicts its use as an output, which must be mirrored "
            "because the devices belong to several processes; require the layout of an earlier node, or give a hint");
  EXPECT_THAT(Wanted(kSums, kSumLayouts, {{"r", hint(by_axis_0, 1e9)}}, true).collectives(),
              ElementsAre("reduce_scatter r", "all_gather r"));
  const std::string resharded = "input %x f32 [8, 6]\n%y = reshard(%x) {layout=\"axis 1\"}\noutput %y";
  EXPECT_EQ(error_of([&] {
              Wanted(resharded, {}, {{"y", required(by_axis_0)}});
            }),
            "the required layout 'split 0 [4:{0} 4:{1}]' of y contradicts the layout 'split 1 [3:{0} 3:{1}]' of its "
            "reshard(); change one of them");
}

TEST(Constraints, WeightsAndCachesCannotHaveThem) {
  constexpr const char* kLeaves = R"(
weight %w f32 [8, 8]
cache %k f32 [8, 16]
input %x f32 [8, 2]
input %ids i32 [2]
%y = mul_mat(%w, %x)
%written = set_rows(%k, %y, %ids)
)";
  const std::string rest =
      " has a constraint, but the split-state callback defines the layouts of weights and caches: return the split "
      "state there, and remove the constraint";
  for (const std::string text : {"w f32 [8, 8]", "k f32 [8, 16]"}) {
    for (const LayoutConstraint& constraint : {required(Layout::mirrored()), hint(Layout::mirrored())}) {
      EXPECT_EQ(error_of([&] {
                  Wanted(kLeaves, {}, {{text.substr(0, 1), constraint}});
                }),
                text + rest);
    }
  }
}

TEST(Constraints, ReshardRefusesBadTexts) {
  const auto error = [](const std::string& text, const std::string& x = "f32 [64, 6]") {
    return error_of([&] { Wanted("input %x " + x + "\n%y = reshard(%x) {layout=\"" + text + "\"}", {}, {}); });
  };
  const std::string remedy = "write 'mirrored', 'axis 1' or 'axis 1 [3:{0} 2:{1}]'";
  for (const std::string text : {"", "axis", "axis ", "axis 4", "axis -1", "axis 11", "axis 1 ", "axis 1 3:{0} 3:{1}",
                                 "mirrored ", "split 1", "partial"}) {
    EXPECT_EQ(error(text), "[reshard y] the layout '" + text + "' is invalid on 2 devices: " + remedy);
  }
  EXPECT_THAT(error("axis 1 [3:{0} 3:{1]"), HasSubstr("'3:{0} 3:{1' is not a partition (error at ''); write runs"));
  EXPECT_THAT(error("axis 1 [3:{0} 4:{1}]"), HasSubstr("add up to 7, expected 6"));
  EXPECT_THAT(error("axis 1 [3:{0} 3:{2}]"),
              HasSubstr("[reshard y] the layout 'axis 1 [3:{0} 3:{2}]' is invalid on 2"));
  EXPECT_THAT(error("axis 0 [48:{0} 16:{1}]", "q8_0 [64, 6]"), HasSubstr("cut at 48"));
  EXPECT_EQ(error("axis 0", "q8_0 [64, 6]"), "");
}

}  // namespace
}  // namespace shoal::meta
