// Compares two variants of a model with latent attention. One variant caches one row per token, the other caches keys
// and values of each head. Both variants have the same weights. Also tests the collectives and the hyper-parameters.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <random>

#include "base/error.h"
#include "models/session/model_plan.h"
#include "models/session/session_state.h"
#include "tests/models/tiny_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {
namespace latent_attention {

using ::testing::HasSubstr;

constexpr int64_t kLayers = 3, kEmbd = 64, kHeads = 6, kPlain = 16, kTurned = 8, kRank = 32, kValues = 16, kVocab = 96;
constexpr int64_t kHeadRows = kPlain + kValues;

/// A small random model. If `keeps_rows` is true, the model caches latent rows, otherwise keys and values of each head.
/// The elements of a tensor depend only on the tensor's name.
struct SyntheticLatent {
  bool keeps_rows = true;
  int64_t query_rank = 24;
  std::map<std::string, uint32_t> counts = {};
  std::map<std::string, float> numbers = {};
  std::string scaling = {};

  std::string write() const {
    test::GgufWriter writer;
    write_keys(writer);
    const auto add = [&](const std::string& name, const std::vector<int64_t>& dims) {
      writer.add_tensor(name, DType::kF32, dims, elements(name, dims));
    };
    add("token_embd.weight", {kEmbd, kVocab});
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string prefix = fmt::format("blk.{}.", layer);
      add(prefix + "attn_norm.weight", {kEmbd});
      if (query_rank > 0) {
        add(prefix + "attn_q_a.weight", {kEmbd, query_rank});
        add(prefix + "attn_q_a_norm.weight", {query_rank});
        add(prefix + "attn_q_b.weight", {query_rank, kHeads * (kPlain + kTurned)});
      } else {
        add(prefix + "attn_q.weight", {kEmbd, kHeads * (kPlain + kTurned)});
      }
      add(prefix + "attn_kv_a_mqa.weight", {kEmbd, kRank + kTurned});
      add(prefix + "attn_kv_a_norm.weight", {kRank});
      add_heads(writer, prefix);
      add(prefix + "attn_output.weight", {kHeads * kValues, kEmbd});
      add(prefix + "ffn_norm.weight", {kEmbd});
      add_feed_forward(add, prefix, layer);
    }
    add("output_norm.weight", {kEmbd});
    add("output.weight", {kEmbd, kVocab});
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string path = test::temporary(fmt::format("{}.{}.gguf", test->name(), keeps_rows));
    writer.write(path);
    return path;
  }

 private:
  template <class Add>
  static void add_feed_forward(const Add& add, const std::string& prefix, int layer) {
    if (layer == 0) {
      for (const char* name : {"ffn_gate", "ffn_up"}) add(prefix + name + ".weight", {kEmbd, 96});
      return add(prefix + "ffn_down.weight", {96, kEmbd});
    }
    add(prefix + "ffn_gate_inp.weight", {kEmbd, 4});
    for (const char* name : {"ffn_gate", "ffn_up"}) {
      add(fmt::format("{}{}_exps.weight", prefix, name), {kEmbd, 32, 4});
      add(fmt::format("{}{}_shexp.weight", prefix, name), {kEmbd, 64});
    }
    add(prefix + "ffn_down_exps.weight", {32, kEmbd, 4});
    add(prefix + "ffn_down_shexp.weight", {64, kEmbd});
  }

  /// Adds the matrices that compute the keys and values of each head. A model that caches heads has one tensor for keys
  /// and values. A model that caches rows has a transposed tensor for keys and a tensor for values.
  void add_heads(test::GgufWriter& writer, const std::string& prefix) const {
    const std::vector<int64_t> dims{kRank, kHeads * kHeadRows};
    const std::vector<float> both = elements(prefix + "attn_kv_b.weight", dims);
    if (!keeps_rows) {
      writer.add_tensor(prefix + "attn_kv_b.weight", DType::kF32, dims, both);
      return;
    }
    std::vector<float> keys, values;
    for (int64_t head = 0; head < kHeads; ++head) {
      const float* rows = &both[static_cast<size_t>(head * kHeadRows * kRank)];
      for (int64_t j = 0; j < kRank; ++j) {
        for (int64_t i = 0; i < kPlain; ++i) keys.push_back(rows[i * kRank + j]);
      }
      values.insert(values.end(), rows + kPlain * kRank, rows + kHeadRows * kRank);
    }
    writer.add_tensor(prefix + "attn_k_b.weight", DType::kF32, {kPlain, kRank, kHeads}, keys);
    writer.add_tensor(prefix + "attn_v_b.weight", DType::kF32, {kRank, kValues, kHeads}, values);
  }

  static std::vector<float> elements(const std::string& name, const std::vector<int64_t>& dims) {
    std::seed_seq seed(name.begin(), name.end());
    std::mt19937 random(seed);
    const bool is_norm = name.ends_with("norm.weight");
    int64_t count = 1;
    for (const int64_t length : dims) count *= length;
    std::normal_distribution<float> draw(is_norm ? 1.0f : 0.0f, is_norm ? 0.1f : 0.2f);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = draw(random);
    return out;
  }

  void write_keys(test::GgufWriter& writer) const {
    std::map<std::string, uint32_t> all{{"block_count", kLayers},
                                        {"context_length", 64},
                                        {"embedding_length", kEmbd},
                                        {"feed_forward_length", 96},
                                        {"attention.head_count", kHeads},
                                        {"attention.head_count_kv", keeps_rows ? 1 : kHeads},
                                        {"attention.kv_lora_rank", kRank},
                                        {"attention.key_length", keeps_rows ? kRank + kTurned : kPlain + kTurned},
                                        {"attention.value_length", keeps_rows ? kRank : kValues},
                                        {"rope.dimension_count", kTurned},
                                        {"leading_dense_block_count", 1},
                                        {"expert_count", 4},
                                        {"expert_used_count", 2},
                                        {"expert_shared_count", 2},
                                        {"expert_feed_forward_length", 32}};
    if (query_rank > 0) all["attention.q_lora_rank"] = static_cast<uint32_t>(query_rank);
    if (keeps_rows) {
      all["attention.key_length_mla"] = kPlain + kTurned;
      all["attention.value_length_mla"] = kValues;
    }
    for (const auto& [name, value] : counts) all[name] = value;
    writer.add("general.architecture", "deepseek2");
    for (const auto& [name, value] : all) writer.add("deepseek2." + name, value);
    writer.add("deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
    for (const auto& [name, value] : numbers) writer.add("deepseek2." + name, value);
    if (!scaling.empty()) writer.add("deepseek2.rope.scaling.type", scaling);
  }
};

struct LatentMesh {
  int devices;
  const char* ratio;
};
constexpr LatentMesh kLatentMeshes[] = {{2, ""}, {3, ""},    {4, ""},      {5, ""},
                                        {8, ""}, {2, "3,1"}, {3, "5,0,2"}, {3, "0,1,0"}};

const std::vector<int32_t> kLatentText{3, 14, 15, 92, 65, 35, 89, 79, 32, 38};

SessionOptions in_f32() {
  SessionOptions options;
  options.dtype_k = options.dtype_v = DType::kF32;
  options.batch = 4;
  return options;
}

/// Returns the logits after a prompt, then after each of several single tokens.
std::vector<float> answer(const std::string& path, const LatentMesh& mesh, const SessionOptions& options) {
  LoadedModel loaded(path, mesh.devices, mesh.ratio, options);
  std::vector<float> out;
  loaded.session->evaluate({kLatentText.data(), 7});
  for (size_t length = 7; length <= kLatentText.size(); ++length) {
    if (length > 7) loaded.session->evaluate({&kLatentText[length - 1], 1});
    const std::span<const float> logits = loaded.session->logits();
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

double nmse(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0, all = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    all += std::pow(static_cast<double>(expected[i]), 2);
  }
  return difference / all;
}

TEST(LatentAttention, CachedRowsGiveSameLogitsAsCachedHeads) {
  for (const int64_t query_rank : {0, 24}) {
    SyntheticLatent model{.keeps_rows = false, .query_rank = query_rank};
    const std::vector<float> expected = answer(model.write(), {1, ""}, in_f32());
    for (const LatentMesh& mesh : kLatentMeshes) {
      EXPECT_LE(nmse(answer(model.write(), mesh, in_f32()), expected), 1e-10) << mesh.devices << " " << mesh.ratio;
    }
    model.keeps_rows = true;
    const std::string path = model.write();
    EXPECT_LE(nmse(answer(path, {1, ""}, in_f32()), expected), 1e-10);
    for (const LatentMesh& mesh : kLatentMeshes) {
      EXPECT_LE(nmse(answer(path, mesh, in_f32()), expected), 1e-10) << mesh.devices << " " << mesh.ratio;
    }
    SessionOptions rounded = in_f32();
    rounded.dtype_k = DType::kF16;
    EXPECT_LE(nmse(answer(path, {2, ""}, rounded), expected), 1e-5);
  }
}

TEST(LatentAttention, RefusesUnsupportedCacheTypesOnAnyDevices) {
  const auto model = open_model(SyntheticLatent{}.write());
  for (const DType dtype : {DType::kQ8_0, DType::kQ5_1, DType::kQ5_0, DType::kQ4_1, DType::kQ4_0, DType::kIQ4_NL}) {
    for (const int devices : {1, 2, 3}) {
      for (const LatentSplit split : {LatentSplit::kMirrored, LatentSplit::kRows}) {
        const auto plan = [&] {
          PlacementOptions options{{}, 1};
          options.latent = split;
          const Placement placement(*model, cpu_devices(devices), options);
          ModelPlan(*model, placement, {.dtype_k = dtype});
        };
        EXPECT_THAT(plan, ::testing::ThrowsMessage<InvalidArgument>(fmt::format(
                              "heads of 40 elements do not fill whole blocks of 32 ({}); use f16 or f32 for the keys",
                              name_of(dtype))));
      }
    }
  }
}

TEST(LatentAttention, UsesTwoAllReducesPerLayerOnAnyDevices) {
  for (const bool keeps_rows : {true, false}) {
    const auto model = open_model(SyntheticLatent{.keeps_rows = keeps_rows}.write());
    for (const LatentMesh& mesh : kLatentMeshes) {
      // If one device has all heads, the planner may compute all heads on every device, because this takes no more time
      // than a division of the heads. So the number of all-reduces is not fixed.
      if (!keeps_rows && std::string_view(mesh.ratio) == "0,1,0") continue;
      SCOPED_TRACE(fmt::format("{} devices {} rows {}", mesh.devices, mesh.ratio, keeps_rows));
      const Placement placement(*model, cpu_devices(mesh.devices), {mesh.ratio, 1});
      const ModelPlan plan(*model, placement, {});
      std::vector<const meta::Plan*> plans{&plan.step.on()};
      for (const PlannedGraph& prompt : plan.prompts) plans.push_back(&prompt.on());
      for (const meta::Plan* of : plans) {
        EXPECT_EQ(of->count(Collective::kAllReduce), 2 * kLayers);
        for (const meta::Step& step : of->steps) {
          EXPECT_TRUE(step.kind != meta::StepKind::kCollective || step.collective == Collective::kAllReduce)
              << to_string(*of);
        }
      }
      EXPECT_EQ(plan.step.on().collective_bytes(), 2 * kLayers * kEmbd * static_cast<int64_t>(sizeof(float)));
    }
  }
}

TEST(LatentAttention, EachDeviceCachesOneRowPerToken) {
  const auto model = open_model(SyntheticLatent{}.write());
  EXPECT_EQ(model->hparams.head_dim_k, kRank + kTurned);
  SessionOptions options;
  options.context = 64;
  for (const int devices : {1, 3, 8}) {
    const Placement placement(*model, cpu_devices(devices), {{}, 1});
    const ModelPlan plan(*model, placement, options);
    for (int device = 0; device < devices; ++device) {
      size_t layers = devices == 1 ? kLayers : 0;
      for (int layer = 0; devices > 1 && layer < kLayers; ++layer) {
        layers += placement.policy().partition(layer, CutGroup::kQueryHeads).local_length(device) > 0;
      }
      EXPECT_EQ(plan.memory[static_cast<size_t>(device)].use.cache, layers * 64 * (kRank + kTurned) * 2) << devices;
    }
  }
}

PlacementOptions by_rows(const char* ratio = "") {
  PlacementOptions options{ratio, 1};
  options.latent = LatentSplit::kRows;
  return options;
}

TEST(LatentAttention, CacheRowsAreDividedAmongDevices) {
  const auto model = open_model(SyntheticLatent{}.write());
  SessionOptions options;
  options.context = 64;
  struct Expected {
    LatentMesh mesh;
    std::vector<size_t> rows;
  };
  const Expected all[] = {
      {{2, ""}, {32, 32}}, {{3, ""}, {22, 22, 22}}, {{3, "5,0,2"}, {32, 0, 32}}, {{8, ""}, {8, 8, 8, 8, 8, 8, 8, 8}}};
  for (const auto& [mesh, rows] : all) {
    const Placement placement(*model, cpu_devices(mesh.devices), by_rows(mesh.ratio));
    const ModelPlan plan(*model, placement, options);
    for (size_t device = 0; device < rows.size(); ++device) {
      const size_t bytes = rows[device] * (kRank + kTurned) * 2, aligned = (bytes + 63) / 64 * 64;
      EXPECT_EQ(plan.memory[device].use.cache, kLayers * aligned) << mesh.ratio;
    }
    EXPECT_EQ(persistent_use(*model, placement, options, {})[0].use.cache, plan.memory[0].use.cache);
  }
  // If one device has all layers and heads, there is nothing to divide.
  for (const LatentMesh& mesh : {LatentMesh{1, ""}, LatentMesh{3, "0,1,0"}}) {
    const Placement placement(*model, cpu_devices(mesh.devices), by_rows(mesh.ratio));
    EXPECT_EQ(placement.latent_parts(), 1);
  }
}

TEST(LatentAttention, DividedRowsAddThreeCollectivesPerLayer) {
  const auto model = open_model(SyntheticLatent{}.write());
  for (const LatentMesh& mesh : {LatentMesh{2, ""}, {3, ""}, {4, ""}, {8, ""}, {2, "3,1"}}) {
    SCOPED_TRACE(fmt::format("{} devices {}", mesh.devices, mesh.ratio));
    const Placement placement(*model, cpu_devices(mesh.devices), by_rows(mesh.ratio));
    const ModelPlan plan(*model, placement, {});
    std::vector<const meta::Plan*> plans{&plan.step.on()};
    for (const PlannedGraph& prompt : plan.prompts) plans.push_back(&prompt.on());
    for (const meta::Plan* of : plans) {
      // Queries and partial results are all-gathered. Sums are reduce-scattered or all-reduced.
      const int gathered = of->count(Collective::kAllGather), scattered = of->count(Collective::kReduceScatter);
      EXPECT_EQ(gathered, 2 * kLayers) << to_string(*of);
      EXPECT_LE(of->count(Collective::kAllReduce) + scattered, 3 * kLayers);
      EXPECT_EQ(of->count(Collective::kAllToAll), 0);
    }
  }
}

TEST(LatentAttention, SavedStatesRestoreWithAnyLatentSplit) {
  const std::string path = SyntheticLatent{}.write();
  struct Form {
    int devices;
    PlacementOptions placement;
    int64_t context;
  };
  const Form forms[] = {
      {1, {"", 1}, 64}, {2, {"", 1}, 40}, {2, by_rows(), 64}, {3, by_rows("5,0,2"), 50}, {5, by_rows("1,4,2,2,3"), 33}};
  const std::span<const int32_t> text(kLatentText);
  const auto go_on = [&](Session& session) {
    std::vector<float> out;
    for (const int32_t token : text.subspan(6)) {
      session.evaluate({&token, 1});
      out.insert(out.end(), session.logits().begin(), session.logits().end());
    }
    return out;
  };
  for (const Form& from : forms) {
    SessionOptions options = in_f32();
    options.context = from.context;
    LoadedModel first(path, cpu_groups({from.devices}), from.placement, options);
    first.session->evaluate(text.first(6));
    const std::vector<std::byte> state = save_state(*first.session);
    const std::vector<float> expected = go_on(*first.session);
    first.session->rewind(6);
    EXPECT_LE(nmse(go_on(*first.session), expected), 1e-12);
    for (const Form& to : forms) {
      options.context = to.context;
      LoadedModel second(path, cpu_groups({to.devices}), to.placement, options);
      second.session->evaluate(text.first(9));  // the restored state overwrites these tokens
      restore_state(*second.session, state);
      EXPECT_EQ(second.session->position(), 6);
      EXPECT_EQ(save_state(*second.session), state) << "the state has the same bytes on any devices";
      EXPECT_LE(nmse(go_on(*second.session), expected), 1e-10) << from.devices << " to " << to.devices;
    }
  }
}

Hparams hparams_of(const SyntheticLatent& model) {
  return open_model(model.write())->hparams;
}

TEST(LatentAttention, YarnScalesScoresButNotVectors) {
  SyntheticLatent model;
  EXPECT_FLOAT_EQ(hparams_of(model).attention.scale, 1 / std::sqrt(24.0f));
  model.scaling = "yarn";
  model.numbers = {{"rope.scaling.factor", 40.0f}, {"rope.scaling.yarn_log_multiplier", 0.0707f}};
  model.counts = {{"rope.scaling.original_context_length", 16}};
  const Hparams h = hparams_of(model);
  const float magnitude = 1 + 0.0707f * std::log(40.0f);
  EXPECT_FLOAT_EQ(h.attention.scale, magnitude * magnitude / std::sqrt(24.0f));
  EXPECT_FLOAT_EQ(h.rope.attn_factor * (1 + 0.1f * std::log(40.0f)), 1);
  EXPECT_FLOAT_EQ(h.rope.freq_scale, 1 / 40.0f);
}

TEST(LatentAttention, GatingIsReadFromKeyOrInferredFromModel) {
  SyntheticLatent model;
  EXPECT_EQ(hparams_of(model).routing.gating, Gating::kSoftMax);
  EXPECT_FALSE(hparams_of(model).routing.normalised);
  EXPECT_EQ(hparams_of(model).routing.group_best, 1);
  model.counts = {{"expert_gating_func", 2}};
  EXPECT_EQ(hparams_of(model).routing.gating, Gating::kSigmoid);
  EXPECT_EQ(hparams_of(model).routing.group_best, 2);

  // GLM 4.7 Flash is recognised by its number of layers and its vocabulary size.
  test::GgufWriter writer;
  writer.add("general.architecture", "deepseek2").add("deepseek2.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::map<std::string, uint32_t> counts{{"block_count", 47},
                                               {"context_length", 64},
                                               {"embedding_length", 1},
                                               {"feed_forward_length", 8},
                                               {"attention.head_count", 1},
                                               {"attention.kv_lora_rank", 6},
                                               {"attention.key_length", 8},
                                               {"attention.value_length", 6},
                                               {"attention.key_length_mla", 4},
                                               {"rope.dimension_count", 2},
                                               {"attention.value_length_mla", 4},
                                               {"expert_count", 2},
                                               {"expert_used_count", 1},
                                               {"expert_feed_forward_length", 8}};
  for (const auto& [name, value] : counts) writer.add("deepseek2." + name, value);
  writer.add_tensor("token_embd.weight", DType::kF32, {1, 154880}, std::vector<float>(154880));
  const std::string path = test::temporary("flash.gguf");
  writer.write(path);
  const Architecture& architecture = find_architecture("deepseek2", {});
  EXPECT_EQ(read_hparams(GgufFile(path), architecture.rope, architecture.read).routing.gating, Gating::kSigmoid);
}

TEST(LatentAttention, RefusesInconsistentLengths) {
  const auto refused = [](const std::string& key, uint32_t value, const char* message) {
    SyntheticLatent model;
    model.counts = {{key, value}};
    EXPECT_THAT([&] { open_model(model.write()); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("deepseek2." + key), HasSubstr(message))));
  };
  refused("attention.key_length", 48, "is 48; it should be 40");
  refused("attention.value_length", 16, "is 16; it should be 32, the length of the latent row");
  refused("attention.head_count_kv", 2, "is 2; it should be 1");
  refused("rope.dimension_count", 24, "is 24; it must be less than the 24 elements of a head");
}

}  // namespace latent_attention
}  // namespace
}  // namespace shoal::models
