// Each test of this file has one case in which other tensor-parallel runtimes abort or silently give wrong results. A
// case consists of a graph in text form, the layouts of its weights, and a number of ranks. The test runs the graph on
// a meta device and on one device, and compares the results.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/text.h"
#include "meta/meta.h"
#include "tests/meta/layouts.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

using meta::Layout;
using meta::Partition;
using meta::split;

std::vector<Device*> cpu_devices() {
  std::vector<Device*> found;
  for (int i = 0; i < 16; ++i) found.push_back(&Registry::instance().device("CPU" + std::to_string(i)));
  return found;
}

Layout even(int axis, int ranks, int64_t length) {
  return Layout::split(axis, Partition::even(ranks, length));
}

using Layouts = std::map<std::string, Layout>;

void expect_same(int ranks, std::string graph, Layouts layouts, double tolerance = kTight) {
  const auto members = cpu_devices();
  const RandomCase one{1, ranks, std::move(graph), std::move(layouts), {}, tolerance};
  EXPECT_EQ(check_case(one, members), "") << to_string(one);
}

/// Returns the plan of a graph. `layouts` contains the layouts of the graph's weights.
meta::Plan plan_of(int ranks, const std::string& text, const Layouts& layouts,
                   const meta::RuleLookup& rules = meta::rule_text) {
  static std::vector<std::unique_ptr<Graph>> graphs;  // a plan refers to its graph's tensors
  static std::vector<std::unique_ptr<TensorContext>> contexts;
  graphs.push_back(std::make_unique<Graph>("hard"));
  contexts.push_back(std::make_unique<TensorContext>());
  parse_graph(text, *graphs.back(), *contexts.back());
  meta::ShardStore store(ranks);
  for (const Tensor* leaf : contexts.back()->tensors()) {
    const auto it = layouts.find(leaf->name);
    store.declare(*leaf, it == layouts.end() ? Layout::mirrored() : it->second);
  }
  const auto members = cpu_devices();
  return meta::make_plan(whole(*graphs.back()), {[&](const Tensor& tensor) { return store.find(tensor); }, {}, rules},
                         std::span(members).first(static_cast<size_t>(ranks)));
}

int collectives(const meta::Plan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const meta::Step& step) {
    return step.kind == meta::StepKind::kCollective;
  }));
}

TEST(HardCases, ReductionsOverSplitAxisGiveSameResultsAsOneDevice) {
  for (const char* op :
       {"soft_max(%w, _, _)", "rms_norm(%w)", "layer_norm(%w)", "sum_rows(%w)", "argmax(%w)", "top_k(%w) {k=3}"}) {
    const std::string text = "weight %w f32 [12, 3]\n%y = " + std::string(op) + "\noutput %y\n";
    expect_same(2, text, {{"w", split(0, 2, "9:{0} 3:{1}")}});
    expect_same(3, text, {{"w", split(0, 3, "2:{2} 4:{0} 6:{2}")}});
  }
}

TEST(HardCases, FusedGateUpMayBeSplitWithoutSegments) {
  const std::string text = R"(
input %x f32 [8, 3]
weight %w f32 [8, 12]
%h = mul_mat(%w, %x)
%y = glu(%h)
output %y
)";
  const Layouts segments{{"w", split(1, 2, "4:{0} 2:{1} 4:{0} 2:{1}")}};
  expect_same(2, text, {{"w", split(1, 2, "6:{0} 6:{1}")}});  // rank 0 owns gate, and rank 1 owns up
  expect_same(2, text, segments);
  EXPECT_EQ(collectives(plan_of(2, text, segments)), 0);
}

TEST(HardCases, PartialSumMayBeUsedInProducts) {
  const std::string text = R"(
input %x f32 [8, 3]
weight %w f32 [8, 6]
weight %m f32 [6]
%p = mul_mat(%w, %x)
%a = mul(%p, %m)
%b = mul(%p, %a)
%c = add(%p, %b)
output %c
)";
  expect_same(2, text, {{"w", split(0, 2, "3:{0} 5:{1}")}});
  expect_same(3, text, {{"w", split(0, 3, "3:{0} 5:{2}")}});
}

TEST(HardCases, EmptyShardsAddExactZeros) {
  // Rank 1 owns no elements of axis k. The product of rank 1 is an empty sum, and the scratch memory of rank 1 may
  // contain anything.
  const std::string text = R"(
input %x f32 [8, 3]
weight %v f32 [8, 8]
weight %w f32 [8, 6]
%h = mul_mat(%v, %x)
%p = mul_mat(%w, %h)
%y = rms_norm(%p)
output %y
)";
  expect_same(3, text, {{"v", split(1, 3, "5:{0} 3:{2}")}, {"w", split(0, 3, "5:{0} 3:{2}")}});
}

TEST(HardCases, EverySplitOfMatmulGivesSameResultAsOneDevice) {
  const std::string text = R"(
weight %a f32 [8, 6, 2]
weight %b f32 [8, 5, 4]
%y = mul_mat(%a, %b)
output %y
)";
  const Layout k31 = split(0, 2, "6:{0} 2:{1}"), k11 = even(0, 2, 8);
  expect_same(2, text, {{"a", k31}});
  expect_same(2, text, {{"b", k31}});
  expect_same(2, text, {{"a", k31}, {"b", k11}});
  expect_same(2, text, {{"b", even(2, 2, 4)}});
  expect_same(2, text, {{"a", even(2, 2, 2)}, {"b", even(2, 2, 4)}});
  expect_same(2, text, {{"a", even(1, 2, 6)}, {"b", even(1, 2, 5)}});
  expect_same(2, text, {{"a", Layout::partial()}, {"b", k11}});
}

constexpr const char* kUnfusedAttention = R"(
input %x f32 [16, 3]
input %ids4.p i32 [3]
weight %wq f32 [16, 16]
cache %k f32 [4, 6, 2]
cache %v f32 [6, 4, 2]
%q0 = mul_mat(%wq, %x)
%q1 = reshape(%q0) {shape=[4,4,3,1]}
%q = permute(%q1) {axes=[0,2,1,3]}
%s = mul_mat(%k, %q)
%w = soft_max(%s, _, _) {scale=0.5}
%o = mul_mat(%v, %w)
%o1 = permute(%o) {axes=[0,2,1,3]}
%o2 = contiguous(%o1)
%y = reshape(%o2) {shape=[16,3,1,1]}
output %y
)";

TEST(HardCases, UnfusedAttentionWithSplitHeadsGivesSameResultsAsOneDevice) {
  expect_same(2, kUnfusedAttention, {{"wq", even(1, 2, 16)}, {"k", even(2, 2, 2)}, {"v", even(2, 2, 2)}});
  expect_same(2, kUnfusedAttention, {{"wq", split(1, 2, "12:{0} 4:{1}")}, {"k", even(2, 2, 2)}, {"v", even(2, 2, 2)}});
  expect_same(4, kUnfusedAttention,
              {{"wq", even(1, 4, 16)}, {"k", split(2, 4, "1:{0,1} 1:{2,3}")}, {"v", split(2, 4, "1:{0,1} 1:{2,3}")}});
}

TEST(HardCases, SplitQueriesMayReadMirroredKv) {
  const std::string text = R"(
weight %q f32 [4, 3, 8]
cache %k f32 [4, 6]
cache %v f32 [4, 6]
%y = attention(%q, %k, %v, _, _, _) {scale=0.5}
output %y
)";
  expect_same(5, text, {{"q", split(2, 5, "2:{0} 2:{1} 2:{2} 1:{3} 1:{4}")}});
  EXPECT_EQ(collectives(plan_of(5, text, {{"q", split(2, 5, "2:{0} 2:{1} 2:{2} 1:{3} 1:{4}")}})), 0);
}

/// All heads read the same cache rows. Each value is the beginning of its key. Before the attention, the graph writes
/// new rows to the cache.
TEST(HardCases, SplitQueriesMayReadValuesInsideMirroredKeys) {
  const std::string text = R"(
weight %q f32 [6, 3, 8]
input %row f32 [6, 3]
input %id9.i i32 [3]
cache %k f32 [6, 9]
%keys = set_rows(%k, %row, %id9.i)
%values = slice(%keys) {axis=0, begin=0, length=4}
%y = attention(%q, %keys, %values, _, _, _) {scale=0.5}
output %y
)";
  expect_same(2, text, {});
  for (const char* heads : {"2:{0} 2:{1} 2:{2} 1:{3} 1:{4}", "5:{0} 3:{4}"}) {
    expect_same(5, text, {{"q", split(2, 5, heads)}});
    EXPECT_EQ(collectives(plan_of(5, text, {{"q", split(2, 5, heads)}})), 0);
  }
  expect_same(3, text, {{"q", split(2, 3, "4:{0} 2:{1} 2:{2}")}, {"k", split(1, 3, "4:{0} 2:{1} 3:{2}")}});
  expect_same(3, text, {{"q", split(2, 3, "4:{0} 2:{1} 2:{2}")}, {"k", split(0, 3, "3:{0} 1:{1} 2:{2}")}});
}

TEST(HardCases, RopeAcceptsSplitOfRotatedAxis) {
  expect_same(2, R"(
weight %x f32 [8, 2, 3]
input %pos9.p i32 [3]
%y = rope(%x, %pos9.p, _) {dims=8}
output %y
)",
              {{"x", split(0, 2, "3:{0} 5:{1}")}});
}

TEST(HardCases, ConcatAcceptsSplitAxis) {
  const std::string text = R"(
weight %a f32 [6, 2]
weight %b f32 [4, 2]
%c = concat(%a, %b, %a) {axis=0}
%y = scale(%c) {scale=2}
output %y
)";
  expect_same(2, text, {{"a", even(0, 2, 6)}, {"b", split(0, 2, "1:{0} 3:{1}")}});
  expect_same(2, text, {{"a", even(0, 2, 6)}});
  expect_same(2, text, {{"a", even(0, 2, 6)}, {"b", even(1, 2, 2)}});
}

TEST(HardCases, SegmentedTensorsAllowViewsOfViews) {
  const std::string text = R"(
input %x f32 [8, 3]
weight %w f32 [8, 16]
%qkv = mul_mat(%w, %x)
%kv = slice(%qkv) {axis=0, begin=8, length=8}
%v = slice(%kv) {axis=0, begin=4, length=4}
%k = slice(%kv) {axis=0, begin=0, length=4}
%v1 = contiguous(%v)
%v2 = reshape(%v1) {shape=[2,2,3,1]}
%v3 = permute(%v2) {axes=[0,2,1,3]}
%s = sum_rows(%k)
%y = scale(%v3) {scale=3}
output %y
output %s
)";
  expect_same(2, text, {{"w", split(1, 2, "4:{0} 4:{1} 2:{0} 2:{1} 2:{0} 2:{1}")}});
  expect_same(2, text, {{"w", split(1, 2, "5:{0} 3:{1} 1:{0} 3:{1} 1:{0} 3:{1}")}});
}

TEST(HardCases, ReshapeMergesSplitAxisWithInnerAxis) {
  const std::string text = R"(
weight %a f32 [3, 4, 2]
%b = reshape(%a) {shape=[12,2,1,1]}
%c = reshape(%a) {shape=[3,8,1,1]}
%y = scale(%b) {scale=2}
%z = scale(%c) {scale=2}
output %y
output %z
)";
  expect_same(2, text, {{"a", split(1, 2, "3:{0} 1:{1}")}});
  expect_same(2, text, {{"a", split(0, 2, "2:{0} 1:{1}")}});
  EXPECT_EQ(collectives(plan_of(2, text, {{"a", split(1, 2, "3:{0} 1:{1}")}})), 0);
}

TEST(HardCases, TiedEmbeddingMayBeSplitByVocabulary) {
  const std::string text = R"(
weight %e f32 [8, 10]
input %ids10.t i32 [4]
%x = get_rows(%e, %ids10.t)
%n = rms_norm(%x)
%logits = mul_mat(%e, %n)
output %logits
)";
  expect_same(3, text, {{"e", split(1, 3, "5:{0} 2:{1} 3:{2}")}});
  expect_same(3, text, {{"e", split(1, 3, "2:{1} 5:{0} 3:{1}")}});
  EXPECT_EQ(collectives(plan_of(3, text, {{"e", split(1, 3, "5:{0} 2:{1} 3:{2}")}})), 1);  // the collective sums %x
}

TEST(HardCases, PartialSumMayBeOutput) {
  const std::string text = "input %x f32 [8, 3]\nweight %w f32 [8, 6]\n%y = mul_mat(%w, %x)\noutput %y\n";
  expect_same(2, text, {{"w", even(0, 2, 8)}});
  EXPECT_EQ(collectives(plan_of(2, text, {{"w", even(0, 2, 8)}})), 0);  // the host adds the partial sums
}

TEST(HardCases, AddAcceptsPartialBias) {
  expect_same(2, "input %x f32 [6, 3]\nweight %b f32 [6]\n%y = add(%x, %b)\noutput %y\n", {{"b", Layout::partial()}});
}

TEST(HardCases, ResidualIsAddedOnceToPartialSum) {
  const std::string text = R"(
input %x f32 [6, 3]
weight %w f32 [6, 6]
%p = mul_mat(%w, %x)
%r = add(%x, %p)
%s = sub(%x, %r)
%y = rms_norm(%s)
output %y
)";
  expect_same(2, text, {{"w", even(0, 2, 6)}});
  EXPECT_EQ(plan_of(2, text, {{"w", even(0, 2, 6)}}).count(Collective::kAllReduce), 1);
}

TEST(HardCases, ExpertsAndResidualNeedOneAllReduce) {
  const std::string text = R"(
input %x f32 [8, 1, 3]
input %ids4.e i32 [2, 3]
weight %up f32 [8, 6, 4]
weight %down f32 [6, 8, 4]
weight %sup f32 [8, 6]
weight %sdown f32 [6, 8]
%u = mul_mat_id(%up, %x, %ids4.e)
%a = unary(%u) {kind=silu}
%d = mul_mat_id(%down, %a, %ids4.e)
%d0 = slice(%d) {axis=1, begin=0, length=1}
%d1 = slice(%d) {axis=1, begin=1, length=1}
%routed = add(%d0, %d1)
%su = mul_mat(%sup, %x)
%sa = unary(%su) {kind=silu}
%sd = mul_mat(%sdown, %sa)
%both = add(%routed, %sd)
%r = add(%x, %both)
%y = rms_norm(%r)
output %y
)";
  const Layouts layouts{
      {"up", even(1, 2, 6)}, {"down", even(0, 2, 6)}, {"sup", even(1, 2, 6)}, {"sdown", even(0, 2, 6)}};
  expect_same(2, text, layouts);
  const auto plan = plan_of(2, text, layouts);
  EXPECT_EQ(plan.count(Collective::kAllReduce), 1) << meta::to_string(plan);
  EXPECT_EQ(collectives(plan), 1);
  // With these layouts, each expert is whole on one rank (expert parallelism).
  const Layouts by_expert{
      {"up", even(2, 2, 4)}, {"down", even(2, 2, 4)}, {"sup", even(1, 2, 6)}, {"sdown", even(0, 2, 6)}};
  expect_same(2, text, by_expert);
  EXPECT_EQ(collectives(plan_of(2, text, by_expert)), 1);
  expect_same(3, text, {{"up", split(2, 3, "1:{2} 3:{0}")}, {"down", split(2, 3, "1:{2} 3:{0}")}});
}

/// Returns the rule of set_rows, and no rule for other ops. set_rows needs its rule, because a cache that is written in
/// place cannot be gathered before the write.
std::optional<std::string> rule_for_writes_only(const Tensor& node) {
  return info(node.op).alias == Alias::kWrites ? meta::rule_text(node) : std::nullopt;
}

TEST(HardCases, OpWithoutRuleRunsMirrored) {
  const std::string text = R"(
input %x f32 [8, 3]
input %slots5.i i32 [3]
weight %w f32 [8, 6]
weight %b f32 [6]
cache %c f32 [6, 5]
%h = mul_mat(%w, %x)
%a = add(%h, %b)
%s = set_rows(%c, %a, %slots5.i)
%y = rms_norm(%s)
output %y
)";
  const Layouts layouts{{"w", even(0, 2, 8)}, {"b", Layout::partial()}, {"c", even(1, 2, 5)}};
  const auto plan = plan_of(2, text, layouts, rule_for_writes_only);
  for (const auto& [tensor, layout] : plan.layouts) {
    if (tensor->op == Op::kSetRows) {
      EXPECT_EQ(layout, even(1, 2, 5));
    } else if (!tensor->is_leaf()) {
      EXPECT_TRUE(layout.is_mirrored()) << tensor->name << " " << layout.to_string();
    }
  }
  EXPECT_TRUE(plan_of(2, text, layouts).layouts != plan.layouts);

  const auto members = cpu_devices();
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const RandomCase one = random_case(seed);
    ASSERT_EQ(check_case(one, members, rule_for_writes_only), "") << to_string(one);
  }
}

TEST(HardCases, OddDeviceCountsAndRatiosGiveSameResultsAsOneDevice) {
  const std::string text = R"(
input %x f32 [96, 2]
weight %up q8_0 [96, 96]
weight %down q8_0 [96, 6]
%h = mul_mat(%up, %x)
%a = unary(%h) {kind=silu}
%y = mul_mat(%down, %a)
output %y
)";
  for (int ranks : {3, 4, 5, 6, 7, 9, 10, 16}) {  // up to 16 devices divide 3 quantisation blocks
    std::vector<int64_t> blocks(static_cast<size_t>(ranks), 0);
    for (int block = 0; block < 3; ++block) blocks[static_cast<size_t>(block * ranks / 3)] += 32;
    const Partition partition = Partition::from_shares(blocks);
    expect_same(ranks, text, {{"up", Layout::split(1, partition)}, {"down", Layout::split(0, partition)}}, kRounded);
  }
  expect_same(3, text, {{"up", split(1, 3, "64:{0} 32:{2}")}, {"down", split(0, 3, "64:{0} 32:{2}")}}, kRounded);
}

TEST(HardCases, CachesOfEveryTypeAcceptEverySplit) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeTraits& type = traits(static_cast<DType>(i));
    if (!type.is_float && !type.is_quantized) continue;
    if (type.from_f32 == nullptr) continue;  // caches cannot have this type
    const int64_t block = std::max<int64_t>(type.block_elems, 32), row = 3 * block;
    const std::string text = fmt::format(R"(
input %x f32 [{0}, 2, 3]
input %y f32 [{0}, 1, 3]
input %slots5.i i32 [2]
input %slots5.j i64 [1]
cache %c {1} [{0}, 5, 3]
%w = set_rows(%c, %x, %slots5.i)
%u = set_rows(%w, %y, %slots5.j)
%f = cast(%u) {{dtype=f32}}
output %f
)",
                                         row, type.name);
    const std::string blocks = fmt::format("{0}:{{1}} {0}:{{0}} {0}:{{1}}", block);
    expect_same(2, text, {{"c", split(0, 2, blocks)}}, 0.0);
    expect_same(4, text, {{"c", split(0, 4, fmt::format("{}:{{0,3}} {}:{{2}}", block, 2 * block))}}, 0.0);
    expect_same(3, text, {{"c", split(1, 3, "2:{0} 1:{1} 2:{0}")}}, 0.0);
    expect_same(3, text, {{"c", split(1, 3, "4:{2} 1:{0,1}")}}, 0.0);
    expect_same(3, text, {{"c", split(2, 3, "1:{0} 1:{0,1} 1:{2}")}}, 0.0);
    expect_same(2, text, {}, 0.0);
  }
}

TEST(HardCases, RowsCanBeWrittenToPartialCache) {
  expect_same(2,
              "input %x f32 [8, 2]\ninput %slots5.i i32 [2]\ncache %c f32 [8, 5]\n"
              "%w = set_rows(%c, %x, %slots5.i)\n%y = scale(%w) {scale=2}\noutput %y\n",
              {{"c", Layout::partial()}});
}

TEST(HardCases, SumReadsPartialCacheBeforeLaterWrite) {
  expect_same(2,
              "input %x f32 [8]\ninput %y f32 [8, 2]\ninput %slots3.i i32 [2]\ncache %c f32 [8, 3]\n"
              "%r = slice(%c) {axis=1, length=2}\n%s = add(%r, %x)\n%w = set_rows(%c, %y, %slots3.i)\n"
              "%z = mul(%s, %x)\noutput %s\noutput %w\noutput %z\n",
              {{"c", Layout::partial()}});
}

/// The host reads the value of each node, as an evaluation callback would. When the host reads a partial sum, the host
/// must get the complete sum.
TEST(HardCases, HostReadsCompleteValueOfEveryNode) {
  const auto members = cpu_devices();
  int partial = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    RandomCase one = random_case(seed);
    TensorContext weights;
    Graph graph;
    parse_graph(one.graph, graph, weights);
    for (Tensor* node : graph.nodes()) graph.output(node);
    one.graph = to_string(graph);
    const auto plan = plan_of(one.ranks, one.graph, one.layouts);
    for (const auto& [tensor, layout] : plan.layouts) partial += !tensor->is_leaf() && layout.is_partial();
    ASSERT_EQ(check_case(one, members), "") << to_string(one);
  }
  EXPECT_GT(partial, 100);
}

TEST(HardCases, ComputeMemoryPerDeviceShrinksWithMoreDevices) {
  const std::string text = R"(
input %x f32 [8, 64]
weight %up f32 [8, 4096]
weight %down f32 [4096, 8]
%h = mul_mat(%up, %x)
%a = unary(%h) {kind=silu}
%y = mul_mat(%down, %a)
output %y
)";
  const auto compute = [&](int ranks) {
    return plan_of(ranks, text, {{"up", even(1, ranks, 4096)}, {"down", even(0, ranks, 4096)}}).ranks[0].memory.compute;
  };
  const size_t alone = compute(1);
  EXPECT_LT(compute(2), alone * 6 / 10);
  EXPECT_LT(compute(4), alone * 35 / 100);
}

/// Three devices. On device `which`, allocations fail when their total exceeds `bytes`.
struct OneIsFull {
  OneIsFull(int which, std::string_view bytes) {
    for (int i = 0; i < 3; ++i) {
      members.push_back(&Registry::instance().find_family("NULL")->create_device(
          i == which ? fmt::format("fail_alloc_after={}", bytes) : ""));
    }
    full = members[static_cast<size_t>(which)];
    meta = meta::MetaDevice::create(
        members, [](const Tensor& tensor) { return meta::SplitState::split(1, Partition::even(3, tensor.shape[1])); });
  }
  std::vector<size_t> free() const {
    std::vector<size_t> bytes;
    for (const Device* member : members) bytes.push_back(member->memory().free);
    return bytes;
  }
  std::vector<Device*> members;
  Device* full;
  std::unique_ptr<meta::MetaDevice> meta;
};

/// Returns the message of the DeviceError that `what` throws.
template <class F>
std::string device_error(F&& what) {
  try {
    what();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HardCases, FailedAllocationOnOneDeviceFreesMemoryOfAllDevices) {
  for (int which = 0; which < 3; ++which) {
    const OneIsFull devices(which, "4K");
    const auto before = devices.free();
    TensorContext context;
    Tensor* weight = context.add("w", DType::kF32, {64, 3 * 32, 1, 1});  // 8 KiB per device
    EXPECT_THAT(
        device_error([&] { allocate_tensors(context.tensors(), devices.meta->buffer_type(), Usage::kWeights); }),
        testing::HasSubstr(devices.full->name()));
    EXPECT_EQ(devices.free(), before);
    EXPECT_EQ(weight->buffer, nullptr);
    EXPECT_EQ(devices.meta->shards().find(*weight), nullptr);
  }
}

TEST(HardCases, FailedPlanOnOneDeviceFreesMemoryOfAllDevices) {
  const std::string text = "input %x f32 [16, 300]\nweight %w f32 [16, 12]\n%y = mul_mat(%w, %x)\noutput %y\n";
  for (int which = 0; which < 3; ++which) {
    const OneIsFull devices(which, "8K");
    TensorContext weights;
    Graph graph, small;
    parse_graph(text, graph, weights);
    parse_graph("input %x f32 [16, 3]\nweight %w f32 [16, 12]\n%y = mul_mat(%w, %x)\noutput %y\n", small, weights);
    const auto memory = allocate_tensors(weights.tensors(), devices.meta->buffer_type(), Usage::kWeights);
    const auto before = devices.free();
    const auto backend = devices.meta->init();
    EXPECT_THAT(device_error([&] { backend->create_plan(graph); }), testing::HasSubstr(devices.full->name()));
    EXPECT_EQ(devices.free(), before);
    EXPECT_EQ(graph.find("y")->buffer, nullptr);
    const auto plan = backend->create_plan(small);  // a smaller graph must still run
    EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
  }
}

/// The threads of idle streams are parked. Each run and each of its collectives must wake all of these threads.
TEST(HardCases, MetaDeviceRunsAfterIdlePauses) {
  const std::string text = R"(
input %x f32 [16, 3]
weight %up f32 [16, 64]
weight %down f32 [64, 16]
%h = mul_mat(%up, %x)
%a = unary(%h) {kind=silu}
%p = mul_mat(%down, %a)
%r = add(%x, %p)
%y = rms_norm(%r)
output %y
)";
  constexpr int kRanks = 4;
  const auto members = cpu_devices();
  meta::MetaOptions options;
  options.comm_timeout = std::chrono::seconds(10);
  const auto device = meta::MetaDevice::create(
      {members.begin(), members.begin() + kRanks},
      [](const Tensor& tensor) {
        const int axis = tensor.name == "up" ? 1 : 0;
        return meta::SplitState::split(axis, Partition::even(kRanks, 64));
      },
      options);
  TensorContext weights;
  Graph graph;
  parse_graph(text, graph, weights);
  TensorValues leaves = random_leaves(graph, 1);
  const auto alone = members[0]->init();
  const Tensor* y = graph.find("y");
  const Values expected = run_graph(*alone, graph, leaves).at(y);
  const auto backend = device->init();
  GraphRun run(*backend, graph, leaves);
  Values first;
  for (int i = 0; i < 20; ++i) {
    run.run();
    const Values got = read_values(*y);
    if (i == 0) first = got;
    ASSERT_TRUE(close_to(got, expected, {})) << "run " << i;
    ASSERT_EQ(got, first) << "run " << i;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace
}  // namespace shoal::test
