// Constraints on a meta device: writing inputs with a required layout, and reuse of plans.
#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "meta/meta.h"
#include "tests/meta/mesh.h"
#include "tests/sched/rig.h"

namespace shoal::meta {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

MetaOptions with(std::map<std::string, Constraint> wanted) {
  return {.constraints = constraints(std::move(wanted))};
}

constexpr const char* kGraph = R"(
weight %w f32 [8, 4]
input %x f32 [8, 6]
%y = mul_mat(%w, %x)
%z = add(%y, %y)
output %z
)";

TEST(MetaConstraints, EachRankGetsItsPartOfAnInput) {
  test::CpuMesh mesh(3, {}, with({{"x", Constraint::requirement(SplitState::by_ratio(1, {3, 0, 1}))}}));
  test::Loaded loaded(kGraph, *mesh.device);
  const auto backend = mesh.device->init();
  const auto plan = backend->create_plan(loaded.graph);
  Tensor& x = *loaded.graph.find("x");
  EXPECT_EQ(layout_of(x).to_string(), "split 1 [5:{0} 1:{2}]");
  std::vector<float> values(48);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  tensor_set(x, values.data(), 0, x.bytes());
  EXPECT_EQ(test::read_floats(shard(x, 0)), std::vector<float>(values.begin(), values.begin() + 40));
  EXPECT_EQ(test::read_floats(shard(x, 1)), std::vector<float>{});
  EXPECT_EQ(test::read_floats(shard(x, 2)), std::vector<float>(values.begin() + 40, values.end()));
  const float change[] = {-1, -2, -3, -4};  // the elements 38 to 41 are on two ranks
  backend->set_async(x, change, 38 * sizeof(float), sizeof(change));
  backend->synchronize();
  std::copy(std::begin(change), std::end(change), values.begin() + 38);
  EXPECT_EQ(test::read_floats(x), values);
  backend->compute_async(*plan);
  backend->synchronize();
  EXPECT_EQ(plan_of(*plan).layout(*loaded.graph.find("z")).to_string(), "split 1 [5:{0} 1:{2}]");
}

/// Plans know tensors by number, but the callback knows them by name.
TEST(MetaConstraints, PlanIsNotReusedIfTheAnswersDiffer) {
  test::CpuMesh mesh(2, {}, with({{"a", Constraint::requirement(SplitState::even(0))}}));
  const auto backend = mesh.device->init();
  const auto make = [](std::string name) {
    auto graph = std::make_unique<Graph>("named");
    graph->output(scale(*graph, graph->input("x", DType::kF32, {8, 1, 1, 1}), {2.0f, 0.0f}, std::move(name)));
    return graph;
  };
  auto first = make("a");
  const auto plan = backend->create_plan(*first);
  EXPECT_EQ(layout_of(*first->find("a")).to_string(), "split 0 [4:{0} 4:{1}]");
  const auto second = make("b"), third = make("a");
  EXPECT_FALSE(backend->update_plan(*plan, *second));
  EXPECT_TRUE(backend->update_plan(*plan, *third));
  first.reset();
  EXPECT_THAT(constraints_text(plan_of(*plan)), HasSubstr("a "));
  EXPECT_EQ(layout_of(*third->find("a")).to_string(), "split 0 [4:{0} 4:{1}]");
}

TEST(MetaConstraints, OfWeightsAreErrorsForNewAndCachedPlans) {
  auto wanted = std::make_shared<std::optional<Constraint>>();
  MetaOptions options;
  options.constraints = [wanted](const Tensor& tensor) { return tensor.name == "w" ? *wanted : std::nullopt; };
  test::CpuMesh mesh(2, {}, std::move(options));
  const test::Loaded loaded(kGraph, *mesh.device);
  Tensor* w = loaded.graph.find("w");
  const auto make = [w] {
    auto graph = std::make_unique<Graph>("product");
    graph->output(mul_mat(*graph, w, graph->input("x", DType::kF32, {8, 6, 1, 1})));
    return graph;
  };
  const auto backend = mesh.device->init();
  const auto first = make(), second = make(), third = make();
  const auto plan = backend->create_plan(*first);
  EXPECT_TRUE(backend->update_plan(*plan, *second));
  // The second state has the wrong number of ratios.
  for (const SplitState& state : {SplitState::mirrored(), SplitState::by_ratio(0, {1, 1, 1})}) {
    *wanted = Constraint::requirement(state);
    EXPECT_FALSE(backend->update_plan(*plan, *third));
    EXPECT_THAT([&] { backend->create_plan(*third); },
                ThrowsMessage<InvalidArgument>(
                    HasSubstr("w f32 [8, 4] has a constraint, but the split-state callback defines the layouts")));
  }
}

TEST(MetaConstraints, OfCopiesOfWeightsAreErrors) {
  test::CpuMesh mesh(2, {}, with({{"w", Constraint::requirement(SplitState::mirrored())}}));
  TensorContext weights;
  Graph graph("copies");
  Tensor* copy = graph.copy_of(*weights.add("w", DType::kF32, {8, 4, 1, 1}), "w");
  graph.output(mul_mat(graph, copy, graph.input("x", DType::kF32, {8, 6, 1, 1})));
  EXPECT_THAT([&] { mesh.device->init()->create_plan(graph); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w f32 [8, 4] has a constraint, but the split-state callback")));
}

TEST(MetaConstraints, AnInputOfAnEarlierRangeKeepsItsLayout) {
  auto state = std::make_shared<SplitState>(SplitState::even(1));
  MetaOptions options;
  options.constraints = [state](const Tensor& tensor) -> std::optional<Constraint> {
    if (tensor.name != "x") return std::nullopt;
    return Constraint::requirement(*state);
  };
  test::CpuMesh mesh(2, {}, std::move(options));
  test::Loaded loaded(kGraph, *mesh.device);
  const auto backend = mesh.device->init();
  const auto first = backend->create_plan(GraphRange{&loaded.graph, 0, 1});
  {
    const auto second = backend->create_plan(GraphRange{&loaded.graph, 1, 2});
    EXPECT_EQ(layout_of(*loaded.graph.find("z")).to_string(), "split 1 [3:{0} 3:{1}]");
  }
  *state = SplitState::even(0);
  EXPECT_THAT(
      [&] {
        backend->create_plan(GraphRange{&loaded.graph, 1, 2});
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("the required layout 'split 0 [4:{0} 4:{1}]' of input x contradicts the layout 'split 1 [3:{0} "
                    "3:{1}]', in which an earlier range")));
}

TEST(MetaConstraints, InvalidAnswersNameTheTensor) {
  const auto error_with = [](Constraint constraint) {
    test::CpuMesh mesh(2, {}, with({{"y", std::move(constraint)}}));
    test::Loaded loaded(kGraph, *mesh.device);
    try {
      mesh.device->init()->create_plan(loaded.graph);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_with(Constraint::requirement(SplitState::split(0, {{3, 2}}))), HasSubstr("split state of y: "));
  EXPECT_THAT(error_with(Constraint::requirement(SplitState::by_ratio(0, {1, 1, 1}))),
              HasSubstr("length 3, expected 2"));
  EXPECT_THAT(error_with(Constraint::hint(SplitState::even(0), 0)), HasSubstr("the hint for y has the factor 0"));
  EXPECT_EQ(error_with(Constraint::hint(SplitState::even(0))), "");
}

TEST(MetaConstraints, ReshardOfACacheReadsWrittenRows) {
  constexpr const char* kCache = R"(
cache %k f32 [8, 6]
input %rows f32 [8, 2]
input %slots6.ids i32 [2]
%written = set_rows(%k, %rows, %slots6.ids)
%part = reshard(%written) {layout="axis 0 [6:{0} 2:{1}]"}
%y = scale(%part) {scale=2}
output %y
)";
  test::CpuMesh mesh(2, {{"k", Layout::split(1, Partition::even(2, 6))}});
  const auto expected = test::on_one(kCache, mesh.other());
  test::Loaded loaded(kCache, *mesh.device);
  const auto backend = mesh.device->init();
  const auto plan = backend->create_plan(loaded.graph);
  EXPECT_EQ(plan_of(*plan).layout(*loaded.graph.find("y")).to_string(), "split 0 [6:{0} 2:{1}]");
  loaded.fill_inputs();
  backend->compute_async(*plan);
  backend->synchronize();
  test::expect_close(test::outputs(loaded.graph), expected);
}

}  // namespace
}  // namespace shoal::meta
