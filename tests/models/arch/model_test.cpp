// Tests how models are opened. Invalid hyper-parameters and mismatched tensors cause a one-line error that names the
// key or tensor.
#include "models/arch/model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/models/synthetic_model.h"

namespace shoal::models {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string refusal_of(const SyntheticModel& model) {
  std::string path = model.write();
  try {
    open_model(path);
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "it opened";
}

TEST(Hparams, ReadsKeys) {
  SyntheticModel synthetic;
  synthetic.keys = [](test::GgufWriter& writer) {
    writer.add<std::string>("llama.rope.scaling.type", "yarn").add("llama.rope.scaling.factor", 4.0f);
    writer.add<uint32_t>("llama.rope.scaling.original_context_length", 16).add("llama.rope.freq_base", 5e5f);
    writer.add<uint32_t>("llama.rope.dimension_count", 8);
  };
  Hparams h = open_model(synthetic.write())->hparams;
  EXPECT_EQ(h.layers, 2);
  EXPECT_EQ(h.context, 64);
  EXPECT_EQ(h.embd, 64);
  EXPECT_EQ(h.ff, 96);
  EXPECT_EQ(h.heads, 4);
  EXPECT_EQ(h.kv_heads, 2);
  EXPECT_EQ(h.group(), 2);
  EXPECT_EQ(h.head_dim_k, 16);
  EXPECT_EQ(h.vocab, 96);
  EXPECT_EQ(h.experts, 0);
  EXPECT_FLOAT_EQ(h.norm_eps, 1e-5f);
  EXPECT_EQ(h.rope.dims, 8);
  EXPECT_FLOAT_EQ(h.rope.base, 5e5f);
  EXPECT_FLOAT_EQ(h.rope.freq_scale, 0.25f);
  EXPECT_FLOAT_EQ(h.rope.ext_factor, 1.0f);
  EXPECT_EQ(h.rope.original_context, 16);
}

TEST(Hparams, AbsentKeysHaveDefaults) {
  SyntheticModel synthetic;
  synthetic.h.kv_heads = 4;
  synthetic.without_keys = {"attention.head_count_kv", "attention.key_length", "attention.value_length"};
  Hparams h = open_model(synthetic.write())->hparams;
  EXPECT_EQ(h.kv_heads, 4);
  EXPECT_EQ(h.head_dim_k, 16);
  EXPECT_EQ(h.head_dim_v, 16);
  EXPECT_EQ(h.rope.dims, 16);
  EXPECT_FLOAT_EQ(h.rope.base, 10000.0f);
  EXPECT_FLOAT_EQ(h.rope.freq_scale, 1.0f);
}

// An expert group count of 0 and a gating function of 0 mean the same as absent keys.
TEST(Hparams, ExpertKeysOfValueZeroCountAsAbsent) {
  for (const bool zeros : {false, true}) {
    SyntheticModel synthetic;
    synthetic.h.architecture = "glm4moe";
    synthetic.keys = [zeros](test::GgufWriter& writer) {
      writer.add<uint32_t>("glm4moe.expert_count", 4).add<uint32_t>("glm4moe.expert_used_count", 2);
      if (zeros) writer.add<uint32_t>("glm4moe.expert_group_count", 0).add<uint32_t>("glm4moe.expert_gating_func", 0);
    };
    const GgufFile file(synthetic.write());
    const Architecture& architecture = find_architecture("glm4moe", file.path());
    const Hparams h = read_hparams(file, architecture.rope, architecture.read);
    EXPECT_EQ(h.routing.groups, 1);
    EXPECT_EQ(h.routing.gating, Gating::kSigmoid);
  }
}

TEST(Hparams, ReadsCountsPerLayer) {
  SyntheticModel synthetic;
  synthetic.h.per_layer.assign(2, synthetic.h);
  EXPECT_TRUE(open_model(synthetic.write())->hparams.per_layer.empty());  // the arrays in the file contain equal
                                                                          // numbers
  synthetic.h.per_layer[1].heads = 6, synthetic.h.per_layer[1].kv_heads = 1, synthetic.h.per_layer[1].ff = 32;
  const auto model = open_model(synthetic.write());
  EXPECT_EQ(model->hparams.layer(0).group(), 2);
  EXPECT_EQ(model->hparams.layer(1).group(), 6);
  EXPECT_EQ(model->hparams.layer(1).head_dim_k, 16);
  EXPECT_EQ(model->weights.find("blk.1.attn_output.weight")->shape, (Shape{96, 64, 1, 1}));
  EXPECT_EQ(model->weights.find("blk.1.ffn_up.weight")->shape, (Shape{64, 32, 1, 1}));

  const auto refused = [](const std::vector<uint32_t>& kv_heads) {
    SyntheticModel other;
    other.without_keys = {"attention.head_count_kv"};
    other.keys = [&](test::GgufWriter& writer) { writer.add_array("llama.attention.head_count_kv", kv_heads); };
    return refusal_of(other);
  };
  EXPECT_EQ(refused({2, 2}), "it opened");
  EXPECT_THAT(refused({2, 0}), HasSubstr("'llama.attention.head_count_kv' is 0, which does not divide the 4 heads"));
  EXPECT_THAT(refused({2, 3}), HasSubstr("'llama.attention.head_count_kv' is 3, which does not divide the 4 heads"));
  EXPECT_THAT(refused({2}), HasSubstr("'llama.attention.head_count_kv' has 1 entries for 2 layers"));
}

/// A key with an invalid value.
struct BadKey {
  const char* name;
  std::function<void(test::GgufWriter&)> write;
  const char* message;
};

template <class T>
BadKey bad(const char* name, T value, const char* message) {
  return {name, [=](test::GgufWriter& writer) { writer.add(std::string("llama.") + name, value); }, message};
}

TEST(Hparams, RefusesInvalidKeys) {
  const BadKey cases[] = {
      bad("block_count", uint32_t{0}, "llama.block_count"),
      bad("block_count", uint32_t{4000000000}, "'llama.block_count' is 4000000000; the largest valid value is 65536"),
      bad("embedding_length", uint32_t{0}, "llama.embedding_length"),
      bad("embedding_length", uint32_t{0xffffffff}, "'llama.embedding_length' is 4294967295; the largest"),
      bad("feed_forward_length", uint32_t{0}, "llama.feed_forward_length"),
      bad("context_length", uint32_t{0}, "llama.context_length"),
      bad("attention.head_count", uint32_t{0}, "llama.attention.head_count"),
      bad("attention.head_count_kv", uint32_t{3}, "'llama.attention.head_count_kv' is 3, which does not divide the 4"),
      bad("attention.head_count_kv", uint32_t{0}, "llama.attention.head_count_kv"),
      bad("attention.key_length", uint32_t{0}, "llama.attention.key_length"),
      bad("attention.layer_norm_rms_epsilon", 0.0f, "positive number, found 0"),
      bad("attention.layer_norm_rms_epsilon", std::numeric_limits<float>::quiet_NaN(), "positive number, found nan"),
      bad("attention.layer_norm_rms_epsilon", uint32_t{1}, "llama.attention.layer_norm_rms_epsilon"),
      bad("rope.dimension_count", uint32_t{18}, "'llama.rope.dimension_count' is 18; it must be even and at most"),
      bad("rope.dimension_count", uint32_t{7}, "'llama.rope.dimension_count' is 7; it must be even"),
      bad("rope.freq_base", -1.0f, "'llama.rope.freq_base' should be a positive number"),
      bad("rope.scaling.factor", -2.0f, "'llama.rope.scaling.factor' should be a number >= 0, found -2"),
      bad("rope.scaling.factor", std::numeric_limits<float>::infinity(), "'llama.rope.scaling.factor' should be"),
      bad("rope.scale_linear", -2.0f, "'llama.rope.scale_linear' should be a number >= 0"),
      bad("rope.scaling.attn_factor", 0.0f, "'llama.rope.scaling.attn_factor' should be a positive number"),
      bad("rope.scaling.type", std::string("dynamic"),
          "is 'dynamic'; the supported values are none, linear, yarn and longrope"),
      bad("vocab_size", uint32_t{95}, "'llama.vocab_size' is 95, but token_embd.weight has 96 rows"),
      bad("expert_count", uint32_t{4}, "llama.expert_used_count"),
  };
  for (const BadKey& c : cases) {
    SyntheticModel synthetic;
    synthetic.without_keys = {c.name};
    synthetic.keys = c.write;
    EXPECT_THAT(refusal_of(synthetic), HasSubstr(c.message)) << c.name;
  }
}

/// RopeParams that result from the rope keys of a file.
RopeParams rope_of(const std::string& type, std::vector<std::pair<std::string, float>> numbers) {
  SyntheticModel synthetic;
  synthetic.keys = [&](test::GgufWriter& writer) {
    if (!type.empty()) writer.add("llama.rope.scaling.type", type);
    for (const auto& [name, value] : numbers) writer.add("llama.rope." + name, value);
  };
  return open_model(synthetic.write())->hparams.rope;
}

TEST(Hparams, ReadsRopeFactorLikeLlamaCpp) {
  struct Case {
    const char* type;
    std::vector<std::pair<std::string, float>> numbers;
    float freq_scale;
  };
  const Case cases[] = {
      {"", {}, 1.0f},
      {"", {{"scaling.factor", 4.0f}}, 0.25f},
      {"", {{"scale_linear", 8.0f}}, 0.125f},
      {"", {{"scaling.factor", 0.0f}}, 1.0f},
      {"linear", {}, 1.0f},
      {"linear", {{"scaling.factor", 0.0f}}, 1.0f},
      {"linear", {{"scaling.factor", 4.0f}}, 0.25f},
      {"linear", {{"scale_linear", 8.0f}}, 0.125f},
      // rope.scaling.factor takes precedence over the older key scale_linear, even if the factor is 0 (no scaling).
      {"linear", {{"scaling.factor", 4.0f}, {"scale_linear", 8.0f}}, 0.25f},
      {"linear", {{"scaling.factor", 0.0f}, {"scale_linear", 8.0f}}, 1.0f},
      {"none", {{"scaling.factor", 4.0f}, {"scale_linear", 8.0f}}, 1.0f},
      {"yarn", {}, 1.0f},
      {"yarn", {{"scaling.factor", 4.0f}}, 0.25f},
      {"yarn", {{"scale_linear", 8.0f}}, 0.125f},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("'{}' with {} numbers, {}", c.type, c.numbers.size(), c.freq_scale));
    const RopeParams rope = rope_of(c.type, c.numbers);
    EXPECT_FLOAT_EQ(rope.freq_scale, c.freq_scale);
    EXPECT_FLOAT_EQ(rope.ext_factor, c.type == std::string("yarn") ? 1.0f : 0.0f);
    EXPECT_FLOAT_EQ(rope.attn_factor, 1.0f);
  }
}

TEST(Hparams, ReadsYarnKeys) {
  RopeParams rope = rope_of("yarn", {{"scaling.factor", 4.0f},
                                     {"scaling.yarn_ext_factor", 0.5f},
                                     {"scaling.yarn_attn_factor", 1.5f},
                                     {"scaling.attn_factor", 3.0f},
                                     {"scaling.yarn_beta_fast", 16.0f},
                                     {"scaling.yarn_beta_slow", 2.0f}});
  EXPECT_FLOAT_EQ(rope.ext_factor, 0.5f);
  EXPECT_FLOAT_EQ(rope.attn_factor * (1 + 0.1f * std::log(4.0f)), 4.5f);  // the rope op multiplies by (1 + 0.1 ln 4)
  EXPECT_FLOAT_EQ(rope.beta_fast, 16.0f);
  EXPECT_FLOAT_EQ(rope.beta_slow, 2.0f);
  EXPECT_EQ(rope.original_context, 64);  // the model's own context, because the file has no original context
  rope = rope_of("yarn", {});
  EXPECT_FLOAT_EQ(rope.beta_fast, 32.0f);
  EXPECT_FLOAT_EQ(rope.beta_slow, 1.0f);
  // The attention factor of OLMo 3 already includes the magnitude that the rope op applies. This magnitude must not be
  // applied twice.
  rope = rope_of("yarn", {{"scaling.factor", 8.0f}, {"scaling.yarn_attn_factor", 1.2079441541679836f}});
  EXPECT_FLOAT_EQ(rope.attn_factor, 1.0f);
  // llama.cpp's saver writes the following values if the model defines no attention factor.
  rope = rope_of("yarn", {{"scaling.factor", 8.0f},
                          {"scaling.attn_factor", 1.0f},
                          {"scaling.yarn_attn_factor", 1.0f},
                          {"scaling.yarn_ext_factor", -1.0f}});
  EXPECT_FLOAT_EQ(rope.attn_factor, 1.0f);
  EXPECT_FLOAT_EQ(rope.ext_factor, 1.0f);
  // scaling.attn_factor applies to every scaling type. The other keys apply only to yarn.
  rope = rope_of("linear", {{"scaling.attn_factor", 3.0f}, {"scaling.yarn_attn_factor", 2.0f}});
  EXPECT_FLOAT_EQ(rope.attn_factor, 3.0f);
}

TEST(Hparams, RefusesEmbeddingModels) {
  SyntheticModel synthetic;
  synthetic.keys = [](test::GgufWriter& writer) { writer.add("llama.attention.causal", false); };
  EXPECT_THAT(refusal_of(synthetic), EndsWith(".gguf: key 'llama.attention.causal' is false: embedding models are not "
                                              "supported; use a model that generates text"));
  synthetic.keys = [](test::GgufWriter& writer) { writer.add("llama.attention.causal", true); };
  EXPECT_EQ(refusal_of(synthetic), "it opened");
}

TEST(Hparams, UnreadKeysWithZerosAreNotReported) {
  SyntheticModel synthetic;
  synthetic.keys = [](test::GgufWriter& writer) {
    writer.add("llama.attention.clamp_kqv", 0.0f).add("llama.ssm.dt_b_c_rms", false);
    writer.add_array("llama.attention.flags", std::vector<uint32_t>{0, 0});
  };
  EXPECT_TRUE(open_model(synthetic.write())->hparams.unread_keys.empty());
  synthetic.keys = [](test::GgufWriter& writer) {
    writer.add("llama.attention.clamp_kqv", 0.5f).add("llama.ssm.dt_b_c_rms", true);
    writer.add_array("llama.attention.flags", std::vector<uint32_t>{0, 1}).add("llama.vision.attention.heads", 3u);
  };
  EXPECT_THAT(open_model(synthetic.write())->hparams.unread_keys,
              ::testing::ElementsAre("llama.attention.clamp_kqv", "llama.ssm.dt_b_c_rms", "llama.attention.flags"));
}

TEST(Hparams, DescriptiveRopeKeysAreNotReported) {
  SyntheticModel synthetic;
  synthetic.keys = [](test::GgufWriter& writer) {
    writer.add("llama.rope.mrope_interleaved", true).add("llama.rope.type", std::string("mrope"));
    writer.add_array("llama.rope.mrope_section", std::vector<uint32_t>{24, 20, 20});
  };
  EXPECT_TRUE(open_model(synthetic.write())->hparams.unread_keys.empty());
  synthetic.keys = [](test::GgufWriter& writer) { writer.add("llama.rope.type", std::string("yarn")); };
  EXPECT_THAT(open_model(synthetic.write())->hparams.unread_keys, ::testing::ElementsAre("llama.rope.type"));
}

TEST(Model, RefusesUnknownArchitectures) {
  SyntheticModel synthetic;
  synthetic.h.architecture = "mamba";
  EXPECT_THAT(
      refusal_of(synthetic),
      HasSubstr(".gguf: architecture 'mamba' is not supported; use a model of one of these architectures: llama, "));
}

TEST(Model, EscapesNamesFromFile) {
  SyntheticModel synthetic;
  synthetic.h.architecture = std::string("ll\x1b[2J\0ma\r", 10);
  EXPECT_THAT(refusal_of(synthetic), HasSubstr(R"(architecture 'll\x1b[2J\x00ma\r' is not supported)"));
  synthetic.h.architecture = std::string(1000, 'a');
  EXPECT_LT(refusal_of(synthetic).size(), 600u);

  synthetic = {};
  synthetic.edit = [](TensorSpec& spec) {
    if (spec.name == "output.weight") spec.name = "out\x1b[2J\r\n\xff";
    return true;
  };
  EXPECT_THAT(refusal_of(synthetic), HasSubstr(R"(tensor 'out\x1b[2J\r\n\xff' is not part of a llama model)"));

  synthetic = {};
  synthetic.keys = [](test::GgufWriter& writer) { writer.add<std::string>("llama.rope.scaling.type", "y\x1b\narn"); };
  EXPECT_THAT(refusal_of(synthetic),
              HasSubstr(R"('llama.rope.scaling.type' is 'y\x1b\narn'; the supported values are)"));
}

TEST(Model, ErrorNamesMissingTensor) {
  SyntheticModel synthetic;
  synthetic.edit = [](TensorSpec& spec) { return spec.name != "blk.1.ffn_down.weight"; };
  EXPECT_THAT(refusal_of(synthetic), HasSubstr("tensor 'blk.1.ffn_down.weight' is missing"));
}

TEST(Model, ArchitectureDeterminesRequiredAndAllowedBiases) {
  SyntheticModel synthetic;  // has the tensors of Llama
  synthetic.h.architecture = "qwen2";
  EXPECT_THAT(refusal_of(synthetic), HasSubstr("tensor 'blk.0.attn_q.bias' is missing"));
  synthetic.biases = true;
  EXPECT_THAT(refusal_of(synthetic), HasSubstr("tensor 'blk.0.ffn_gate.bias' is not part of a qwen2 model"));
  // Any architecture may have attention biases.
  synthetic.edit = [](TensorSpec& spec) {
    return spec.name.ends_with("weight") || spec.name.find("ffn") == std::string::npos;
  };
  EXPECT_EQ(refusal_of(synthetic), "it opened");
}

TEST(Model, ErrorNamesExpectedAndFoundShape) {
  SyntheticModel synthetic;
  synthetic.edit = [](TensorSpec& spec) {
    if (spec.name == "blk.0.attn_q.weight") spec.shape[1] = 48;
    return true;
  };
  EXPECT_THAT(refusal_of(synthetic), HasSubstr("'blk.0.attn_q.weight' should be [64, 64], found [64, 48]"));
}

TEST(Model, RefusesUnknownTensors) {
  SyntheticModel synthetic;
  synthetic.edit = [](TensorSpec& spec) {
    if (spec.name == "output.weight") spec.name = "output_extra.weight";
    return true;
  };
  EXPECT_THAT(refusal_of(synthetic), HasSubstr("tensor 'output_extra.weight' is not part of a llama model"));
}

/// Error of opening a model in which tensor `name` has this dtype and these dimensions.
std::string message_with(const std::string& name, DType dtype, const std::vector<int64_t>& dims) {
  SyntheticModel synthetic;
  synthetic.biases = synthetic.rope_factors = true;
  synthetic.edit = [&](TensorSpec& spec) { return spec.name != name; };
  synthetic.keys = [&](test::GgufWriter& writer) {
    int64_t count = 1;
    for (int64_t length : dims) count *= length;
    writer.add_tensor(name, dtype, dims, std::vector<float>(count, 1.0f));
  };
  return refusal_of(synthetic);
}

TEST(Model, NormsAndBiasesMustBeF32) {
  // All these shapes describe the same tensor.
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{64}, {64, 1}, {64, 1, 1, 1}}) {
    for (const char* name : {"output_norm.weight", "blk.1.attn_norm.weight", "blk.0.ffn_norm.weight",
                             "blk.0.attn_q.bias", "blk.1.attn_output.bias"}) {
      EXPECT_THAT(message_with(name, DType::kF16, dims),
                  EndsWith(fmt::format(".gguf: tensor '{}' should be f32, found f16; convert the model again", name)));
      EXPECT_THAT(message_with(name, DType::kI32, dims), HasSubstr("should be f32, found i32")) << name;
      EXPECT_EQ(message_with(name, DType::kF32, dims), "it opened") << name;
    }
  }
  EXPECT_THAT(message_with("rope_freqs.weight", DType::kF16, {8}), HasSubstr("should be f32, found f16"));
}

TEST(Model, RefusesIntegerWeights) {
  for (const char* name : {"token_embd.weight", "output.weight"}) {
    for (DType dtype : {DType::kI32, DType::kI64}) {
      EXPECT_THAT(message_with(name, dtype, {64, 96}),
                  EndsWith(fmt::format(".gguf: tensor '{}' should be of a float or quantised type, found {}; convert "
                                       "the model again",
                                       name, name_of(dtype))));
    }
  }
  EXPECT_THAT(message_with("blk.1.attn_q.weight", DType::kI64, {64, 64}), HasSubstr("'blk.1.attn_q.weight'"));
  EXPECT_THAT(message_with("blk.0.ffn_up.weight", DType::kI32, {64, 96}), HasSubstr("'blk.0.ffn_up.weight'"));
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ8_0}) {
    EXPECT_EQ(message_with("token_embd.weight", dtype, {64, 96}), "it opened") << name_of(dtype);
  }
}

TEST(Model, MatrixOfOneRowMayHaveAnyType) {
  SyntheticModel synthetic;
  synthetic.h.experts = 1, synthetic.h.experts_used = 1;
  synthetic.dtype = DType::kF16;
  EXPECT_EQ(refusal_of(synthetic), "it opened");
}

TEST(KvCache, RefusesUnsupportedTypes) {
  Hparams h = SyntheticModel().h;
  auto message = [&](const KvCacheOptions& options) -> std::string {
    KvCache cache;
    try {
      declare_cache(cache, h, options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "declared";
  };
  EXPECT_EQ(message({64}), "declared");
  EXPECT_THAT(message({64, DType::kQ4_K}), HasSubstr("cannot hold keys as q4_K; use f16, f32, bf16, q8_0, "));
  EXPECT_THAT(message({64, DType::kF16, DType::kQ8_0}),
              HasSubstr("heads of 16 elements do not fill whole blocks of 32"));
  EXPECT_THAT(message({0}), HasSubstr("a context of 0 tokens is not possible"));
  EXPECT_THAT(message({int64_t{1} << 31}), HasSubstr("is not possible"));
  EXPECT_THAT(message({.rows = 64, .parts = 2}), HasSubstr("2 cache parts are not possible; use 1 (several parts "));
  h.kv_heads = 1, h.values_in_keys = true;
  EXPECT_EQ(message({.rows = 64, .parts = 2}), "declared");
  EXPECT_THAT(message({.rows = 64, .parts = 0}), HasSubstr("0 cache parts are not possible"));
}

TEST(KvCache, QuantisesKeysAndValuesSeparately) {
  Hparams h = SyntheticModel().h;
  h.head_dim_k = 48, h.head_dim_v = 64;
  for (const DType dtype : {DType::kQ8_0, DType::kQ5_1, DType::kQ5_0, DType::kQ4_1, DType::kQ4_0, DType::kIQ4_NL}) {
    KvCache cache;
    declare_cache(cache, h, {64, dtype, dtype});
    for (const LayerCache& layer : cache.layers) {
      EXPECT_EQ(layer.k->dtype, DType::kF16);
      EXPECT_EQ(layer.v->dtype, dtype);
    }
    EXPECT_EQ(other_types(cache, dtype, dtype),
              fmt::format("cached keys are f16 in 2 of 2 layers: heads of 48 elements do not fill the blocks of {}",
                          name_of(dtype)));
    EXPECT_EQ(other_types(cache, DType::kF16, dtype), "");
    // A request that quantises only the keys is refused, because heads of 48 elements cannot be quantised.
    KvCache keys;
    EXPECT_THAT(
        [&] {
          declare_cache(keys, h, {64, dtype});
        },
        ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("heads of 48 elements do not fill whole blocks of 32 (")));
  }
  h.kv_heads = 1, h.values_in_keys = true;
  h.head_dim_k = 64, h.head_dim_v = 48;  // values are the first elements of the keys
  KvCache latent;
  EXPECT_THAT(
      [&] {
        declare_cache(latent, h, {64, DType::kQ8_0});
      },
      ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("heads of 48 elements do not fill whole blocks of 32")));
}

TEST(KvCache, ListsOfPagesGiveTheRowOfAPosition) {
  KvCache cache;
  declare_cache(cache, SyntheticModel().h, {.rows = 100});
  EXPECT_EQ(cache.page, 32);
  EXPECT_EQ(cache.rows_of(0), 128);
  EXPECT_EQ(cache.most_pages(), 4);
  ASSERT_EQ(cache.groups.size(), 1U);
  const std::vector<int32_t> pages{3, 0};
  EXPECT_EQ(row_of(cache, cache.groups[0], pages, 0), 96);
  EXPECT_EQ(row_of(cache, cache.groups[0], pages, 31), 127);
  EXPECT_EQ(row_of(cache, cache.groups[0], pages, 40), 8);
  EXPECT_EQ(row_of(cache, cache.groups[0], pages, -1), -1);
}

TEST(KvCache, ConsecutivePositionsAlternateBetweenParts) {
  constexpr int64_t kParts = 3, kPage = 66;
  Hparams h = SyntheticModel().h;
  h.kv_heads = 1, h.values_in_keys = true;
  KvCache cache;
  declare_cache(cache, h, {.rows = 130, .parts = kParts});
  ASSERT_EQ(cache.page, kPage);
  EXPECT_EQ(cache.rows_of(0), 2 * kPage);
  EXPECT_FALSE(cache.has_window(0));
  const int64_t part_rows = 2 * kPage / kParts;
  const std::vector<int32_t> pages{1, 0};
  std::vector<int64_t> count(kParts);
  for (int64_t position = 0; position < 2 * kPage; ++position) {
    const int64_t part = position % kParts,
                  in_part = pages[position / kPage] * (kPage / kParts) + position % kPage / kParts;
    ++count[static_cast<size_t>(part)];
    EXPECT_EQ(row_of(cache, cache.groups[0], pages, position), part * part_rows + in_part) << position;
    for (int64_t other = 0; other < kParts; ++other) {
      EXPECT_EQ(last_row_in_part(position, kParts, other), count[static_cast<size_t>(other)] - 1) << position << other;
    }
  }
  EXPECT_EQ(last_row_in_part(-1, kParts, 0), -1);
}

}  // namespace
}  // namespace shoal::models
