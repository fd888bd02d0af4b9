// Tests of top_k and argmax on split rows. The candidates of each rank are the best elements that the rank owns. Every
// split gives the results of one device. The values include ties, infinities and NaN.
#include "meta/plan/candidates.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "meta/device/meta_backend.h"
#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"
#include "tests/support/tensors.h"

namespace shoal::meta {
namespace {

struct Selection {
  explicit Selection(int64_t length, int64_t k, Shape rest = {1, 1, 1, 1}) {
    Tensor* x = graph.input("x", DType::kF32, {length, rest[0], rest[1], rest[2]});
    top = top_k(graph, x, k);
    best = argmax(graph, x);
  }
  Graph graph;
  Tensor *top, *best;
};

std::string candidates(const Tensor& node, int ranks, std::string_view row) {
  const auto found = candidates_of(node, parse_partition(ranks, row));
  return found ? found->to_string() : "none";
}

TEST(Candidates, AreBestElementsOfEachRank) {
  const Selection s(40, 5);
  EXPECT_EQ(candidates(*s.top, 2, "30:{0} 10:{1}"), "5:{0} 5:{1}");
  EXPECT_EQ(candidates(*s.best, 2, "30:{0} 10:{1}"), "1:{0} 1:{1}");
  EXPECT_EQ(candidates(*s.top, 3, "3:{2} 30:{0} 7:{1}"), "3:{2} 5:{0} 5:{1}") << "rank 2 owns only three elements";
  EXPECT_EQ(candidates(*s.top, 3, "39:{0} 1:{2}"), "5:{0} 1:{2}") << "rank 1 owns no elements";
  EXPECT_EQ(candidates(*s.top, 2, "40:{1}"), "5:{1}");
  EXPECT_EQ(candidate_bytes(*s.top, parse_partition(2, "5:{0} 5:{1}")), 10 * 2 * 4);
  const Selection many(40, 5, {3, 2, 1});
  EXPECT_EQ(candidate_bytes(*many.top, parse_partition(2, "5:{0} 5:{1}")), 6 * 10 * 2 * 4);
}

TEST(Candidates, NeedOneUnsharedRunPerRank) {
  const Selection s(40, 5);
  EXPECT_EQ(candidates(*s.top, 2, "10:{0} 20:{1} 10:{0}"), "none");
  EXPECT_EQ(candidates(*s.top, 2, "10:{0} 30:{0,1}"), "none");
  EXPECT_EQ(candidates(*Selection(40, 0).top, 2, "30:{0} 10:{1}"), "none");
  constexpr int64_t kMost = 1 << 24;
  EXPECT_EQ(candidates(*Selection(kMost, 2).top, 2, "16777215:{0} 1:{1}"), "2:{0} 1:{1}");
  EXPECT_EQ(candidates(*Selection(kMost + 1, 2).top, 2, "16777216:{0} 1:{1}"), "none")
      << "f32 cannot represent 2^24 + 1";
}

/// Indices of the k best values of each row. NaN is less than every other value. Equal values are in the order of their
/// indices.
std::vector<double> best_of(const test::Values& values, int64_t length, int64_t k) {
  const auto below = [](double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; };
  std::vector<double> all;
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(length)) {
    std::vector<int64_t> order(static_cast<size_t>(length));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return below(values[begin + static_cast<size_t>(b)], values[begin + static_cast<size_t>(a)]);
    });
    all.insert(all.end(), order.begin(), order.begin() + k);
  }
  return all;
}

/// A matcher for the k best values of each row. `values` contains the elements of all rows.
auto best_values(const test::Values& values, int64_t length, int64_t k) {
  test::Values best = best_of(values, length, k);
  for (size_t i = 0; i < best.size(); ++i) {
    const size_t row = i / static_cast<size_t>(k);
    best[i] = values[row * static_cast<size_t>(length) + static_cast<size_t>(best[i])];
  }
  return testing::Pointwise(testing::NanSensitiveDoubleEq(), best);
}

/// A random partition. Most partitions have one run per rank, in random rank order. A run may be empty. Some partitions
/// have several runs per rank. In some partitions, rank 0 is an additional owner of every run.
Partition any_partition(std::mt19937_64& random, int ranks, int64_t length) {
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<int> order(static_cast<size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Run> runs;
  const bool several = pick(5) == 0, shared = pick(5) == 0;
  int64_t rest = length;
  for (size_t i = 0; rest > 0; ++i) {
    const bool last = !several && i + 1 == order.size();
    const int64_t part = last ? rest : std::min(rest, pick(3) == 0 ? pick(2) : pick(length) + 1);
    Owners owners{order[i % order.size()]};
    if (shared && owners[0] != 0) owners.insert(owners.begin(), 0);
    runs.push_back({part, std::move(owners)});
    rest -= part;
  }
  return Partition(ranks, std::move(runs));
}

test::Values random_values(std::mt19937_64& random, int64_t count) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const double few[] = {0.0, -0.0, 1.0, 1.0, -2.5, kInfinity, -kInfinity, kNan};
  const bool only_nan = random() % 20 == 0;
  test::Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(only_nan ? kNan : few[random() % std::size(few)]);
  return values;
}

class SplitSelection : public testing::TestWithParam<int> {};

TEST_P(SplitSelection, SelectsSameElementsAsOneDeviceDespiteTiesAndNaN) {
  const int ranks = GetParam();
  std::mt19937_64 random(static_cast<uint64_t>(ranks));
  int small_gathers = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t length = 1 + static_cast<int64_t>(random() % 70), b = 1 + random() % 3, c = 1 + random() % 2;
    const int64_t k =
        1 + static_cast<int64_t>(random() % static_cast<uint64_t>(trial % 2 ? length : std::min<int64_t>(length, 4)));
    const char* dtype = std::array{"f32", "f16", "bf16"}[random() % 3];
    // scale() makes an activation from the weight. The activation has the layout of the weight or a cheaper layout.
    const std::string text = fmt::format(
        "weight %x {} [{}, {}, {}]\n%s = scale(%x) {{scale=1}}\n%top = top_k(%s) {{k={}}}\n%best = argmax(%s)\n"
        "%e = reshape(%s) {{shape=[1,{},{},{}]}}\n%values = get_rows(%e, %top)\n%value = get_rows(%e, %best)\n"
        "output %top\noutput %best\noutput %values\noutput %value\n",
        dtype, length, b, c, k, length, b, c);
    const Partition row = any_partition(random, ranks, length);
    SCOPED_TRACE(text + row.to_string());
    const test::CpuMesh mesh(ranks, {{"x", Layout::split(0, row)}});
    test::Loaded loaded(text, *mesh.device);
    const test::Values values = random_values(random, length * b * c);
    test::write_values(*loaded.weights.tensors()[0], values);
    const auto backend = mesh.device->init();
    const auto plan = backend->create_plan(loaded.graph);
    backend->compute_async(*plan);
    backend->synchronize();
    EXPECT_EQ(test::read_values(*loaded.graph.find("top")), best_of(values, length, k));
    EXPECT_EQ(test::read_values(*loaded.graph.find("best")), best_of(values, length, 1));
    EXPECT_THAT(test::read_values(*loaded.graph.find("values")), best_values(values, length, k));
    EXPECT_THAT(test::read_values(*loaded.graph.find("value")), best_values(values, length, 1));
    const Plan planned = make_plan(loaded.graph, mesh.device->shards(), mesh.members);
    for (const Step& step : planned.steps) {
      if (step.kind != StepKind::kCollective) continue;
      const bool small = step.tensor.ends_with(".candidates");
      small_gathers += small;
      EXPECT_EQ(step.collective, Collective::kAllGather);
      EXPECT_TRUE(!small || step.bytes < static_cast<int64_t>(loaded.graph.find("s")->bytes())) << step.bytes;
    }
  }
  EXPECT_GT(small_gathers, 20);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SplitSelection, testing::Values(2, 3, 5));

}  // namespace
}  // namespace shoal::meta
