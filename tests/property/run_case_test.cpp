// Tests the support code of the property tests. This code must detect wrong results.
#include "tests/support/run_case.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/text.h"
#include "meta/meta.h"
#include "tests/meta/layouts.h"
#include "tests/support/poison.h"

namespace shoal::test {
namespace {

using meta::Layout;
using meta::parse_partition;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Device& device(int number) {
  return Registry::instance().device("CPU" + std::to_string(number));
}

/// One graph runs on several backends, one after the other. After each run, the view of a weight must not refer to
/// memory of the last backend.
TEST(GraphRun, ViewsOfWeightsHaveNoMemoryAfterRun) {
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

std::unique_ptr<meta::MetaDevice> mesh(int ranks, meta::SplitStateCallback callback) {
  std::vector<Device*> members;
  for (int i = 0; i < ranks; ++i) members.push_back(&device(i));
  return meta::MetaDevice::create(std::move(members), std::move(callback));
}

TEST(Poison, IsNaNOnEveryRank) {
  TensorContext weights;
  Graph graph;
  parse_graph("input %x f32 [8, 3]\nweight %w f32 [8, 6]\n%y = mul_mat(%w, %x)\noutput %y\n", graph, weights);
  const auto meta =
      mesh(3, [](const Tensor&) { return meta::SplitState::split(0, parse_partition(3, "5:{0} 3:{2}")); });
  const auto memory = allocate_tensors(weights.tensors(), meta->buffer_type(), Usage::kWeights);
  const auto backend = meta->init();
  const auto plan = backend->create_plan(graph);
  poison(graph, *plan);
  for (const char* name : {"x", "y"}) {
    for (int rank = 0; rank < 3; ++rank) {
      for (const double value : read_values(meta::shard(*graph.find(name), rank))) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(Disagreement, IsFoundAmongMirroredCopiesAndAmongOwnersOfOneRun) {
  TensorContext weights;
  Tensor* copies = weights.add("copies", DType::kF16, {4, 3, 1, 1});
  Tensor* shared = weights.add("shared", DType::kF32, {4, 3, 2, 1});
  const auto meta = mesh(3, [&](const Tensor& tensor) {
    if (&tensor == copies) return meta::SplitState::mirrored();
    return meta::SplitState::split(1, parse_partition(3, "1:{0} 1:{1,2} 1:{2}"));
  });
  const auto memory = allocate_tensors(weights.tensors(), meta->buffer_type(), Usage::kWeights);
  for (Tensor* tensor : weights.tensors()) {
    write_values(*tensor, decode(tensor->dtype, leaf_data(*tensor, 1), tensor->elements()));
    EXPECT_EQ(disagreement(*tensor, 0.0), "");
  }
  Tensor& copy = meta::shard(*copies, 2);
  Values values = read_values(copy);
  values[5] += 0.01;
  write_values(copy, values);
  EXPECT_EQ(disagreement(*copies, 1.0), "%copies, mirrored: rank 2 differs from rank 0 at byte 10");

  Tensor& part = meta::shard(*shared, 2);  // rank 2 owns rows 1 and 2 of the two matrices in `shared`
  values = read_values(part);
  values[8] += 0.5;
  write_values(part, values);
  EXPECT_THAT(disagreement(*shared, 1e-4), testing::HasSubstr("element 16 is"));
  EXPECT_EQ(disagreement(*shared, 1.0), "");
  values[8] = kNaN;
  write_values(part, values);
  EXPECT_THAT(disagreement(*shared, 1.0), testing::HasSubstr("nan on rank 2"));
}

Results of(Values values, bool integers = false) {
  return {{"y", {std::move(values), integers}}};
}

TEST(Difference, IsRelativeToLargestFiniteValue) {
  EXPECT_EQ(difference(of({1, -9.9}), of({1.009, -9.9}), 1e-3), "");
  EXPECT_EQ(difference(of({1, -9.9}), of({1.1, -9.9}), 1e-3), "%y[0]: expected 1, got 1.1 (10 x tolerance)");
  EXPECT_NE(difference(of({1, kInfinity}), of({2, kInfinity}), 1e-3), "");
  EXPECT_NE(difference(of({1, kNaN}), of({2, kNaN}), 1e-3), "");
  EXPECT_THAT(difference(of({1, 2, 3}), of({1.5, 2.9, 3}), 1e-3), testing::HasSubstr("%y[1]"))
      << "the message names the largest difference";
}

TEST(Difference, NaNAndInfinitiesMustMatch) {
  const double kValues[] = {kNaN, kInfinity, -kInfinity, 1.0};
  for (const double expected : kValues) {
    for (const double got : kValues) {
      const bool same = std::isnan(expected) ? std::isnan(got) : expected == got;
      EXPECT_EQ(difference(of({expected, 1}), of({got, 1}), 4e-2).empty(), same) << expected << " and " << got;
    }
  }
}

TEST(Difference, ZeroToleranceRequiresEquality) {
  EXPECT_EQ(difference(of({0.5, -0.0}), of({0.5, 0.0}), 0.0), "");
  EXPECT_NE(difference(of({0.5}), of({std::nextafter(0.5, 1.0)}), 0.0), "");
  EXPECT_NE(difference(of({100}, true), of({101}, true), 4e-2), "");
}

TEST(Difference, DetectsMissingNamesAndValues) {
  EXPECT_EQ(difference(of({1}), {}, 1.0), "%y is missing");
  EXPECT_EQ(difference(of({1}), of({1, 2}), 1.0), "%y has 2 values, not 1");
}

constexpr const char* kNorm = "weight %w f32 [8, 3]\n%s = scale(%w) {scale=2}\n%y = rms_norm(%s)\noutput %y\n";

std::vector<Device*> devices(int count) {
  std::vector<Device*> found;
  for (int i = 0; i < count; ++i) found.push_back(&device(i));
  return found;
}

TEST(CheckCase, ReportsWrongValues) {
  const RandomCase one{7, 2, kNorm, {{"w", Layout::split(0, parse_partition(2, "5:{0} 3:{1}"))}}, {}, kTight};
  EXPECT_EQ(check_case(one, devices(2)), "");
  const auto too_much = [](const Tensor& node) {
    return node.op == Op::kRmsNorm ? std::optional<std::string>("a b c d -> a b c d") : meta::rule_text(node);
  };
  EXPECT_THAT(check_case(one, devices(2), too_much), testing::HasSubstr("%y["));
}

TEST(CheckCase, ReportsErrors) {
  const RandomCase one{7, 2, kNorm, {{"w", Layout::split(0, parse_partition(2, "5:{0} 4:{1}"))}}, {}, kTight};
  EXPECT_THAT(check_case(one, devices(2)), testing::HasSubstr("split state of w"));
}

TEST(Shrink, KeepsOnlyNodesNeededToFail) {
  int shrunk = 0;
  for (uint64_t seed = 0; seed < 200 && shrunk < 20; ++seed) {
    const RandomCase one = random_case(seed);
    const auto fails = [](const RandomCase& next) { return next.graph.find(" = rms_norm(") != std::string::npos; };
    if (!fails(one)) continue;
    const RandomCase small = shrink(one, fails);
    ++shrunk;
    SCOPED_TRACE(to_string(small));
    EXPECT_TRUE(fails(small));
    EXPECT_TRUE(small.layouts.empty());
    EXPECT_EQ(small.seed, one.seed);
    EXPECT_EQ(std::count(small.graph.begin(), small.graph.end(), '\n'), 3)
        << "one line each for a leaf, the node and the output";
  }
  EXPECT_EQ(shrunk, 20);
}

TEST(Shrink, KeepsOnlyLayoutsNeededToFail) {
  const RandomCase one = random_case(3);
  const auto fails = [](const RandomCase& next) {
    return std::any_of(next.layouts.begin(), next.layouts.end(), [&](const auto& entry) {
      return entry.second.is_split() && next.graph.find("%" + entry.first + " ") != std::string::npos;
    });
  };
  ASSERT_TRUE(fails(one));
  const RandomCase small = shrink(one, fails);
  EXPECT_TRUE(fails(small)) << to_string(small);
  EXPECT_EQ(small.layouts.size(), 1u);
}

TEST(RandomCases, DependOnlyOnSeed) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const RandomCase one = random_case(seed), other = random_case(seed);
    EXPECT_EQ(one.graph, other.graph);
    EXPECT_EQ(one.layouts, other.layouts);
    EXPECT_EQ(one.segments, other.segments);
    EXPECT_EQ(one.ranks, other.ranks);
    EXPECT_EQ(one.tolerance, other.tolerance);
    EXPECT_NE(to_string(one), to_string(random_case(seed + 1)));
  }
}

}  // namespace
}  // namespace shoal::test
