// Tests of plans that run in segments (PlanOptions::cuts). Between two segments, the caller reads nodes in
// PlanOptions::shown and writes inputs in PlanOptions::late. Results on a meta device must equal the results on one CPU
// device.
#include <gmock/gmock.h>

#include <random>

#include "base/error.h"
#include "meta/device/meta_backend.h"
#include "tests/meta/layouts.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"
#include "tests/support/poison.h"
#include "tests/support/run_case.h"
#include "tests/support/tensors.h"

namespace shoal::meta {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// The segment in which a node runs.
int segment_of(const PlanOptions& options, int node) {
  const auto after = std::upper_bound(options.cuts.begin(), options.cuts.end(), node);
  return static_cast<int>(after - options.cuts.begin());
}

/// For each input, the first segment that uses the input, or 0 if no segment uses it.
std::map<const Tensor*, int> first_uses(const Graph& graph, const PlanOptions& options) {
  std::map<const Tensor*, int> uses;
  for (const Tensor* node : graph.nodes()) {
    for (const Tensor* source : node->src) {
      if (source != nullptr && source->role == Role::kInput) uses.try_emplace(source, segment_of(options, node->id));
    }
  }
  for (const Tensor* input : graph.inputs()) uses.try_emplace(input, 0);
  return uses;
}

/// A random case that runs in random segments.
class Pieces {
 public:
  explicit Pieces(uint64_t seed) : one_(test::random_case(seed)), rng_(seed), mesh_(one_.ranks, one_.layouts) {}

  /// Returns "" if every node in PlanOptions::shown has the same value as on one device. Otherwise returns a
  /// description of the difference.
  std::string check(bool on_meta) {
    const test::Results expected = all_nodes();
    Device& device = on_meta ? static_cast<Device&>(*mesh_.device) : mesh_.other();
    test::Loaded loaded(one_.graph, device, one_.seed);
    const auto backend = device.init("threads=1");
    ComputeArena arena(*backend);
    PlanOptions options = random_options(loaded.graph);
    if (pick(2) == 0) options.arena = &arena;
    const auto plan = backend->create_plan(loaded.graph, options);
    if (on_meta) check_memory(*plan);
    test::Results found;
    for (int run = 0; run < 2; ++run) {
      test::poison(loaded.graph, *plan);
      for (Tensor* leaf : loaded.weights.tensors()) loaded.fill(*leaf);
      run_segments(loaded, *backend, *plan, options, found);
    }
    test::Results wanted;
    for (const auto& [name, result] : found) wanted[name] = expected.at(name);
    return test::difference(wanted, found, one_.tolerance);
  }

 private:
  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }

  /// The results of all nodes on one device. Every node is an output of the graph.
  test::Results all_nodes() {
    test::Loaded loaded(one_.graph, mesh_.other(), one_.seed);
    for (Tensor* node : loaded.graph.nodes()) loaded.graph.output(node);
    const auto backend = mesh_.other().init("threads=1");
    const auto plan = backend->create_plan(loaded.graph);
    loaded.fill_inputs();
    backend->compute_async(*plan);
    backend->synchronize();
    test::Results results;
    for (const Tensor* node : loaded.graph.nodes()) results[node->name] = result(*node);
    return results;
  }
  static test::Result result(const Tensor& tensor) {
    return {test::read_values(tensor), tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64};
  }

  PlanOptions random_options(Graph& graph) {
    PlanOptions options;
    const int rate = 1 + pick(6);
    for (int i = 1; i < static_cast<int>(graph.nodes().size()); ++i) {
      if (pick(rate) == 0) options.cuts.push_back(i);
    }
    for (const Tensor* node : graph.nodes()) {
      // `shown` contains no caches. The test reads the expected values after the whole run, when later nodes have
      // already changed the caches.
      if (!node->storage()->is_persistent() && pick(3) == 0) options.shown.push_back(node);
    }
    const auto uses = first_uses(graph, options);
    for (const Tensor* input : graph.inputs()) {
      if (pick(2) == 0) options.late.push_back({input, pick(uses.at(input) + 1)});
    }
    return options;
  }

  static void check_memory(const GraphPlan& plan) {
    const auto bytes = allocated_per_rank(plan);
    size_t sum = 0;
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      EXPECT_EQ(bytes[rank], plan_of(plan).ranks[rank].memory.compute) << rank;
      sum += bytes[rank];
    }
    EXPECT_EQ(plan.allocated_bytes(), sum);
  }

  void run_segments(const test::Loaded& loaded, Backend& backend, GraphPlan& plan, const PlanOptions& options,
                    test::Results& found) {
    const auto write = [&](int segment) {
      for (Tensor* input : loaded.graph.inputs()) {
        const auto late = std::find_if(options.late.begin(), options.late.end(),
                                       [&](const LateInput& one) { return one.input == input; });
        if (segment == (late != options.late.end() ? late->segment : 0)) loaded.fill(*input);
      }
    };
    ASSERT_EQ(plan.segments(), static_cast<int>(options.cuts.size()) + 1);
    write(0);
    for (int segment = 0; segment < plan.segments(); ++segment) {
      backend.compute_async(plan, segment, segment + 1);
      backend.synchronize();
      write(segment + 1);  // written before the results are read, because values of `shown` are valid until the next
                           // segment runs
      for (const Tensor* node : options.shown) {
        if (segment_of(options, node->id) == segment) found[node->name] = result(*node);
      }
    }
    for (const Tensor* node : loaded.graph.nodes()) {
      if (node->is_output) found[node->name] = result(*node);
    }
  }

  test::RandomCase one_;
  std::mt19937_64 rng_;
  test::CpuMesh mesh_;
};

TEST(Segments, ValuesReadBetweenSegmentsEqualValuesOfOneDevice) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    for (bool on_meta : {true, false}) {
      SCOPED_TRACE(fmt::format("seed {}, {}", seed, on_meta ? "meta device" : "one device"));
      EXPECT_EQ(Pieces(seed).check(on_meta), "");
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// Cuts the decoder at every node and at every pair of nodes.
TEST(Segments, LlamaLayerMayBeCutAnywhere) {
  const test::CpuMesh mesh(2, test::llama_layouts({3, 1}));
  const auto backend = mesh.device->init("threads=1");
  std::vector<float> expected;
  const int count = 31;
  for (int first = 0; first < count; first += 3) {
    for (int second = first + 1; second < count; second += 5) {
      SCOPED_TRACE(fmt::format("cuts {} {}", first, second));
      test::Loaded loaded(test::llama_graph(2), *mesh.device);
      PlanOptions options;
      if (first > 0) options.cuts = {first, second};
      const auto plan = backend->create_plan(loaded.graph, options);
      loaded.fill_inputs();
      for (int segment = 0; segment < plan->segments(); ++segment) backend->compute_async(*plan, segment, segment + 1);
      backend->synchronize();
      const auto got = test::read_floats(*loaded.graph.find("logits"));
      if (expected.empty()) expected = got;
      EXPECT_EQ(got, expected);
    }
  }
}

TEST(Segments, ArePrintedInPlan) {
  const test::CpuMesh mesh(2, {{"w", Layout::split(1, parse_partition(2, "3:{0} 1:{1}"))},
                               {"v", Layout::split(0, parse_partition(2, "3:{0} 1:{1}"))}});
  test::Loaded loaded(R"(
input %x f32 [8]
weight %w f32 [8, 4]
weight %v f32 [4, 8]
%a = mul_mat(%w, %x)
%b = reshape(%a) {shape=[4,1,1,1]}
%c = mul_mat(%v, %b)
%d = unary(%c) {kind=silu}
output %d
)",
                      *mesh.device);
  const auto backend = mesh.device->init("threads=1");
  const auto plan = backend->create_plan(loaded.graph, {{1, 2, 3}});
  EXPECT_EQ(plan_of(*plan).segments, (std::vector<int>{0, 1, 1, 2}));
  EXPECT_EQ(steps_text(plan_of(*plan)), R"(steps (nodes of the local graphs)
  segment 0
     0  compute         CPU0: 0, CPU1: 0
  segment 1
  segment 2
     1  compute         CPU0: 2, CPU1: 2
  segment 3
     2  all_reduce      c  f32 x 8  32 bytes
     3  compute         CPU0: 4, CPU1: 4
)");
  EXPECT_THAT(to_json(plan_of(*plan)), HasSubstr("\"segments\""));
  loaded.fill_inputs();
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
}

/// Each segment has one node in PlanOptions::shown and one input in PlanOptions::late. Later segments reuse the memory
/// of the node and of the input.
TEST(Segments, LaterSegmentsReuseMemoryOfEarlierSegments) {
  const test::CpuMesh mesh(2);
  std::string text, nodes;
  constexpr int kSteps = 16;
  for (int i = 0; i < kSteps; ++i) {
    text += fmt::format("input %x{} f32 [1024]\n", i);
    nodes += i == 0 ? "%y0 = unary(%x0) {kind=silu}\n" : fmt::format("%y{0} = add(%y{1}, %x{0})\n", i, i - 1);
  }
  test::Loaded loaded(text + nodes + fmt::format("output %y{}\n", kSteps - 1), *mesh.device);
  const auto backend = mesh.device->init("threads=1");
  PlanOptions options;
  for (int i = 1; i < kSteps; ++i) options.cuts.push_back(i);
  options.shown.assign(loaded.graph.nodes().begin(), loaded.graph.nodes().end());
  for (int i = 0; i < kSteps; ++i) options.late.push_back({loaded.graph.inputs()[static_cast<size_t>(i)], i});
  const auto plan = backend->create_plan(loaded.graph, options);
  for (const size_t bytes : allocated_per_rank(*plan))
    EXPECT_LE(bytes, 4u * 4096) << "instead of memory for 16 inputs and 16 nodes";
}

/// The second rank has no node in the first segment. So the two segments of this rank begin at the same node.
TEST(Segments, LateInputIsWritableBeforeEmptySegment) {
  const test::CpuMesh mesh(2, {{"w", Layout::partial()}});
  test::Loaded loaded(R"(
input %x f32 [8]
weight %w f32 [8]
%s = add(%w, %x)
%y = unary(%s) {kind=relu}
output %y
)",
                      *mesh.device);
  const auto backend = mesh.device->init("threads=1");
  const Tensor* x = loaded.graph.inputs()[0];
  const auto plan = backend->create_plan(loaded.graph, {.cuts = {1}, .late = {{x, 0}}});
  EXPECT_EQ(plan_of(*plan).ranks[1].cuts, std::vector<int>{0});
  EXPECT_EQ(plan->writable_from(*x), 0);
}

/// %b adds a mirrored value to the partial sum %a. On all ranks except rank 0, %b has no memory of its own and uses the
/// addend of %a.
TEST(Segments, SumIsReadableAfterItsAddendIsFreed) {
  const test::CpuMesh mesh(2, {{"w", Layout::split(0, parse_partition(2, "3:{0} 5:{1}"))}});
  // The second segment needs so much memory that it also reuses the memory of the addend.
  std::string text = R"(
input %x f32 [8]
input %z f32 [16]
weight %w f32 [8, 16]
%a = mul_mat(%w, %x)
%c0 = scale(%z) {scale=3}
%b = add(%a, %c0)
)";
  for (int i = 0; i < 10; ++i) text += fmt::format("%c{} = unary(%c{}) {{kind=silu}}\n", i + 1, i);
  text += "%s0 = add(%c1, %c2)\n";
  for (int i = 0; i < 8; ++i) text += fmt::format("%s{} = add(%s{}, %c{})\n", i + 1, i, i + 3);
  text += "output %s8\n";
  const auto run = [&](Device& device) {
    test::Loaded loaded(text, device);
    const auto backend = device.init("threads=1");
    const auto plan = backend->create_plan(loaded.graph, {{2, 13}, {loaded.graph.find("b")}});
    if (device.type() == DeviceType::kMeta) {
      EXPECT_TRUE(plan_of(*plan).layout(*loaded.graph.find("b")).is_partial());
    }
    loaded.fill_inputs();
    std::vector<float> b;
    for (int segment = 0; segment < plan->segments(); ++segment) {
      backend->compute_async(*plan, segment, segment + 1);
      backend->synchronize();
      if (segment == 1) b = test::read_floats(*loaded.graph.find("b"));
    }
    return std::pair(b, test::read_floats(*loaded.graph.find("s8")));
  };
  const auto [b, sum] = run(*mesh.device);
  const auto [one_b, one_sum] = run(mesh.other());
  ASSERT_EQ(b.size(), one_b.size());
  for (size_t i = 0; i < b.size(); ++i) EXPECT_NEAR(b[i], one_b[i], 1e-5) << i;
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], one_sum[i], 1e-5) << i;
}

/// The weights are stored on another device and copied to the mesh for a run. The copies have the same split layouts as
/// weights that are stored on the mesh.
struct StreamedWeights : testing::Test {
  StreamedWeights() {
    weight = context.add("w", DType::kF32, {16, 12, 1, 1});
    experts = context.add("experts", DType::kF32, {16, 6, 4, 1});
    memory = allocate_tensors(context.tensors(), mesh.other().buffer_type(), Usage::kWeights);
    for (Tensor* tensor : context.tensors()) {
      const auto bytes = test::leaf_data(*tensor, 5);
      tensor_set(*tensor, bytes.data(), 0, bytes.size());
    }
    x = graph.input("x", DType::kF32, {16, 1, 1, 1});
    wx = graph.copy_of(*weight);
    y = graph.output(mul_mat(graph, wx, x, "y"));
    ids = graph.input("ids", DType::kI32, {2, 1, 1, 1});
    copied_experts = graph.copy_of(*experts);
    Tensor* rows = reshape(graph, x, {16, 1, 1, 1});
    z = graph.output(mul_mat_id(graph, copied_experts, rows, ids, {}, "z"));
  }
  static Layout split(int axis, std::string_view runs) { return Layout::split(axis, parse_partition(2, runs)); }

  test::CpuMesh mesh{2, {{"w", split(1, "8:{0} 4:{1}")}, {"experts", split(1, "2:{0} 4:{1}")}}};
  TensorContext context;
  Graph graph{"streamed"};
  Tensor *weight, *experts, *x, *wx, *ids, *copied_experts, *y, *z;
  std::unique_ptr<Buffer> memory;
};

TEST_F(StreamedWeights, HaveLayoutsOfTheirOriginals) {
  const auto backend = mesh.device->init("threads=1");
  const auto plan = backend->create_plan(graph);
  EXPECT_EQ(layout_of(*wx), split(1, "8:{0} 4:{1}"));
  EXPECT_EQ(layout_of(*copied_experts), split(1, "2:{0} 4:{1}"));
  EXPECT_EQ(layout_of(*y), split(0, "8:{0} 4:{1}"));
  EXPECT_EQ(shard(*wx, 1).shape, (Shape{16, 4, 1, 1}));
  const auto inputs = [&](Tensor& tensor) {
    const auto bytes = test::leaf_data(tensor, 5);
    tensor_set(tensor, bytes.data(), 0, bytes.size());
  };
  inputs(*x);
  const int32_t used[] = {3, 1};
  tensor_set(*ids, used, 0, sizeof(used));
  const auto* bytes = reinterpret_cast<const std::byte*>(weight->data);
  backend->set_async(*wx, bytes, 0, weight->bytes());
  // Copies only the selected experts.
  const auto* all = reinterpret_cast<const std::byte*>(experts->data);
  const size_t size = experts->bytes() / 4;
  copied_experts->buffer->memset(*copied_experts, 0xff, 0, experts->bytes());
  for (const int32_t expert : used) {
    const size_t offset = static_cast<size_t>(expert) * size;
    backend->set_async(*copied_experts, all + offset, offset, size);
  }
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);

  std::vector<float> got = test::read_floats(*y), w = test::read_floats(*weight), v = test::read_floats(*x);
  for (size_t row = 0; row < 12; ++row) {
    float sum = 0;
    for (size_t k = 0; k < 16; ++k) sum += w[row * 16 + k] * v[k];
    EXPECT_NEAR(got[row], sum, 1e-4) << row;
  }
  got = test::read_floats(*z), w = test::read_floats(*experts);
  for (size_t use = 0; use < 2; ++use) {
    for (size_t row = 0; row < 6; ++row) {
      float sum = 0;
      for (size_t k = 0; k < 16; ++k) sum += w[(static_cast<size_t>(used[use]) * 6 + row) * 16 + k] * v[k];
      EXPECT_NEAR(got[use * 6 + row], sum, 1e-4) << use << " " << row;
    }
  }
}

TEST_F(StreamedWeights, InputCopiedFromANodeIsMirrored) {
  Graph other("other");
  Tensor* copy = other.copy_of(*y);
  other.output(scale(other, copy, {2, 0}));
  const auto backend = mesh.device->init("threads=1");
  const auto plan = backend->create_plan(other);
  EXPECT_TRUE(layout_of(*copy).is_mirrored());
}

}  // namespace
}  // namespace shoal::meta
