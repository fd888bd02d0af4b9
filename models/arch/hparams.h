// Hyper-parameters of a model, read from GGUF metadata and checked before use. Hparams is a plain value and
// thread-safe. Keys start with the name of the architecture: "llama.block_count". Head counts and feed-forward lengths
// may be arrays with one entry per layer.
//
// read_hparams throws InvalidArgument with one line that names the file and the key. Examples of rejected values are a
// count that is 0 or absurdly large, a number of KV heads that does not divide the number of heads, a number of rotated
// elements above the head length, and an unknown type of RoPE scaling.
//
//   tiny-kjv-5m: 6 layers, embd 256, 8 query heads of length 32, 4 KV heads (1 per 2 query heads), ff 768, vocab 1024
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/ops/params.h"
#include "models/gguf/gguf.h"

namespace shoal::models {

/// A recurrent layer, which has a state of fixed size instead of keys and values. The layer consists of a causal
/// depthwise convolution, followed by the gated delta rule (ops.h) if there are value heads.
struct RecurrentHparams {
  int64_t taps = 0;  ///< number of taps of the convolution, including the current token; 0: an attention layer
  int64_t k_heads = 0, v_heads = 0, head_dim = 0;
  bool tiled = false;  ///< if true, value head h uses key head h % k_heads; if false, key head h / (v_heads / k_heads)

  /// Number of channels of the convolution: the elements of queries, keys and values. Returns `k_heads` if there are no
  /// value heads.
  int64_t channels() const { return v_heads == 0 ? k_heads : (2 * k_heads + v_heads) * head_dim; }
  /// Number of value heads that share a key head.
  int64_t group() const { return v_heads / k_heads; }
  bool operator==(const RecurrentHparams&) const = default;
};

/// Hyper-parameters that may differ between layers.
struct LayerHparams {
  int64_t ff = 0;         ///< number of columns of the feed-forward block, or of one expert
  int64_t experts = 0;    ///< number of experts; 0: a dense layer
  int64_t shared_ff = 0;  ///< number of columns of the shared expert; 0: there is none
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim_k = 0;
  int64_t head_dim_v = 0;
  RopeParams rope;  ///< no rotation if `dims` is 0
  AttentionParams attention{.causal = true};
  bool values_in_keys = false;  ///< whether the values are the first head_dim_v elements of the keys and have no
                                ///< separate cache
  int64_t kv_layer = -1;        ///< index of the layer whose cache this layer reads; -1: this layer has its own cache
  RecurrentHparams recurrent;

  bool attends() const { return recurrent.taps == 0; }
  /// Number of query heads that share a KV head.
  int64_t group() const { return heads / kv_heads; }
  bool operator==(const LayerHparams&) const = default;
};

/// Multi-head latent attention. The keys and values of all heads are computed from one row of `rank` numbers per token.
/// In addition, the keys of all heads contain the same rope.dims elements. Newer files store separate matrices for keys
/// and values. shoal then multiplies queries by the key matrix and attention results by the value matrix, and the cache
/// holds only the rows (LayerHparams::values_in_keys). Older files store both matrices in one tensor. The cache then
/// holds the keys and values of each head.
struct LatentHparams {
  int64_t rank = 0;        ///< length of the row; 0: the model has no latent attention
  int64_t query_rank = 0;  ///< length of the row from which queries are computed; 0: queries are computed from the
                           ///< activations
  int64_t head_dim_k = 0;  ///< length of a head's key; its last rope.dims elements are shared by all heads
  int64_t head_dim_v = 0;
  bool operator==(const LatentHparams&) const = default;
};

/// Function that turns router logits into probabilities. The enumerators have the values of the key expert_gating_func.
enum class Gating : uint8_t { kSoftMax = 1, kSigmoid, kSoftMaxOfChosen, kSqrtSoftplus };

/// How experts are chosen and weighted.
struct Routing {
  Gating gating = Gating::kSoftMax;
  bool normalised = true;  ///< whether the weights of the chosen experts are scaled to a sum of 1
  float scale = 1.0f;      ///< factor that multiplies the weights after normalisation
  int64_t groups = 1;      ///< number of groups of consecutive experts; a token uses the `groups_used` best groups
  int64_t groups_used = 1;
  int64_t group_best = 2;  ///< the score of a group is the sum of the scores of its `group_best` best experts
  bool operator==(const Routing&) const = default;
};

/// Queries at position p are multiplied by 1 + scale * ln(1 + floor(p / context)).
struct AttentionTemperature {
  float scale = 0.0f;  ///< 0: no temperature
  int64_t context = 0;
  bool operator==(const AttentionTemperature&) const = default;
};

/// The inherited LayerHparams describe layer 0.
struct Hparams : LayerHparams {
  std::string architecture;
  int64_t layers = 0;
  int64_t context = 0;  ///< context length of the training, in tokens
  int64_t embd = 0;
  int64_t vocab = 0;
  int64_t experts_used = 0;
  int64_t layer_embd = 0;  ///< length of the per-layer embeddings; 0: there are none
  Routing routing;
  AttentionTemperature temperature;
  LatentHparams latent;
  float norm_eps = 0.0f;
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;  ///< factor that multiplies the results of attention and feed-forward blocks
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;  ///< if this value c is above 0, each logit becomes c * tanh(logit / c)
  /// Keys about attention, RoPE, experts and states that the file contains and shoal does not read.
  std::vector<std::string> unread_keys;
  std::vector<LayerHparams> per_layer;  ///< empty if all layers are equal

  const LayerHparams& layer(int64_t index) const {
    return per_layer.empty() ? *this : per_layer[static_cast<size_t>(index)];
  }
};

/// Whether a context of `context` tokens uses the long RoPE factors. Only for models with long and short factors.
inline bool is_long(const Hparams& h, int64_t context) {
  return context > h.rope.original_context;
}

class HparamsReader;
/// Reads the keys that only one architecture has. All other fields of `h` are already set, including `per_layer`.
using ReadHparams = void (*)(const HparamsReader& in, Hparams& h);

/// `rope` determines which elements of a head are rotated together. Files do not store this mode.
Hparams read_hparams(const GgufFile& file, RopeMode rope, ReadHparams read_more = nullptr);

}  // namespace shoal::models
