// Tests of graphs that are planned range by range on a meta device. Each range has its own local graphs.
#include <gtest/gtest.h>

#include "meta/device/meta_backend.h"
#include "tests/meta/mesh.h"
#include "tests/sched/rig.h"
#include "tests/support/poison.h"
#include "tests/support/run_case.h"

namespace shoal::meta {
namespace {

Layout even(int axis, int64_t length) {
  return Layout::split(axis, Partition::even(2, length));
}

/// Plans consecutive ranges of the graph. The ranges end before the nodes `ends`, and the last range has the remaining
/// nodes.
std::vector<std::unique_ptr<GraphPlan>> plan_ranges(Backend& backend, Graph& graph, std::vector<int> ends) {
  ends.push_back(static_cast<int>(graph.nodes().size()));
  std::vector<std::unique_ptr<GraphPlan>> plans;
  int begin = 0;
  for (const int end : ends) {
    plans.push_back(backend.create_plan(GraphRange{&graph, begin, end}));
    begin = end;
  }
  return plans;
}

/// For every pair of cuts, the outputs of all ranges equal the outputs of the whole graph on one device.
void check_all_cuts(const std::string& text, const test::Layouts& layouts) {
  for (int ranks : {1, 2}) {
    test::CpuMesh mesh(ranks, ranks == 1 ? test::Layouts{} : layouts);
    const auto expected = test::on_one(text, mesh.other());
    const auto backend = mesh.device->init("threads=1");
    Graph shape;
    TensorContext leaves;
    parse_graph(text, shape, leaves);
    const int nodes = static_cast<int>(shape.nodes().size());
    for (int first = 1; first < nodes; ++first) {
      for (int second = first; second < nodes; ++second) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, cut at " << first << " and " << second);
        test::Loaded loaded(text, *mesh.device);
        auto plans = plan_ranges(*backend, loaded.graph,
                                 first == second ? std::vector<int>{first} : std::vector<int>{first, second});
        for (const auto& plan : plans) test::poison(loaded.graph, *plan);
        for (Tensor* leaf : loaded.weights.tensors()) loaded.fill(*leaf);
        loaded.fill_inputs();
        for (const auto& plan : plans) backend->compute_async(*plan);
        backend->synchronize();
        test::expect_close(test::outputs(loaded.graph), expected);
        while (!plans.empty()) plans.pop_back();
      }
    }
  }
}

TEST(MetaRanges, ViewsMayReadTensorsOfEarlierRanges) {
  check_all_cuts(R"(
input %x f32 [8, 4]
weight %w f32 [8, 6]
%y = mul_mat(%w, %x)
%s = slice(%y) {begin=2, length=2}
%r = scale(%s) {scale=2}
%p = permute(%s) {axes=[1,0,2,3]}
%c = contiguous(%p)
%t = slice(%p) {axis=0, begin=1, length=2}
%d = contiguous(%t)
output %r
output %c
output %d
)",
                 {{"w", even(0, 8)}});
}

TEST(MetaRanges, LaterRangeMayWriteCacheAgain) {
  check_all_cuts(R"(
input %x f32 [4, 2]
input %slots6.i i32 [2]
input %slots6.j i32 [2]
cache %k f32 [4, 6]
%a = set_rows(%k, %x, %slots6.i)
%z = scale(%x) {scale=3}
%b = set_rows(%a, %z, %slots6.j)
%s = slice(%b) {axis=1, begin=1, length=3}
%c = scale(%s) {scale=2}
output %c
)",
                 {{"k", even(0, 4)}});
}

TEST(MetaRanges, LaterRangeMayWriteSliceOfCacheAgain) {
  for (const test::Layouts& layouts : {test::Layouts{{"k", even(0, 4)}}, test::Layouts{{"k", even(1, 6)}}}) {
    check_all_cuts(R"(
input %x f32 [4, 2]
cache %k f32 [4, 6]
%a = set_slice(%k, %x) {begin=1}
%z = scale(%x) {scale=3}
%b = set_slice(%a, %z) {begin=2}
%s = slice(%b) {axis=1, begin=1, length=3, step=2}
%c = scale(%s) {scale=2}
output %c
)",
                   layouts);
  }
}

// The sum adds a mirrored tensor and a view of a partial cache. Ranks above 0 use the view as their addend of the sum.
// Later writes into the cache must not change this addend.
TEST(MetaRanges, AddendInCacheIsCopiedBeforeNextWrite) {
  const std::string text = R"(
input %x f32 [8, 1]
input %slots1.i i32 [1]
weight %w f32 [8, 4]
weight %m f32 [4, 1]
cache %k f32 [4, 1]
%v = slice(%k) {axis=1, begin=0, length=1}
%s = add(%m, %v)
%p = mul_mat(%w, %x)
%n = set_rows(%k, %p, %slots1.i)
output %s
output %n
)";
  const test::Layouts layouts{{"w", even(0, 8)}, {"k", Layout::partial()}};
  check_all_cuts(text, layouts);
  test::CpuMesh mesh(2, layouts);
  test::Loaded loaded(text, *mesh.device);
  const auto plan = mesh.device->init("threads=1")->create_plan(loaded.graph);
  EXPECT_TRUE(plan_of(*plan).layout(*loaded.graph.find("s")).is_partial());
}

// The caller writes the input just before the first segment that reads it. The second range also reads the input. So
// the first range must not reuse the memory of the input.
TEST(MetaRanges, LateInputIsNotOverwrittenBeforeLaterRange) {
  const std::string text = R"(
input %x f32 [64]
input %e f32 [64]
weight %w f32 [64, 64]
%a = mul_mat(%w, %x)
%b = add(%a, %e)
%c = mul_mat(%w, %b)
%d = mul_mat(%w, %c)
%f = mul_mat(%w, %d)
%g = add(%f, %e)
output %g
)";
  test::CpuMesh mesh(2, {{"w", even(1, 64)}});
  const auto backend = mesh.device->init("threads=1");
  test::Loaded loaded(text, *mesh.device);
  Tensor* late = loaded.graph.find("e");
  auto first = backend->create_plan(GraphRange{&loaded.graph, 0, 5}, {.cuts = {1}, .late = {{late, 1}}});
  auto second = backend->create_plan(GraphRange{&loaded.graph, 5, 6});
  test::poison(loaded.graph, *first);
  test::poison(loaded.graph, *second);
  for (Tensor* leaf : loaded.weights.tensors()) loaded.fill(*leaf);
  loaded.fill(*loaded.graph.find("x"));
  backend->compute_async(*first, 0, 1);
  backend->synchronize();
  loaded.fill(*late);
  backend->compute_async(*first, 1, 2);
  backend->compute_async(*second);
  backend->synchronize();
  test::expect_close(test::outputs(loaded.graph), test::on_one(text, mesh.other()));
  second.reset();
}

}  // namespace
}  // namespace shoal::meta
