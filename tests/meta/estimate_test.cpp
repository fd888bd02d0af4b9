#include "meta/estimate.h"

#include <gmock/gmock.h>

#include "graph/error.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {
TEST(Estimate, EveryRankTakesTheWholeTime) {
  MachineModel m = parse_machine(
      R"({"version":1,"devices":[{"name":"GPU","count":2,"memory":80e9,"bandwidth":2e12,"rates":{"default":200e12}}]})",
      "x");
  Graph graph;
  TensorContext weights;
  ShardStore store(2);
  parse_graph(test::llama_graph(2), graph, weights);
  auto layouts = test::llama_layouts({3, 1});
  for (const Tensor* leaf : weights.tensors())
    store.declare(*leaf, layouts.contains(leaf->name) ? layouts.at(leaf->name) : Layout::mirrored());
  const std::vector<Device*> devices(2, &Registry::instance().device("NULL0"));
  Plan plan = make_plan(graph, store, devices);
  std::vector<int> d{0, 1};
  Estimate e = estimate(plan, 0, 1, m, d, {5, true, true});
  for (const RankTime& rank : e.ranks) EXPECT_NEAR(rank.total(), e.seconds, 1e-15);
}
}  // namespace
}  // namespace shoal::meta
