// Compares the Llama graph with a plain float64 forward pass, on one device and on meta devices. The variants of the
// model have features that the repository's model lacks. Also tests the plans of the graph.
#include "models/arch/architecture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "devices/allocate.h"
#include "graph/ops/ops.h"
#include "models/session/model_plan.h"
#include "tests/models/plain_llama.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

const std::vector<int32_t> kText{3, 14, 15, 92, 65, 35, 89, 79, 32, 38};

void add_experts(SyntheticModel& m, Gating gating, bool normalised) {
  m.h.experts = 5, m.h.experts_used = 2;
  m.keys = [=](test::GgufWriter& writer) {
    writer.add("llama.expert_gating_func", static_cast<uint32_t>(gating)).add("llama.expert_weights_norm", normalised);
    writer.add("llama.expert_weights_scale", 1.5f);
  };
}

struct Variant {
  const char* name;
  std::function<void(SyntheticModel&)> edit;
  friend std::ostream& operator<<(std::ostream& out, const Variant& variant) { return out << variant.name; }
};

const Variant kVariants[] = {
    {"dense", [](SyntheticModel&) {}},
    {"tied", [](SyntheticModel& m) { m.tied = true, m.h.vocab = 800; }},
    {"biases", [](SyntheticModel& m) { m.biases = true; }},
    {"rope_factors", [](SyntheticModel& m) { m.rope_factors = true; }},
    {"linear_rope",
     [](SyntheticModel& m) {
       m.keys = [](test::GgufWriter& writer) {
         writer.add<std::string>("llama.rope.scaling.type", "linear").add("llama.rope.scaling.factor", 4.0f);
       };
     }},
    {"factor_without_a_type",
     [](SyntheticModel& m) {
       m.keys = [](test::GgufWriter& writer) { writer.add("llama.rope.scaling.factor", 4.0f); };
     }},
    // In 32 positions, the 8 pairs rotate 5.1, 2.9, 1.6, 0.91, 0.51, 0.29, ... times. The limits are 2 and 0.4
    // rotations, so the ramp of YaRN runs from pair 1 to pair 5.
    {"yarn",
     [](SyntheticModel& m) {
       m.keys = [](test::GgufWriter& writer) {
         writer.add<std::string>("llama.rope.scaling.type", "yarn").add("llama.rope.scaling.factor", 8.0f);
         writer.add<uint32_t>("llama.rope.scaling.original_context_length", 32).add("llama.rope.freq_base", 100.0f);
         writer.add("llama.rope.scaling.yarn_beta_fast", 2.0f).add("llama.rope.scaling.yarn_beta_slow", 0.4f);
         writer.add("llama.rope.scaling.attn_factor", 1.2f);
       };
     }},
    {"yarn_with_rope_factors",
     [](SyntheticModel& m) {
       m.rope_factors = true;
       m.keys = [](test::GgufWriter& writer) {
         writer.add<std::string>("llama.rope.scaling.type", "yarn").add("llama.rope.scaling.factor", 4.0f);
         writer.add<uint32_t>("llama.rope.scaling.original_context_length", 4096);
       };
     }},
    {"experts", [](SyntheticModel& m) { m.h.experts = 5, m.h.experts_used = 2; }},
    {"experts_by_sigmoid", [](SyntheticModel& m) { add_experts(m, Gating::kSigmoid, false); }},
    {"experts_by_sigmoid_normalised", [](SyntheticModel& m) { add_experts(m, Gating::kSigmoid, true); }},
    {"experts_by_soft_max_of_the_chosen", [](SyntheticModel& m) { add_experts(m, Gating::kSoftMaxOfChosen, false); }},
    {"experts_by_root_of_softplus", [](SyntheticModel& m) { add_experts(m, Gating::kSqrtSoftplus, false); }},
    {"experts_by_root_of_softplus_normalised", [](SyntheticModel& m) { add_experts(m, Gating::kSqrtSoftplus, true); }},
    {"one_expert", [](SyntheticModel& m) { m.h.experts = 3, m.h.experts_used = 1; }},
    {"one_kv_head", [](SyntheticModel& m) { m.h.kv_heads = 1; }},
    {"odd_heads", [](SyntheticModel& m) { m.h.heads = 6, m.h.kv_heads = 3, m.h.vocab = 97; }},
    {"other_value_length", [](SyntheticModel& m) { m.h.head_dim_v = 24; }},
    {"layers_that_differ",
     [](SyntheticModel& m) {
       m.h.per_layer.assign(2, m.h);
       m.h.per_layer[1].heads = 6, m.h.per_layer[1].kv_heads = 3, m.h.per_layer[1].ff = 160;
     }},
};

struct Ranks {
  int devices;
  const char* ratio;
};

class LlamaVariant : public ::testing::TestWithParam<std::tuple<Variant, Ranks>> {};

TEST_P(LlamaVariant, LogitsMatchLogitsOfPlainForwardPass) {
  const auto& [variant, mesh] = GetParam();
  SyntheticModel synthetic;
  variant.edit(synthetic);
  SessionOptions options;
  options.dtype_k = options.dtype_v = DType::kF32;
  options.batch = 4;
  LoadedModel loaded(synthetic.write(), mesh.devices, mesh.ratio, options);
  PlainLlama plain(*loaded.model);
  // Evaluates a prompt in uneven batches, then single tokens.
  loaded.session->evaluate({kText.data(), 7});
  for (size_t length = 7; length <= kText.size(); ++length) {
    if (length > 7) loaded.session->evaluate({&kText[length - 1], 1});
    std::span<const float> logits = loaded.session->logits();
    std::vector<double> expected = plain.logits({kText.begin(), kText.begin() + length});
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 2e-3) << length << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LlamaVariant,
                         ::testing::Combine(::testing::ValuesIn(kVariants),
                                            ::testing::Values(Ranks{1, ""}, Ranks{2, ""}, Ranks{3, ""}, Ranks{5, ""},
                                                              Ranks{3, "5,0,2"})),
                         [](const auto& info) {
                           const Ranks& mesh = std::get<1>(info.param);
                           return fmt::format("{}_{}{}", std::get<0>(info.param).name, mesh.devices,
                                              *mesh.ratio != 0 ? "_uneven" : "");
                         });

/// Runs a model with weights of each dtype. With some shares, a device gets no quantisation block of a divided axis.
/// The error limits are twice the largest measured errors.
class LlamaWeightTypes : public ::testing::TestWithParam<DType> {};

TEST_P(LlamaWeightTypes, LogitsMatchLogitsOfPlainForwardPass) {
  SyntheticModel synthetic;
  synthetic.dtype = GetParam();
  synthetic.h.embd = 256, synthetic.h.ff = 512, synthetic.h.heads = 8;
  synthetic.h.head_dim_k = synthetic.h.head_dim_v = synthetic.h.rope.dims = 32;
  const std::string path = synthetic.write();
  SessionOptions options;
  options.dtype_k = options.dtype_v = DType::kF32;
  options.batch = 4;  // several batches
  std::vector<double> expected;
  for (const Ranks& mesh : {Ranks{1, ""}, {2, ""}, {3, "5,0,2"}}) {
    LoadedModel loaded(path, mesh.devices, mesh.ratio, options);
    EXPECT_EQ(loaded.model->file.tensor("blk.0.ffn_up.weight").dtype, GetParam());
    loaded.session->evaluate(kText);
    const std::span<const float> logits = loaded.session->logits();
    if (expected.empty()) expected = PlainLlama(*loaded.model).logits(kText);
    ASSERT_EQ(logits.size(), expected.size());
    double most = 0;
    for (size_t i = 0; i < expected.size(); ++i) most = std::max(most, std::abs(logits[i] - expected[i]));
    // The kernels round f16 and bf16 weights and their columns to 14 bits.
    EXPECT_LE(most, GetParam() == DType::kF32 ? 2e-5 : traits(GetParam()).is_quantized ? 5e-3 : 9e-3) << mesh.devices;
  }
}

std::vector<DType> types_of_weights() {
  std::vector<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeTraits& type = traits(static_cast<DType>(i));
    if (type.is_float || type.is_quantized) types.push_back(type.dtype);
  }
  return types;
}

INSTANTIATE_TEST_SUITE_P(All, LlamaWeightTypes, ::testing::ValuesIn(types_of_weights()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// Number of collectives other than all-reduces.
int other_collectives(const meta::Plan& plan) {
  int count = 0;
  for (const meta::Step& step : plan.steps) {
    count += step.kind == meta::StepKind::kCollective && step.collective != Collective::kAllReduce;
  }
  return count;
}

const Ranks kMeshes[] = {{2, ""}, {3, ""}, {4, ""}, {5, ""}, {8, ""}, {2, "3,1"}, {3, "5,0,2"}, {2, "30:25"}};

void expect_two_all_reduces(const Model& model, const Ranks& mesh) {
  SCOPED_TRACE(fmt::format("{} devices {}", mesh.devices, mesh.ratio));
  Placement placement(model, cpu_devices(mesh.devices), {mesh.ratio, 1});
  ModelPlan plan(model, placement, {});
  std::vector<const meta::Plan*> plans{&plan.step.on()};
  for (const PlannedGraph& prompt : plan.prompts) plans.push_back(&prompt.on());
  ASSERT_EQ(plans.size(), 5u);
  for (const meta::Plan* p : plans) {
    EXPECT_EQ(p->count(Collective::kAllReduce), 2 * model.hparams.layers);
    EXPECT_EQ(other_collectives(*p), 0);
  }
  // Each all-reduce sums one row of activations per token.
  int64_t row = model.hparams.embd * static_cast<int64_t>(sizeof(float));
  EXPECT_EQ(plan.step.on().collective_bytes(), 2 * model.hparams.layers * row);
}

class LlamaPlan : public ::testing::TestWithParam<std::string> {};

TEST_P(LlamaPlan, HasOnlyTwoAllReducesPerLayer) {
  auto model = open_model(tiny_model_path(GetParam()));
  for (const Ranks& mesh : kMeshes) expect_two_all_reduces(*model, mesh);
}

TEST_P(LlamaPlan, StoresUnsharedWeightsOnce) {
  auto model = open_model(tiny_model_path(GetParam()));
  for (const Ranks& mesh : kMeshes) {
    SCOPED_TRACE(fmt::format("{} devices {}", mesh.devices, mesh.ratio));
    Placement placement(*model, cpu_devices(mesh.devices), {mesh.ratio, 1});
    ModelPlan plan(*model, placement, {});
    size_t expected = 0, found = 0;
    for (const Tensor* tensor : model->weights.tensors()) {
      const meta::Shards& shards = *plan.stores[0].find(*tensor);
      for (const Tensor* local : shards.local) found += local->bytes();
      if (shards.layout.is_mirrored()) {
        expected += tensor->bytes() * mesh.devices;
        continue;
      }
      size_t slice = tensor->bytes() / tensor->shape[shards.layout.axis];
      if (shards.layout.axis == 0) {
        expected += tensor->bytes();  // axis 0: query heads or columns; each head or column has one owner
        EXPECT_TRUE(shards.layout.partition.is_disjoint());
        continue;
      }
      for (const meta::Run& run : shards.layout.partition.runs()) expected += slice * run.length * run.owners.size();
    }
    EXPECT_EQ(found, expected);
    // If no head is on several devices, the devices together store the tensors of the file once, plus additional copies
    // of the mirrored tensors.
    if (mesh.devices <= 4) {
      size_t mirrored = 0;
      for (const Tensor* tensor : model->weights.tensors()) {
        if (plan.stores[0].find(*tensor)->layout.is_mirrored()) mirrored += tensor->bytes();
      }
      EXPECT_EQ(found, model->file.tensor_bytes() + mirrored * (mesh.devices - 1));
    }
  }
}

TEST_P(LlamaPlan, PlannedMemoryMatchesAllocations) {
  for (const Ranks& mesh : {Ranks{1, ""}, {2, "3,1"}, {3, "5,0,2"}, {5, ""}}) {
    SCOPED_TRACE(fmt::format("{} devices {}", mesh.devices, mesh.ratio));
    SessionOptions options;
    options.batch = 32;
    LoadedModel loaded(tiny_model_path(GetParam()), mesh.devices, mesh.ratio, options);
    ModelPlan plan(*loaded.model, loaded.placement, options);
    // Evaluates the longest prompt of each of the four batch shapes, and a single token. After these evaluations, the
    // session has its maximum memory.
    for (int64_t tokens : {32, 16, 8, 4, 1}) loaded.session->evaluate(std::vector<int32_t>(tokens, 5));
    loaded.session->logits();
    std::vector<size_t> compute(mesh.devices);
    std::vector<size_t> weights{loaded.model->buffers.front()->size()},
        cache{loaded.session->cache_buffers().front()->size()};
    compute = loaded.session->scheduler().member_sizes(0);
    if (loaded.placement.is_meta()) {
      weights = meta::allocated_per_rank(*loaded.model->buffers.front());
      cache = meta::allocated_per_rank(*loaded.session->cache_buffers().front());
    }
    for (int d = 0; d < mesh.devices; ++d) {
      EXPECT_EQ(plan.memory[d].use.weights, weights[d]) << d;
      EXPECT_EQ(plan.memory[d].mapped, 0u) << d;
      EXPECT_EQ(plan.memory[d].use.cache, cache[d]) << d;
      EXPECT_EQ(plan.memory[d].use.compute, compute[d]) << d;
    }
  }
}

/// Number of candidates per output if each device sends its k best tokens.
int64_t candidates_of(const Model& model, const Placement& placement, int64_t k) {
  const Tensor& head = *model.weights.find("output.weight");
  const meta::Layout layout = meta::to_layout((*placement.policy_of(0))(head), head, placement.policy_of(0)->devices());
  int64_t count = 0;
  for (int device = 0; device < layout.partition.devices(); ++device) {
    count += std::min(k, layout.partition.local_length(device));
  }
  return count;
}

TEST_P(LlamaPlan, ArgmaxOnDevicesNeedsOneSmallAllGather) {
  auto model = open_model(tiny_model_path(GetParam()));
  for (const Ranks& mesh : kMeshes) {
    for (const BatchShape& shape : {BatchShape{1, 1}, {8, 3}}) {
      SCOPED_TRACE(fmt::format("{} devices {}, {} outputs", mesh.devices, mesh.ratio, shape.outputs));
      Placement placement(*model, cpu_devices(mesh.devices), {mesh.ratio, 1});
      ModelPlan plan(*model, placement, {});
      DecoderGraph graph = model->architecture->build(model->hparams, model->weights, plan.cache, shape);
      graph.graph->output(argmax(*graph.graph, graph.logits, "best"));
      const meta::Plan with_best = meta::make_plan(*graph.graph, plan.stores[0], placement.members());
      EXPECT_EQ(with_best.count(Collective::kAllReduce), 2 * model->hparams.layers);
      EXPECT_EQ(with_best.count(Collective::kAllGather), 1);
      EXPECT_EQ(other_collectives(with_best), 1);
      // For each output, each device sends only one candidate (logit and id).
      const int64_t row = model->hparams.embd * static_cast<int64_t>(sizeof(float));
      const int64_t candidates = candidates_of(*model, placement, 1) * shape.outputs * 8;
      EXPECT_EQ(with_best.collective_bytes(), 2 * model->hparams.layers * row * shape.tokens + candidates);
    }
  }
}

TEST_P(LlamaPlan, CandidatesReplaceLogits) {
  auto model = open_model(tiny_model_path(GetParam()));
  for (const Ranks& mesh : kMeshes) {
    SCOPED_TRACE(fmt::format("{} devices {}", mesh.devices, mesh.ratio));
    Placement placement(*model, cpu_devices(mesh.devices), {mesh.ratio, 1});
    const ModelPlan plan(*model, placement, {.candidates = 40});
    const meta::Plan& step = plan.step.on();
    const Tensor& logits = *plan.step.graph.logits;
    EXPECT_FALSE(logits.is_output);
    EXPECT_EQ(plan.step.graph.candidate_ids->shape, (Shape{40, 1, 1, 1}));
    EXPECT_EQ(plan.step.graph.candidate_logits->shape, (Shape{1, 40, 1, 1}));
    EXPECT_EQ(step.count(Collective::kAllGather), 1);
    EXPECT_EQ(other_collectives(step), 1);
    const int64_t row = model->hparams.embd * static_cast<int64_t>(sizeof(float));
    EXPECT_EQ(step.collective_bytes(), 2 * model->hparams.layers * row + candidates_of(*model, placement, 40) * 8);
  }
}

TEST_P(LlamaPlan, ArgmaxOnDevicesMatchesArgmaxOfLogits) {
  for (const Ranks& mesh : {Ranks{1, ""}, {2, "30:25"}, {3, "5,0,2"}, {5, ""}}) {
    SCOPED_TRACE(fmt::format("{} devices {}", mesh.devices, mesh.ratio));
    LoadedModel loaded(tiny_model_path(GetParam()), mesh.devices, mesh.ratio);
    const Model& model = *loaded.model;
    KvCache cache;
    declare_cache(cache, model.hparams, {64});
    const auto memory = allocate_tensors(cache.context.tensors(), loaded.placement.device().buffer_type(), Usage::kAny);
    memory->clear(0);
    DecoderGraph graph = model.architecture->build(model.hparams, model.weights, cache, {10, 10});
    Tensor* best = graph.graph->output(argmax(*graph.graph, graph.logits, "best"));
    const auto backend = std::move(loaded.placement.init().front());
    const auto plan = backend->create_plan(*graph.graph);
    std::vector<int32_t> order(10), found(10);
    std::iota(order.begin(), order.end(), 0);
    tensor_set(*graph.tokens, kText.data(), 0, 40);
    tensor_set(*graph.out_ids, order.data(), 0, 40);
    WholeCache(cache).write_inputs(graph, model.hparams, order);
    backend->compute_async(*plan);
    backend->synchronize();
    tensor_get(*best, found.data(), 0, 40);
    loaded.session->evaluate(kText, 10);
    const std::span<const float> logits = loaded.session->logits();
    for (int i = 0; i < 10; ++i) {
      const auto row = logits.subspan(i * model.hparams.vocab, model.hparams.vocab);
      EXPECT_EQ(found[i], std::max_element(row.begin(), row.end()) - row.begin()) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LlamaPlan, ::testing::Values<std::string>("f16", "q8_0", "q4_k_m", "q4_0"),
                         [](const auto& info) { return std::string(info.param); });

TEST(LlamaPlanVariants, ExpertsNeedTwoAllReducesPerLayer) {
  SyntheticModel synthetic;
  synthetic.h.experts = 4, synthetic.h.experts_used = 2;
  auto model = open_model(synthetic.write());
  for (const Ranks& mesh : {Ranks{2, ""}, {3, ""}, {2, "3,1"}}) expect_two_all_reduces(*model, mesh);
}

TEST(LlamaPlanVariants, SharedKvHeadNeedsNoExtraAllReduces) {
  SyntheticModel synthetic;
  synthetic.h.kv_heads = 1;
  auto model = open_model(synthetic.write());
  for (const Ranks& mesh : {Ranks{2, ""}, {3, "5,0,2"}, {4, "1,0,1,0"}, {3, "0,1,0"}})
    expect_two_all_reduces(*model, mesh);
}

TEST(LlamaPlanVariants, TiedOutputHeadIsDividedByShares) {
  SyntheticModel synthetic;
  synthetic.tied = true;
  synthetic.h.vocab = 800;
  auto model = open_model(synthetic.write());
  for (const Ranks& mesh : {Ranks{2, ""}, {3, "5,0,2"}}) {
    expect_two_all_reduces(*model, mesh);
    Placement placement(*model, cpu_devices(mesh.devices), {mesh.ratio, 1});
    ModelPlan plan(*model, placement, {});
    const auto logits = std::find_if(plan.step.on().shards.begin(), plan.step.on().shards.end(),
                                     [](const auto& entry) { return entry.first->name == "logits"; });
    ASSERT_NE(logits, plan.step.on().shards.end());
    const meta::Layout& layout = logits->second.layout;
    ASSERT_TRUE(layout.is_split(0)) << layout.to_string();
    for (int d = 0; d < mesh.devices; ++d) {
      const double share = placement.policy().bytes()[d];
      const double total = std::accumulate(placement.policy().bytes().begin(), placement.policy().bytes().end(), 0.0);
      EXPECT_NEAR(static_cast<double>(layout.partition.local_length(d)), 800 * share / total, 32) << d;
    }
    EXPECT_TRUE(plan.stores[0].find(*model->weights.find("token_embd.weight"))->layout.is_mirrored());
  }
}

TEST(LlamaPlanVariants, ComputeMemoryPerDeviceShrinksWithMoreDevices) {
  auto model = open_model(tiny_model_path("f16"));
  auto compute = [&](int devices) {
    Placement placement(*model, cpu_devices(devices), {{}, 1});
    ModelPlan plan(*model, placement, {});
    size_t most = 0;
    for (const DeviceUse& use : plan.memory) most = std::max(most, use.use.compute);
    return static_cast<double>(most);
  };
  // Heads and columns are divided. The residual stream, its norms and the inputs are mirrored.
  EXPECT_LT(compute(2), 0.66 * compute(1));
  EXPECT_LT(compute(4), 0.485 * compute(1));
}

}  // namespace
}  // namespace shoal::models
