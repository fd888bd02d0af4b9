// What architectures are written in. An architecture is one function over a Decoder and its layers:
//
//   void dense(Decoder& d) {
//     Tensor* x = d.embed();
//     for (Layer& l : d.layers()) {
//       Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
//       x = l.residual(x, l.attend(l.turn(l.qkv(normed))), "attn_residual");
//       normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
//       x = l.residual(x, l.feed_forward(normed, {}), "ffn_residual");
//     }
//     d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
//   }
//
// Decoder::usual_layers() is this loop for any attention.
//
// Each call that needs a weight says its name, shape and cut to a WeightSource, which gives the tensor: of a scratch
// graph when tensors are declared, of the model when a graph is built (architecture.h). So there is no second list of
// weights. What differs between models is data: hyper-parameters, which say kind and base of RoPE, scale, window and
// soft-cap of attention, experts and how they are chosen, scales of embedding, residuals and logits; arguments; and
// tensors that are there or not.
//
// Shapes are innermost first, for t tokens: activations f32 [n, t], heads f32 [head_dim, heads, t]. `result` names the
// node. Nodes come in the order of the calls, so a call takes at most one other call as its argument. A Decoder lives
// while one graph is made; one thread.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/ops/ops.h"
#include "models/arch/architecture.h"

namespace shoal::models {

/// Is a bias added to a product?
enum class Bias : uint8_t { kNone, kOptional, kRequired };

/// The tensor of a spec; nullptr for one that is optional and absent. Asked once for each tensor.
using WeightSource = std::function<Tensor*(const TensorSpec& spec)>;

struct Qkv {
  Tensor *q = nullptr, *k = nullptr, *v = nullptr;  ///< f32 [head_dim, heads or kv_heads, t]
};

/// Where values come from.
enum class Values : uint8_t {
  kOwn,
  kMayBeKeys,  ///< in layers without attn_v they are what attn_k gives
};

/// What a feed-forward block makes of gate and up. kClampedSwiglu: min(gate, 7) * sigmoid(1.702 min(gate, 7)) *
/// (clamp(up, -7, 7) + 1).
enum class Activation : uint8_t { kSwiglu, kGeglu, kClampedSwiglu };

struct FeedForward {
  Activation activation = Activation::kSwiglu;
  Bias bias = Bias::kNone;   ///< of its products and of the router's
  bool fused = false;        ///< ffn_up has the rows of the gate, then those of up
  bool shared_gate = false;  ///< the shared expert counts sigmoid(ffn_gate_inp_shexp x)
  bool factors = false;      ///< what an expert gives is multiplied by its ffn_down_exps.scale, if there is one
};

class Layer {
 public:
  Layer(Decoder& decoder, int index);

  int index() const { return index_; }
  /// The hyper-parameters that are its own.
  const LayerHparams& hparams() const { return h_; }

  /// x / rms(x) * `weight`.weight, which has a factor for each element of axis 0: of activations, or of each head.
  Tensor* rms_norm(Tensor* x, std::string_view weight, std::string_view result);
  /// x / rms(x).
  Tensor* unit_rms(Tensor* x, std::string_view result);
  /// (x - mean(x)) / deviation(x) * `weight`.weight.
  Tensor* layer_norm(Tensor* x, std::string_view weight, std::string_view result);
  Tensor* add(Tensor* a, Tensor* b, std::string_view result);
  /// x + what a block adds to it, times the model's residual_scale.
  Tensor* residual(Tensor* x, Tensor* added, std::string_view result);

  /// attn_q, attn_k and attn_v times x, or the same in one tensor (attn_qkv), cut by KV heads and the query heads that
  /// share them. Files of any architecture may have biases of attention. Layers that read what another one keeps
  /// (LayerHparams::kv_layer) have q only.
  Qkv qkv(Tensor* x, Bias bias = Bias::kOptional, Values values = Values::kOwn);
  /// rms_norm of each head of q and k, by attn_q_norm and attn_k_norm; `optional`: if the file has these.
  Qkv norm_each_head(Qkv heads, bool optional = false);
  /// q and k each divided by the rms over all its heads, times attn_q_norm and attn_k_norm. Between devices the two
  /// sums of squares are added at once: two numbers for each token.
  Qkv norm_projections(const Qkv& heads);
  /// layer_norm of each head where the file has `weight`, with factors for each element of all heads, which are query
  /// heads or KV heads.
  Tensor* norm_heads(Tensor* heads, CutGroup group, std::string_view weight, std::string_view result);
  /// qkv() of files whose attn_q has for each head the query and a gate: the gates, f32 [head_dim, heads, t], too.
  Qkv qkv_and_gates(Tensor* x, Tensor*& gates);
  /// Turns heads by their positions as the layer's RopeParams say. `factors`: Decoder::rope_factors() or nullptr.
  Tensor* rope(Tensor* heads, Tensor* factors, std::string_view result);
  /// Queries times their AttentionTemperature, if the model has one.
  Tensor* temper(Tensor* queries);
  /// rope() of q and k; q tempered.
  Qkv turn(Qkv heads, Tensor* factors = nullptr);
  /// attn_sinks, f32 [heads].
  Tensor* sinks();
  /// Writes k and v to the cache, where they are the layer's own (v is nullptr in layers with values_in_keys), and
  /// attends to it: f32 [head_dim_v * heads, t].
  Tensor* attention(Tensor* q, Tensor* k, Tensor* v, Tensor* sinks = nullptr);
  /// What attention() gave times sigmoid(gates).
  Tensor* gate(Tensor* attended, Tensor* gates);
  /// From x to what the heads of latent attention (LatentHparams) give: f32 [latent.head_dim_v * heads, t].
  Tensor* latent_attention(Tensor* x);
  /// attn_output times what attention() or latent_attention() gave.
  Tensor* project(Tensor* attended, Bias bias = Bias::kOptional);
  /// The projected attention of the heads.
  Tensor* attend(const Qkv& heads) { return project(attention(heads.q, heads.k, heads.v)); }

  // recurrent.cpp
  /// The gated delta rule (Yang et al., Gated Delta Networks, 2024) over a convolution of attn_qkv x, normed by head,
  /// gated by attn_gate x, times ssm_out: f32 [embd, t].
  Tensor* delta_net(Tensor* x);
  /// shortconv.out_proj (c * convolution(b * y)) of the three parts b, c, y of shortconv.in_proj x: f32 [embd, t].
  Tensor* short_conv(Tensor* x);

  /// ffn_down times activation(ffn_gate x, ffn_up x), cut by feed-forward columns. In layers with experts the same of
  /// the `experts_used` best, weighed as the model's Routing says, and of the shared expert; each is cut by its
  /// columns.
  Tensor* feed_forward(Tensor* x, const FeedForward& kind);
  /// Its parts: the block that all tokens use, named so where experts stand beside it, too, with the columns of the
  /// shared expert then; and the experts, chosen by ffn_gate_inp times `routed`.
  Tensor* dense(Tensor* x, const FeedForward& kind);
  Tensor* experts(Tensor* x, Tensor* routed, const FeedForward& kind);

  /// For words that one architecture has: what this layer calls `of`, and `of`.weight [x, rows] times x, plus
  /// `of`.bias.
  std::string name(std::string_view of) const;
  Tensor* linear(std::string_view of, Tensor* x, int64_t rows, Cut cut, Bias bias, std::string_view result);

 private:
  Tensor* weight(std::string_view of, Shape shape, Cut cut, TensorRole role = TensorRole::kBlock);
  Tensor* scaled_rms(Tensor* x, Tensor* weight, std::string_view result);
  Tensor* product(std::string_view of, Tensor* matrix, Tensor* x, Cut cut, Bias bias, std::string_view result);
  Tensor* attention_to_parts(Tensor* q);
  Tensor* by_heads(Tensor* x, int64_t dim);
  Tensor* by_tokens(Tensor* heads);
  std::optional<Qkv> fused_qkv(Tensor* x, Bias bias);
  Tensor* activate(Tensor* gate, Tensor* up, Activation activation, std::string_view result);
  // recurrent.cpp
  struct DeltaGates {
    Tensor *decay, *beta;
  };
  struct DeltaInputs {
    Tensor *mixed, *z;
  };
  DeltaInputs delta_inputs(Tensor* x);
  Tensor* store_state(Tensor* cache, Tensor* all, int64_t rows, std::string_view result);
  Tensor* convolve(Tensor* x, std::string_view of, const Cut& cut);
  DeltaGates delta_gates(Tensor* x);
  // latent_attention.cpp
  Tensor* latent_queries(Tensor* x);
  Tensor* turn_last(Tensor* heads, std::string_view result);
  Tensor* attend_to_latents(Tensor* q, Tensor* latents, Tensor* shared);
  Tensor* attend_to_heads(Tensor* q, Tensor* latents, Tensor* shared);
  Tensor* activate_fused(Tensor* gate_up, Activation activation, std::string_view result);
  // experts.cpp
  struct Chosen {
    Tensor *ids, *weights;
  };
  Chosen route(Tensor* x, Bias bias);
  Tensor* without_other_groups(Tensor* preferred);
  Tensor* expert_biases(std::string_view of, Tensor* ids, int64_t length, Cut cut, Bias bias);
  Tensor* sum_of_experts(Tensor* each, Tensor* weights, std::string_view prefix, std::string_view result);
  Tensor* times_factors(std::string_view of, Tensor* x, Tensor* ids, bool usual, std::string_view result);
  Tensor* hidden_of_experts(Tensor* input, Tensor* ids, const FeedForward& kind);
  Tensor* shared_expert(Tensor* x, const FeedForward& kind);

  Decoder& d_;
  Graph& g_;
  int index_;
  const LayerHparams& h_;
  Tensor *keys_ = nullptr, *values_ = nullptr;  // the caches as attention() has written them
};

/// The layers of most models.
struct Blocks {
  FeedForward feed_forward = {};
  std::string_view norm = "ffn_norm";  ///< before the feed-forward block
  bool norms_results = false;          ///< blocks' results are normed, by post_attention_norm and post_ffw_norm
};

class Decoder {
 public:
  /// All arguments outlive it.
  Decoder(std::string_view name, const Hparams& hparams, const KvCache& cache, BatchShape batch, WeightSource source);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Hparams& hparams() const { return h_; }
  std::span<Layer> layers() { return layers_; }

  /// All layers one after the other: x plus attend(layer, attn_norm x), then plus the feed-forward block of its norm.
  Tensor* usual_layers(Tensor* x, const Blocks& blocks, const std::function<Tensor*(Layer&, Tensor*)>& attend);
  /// The rows of token_embd that the tokens name, times the model's embedding_scale: f32 [embd, t].
  Tensor* embed();
  /// f32 [dims / 2]: rope_freqs, or of rope_factors_long and rope_factors_short the long ones if the context is longer
  /// than the original one; nullptr where the model has none.
  Tensor* rope_factors();
  Tensor* rope_factors(const RopeParams& rope);
  Tensor* rms_norm(Tensor* x, std::string_view weight, std::string_view result);
  Tensor* layer_norm(Tensor* x, std::string_view weight, std::string_view result);
  /// Of x those of the tokens whose logits are wanted: f32 [embd, outputs].
  Tensor* wanted_rows(Tensor* x);
  /// From here on layers see only the tokens whose logits are wanted, if there are others; `values` of all tokens, f32
  /// [n, t], become those of the wanted ones (nullptr stays). No layer that follows may keep anything of a text.
  /// wanted_rows then gives x itself.
  void go_on_with_wanted(std::initializer_list<Tensor**> values);
  /// Ends the graph: output (token_embd where the model has no other head) times x are the logits, scaled and capped as
  /// the model has it.
  void head(Tensor* x, Bias bias = Bias::kNone);

  /// For words that one architecture has: the tensor of a spec, as WeightSource has it, and ids of the batch, i32 [t].
  Graph& graph() { return *out_.graph; }
  Tensor* weight(const TensorSpec& spec) { return source_(spec); }
  Tensor* tokens() { return out_.tokens; }

  /// The graph, once head() has ended it.
  DecoderGraph take();

 private:
  friend class Layer;

  /// x times a number; x itself for 1.
  Tensor* scaled(Tensor* x, float factor, const std::string& result);
  Tensor* factors(const std::string& of, Tensor* x, int layer, bool optional = false);
  void add_window(int64_t window, int64_t rows);
  const WindowInputs& window_inputs(int64_t window) const;
  Tensor* wanted_of(Tensor* of_tokens, std::string_view result);
  void add_outputs(Tensor* logits);

  const Hparams& h_;
  const KvCache& cache_;
  BatchShape batch_;
  WeightSource source_;
  DecoderGraph out_;
  // Of the tokens that layers see, batch_.tokens of them: all, or those that are wanted.
  bool has_all_ = true;
  Tensor* positions_ = nullptr;
  std::vector<WindowInputs> windows_;
  Tensor* embedding_ = nullptr;
  std::vector<Layer> layers_;
};

}  // namespace shoal::models
