#include "meta/plan/plan.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/meta/layouts.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// A plan without memory on the null device. The null device needs no scratch memory, so the plan is the same on every
/// machine.
struct Planned {
  Planned(const std::string& text, int ranks, const test::Layouts& layouts) : store(ranks) {
    parse_graph(text, graph, weights);
    for (const Tensor* leaf : weights.tensors()) {
      const auto it = layouts.find(leaf->name);
      store.declare(*leaf, it == layouts.end() ? Layout::mirrored() : it->second);
    }
    const std::vector<Device*> devices(static_cast<size_t>(ranks), &Registry::instance().device("NULL0"));
    plan = make_plan(graph, store, devices);
    for (int rank = 0; rank < ranks; ++rank) plan.devices[static_cast<size_t>(rank)] = fmt::format("dev{}", rank);
    for (RankPlan& rank : plan.ranks) rank.memory.communication = rank.memory.communication > 0 ? 1000 : 0;
  }
  TensorContext weights;
  Graph graph{"llama"};
  ShardStore store;
  Plan plan;
};

Planned llama(const std::vector<int64_t>& shares, int64_t tokens = 2, const std::string& tail = {}) {
  return Planned(test::llama_graph(tokens, tail), static_cast<int>(shares.size()), test::llama_layouts(shares));
}

std::vector<std::string> collectives(const Plan& plan) {
  std::vector<std::string> found;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kCollective)
      found.push_back(fmt::format("{} {}", name_of(step.collective), step.tensor));
  }
  return found;
}

TEST(Plan, PrintsLlamaLayerOnTwoDevices) {
  EXPECT_EQ(to_string(llama({3, 1}).plan), R"(plan of llama on 2 devices
layouts
  embd                         f32   [32, 40]             mirrored
  ids40.tokens                 i32   [2]                  mirrored
  attn_norm                    f32   [32]                 mirrored
  wq                           f32   [32, 64]             split 1 [48:{0} 16:{1}]
  wk                           f32   [32, 32]             split 1 [24:{0} 8:{1}]
  wv                           f32   [32, 32]             split 1 [24:{0} 8:{1}]
  pos16.positions              i32   [2]                  mirrored
  ck                           f16   [8, 16, 4]           split 2 [3:{0} 1:{1}]
  slots16.rows                 i32   [2]                  mirrored
  cv                           f16   [8, 16, 4]           split 2 [3:{0} 1:{1}]
  wo                           f32   [64, 32]             split 0 [48:{0} 16:{1}]
  ffn_norm                     f32   [32]                 mirrored
  gate                         f32   [32, 48]             split 1 [36:{0} 12:{1}]
  up                           f32   [32, 48]             split 1 [36:{0} 12:{1}]
  down                         f32   [48, 32]             split 0 [36:{0} 12:{1}]
  ids2.last                    i32   [1]                  mirrored
  out_norm                     f32   [32]                 mirrored
  head                         f32   [32, 40]             split 1 [30:{0} 10:{1}]
  x                            f32   [32, 2]              mirrored
  n0                           f32   [32, 2]              mirrored
  n                            f32   [32, 2]              mirrored
  q                            f32   [64, 2]              split 0 [48:{0} 16:{1}]
  k                            f32   [32, 2]              split 0 [24:{0} 8:{1}]
  v                            f32   [32, 2]              split 0 [24:{0} 8:{1}]
  q1                           f32   [8, 8, 2]            split 1 [6:{0} 2:{1}]
  k1                           f32   [8, 4, 2]            split 1 [3:{0} 1:{1}]
  v1                           f32   [8, 4, 2]            split 1 [3:{0} 1:{1}]
  q2                           f32   [8, 8, 2]            split 1 [6:{0} 2:{1}]
  k2                           f32   [8, 4, 2]            split 1 [3:{0} 1:{1}]
  q3                           f32   [8, 2, 8]            split 2 [6:{0} 2:{1}]
  k3                           f32   [8, 2, 4]            split 2 [3:{0} 1:{1}]
  v3                           f32   [8, 2, 4]            split 2 [3:{0} 1:{1}]
  keys                         f16   [8, 16, 4]           split 2 [3:{0} 1:{1}]
  values                       f16   [8, 16, 4]           split 2 [3:{0} 1:{1}]
  heads                        f32   [8, 8, 2]            split 1 [6:{0} 2:{1}]
  merged                       f32   [64, 2]              split 0 [48:{0} 16:{1}]
  attn_out                     f32   [32, 2]              partial
  r                            f32   [32, 2]              mirrored
  m0                           f32   [32, 2]              mirrored
  m                            f32   [32, 2]              mirrored
  g                            f32   [48, 2]              split 0 [36:{0} 12:{1}]
  u                            f32   [48, 2]              split 0 [36:{0} 12:{1}]
  h                            f32   [48, 2]              split 0 [36:{0} 12:{1}]
  ffn_out                      f32   [32, 2]              partial
  r2                           f32   [32, 2]              mirrored
  last                         f32   [32]                 mirrored
  o0                           f32   [32]                 mirrored
  o                            f32   [32]                 mirrored
  logits                       f32   [40]                 split 0 [30:{0} 10:{1}]
steps (nodes of the local graphs)
     0  compute         dev0: 0-18, dev1: 0-18
     1  all_reduce      attn_out  f32 x 64  256 bytes
     2  compute         dev0: 20-26, dev1: 20-26
     3  all_reduce      ffn_out  f32 x 64  256 bytes
     4  compute         dev0: 28-32, dev1: 28-32
memory in bytes
  device          weights          cache        compute  communication          total
  dev0              41600           1536           1664           1000          45800
  dev1              17536            512           1024           1000          20072
)");
}

TEST(Plan, PrintsLlamaLayerOnThreeDevices) {
  const Planned three = llama({2, 1, 1});
  EXPECT_EQ(steps_text(three.plan), R"(steps (nodes of the local graphs)
     0  compute         dev0: 0-18, dev1: 0-18, dev2: 0-18
     1  all_reduce      attn_out  f32 x 64  256 bytes
     2  compute         dev0: 20-26, dev1: 20-26, dev2: 20-26
     3  all_reduce      ffn_out  f32 x 64  256 bytes
     4  compute         dev0: 28-32, dev1: 28-32, dev2: 28-32
)");
}

TEST(Plan, LayerNeedsTwoAllReducesForAnyShares) {
  const std::vector<std::string> expected{"all_reduce attn_out", "all_reduce ffn_out"};
  for (const std::vector<int64_t>& shares : std::vector<std::vector<int64_t>>{
           {2, 2}, {3, 1}, {1, 3}, {4, 0}, {0, 4}, {2, 1, 1}, {1, 0, 3}, {1, 1, 1, 1}, {0, 2, 0, 2}}) {
    for (int64_t tokens : {1, 2, 7}) {
      const Planned planned = llama(shares, tokens);
      EXPECT_EQ(collectives(planned.plan), expected) << testing::PrintToString(shares) << " " << tokens;
      EXPECT_EQ(planned.plan.count(Collective::kAllReduce), 2);
    }
  }
}

TEST(Plan, GathersLogitsThatNodesRead) {
  const std::vector<std::string> expected{"all_reduce attn_out", "all_reduce ffn_out", "all_gather logits"};
  for (const std::vector<int64_t>& shares : {std::vector<int64_t>{3, 1}, {2, 1, 1}}) {
    const Planned planned = llama(shares, 2, "%p = soft_max(%logits, _, _)\noutput %p");
    EXPECT_EQ(collectives(planned.plan), expected);
    EXPECT_EQ(planned.plan.count(Collective::kAllGather), 1);
    EXPECT_EQ(planned.plan.collective_bytes(), 2 * (2 * 32 * 4) + 40 * 4);
  }
}

TEST(Plan, GathersOnlyCandidatesForSelection) {
  const std::vector<std::string> expected{"all_reduce attn_out", "all_reduce ffn_out", "all_gather best.candidates"};
  struct Case {
    std::vector<int64_t> shares;
    int64_t k, sent;
  };
  // The plan gathers `sent` candidates instead of the 40 logits.
  for (const auto& [shares, k, sent] : {Case{{3, 1}, 1, 2}, {{2, 1, 1}, 1, 3}, {{3, 1}, 5, 10}, {{2, 1, 1}, 5, 15}}) {
    const std::string op = k == 1 ? "argmax(%logits)" : fmt::format("top_k(%logits) {{k={}}}", k);
    const Planned planned = llama(shares, 2, fmt::format("%best = {}\noutput %best", op));
    EXPECT_EQ(collectives(planned.plan), expected);
    // The two all_reduces transfer 2 * 32 floats each. The all_gather transfers a value and an index for each
    // candidate.
    EXPECT_EQ(planned.plan.collective_bytes(), 2 * (2 * 32 * 4) + sent * 2 * 4);
    EXPECT_EQ(planned.plan.layout(*planned.graph.find("best")), Layout::mirrored());
  }
}

TEST(Plan, GathersRowInsteadOfTooManyCandidates) {
  const Planned planned = llama({2, 1, 1}, 2, "%best = top_k(%logits) {k=9}\noutput %best");
  EXPECT_EQ(collectives(planned.plan).back(), "all_gather logits")
      << "27 logits and 27 indices are more than 40 logits";
}

TEST(Plan, OneDeviceNeedsNoCollective) {
  const Planned planned(test::llama_graph(2), 1, {});
  EXPECT_THAT(collectives(planned.plan), testing::IsEmpty());
  EXPECT_EQ(planned.plan.steps.size(), 1u);
  EXPECT_EQ(planned.plan.ranks[0].memory.communication, 0u);
}

TEST(Plan, JsonMatchesPlan) {
  const Planned planned = llama({2, 1, 1});
  const Plan& plan = planned.plan;
  const auto json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json["graph"], "llama");
  EXPECT_EQ(json["devices"], plan.devices);
  ASSERT_EQ(json["tensors"].size(), plan.layouts.size());
  for (size_t i = 0; i < plan.layouts.size(); ++i) {
    const auto& [tensor, layout] = plan.layouts[i];
    const nlohmann::json& one = json["tensors"][i];
    EXPECT_EQ(one["name"], tensor->name);
    EXPECT_EQ(one["dtype"], name_of(tensor->dtype));
    EXPECT_EQ(one["shape"].get<Shape>(), tensor->shape);
    EXPECT_EQ(one["layout"], layout.to_string());
  }
  ASSERT_EQ(json["steps"].size(), plan.steps.size());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const nlohmann::json& one = json["steps"][i];
    const bool collective = step.kind == StepKind::kCollective;
    EXPECT_EQ(one["kind"], collective ? name_of(step.collective) : "compute");
    ASSERT_EQ(one["nodes"].size(), step.ranges.size());
    for (size_t rank = 0; rank < step.ranges.size(); ++rank) {
      EXPECT_EQ(one["nodes"][rank], (std::vector<int>{step.ranges[rank].begin, step.ranges[rank].end}));
    }
    EXPECT_EQ(one.contains("tensor"), collective);
    if (!collective) continue;
    EXPECT_EQ(one["tensor"], step.tensor);
    EXPECT_EQ(one["dtype"], name_of(step.dtype));
    EXPECT_EQ(one["bytes"], step.bytes);
  }
  ASSERT_EQ(json["memory"].size(), plan.ranks.size());
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const MemoryUse& use = plan.ranks[rank].memory;
    EXPECT_EQ(json["memory"][rank], nlohmann::json({{"device", plan.devices[rank]},
                                                    {"weights", use.weights},
                                                    {"cache", use.cache},
                                                    {"compute", use.compute},
                                                    {"communication", use.communication},
                                                    {"total", use.total()}}));
  }
}

TEST(Plan, PrintsNodesOfEveryStepOfLocalGraph) {
  const Partition columns = parse_partition(2, "512:{0} 256:{1}");
  const Planned p(
      test::kFeedForward, 2,
      {{"gate", Layout::split(1, columns)}, {"up", Layout::split(1, columns)}, {"down", Layout::split(0, columns)}});
  EXPECT_EQ(local_text(p.plan, 1), R"(local graph of dev1
  step 0 compute
     0  %g = mul_mat(%gate, %x)  # f32 [256, 4]
     1  %u = mul_mat(%up, %x)  # f32 [256, 4]
     2  %h = glu(%g, %u)  # f32 [256, 4]
     3  %y = mul_mat(%down, %h)  # f32 [256, 4]
  step 1 all_reduce
     4  %y.all_reduce.4 = all_reduce(%y) {rank=1}  # f32 [256, 4]
  step 2 compute
     5  %r = add(%x, %y.all_reduce.4)  # f32 [256, 4]
     6  %n = rms_norm(%r)  # f32 [256, 4]
)");
  EXPECT_THAT([&] { local_text(p.plan, 2); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no rank 2; give a rank from 0 to 1")));
}

/// Every node of a local graph except views is in exactly one step. A view may be outside all steps. The steps are in
/// the order of the nodes. A collective step has exactly one node, the collective.
TEST(Plan, StepsCoverLocalGraphs) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const test::RandomCase one = test::random_case(seed);
    const Planned planned(one.graph, one.ranks, one.layouts);
    for (size_t rank = 0; rank < planned.plan.ranks.size(); ++rank) {
      const Graph& local = *planned.plan.ranks[rank].graph;
      int next = 0;
      const auto pass_views = [&](int end) {
        for (; next < end; ++next) EXPECT_TRUE(is_view(local.nodes()[static_cast<size_t>(next)]->op)) << seed;
      };
      for (const Step& step : planned.plan.steps) {
        pass_views(step.ranges[rank].begin);
        EXPECT_EQ(step.ranges[rank].begin, next) << seed;
        next = step.ranges[rank].end;
        for (int i = step.ranges[rank].begin; i < step.ranges[rank].end; ++i) {
          const Op op = local.nodes()[static_cast<size_t>(i)]->op;
          EXPECT_EQ(is_collective(op), step.kind == StepKind::kCollective);
          EXPECT_TRUE(!is_collective(op) || op == info(step.collective).node);
        }
        EXPECT_TRUE(step.kind == StepKind::kCompute || step.ranges[rank].end == step.ranges[rank].begin + 1);
      }
      pass_views(static_cast<int>(local.nodes().size()));
    }
  }
}

TEST(Plan, RefusesTensorsOfOtherGraphs) {
  const Planned planned = llama({3, 1});
  EXPECT_TRUE(planned.plan.layout(*planned.graph.find("attn_out")).is_partial());
  EXPECT_TRUE(planned.plan.layout(*planned.weights.find("wq")).is_split(1));
  TensorContext elsewhere;
  EXPECT_THAT([&] { planned.plan.layout(*elsewhere.add("stranger", DType::kF32, {1, 1, 1, 1})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("stranger f32 [1] is not part of the plan of llama")));
}

TEST(Plan, ErrorNamesLeafMissingOnDevice) {
  TensorContext weights;
  Graph graph("g");
  parse_graph("weight %w f32 [4]\n%y = scale(%w) {scale=2}\noutput %y\n", graph, weights);
  const ShardStore store(1);
  const std::vector<Device*> devices{&Registry::instance().device("NULL0")};
  EXPECT_THAT([&] { make_plan(graph, store, devices); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w f32 [4] is not on the meta device; place it")));
  EXPECT_THAT([&] { persistent_memory(weights.tensors(), store, devices); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w f32 [4] has no layout; declare the tensor")));
}

/// The plan, its buffers and the devices report the same number of bytes.
TEST(PlanMemory, EqualsAllocatedMemory) {
  for (uint64_t seed = 1000; seed < 1150; ++seed) {
    const test::RandomCase one = test::random_case(seed);
    SCOPED_TRACE(seed);
    const test::CpuMesh mesh(one.ranks, one.layouts);
    const auto backend = mesh.device->init();
    TensorContext weights;
    Graph graph("random");
    parse_graph(one.graph, graph, weights);
    std::vector<Tensor*> roles[2];
    for (Tensor* leaf : weights.tensors()) roles[leaf->role == Role::kCache].push_back(leaf);
    std::vector<size_t> before = mesh.free();
    const auto weight_memory = allocate_tensors(roles[0], mesh.device->buffer_type(), Usage::kWeights);
    const auto cache_memory = allocate_tensors(roles[1], mesh.device->buffer_type(), Usage::kAny);
    std::vector<size_t> after = mesh.free();
    const auto persistent = persistent_memory(weights.tensors(), mesh.device->shards(), mesh.members);
    for (size_t rank = 0; rank < mesh.members.size(); ++rank) {
      if (weight_memory) {
        EXPECT_EQ(persistent[rank].weights, allocated_per_rank(*weight_memory)[rank]);
      }
      if (cache_memory) {
        EXPECT_EQ(persistent[rank].cache, allocated_per_rank(*cache_memory)[rank]);
      }
      EXPECT_EQ(persistent[rank].total(), before[rank] - after[rank]);
    }
    const auto plan = backend->create_plan(graph);
    const std::vector<size_t> running = mesh.free();
    size_t sum = 0;
    for (size_t rank = 0; rank < mesh.members.size(); ++rank) {
      const size_t compute = plan_of(*plan).ranks[rank].memory.compute;
      EXPECT_EQ(compute, allocated_per_rank(*plan)[rank]);
      EXPECT_EQ(compute, after[rank] - running[rank]);
      sum += compute;
    }
    EXPECT_EQ(plan->allocated_bytes(), sum);
  }
}

TEST(PlanMemory, IncludesPlacedWeightsAndCaches) {
  const test::CpuMesh mesh(2, {{"w", Layout::split(1, parse_partition(2, "24:{0} 8:{1}"))},
                               {"k", Layout::split(0, parse_partition(2, "16:{0} 48:{1}"))}});
  test::Loaded model(
      "weight %w f32 [64, 32]\nweight %n f32 [3]\ncache %k f32 [64, 6]\ninput %x f32 [64, 2]\ninput %i i32 [2]\n"
      "%y = mul_mat(%w, %x)\n%m = scale(%n)\n%s = set_rows(%k, %x, %i)\noutput %y\noutput %m\n",
      *mesh.device);
  const auto backend = mesh.device->init();
  const auto plan = backend->create_plan(model.graph);
  const Plan& made = plan_of(*plan);
  EXPECT_EQ(made.ranks[0].memory.weights, 24u * 256 + 64) << "bytes of w and n, rounded up";
  EXPECT_EQ(made.ranks[1].memory.weights, 8u * 256 + 64);
  EXPECT_EQ(made.ranks[0].memory.cache, 16u * 6 * 4);
  EXPECT_EQ(made.ranks[1].memory.cache, 48u * 6 * 4);
  std::vector<size_t> both;
  for (const RankPlan& rank : made.ranks) both.push_back(rank.memory.weights + rank.memory.cache);
  EXPECT_EQ(both, allocated_per_rank(*model.memory));
  EXPECT_THAT(to_string(made), testing::HasSubstr(std::to_string(24 * 256 + 64)));
}

/// The reshape cannot keep the split of the weight. The text of the plan says that every run gathers the weight.
TEST(Plan, MarksCollectivesThatDependOnlyOnWeights) {
  const auto plan_with = [](const Layout& layout) {
    const test::CpuMesh mesh(2, {{"w", layout}});
    test::Loaded model(
        "weight %w f32 [6, 4]\nweight %v f32 [3, 8]\ninput %x f32 [8, 2]\n%r = reshape(%w) {shape=[8,3,1,1]}\n"
        "%y = mul_mat(%r, %x)\n%z = mul_mat(%v, %y)\noutput %z\n",
        *mesh.device);
    const auto backend = mesh.device->init();
    const auto plan = backend->create_plan(model.graph);
    const Plan& made = plan_of(*plan);
    std::string lines;
    for (const int step : made.repeated()) lines += made.steps[static_cast<size_t>(step)].tensor + "\n";
    const auto json = nlohmann::json::parse(to_json(made));
    for (size_t i = 0; i < made.steps.size(); ++i) {
      const auto repeated = made.repeated();
      EXPECT_EQ(json["steps"][i].contains("repeated"), std::count(repeated.begin(), repeated.end(), i) > 0);
    }
    return std::pair(lines, steps_text(made));
  };
  const auto [gathered, text] = plan_with(Layout::split(1, parse_partition(2, "1:{0} 3:{1}")));
  EXPECT_EQ(gathered, "w\n");
  EXPECT_THAT(text, testing::HasSubstr("depends only on weights, but is repeated in each run"));
  const auto [nothing, without] = plan_with(Layout::mirrored());
  EXPECT_EQ(nothing, "");
  EXPECT_THAT(without, testing::Not(testing::HasSubstr("repeated")));
}

TEST(PlanMemory, PersistentMemoryEqualsAllocatedMemory) {
  const test::CpuMesh mesh(3, test::llama_layouts({2, 1, 1}));
  test::Loaded loaded(test::llama_graph(2), *mesh.device);
  const auto planned = persistent_memory(loaded.weights.tensors(), mesh.device->shards(), mesh.members);
  const auto allocated = allocated_per_rank(*loaded.memory);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(planned[rank].weights + planned[rank].cache, allocated[rank]);
  // All weights are f32: wq 32x32, wk and wv 32x16, wo 32x32, gate, up and down 24x32, head 32x20, embd 32x40, and
  // three norms with 32 elements each.
  const size_t floats = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 24 * 32 + 32 * 20 + 32 * 40 + 3 * 32;
  EXPECT_EQ(planned[0].weights, floats * 4);
  EXPECT_EQ(planned[0].cache, 2u * 8 * 16 * 2 * 2);
}

TEST(PlanMemory, IsDividedIntoAllocationsOfLimitedSize) {
  BackendReg& family = *Registry::instance().find_family("NULL");
  Device& small = family.create_device("max_size=1K");
  const auto meta = MetaDevice::create({&Registry::instance().device("NULL0"), &small}, test::callback_for({}));
  test::Loaded loaded("input %x f32 [200]\n%a = scale(%x) {scale=2}\n%b = scale(%x) {scale=3}\noutput %a\noutput %b\n",
                      *meta);
  const auto backend = meta->init();
  const auto plan = backend->create_plan(loaded.graph);
  const auto bytes = allocated_per_rank(*plan);
  EXPECT_EQ(bytes,
            (std::vector<size_t>{plan_of(*plan).ranks[0].memory.compute, plan_of(*plan).ranks[1].memory.compute}));
  EXPECT_GE(bytes[1], 3u * 800);
}

}  // namespace
}  // namespace shoal::meta
