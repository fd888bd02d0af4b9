// Gemma 4 beyond its logits, which architectures_test.cpp compares: what files say of layers, what layers share, and
// layers on different devices.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/models/checks.h"
#include "tests/models/model_parts.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of 8 layers the fourth and the last see everything; the last four read what the third and the fourth keep.
const std::string kShared = SHOAL_REFERENCE_MODELS "/gemma4-layers.gguf";
const std::string kExperts = SHOAL_REFERENCE_MODELS "/gemma4-experts.gguf";

/// What opening says of the model with some keys replaced by those that `keys` writes.
std::string refusal_with(const std::string& without, const std::function<void(test::GgufWriter&)>& keys) {
  const GgufFile whole(kShared);
  test::GgufWriter writer;
  for (const GgufValue& value : whole.values()) {
    if (value.key == "gemma4." + without) continue;
    writer.add_raw(std::string(value.key), static_cast<uint32_t>(value.type), value_bytes(value));
  }
  keys(writer);
  for (const GgufTensor& tensor : whole.tensors()) {
    test::GgufTensorSpec spec{tensor.name, traits(tensor.dtype).gguf_type, {}, {}, {}, {}};
    spec.dims.assign(tensor.shape.begin(), tensor.shape.begin() + tensor.dims);
    spec.data.assign(tensor.data, tensor.data + tensor.bytes);
    writer.add_tensor(spec);
  }
  const std::string path = test::temporary("gemma4_with_other_keys.gguf");
  writer.write(path);
  return message_of([&] { open_model(path); });
}

TEST(Gemma4, LayersHaveHeadsAndRotationsOfTheirKind) {
  const Hparams h = open_model(kShared)->hparams;
  std::vector<int64_t> kv_layers, dims, ff;
  for (const LayerHparams& layer : h.per_layer) {
    kv_layers.push_back(layer.kv_layer);
    dims.push_back(layer.head_dim_k);
    ff.push_back(layer.ff);
    EXPECT_EQ(layer.head_dim_v, layer.head_dim_k);
    EXPECT_EQ(layer.rope.dims, layer.head_dim_k);
    EXPECT_FLOAT_EQ(layer.rope.base, layer.attention.window > 0 ? 100.0f : 500.0f);
    EXPECT_FLOAT_EQ(layer.attention.scale, 1.0f);
  }
  EXPECT_THAT(kv_layers, ElementsAre(-1, -1, -1, -1, 2, 2, 2, 3));
  EXPECT_THAT(dims, ElementsAre(16, 16, 16, 32, 16, 16, 16, 32));
  EXPECT_THAT(ff, ElementsAre(64, 64, 64, 64, 128, 128, 128, 128));
  EXPECT_EQ(h.layer_embd, 12);
  EXPECT_FLOAT_EQ(h.logit_softcap, 1.5f);

  const Hparams experts = open_model(kExperts)->hparams;
  EXPECT_EQ(experts.layer(2).ff, 24);
  EXPECT_EQ(experts.layer(2).shared_ff, 64) << "the dense block";
  EXPECT_EQ(experts.layer(0).kv_heads, 3);
  EXPECT_EQ(experts.layer(2).kv_heads, 2);
}

TEST(Gemma4, RefusesWhatCannotBeRight) {
  const std::string kPattern = "attention.sliding_window_pattern";
  EXPECT_THAT(refusal_with(kPattern, [](test::GgufWriter&) {}),
              HasSubstr("'gemma4.attention.sliding_window_pattern' is missing"));
  const auto with_count = [](const std::string& key, uint32_t value) {
    return refusal_with(key, [&](test::GgufWriter& writer) { writer.add("gemma4." + key, value); });
  };
  EXPECT_THAT(with_count("attention.shared_kv_layers", 8),
              HasSubstr("'gemma4.attention.shared_kv_layers' is 8 of 8 layers"));
  EXPECT_THAT(with_count("attention.shared_kv_layers", 5),
              HasSubstr("is 5, but no layer before 3 is of the kind of layer 3"));
  EXPECT_THAT(with_count("rope.dimension_count_swa", 18), HasSubstr("must be even and at most the head's 16"));
  EXPECT_THAT(
      refusal_with("attention.head_count_kv",
                   [](test::GgufWriter& writer) {
                     writer.add_array("gemma4.attention.head_count_kv", std::vector<uint32_t>{2, 2, 2, 2, 2, 3, 2, 2});
                   }),
      HasSubstr("gives layer 5 other heads than layer 2, whose keys and values it reads"));
}

// The models' makers publish these, too, and leave them out when they are loaded.
TEST(Gemma4, LayersThatShareACacheMayHaveKeysAndValuesInTheFile) {
  const auto with_tensor = [](const std::string& name, std::vector<int64_t> dims) {
    return refusal_with("context_length", [&](test::GgufWriter& writer) {
      writer.add<uint32_t>("gemma4.context_length", 512);
      writer.add_tensor(name, DType::kF32, dims, std::vector<float>(static_cast<size_t>(dims[0] * dims[1])));
    });
  };
  EXPECT_EQ(with_tensor("blk.5.attn_k.weight", {48, 32}), "nothing was thrown");
  EXPECT_EQ(with_tensor("blk.7.attn_v.weight", {48, 64}), "nothing was thrown");
  EXPECT_EQ(with_tensor("blk.5.attn_k_norm.weight", {16, 1}), "nothing was thrown");
  EXPECT_THAT(with_tensor("blk.5.attn_sinks.weight", {6, 1}), HasSubstr("'blk.5.attn_sinks.weight' is not part of"));
}

TEST(Gemma4, LayersThatShareACacheWriteNothing) {
  const auto model = open_model(kShared);
  KvCache cache;
  declare_cache(cache, model->hparams, {.rows = 64, .batch = 16});
  EXPECT_EQ(cache.specs.size(), 8u) << "keys and values of four layers";
  const DecoderGraph built = model->architecture->build(model->hparams, model->weights, cache, {1, 1});
  std::vector<std::string> keys;
  int writes = 0;
  for (const Tensor* node : built.graph->nodes()) {
    writes += node->op == Op::kSetRows ? 1 : 0;
    if (node->op == Op::kAttention) keys.push_back(node->src[1]->name);
  }
  EXPECT_EQ(writes, 8);
  EXPECT_THAT(keys, ElementsAre("blk.0.keys", "blk.1.keys", "blk.2.keys", "blk.3.keys", "blk.2.keys", "blk.2.keys",
                                "blk.2.keys", "blk.3.keys"));
}

/// Where parts of the model lie.
struct Place {
  const char* name;
  std::vector<int> groups;
  std::function<void(PlacementOptions&)> edit;
  int splits;  ///< of a single token's graph
};

class Gemma4Places : public ::testing::TestWithParam<Place> {};

TEST_P(Gemma4Places, GiveWhatOneDeviceGives) {
  SessionOptions options;
  options.context = 128, options.batch = 16;
  options.dtype_k = options.dtype_v = DType::kF32;
  PlacementOptions where{{}, 1};
  GetParam().edit(where);
  const LoadedModel one(kShared, 1, "", options), placed(kShared, cpu_groups(GetParam().groups), where, options);
  const auto compare = [&](const std::vector<int32_t>& tokens) {
    one.session->evaluate(tokens);
    placed.session->evaluate(tokens);
    const std::span<const float> expected = one.session->logits(), found = placed.session->logits();
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
  };
  std::vector<int32_t> text(75);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i * 37 % 100);
  ASSERT_NO_FATAL_FAILURE(compare(text));
  for (const int32_t token : {5, 6, 7}) ASSERT_NO_FATAL_FAILURE(compare({token}));
  EXPECT_EQ(placed.session->scheduler().splits(), GetParam().splits);
}

void by_layers(PlacementOptions& where) {
  where.mode = SplitMode::kLayer;
}

const Place kPlaces[] = {
    // The embedding is the head, too, and lies with the last layers: there, to the first ones, and back.
    {"two_devices", {1, 1}, by_layers, 3},
    {"three_devices", {1, 1, 1}, by_layers, 3},
    {"two_groups", {2, 3}, by_layers, 3},
    {"uneven_groups", {3, 2}, [](PlacementOptions& where) { by_layers(where), where.ratio = "3,1"; }, 1},
    // Layers 5 to 7 read what the host keeps: there and back for each of them.
    {"some_layers_on_the_host", {2}, [](PlacementOptions& where) { where.device_layers = 3; }, 7},
    {"caches_on_the_host", {2}, [](PlacementOptions& where) { where.cache_on_host = true; }, 17},
    {"layer_embeddings_on_the_host",
     {3},
     [](PlacementOptions& where) {
       where.overrides = {{"per_layer_token_embd", "CPU"}};
     },
     2},
};

INSTANTIATE_TEST_SUITE_P(All, Gemma4Places, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shoal::models
