// Tests the per-layer keys, the shared caches and the placements of Gemma 4. architectures_test.cpp compares the logits
// of Gemma 4 with the reference.
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

// kEmbeddings has 7 layers. Layers 1, 3 and 6 have no window. Layers 4 and 5 read the cache of layer 2, and layer 6
// reads the cache of layer 3.
const std::string kEmbeddings = SHOAL_REFERENCE_MODELS "/gemma4-embeddings.gguf";
const std::string kWithExperts = SHOAL_REFERENCE_MODELS "/gemma4-experts.gguf";

/// Error of opening a copy of the model. The copy lacks the key `without` and has the keys that `keys` writes.
std::string refusal_with(const std::string& without, const std::function<void(test::GgufWriter&)>& keys) {
  const GgufFile whole(kEmbeddings);
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

TEST(Gemma4, HeadsAndRopeDependOnLayerType) {
  const Hparams h = open_model(kEmbeddings)->hparams;
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
  EXPECT_THAT(kv_layers, ElementsAre(-1, -1, -1, -1, 2, 2, 3));
  EXPECT_THAT(dims, ElementsAre(16, 24, 16, 24, 16, 16, 24));
  EXPECT_THAT(ff, ElementsAre(64, 64, 64, 64, 128, 128, 128));
  EXPECT_EQ(h.layer_embd, 12);
  EXPECT_FLOAT_EQ(h.logit_softcap, 1.5f);

  const Hparams experts = open_model(kWithExperts)->hparams;
  EXPECT_EQ(experts.layer(1).ff, 24);
  EXPECT_EQ(experts.layer(1).shared_ff, 64) << "number of columns of the dense block";
  EXPECT_EQ(experts.layer(0).kv_heads, 3);
  EXPECT_EQ(experts.layer(1).kv_heads, 1);
}

TEST(Gemma4, RefusesInvalidKeys) {
  const std::string kPattern = "attention.sliding_window_pattern";
  EXPECT_THAT(refusal_with(kPattern, [](test::GgufWriter&) {}),
              HasSubstr("'gemma4.attention.sliding_window_pattern' is missing"));
  const auto with_count = [](const std::string& key, uint32_t value) {
    return refusal_with(key, [&](test::GgufWriter& writer) { writer.add("gemma4." + key, value); });
  };
  EXPECT_THAT(with_count("attention.shared_kv_layers", 7),
              HasSubstr("'gemma4.attention.shared_kv_layers' is 7; it must be less than 7"));
  EXPECT_THAT(with_count("attention.shared_kv_layers", 6),
              HasSubstr("is 6, but no layer before layer 1 has the attention type of layer 1"));
  EXPECT_THAT(with_count("rope.dimension_count_swa", 18),
              HasSubstr("must be even and at most 16, the length of a head"));
  EXPECT_THAT(
      refusal_with("attention.head_count_kv",
                   [](test::GgufWriter& writer) {
                     writer.add_array("gemma4.attention.head_count_kv", std::vector<uint32_t>{2, 2, 2, 2, 2, 3, 2});
                   }),
      HasSubstr("gives layer 5 a different number of heads than layer 2, although both layers share keys and values"));
}

// Files of the published model contain key and value weights for layers that read the cache of another layer. The
// publisher's code ignores these weights.
TEST(Gemma4, UnusedKeyAndValueWeightsAreAccepted) {
  const auto with_tensor = [](const std::string& name, std::vector<int64_t> dims) {
    return refusal_with("context_length", [&](test::GgufWriter& writer) {
      writer.add<uint32_t>("gemma4.context_length", 512);
      writer.add_tensor(name, DType::kF32, dims, std::vector<float>(static_cast<size_t>(dims[0] * dims[1])));
    });
  };
  EXPECT_EQ(with_tensor("blk.5.attn_k.weight", {48, 32}), "nothing was thrown");
  EXPECT_EQ(with_tensor("blk.6.attn_v.weight", {48, 48}), "nothing was thrown");
  EXPECT_EQ(with_tensor("blk.5.attn_k_norm.weight", {16, 1}), "nothing was thrown");
  EXPECT_THAT(with_tensor("blk.5.attn_sinks.weight", {6, 1}), HasSubstr("'blk.5.attn_sinks.weight' is not part of"));
}

TEST(Gemma4, LayersWithSharedCacheDoNotWriteCaches) {
  const auto model = open_model(kEmbeddings);
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
                                "blk.3.keys"));
}

TEST(Gemma4, LayersWithSharedCacheComputeOnlyOutputTokens) {
  const auto model = open_model(kEmbeddings);
  KvCache cache;
  declare_cache(cache, model->hparams, {.rows = 64, .batch = 16});
  const DecoderGraph built = model->architecture->build(model->hparams, model->weights, cache, {16, 3});
  const auto tokens_of = [&](std::string_view name) {
    for (const Tensor* node : built.graph->nodes()) {
      if (node->name == name) return node->shape[1];
    }
    return int64_t{-1};
  };
  EXPECT_EQ(tokens_of("blk.3.q"), 16);
  EXPECT_EQ(tokens_of("blk.3.ffn_out"), 16) << "the next layer reads this result";
  EXPECT_EQ(tokens_of("blk.4.q"), 3);
  EXPECT_EQ(tokens_of("blk.6.ffn_out"), 3);
  EXPECT_EQ(built.logits->shape[1], 3);
}

/// A placement of the model on devices.
struct Gemma4Place {
  const char* name;
  std::vector<int> groups;
  std::function<void(PlacementOptions&)> edit;
  int splits;  ///< number of scheduler splits of the graph for a single token
};

class Gemma4Placements : public ::testing::TestWithParam<Gemma4Place> {};

TEST_P(Gemma4Placements, LogitsMatchLogitsOfOneDevice) {
  SessionOptions options;
  options.context = 192, options.batch = 16;
  options.dtype_k = options.dtype_v = DType::kF32;
  PlacementOptions where{{}, 1};
  GetParam().edit(where);
  const LoadedModel one(kEmbeddings, 1, "", options),
      placed(kEmbeddings, cpu_groups(GetParam().groups), where, options);
  const auto compare = [&](const std::vector<int32_t>& tokens, int64_t outputs = 1) {
    one.session->evaluate(tokens, outputs);
    placed.session->evaluate(tokens, outputs);
    const std::span<const float> expected = one.session->logits(), found = placed.session->logits();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
  };
  std::vector<int32_t> text(75);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i * 37 % 100);
  ASSERT_NO_FATAL_FAILURE(compare(text));
  // Compares 5 outputs of one batch after the ring caches have wrapped around.
  ASSERT_NO_FATAL_FAILURE(compare({text.begin(), text.begin() + 14}, 5));
  ASSERT_NO_FATAL_FAILURE(compare(text));
  for (const int32_t token : {5, 6, 7}) ASSERT_NO_FATAL_FAILURE(compare({token}));
  EXPECT_EQ(placed.session->scheduler().splits(), GetParam().splits);
}

void place_by_layers(PlacementOptions& where) {
  where.mode = SplitMode::kLayer;
}

const Gemma4Place kGemma4Placed[] = {
    // The embedding is also the output head and is placed with the last layers. So data moves from the last device to
    // the first device and back.
    {"two_devices", {1, 1}, place_by_layers, 3},
    {"three_devices", {1, 1, 1}, place_by_layers, 3},
    // two_groups has one more scheduler split than two_devices: the split that streams the RoPE factors.
    {"two_groups", {2, 3}, place_by_layers, 4},
    {"uneven_groups", {3, 2}, [](PlacementOptions& where) { place_by_layers(where), where.ratio = "3,1"; }, 1},
    // Layers 4 to 6 read caches on the host. Each of these layers needs two copies between the host and the device.
    {"some_layers_on_the_host", {2}, [](PlacementOptions& where) { where.device_layers = 3; }, 10},
    {"caches_on_the_host", {2}, [](PlacementOptions& where) { where.cache_on_host = true; }, 15},
    {"layer_embeddings_on_the_host",
     {3},
     [](PlacementOptions& where) {
       where.overrides = {{"per_layer_token_embd", "CPU"}};
     },
     3},
};

INSTANTIATE_TEST_SUITE_P(All, Gemma4Placements, ::testing::ValuesIn(kGemma4Placed),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shoal::models
