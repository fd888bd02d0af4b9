// Hyper-parameters of a model, read from GGUF metadata and checked before anything is computed from them. A plain
// value; thread-safe. Keys are prefixed by the architecture: "llama.block_count". Numbers of heads and feed-forward
// lengths may be arrays with one for each layer.
//
// read_hparams throws one-line InvalidArgument errors that name the file and the key: a count that is 0 or absurdly
// large, heads that do not divide, a rotation wider than a head, an unknown kind of RoPE scaling.
//
//   tiny-kjv-5m: 6 layers, embd 256, 8 heads of 32 over 4 KV heads (2 query heads in each group), ff 768, vocab 1024
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/ops/params.h"
#include "models/gguf/gguf.h"

namespace shoal::models {

/// Of a layer that keeps a state of fixed size in place of keys and values: a causal depthwise convolution, and behind
/// it the gated delta rule (ops.h) where there are value heads.
struct RecurrentHparams {
  int64_t taps = 0;  ///< of the convolution, the token's own among them; 0: the layer attends
  int64_t k_heads = 0, v_heads = 0, head_dim = 0;
  bool tiled = false;  ///< value head h has the key of h % k_heads; else of h / (v_heads / k_heads)

  /// That the convolution goes over: queries, keys and values, or `k_heads` of one element.
  int64_t channels() const { return v_heads == 0 ? k_heads : (2 * k_heads + v_heads) * head_dim; }
  /// Value heads that share a key head.
  int64_t group() const { return v_heads / k_heads; }
  bool operator==(const RecurrentHparams&) const = default;
};

/// What layers may differ in.
struct LayerHparams {
  int64_t ff = 0;         ///< of the feed-forward block, of one expert where there are experts
  int64_t experts = 0;    ///< 0: dense
  int64_t shared_ff = 0;  ///< of the expert that all tokens use besides; 0: there is none
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim_k = 0;
  int64_t head_dim_v = 0;
  RopeParams rope;  ///< dims 0: positions turn nothing
  AttentionParams attention{.causal = true};
  bool values_in_keys = false;  ///< values are the first head_dim_v elements of the keys, and not kept apart
  int64_t kv_layer = -1;        ///< the layer whose keys and values it reads; -1: its own
  RecurrentHparams recurrent;

  bool attends() const { return recurrent.taps == 0; }
  /// Query heads that share a KV head.
  int64_t group() const { return heads / kv_heads; }
  bool operator==(const LayerHparams&) const = default;
};

/// Multi-head latent attention: the keys and values of all heads are made of one row of `rank` numbers for each token,
/// and of rope.dims elements of keys beside it, which all heads share. Files have the matrices that make them for each
/// head by themselves, so that they can be applied to queries and results instead and the cache keeps the rows (layers
/// with values_in_keys); or in one tensor, in older files: then the cache keeps the keys and values of each head.
struct LatentHparams {
  int64_t rank = 0;        ///< 0: the model has none
  int64_t query_rank = 0;  ///< of the row that queries are made of; 0: they are made of activations
  int64_t head_dim_k = 0;  ///< of a head, the rope.dims shared elements at the end included
  int64_t head_dim_v = 0;
  bool operator==(const LatentHparams&) const = default;
};

/// What a router makes of its logits. Numbers as in expert_gating_func.
enum class Gating : uint8_t { kSoftMax = 1, kSigmoid, kSoftMaxOfChosen, kSqrtSoftplus };

/// How experts are chosen and weighed.
struct Routing {
  Gating gating = Gating::kSoftMax;
  bool normalised = true;  ///< the weights of the chosen add up to 1
  float scale = 1.0f;      ///< of the weights, after that
  int64_t groups = 1;      ///< of experts side by side; those chosen are of the groups_used whose best sum to most
  int64_t groups_used = 1;
  int64_t group_best = 2;  ///< experts of a group that are summed
  bool operator==(const Routing&) const = default;
};

/// Queries at position p are multiplied by 1 + scale * ln(1 + floor(p / context)).
struct AttentionTemperature {
  float scale = 0.0f;  ///< 0: they are not
  int64_t context = 0;
  bool operator==(const AttentionTemperature&) const = default;
};

/// As its own LayerHparams it has those of the first layer.
struct Hparams : LayerHparams {
  std::string architecture;
  int64_t layers = 0;
  int64_t context = 0;  ///< positions the model was trained for
  int64_t embd = 0;
  int64_t vocab = 0;
  int64_t experts_used = 0;
  int64_t layer_embd = 0;  ///< of the embedding that each layer has besides; 0: there is none
  Routing routing;
  AttentionTemperature temperature;
  LatentHparams latent;
  float norm_eps = 0.0f;
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;  ///< of what attention and feed-forward block add
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;  ///< c > 0: logits become c * tanh(logit / c)
  /// Keys of the file that should say how attention, rope, experts or states work, and that nothing reads.
  std::vector<std::string> unread_keys;
  std::vector<LayerHparams> per_layer;  ///< empty: all layers are alike

  const LayerHparams& layer(int64_t index) const {
    return per_layer.empty() ? *this : per_layer[static_cast<size_t>(index)];
  }
};

/// Does a context take the factors of rope for long ones, in models that have two lists?
inline bool is_long(const Hparams& h, int64_t context) {
  return context > h.rope.original_context;
}

class HparamsReader;
/// What an architecture has beyond the keys that all have. Gets the model with all of `per_layer` filled in.
using ReadHparams = void (*)(const HparamsReader& in, Hparams& h);

/// `rope`: which elements of a head are turned together; files do not say.
Hparams read_hparams(const GgufFile& file, RopeMode rope, ReadHparams read_more = nullptr);

}  // namespace shoal::models
