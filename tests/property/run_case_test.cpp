// The support that property tests stand on: it must notice what is wrong.
#include "tests/support/run_case.h"

#include <gtest/gtest.h>

#include "devices/cpu/cpu_device.h"
#include "graph/text.h"
#include "tests/support/poison.h"

namespace shoal::test {
namespace {

Device& device(int number) {
  return Registry::instance().device("CPU" + std::to_string(number));
}

/// One graph on one backend after the other: a view of a weight must not keep the first one's memory.
TEST(GraphRun, PlacesViewsOfWeightsAnew) {
  TensorContext weights;
  Graph graph;
  parse_graph("weight %w f32 [4, 6]\n%s = slice(%w) {axis=1, begin=2, length=3}\n%y = scale(%s) {scale=2}\noutput %y\n",
              graph, weights);
  Tensor* view = graph.find("s");
  TensorValues leaves = random_leaves(graph, 1);
  TensorValues first;
  for (int number : {0, 1, 0}) {
    const auto backend = device(number).init("threads=1");
    {
      GraphRun run(*backend, graph, leaves);
      run.run();
      EXPECT_EQ(&view->buffer->type().device(), &device(number));
      first.emplace(graph.find("y"), read_values(*graph.find("y")));
      EXPECT_EQ(read_values(*graph.find("y")), first.at(graph.find("y")));
    }
    EXPECT_EQ(view->buffer, nullptr);
    EXPECT_EQ(view->data, nullptr);
  }
}

}  // namespace
}  // namespace shoal::test
