// Tests redistribute() for random pairs of layouts. The local graphs of redistribute() run on the CPU. A reference
// implementation replaces the collectives. The tests compare the result of each rank element by element.
#include "meta/plan/redistribute.h"

#include <gtest/gtest.h>

#include <numeric>

#include "devices/allocate.h"
#include "graph/text.h"
#include "meta/check/shard_elements.h"
#include "tests/meta/layouts.h"
#include "tests/support/random_graph.h"

namespace shoal::meta {
namespace {

using test::random_layout;

using Values = std::vector<float>;

Values read(const Tensor& tensor) {
  Values values(static_cast<size_t>(tensor.elements()));
  tensor_get(tensor, values.data(), 0, values.size() * sizeof(float));
  return values;
}

void write(Tensor& tensor, const Values& values) {
  tensor_set(tensor, values.data(), 0, values.size() * sizeof(float));
}

/// Reference implementation of the collectives.
void run_collective(const std::vector<Tensor*>& nodes) {
  const size_t n = nodes.size();
  std::vector<Values> in, out(n);
  for (const Tensor* node : nodes) in.push_back(read(*node->src[0]));
  const auto& counts = std::get<CollectiveParams>(nodes[0]->params).counts;
  const auto sum = [&] {
    Values total(in[0].size(), 0.0f);
    for (const Values& one : in) std::transform(one.begin(), one.end(), total.begin(), total.begin(), std::plus<>());
    return total;
  };
  for (size_t r = 0; r < n; ++r) {
    if (nodes[0]->op == Op::kAllReduce) out[r] = sum();
    if (nodes[0]->op == Op::kAllGather) {
      for (const Values& one : in) out[r].insert(out[r].end(), one.begin(), one.end());
    }
    if (nodes[0]->op == Op::kReduceScatter) {
      const Values total = sum();
      const auto begin =
          total.begin() + std::accumulate(counts.begin(), counts.begin() + static_cast<long>(r), int64_t{0});
      out[r].assign(begin, begin + counts[r]);
    }
    if (nodes[0]->op == Op::kAllToAll) {
      for (size_t s = 0; s < n; ++s) {
        const auto row = counts.begin() + static_cast<long>(s * n);
        const auto begin = in[s].begin() + std::accumulate(row, row + static_cast<long>(r), int64_t{0});
        out[r].insert(out[r].end(), begin, begin + row[static_cast<long>(r)]);
      }
    }
  }
  for (size_t r = 0; r < n; ++r) write(*nodes[r], out[r]);
}

using Memory = std::vector<GraphBuffers>;

/// Runs the builder's graphs with the given inputs. Returns the memory of `outputs`.
Memory run(LocalBuilder& builder, const Locals& inputs, const Locals& outputs, const std::vector<Values>& data) {
  Device& device = Registry::instance().device("CPU0");
  const auto backend = device.init("threads=1");
  const auto steps = builder.finish();
  Memory memory;
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    builder.graph(rank).output(outputs[rank]);
    memory.push_back(allocate_graph(whole(builder.graph(rank)), device));
    write(*inputs[rank], data[rank]);
  }
  for (const Step& step : steps) {
    std::vector<Tensor*> nodes;
    for (int rank = 0; rank < builder.ranks(); ++rank) {
      const NodeRange& range = step.ranges[rank];
      if (step.kind == StepKind::kCollective) {
        nodes.push_back(builder.graph(rank).nodes()[range.begin]);
      } else if (range.begin < range.end) {
        const auto plan = backend->create_plan(GraphRange{&builder.graph(rank), range.begin, range.end});
        backend->compute_async(*plan);
        backend->synchronize();
      }
    }
    if (!nodes.empty()) run_collective(nodes);
  }
  return memory;
}

Values pick(const Values& global, const std::vector<int64_t>& elements) {
  Values values;
  for (int64_t element : elements) values.push_back(global[static_cast<size_t>(element)]);
  return values;
}

/// Divides the global values into the shards of a layout. The addends of a Partial layout differ between ranks and are
/// exact in f32.
std::vector<Values> shards(const Values& global, const Shape& shape, const Layout& layout, int ranks) {
  std::vector<Values> out;
  for (int rank = 0; rank < ranks; ++rank) {
    Values values = pick(global, shard_elements(shape, layout, rank));
    if (layout.is_partial()) {
      for (float& value : values) value = rank == 0 ? value - static_cast<float>(ranks - 1) : 1.0f;
    }
    out.push_back(std::move(values));
  }
  return out;
}

void expect_redistributed(const Shape& shape, const Layout& from, const Layout& to, int ranks) {
  SCOPED_TRACE(shoal::to_string(shape) + " from " + from.to_string() + " to " + to.to_string());
  Values global(static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  std::iota(global.begin(), global.end(), 1.0f);
  LocalBuilder builder(ranks, "test");
  Locals inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(builder.graph(rank).input("x", DType::kF32, from.local_shape(shape, rank)));
  }
  Locals results = redistribute(builder, inputs, shape, from, to, "x");
  for (int rank = 0; rank < ranks; ++rank) results[rank] = contiguous(builder.graph(rank), results[rank]);
  const Memory memory = run(builder, inputs, results, shards(global, shape, from, ranks));
  Values sum(global.size(), 0.0f);
  for (int rank = 0; rank < ranks; ++rank) {
    ASSERT_EQ(results[rank]->shape, to.local_shape(shape, rank));
    const Values values = read(*results[rank]);
    if (to.is_partial()) {
      std::transform(values.begin(), values.end(), sum.begin(), sum.begin(), std::plus<>());
    } else {
      ASSERT_EQ(values, pick(global, shard_elements(shape, to, rank))) << "rank " << rank;
    }
  }
  if (to.is_partial()) {
    ASSERT_EQ(sum, global);
  }
}

TEST(Redistribute, ConvertsBetweenAnyTwoLayouts) {
  std::mt19937_64 rng(11);
  for (int round = 0; round < 1500; ++round) {
    const int ranks = 1 + static_cast<int>(rng() % 4);
    TensorContext context;
    const auto length = [&] { return static_cast<int64_t>(1 + rng() % 5); };
    const Tensor* tensor =
        context.add("x", DType::kF32, {length(), length(), length(), 1 + static_cast<int64_t>(rng() % 2)});
    const Layout from = random_layout(rng, *tensor, ranks, true);
    const Layout to = random_layout(rng, *tensor, ranks, true);
    ASSERT_NO_FATAL_FAILURE(expect_redistributed(tensor->shape, from, to, ranks)) << "round " << round;
  }
}

TEST(Redistribute, GatherOfOutermostAxisInRankOrderNeedsNoReordering) {
  LocalBuilder builder(2, "test");
  const Layout from = Layout::split(0, parse_partition(2, "6:{0} 2:{1}"));
  Locals inputs;
  for (int rank = 0; rank < 2; ++rank) {
    inputs.push_back(builder.graph(rank).input("x", DType::kF32, from.local_shape({8, 1, 1, 1}, rank)));
  }
  redistribute(builder, inputs, {8, 1, 1, 1}, from, Layout::mirrored(), "x");
  const auto steps = builder.finish();
  ASSERT_EQ(steps.size(), 1u);  // one all_gather and no other node
  EXPECT_EQ(steps[0].collective, Collective::kAllGather);
}

}  // namespace
}  // namespace shoal::meta
