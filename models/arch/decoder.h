// The building blocks of architectures. An architecture is one function over a Decoder and its layers:
//
//   void dense(Decoder& d) {
//     Tensor* x = d.embed();
//     for (Layer& l : d.layers()) {
//       Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
//       x = l.residual(x, l.attend(l.apply_rope(l.qkv(normed))), "attn_residual");
//       normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
//       x = l.residual(x, l.feed_forward(normed, {}), "ffn_residual");
//     }
//     d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
//   }
//
// Decoder::usual_layers() is this loop with any attention function.
//
// Each call that needs a weight passes the weight's name, shape and cut to a WeightSource, which returns the tensor.
// The source of Architecture::tensors() records each weight. The source of Architecture::build() returns the model's
// tensors. So the same function lists the weights and builds the graph. The behaviour of a building block depends only
// on data: hyper-parameters (RoPE, attention scale, window, soft-cap, experts, routing, scales), arguments, and the
// tensors that the file contains.
//
// Shapes list the innermost axis first. For t tokens, activations are f32 [n, t] and heads are f32 [head_dim, heads,
// t]. The argument `result` is the name of the new node. Calls create their nodes immediately. C++ does not define the
// order in which arguments are evaluated, so at most one argument of a call may be another call. A Decoder exists while
// one graph is built, and belongs to one thread.
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

/// Whether a product has a bias: never (kNone), if the file contains the bias (kOptional), or always (kRequired).
enum class Bias : uint8_t { kNone, kOptional, kRequired };

/// Returns the tensor of a spec, or nullptr if the tensor is optional and absent. Called once for each tensor.
using WeightSource = std::function<Tensor*(const TensorSpec& spec)>;

struct Qkv {
  Tensor *q = nullptr, *k = nullptr, *v = nullptr;  ///< f32 [head_dim, heads or kv_heads, t]
};

/// Origin of the value vectors in attention.
enum class Values : uint8_t {
  kOwn,
  kMayBeKeys,  ///< if the file has no attn_v, the keys before RoPE are also the values
};

/// The function that combines gate and up in a feed-forward block. kClampedSwiglu: min(gate, 7) * sigmoid(1.702
/// min(gate, 7)) * (clamp(up, -7, 7) + 1).
enum class Activation : uint8_t { kSwiglu, kGeglu, kClampedSwiglu };

struct FeedForward {
  Activation activation = Activation::kSwiglu;
  Bias bias = Bias::kNone;   ///< whether the products and the router have biases
  bool fused = false;        ///< ffn_up has the rows of gate, followed by the rows of up
  bool shared_gate = false;  ///< the result of the shared expert is multiplied by sigmoid(ffn_gate_inp_shexp * x)
  bool factors = false;      ///< results of experts are multiplied by ffn_down_exps.scale, if present
};

class Layer {
 public:
  Layer(Decoder& decoder, int index);

  int index() const { return index_; }
  /// Hyper-parameters of this layer.
  const LayerHparams& hparams() const { return h_; }

  /// x / rms(x) * `weight`.weight. The rms is over axis 0: the activations of one token, or one head.
  Tensor* rms_norm(Tensor* x, std::string_view weight, std::string_view result);
  /// x / rms(x).
  Tensor* unit_rms(Tensor* x, std::string_view result);
  /// (x - mean(x)) / deviation(x) * `weight`.weight.
  Tensor* layer_norm(Tensor* x, std::string_view weight, std::string_view result);
  Tensor* add(Tensor* a, Tensor* b, std::string_view result);
  /// x + added * residual_scale of the model.
  Tensor* residual(Tensor* x, Tensor* added, std::string_view result);

  /// attn_q, attn_k and attn_v times x, or one fused tensor (attn_qkv) times x. Devices divide these tensors by KV
  /// heads. A KV head and its query heads are on the same device. Files of any architecture may have attention biases.
  /// For layers that read another layer's cache (LayerHparams::kv_layer), returns only q.
  Qkv qkv(Tensor* x, Bias bias = Bias::kOptional, Values values = Values::kOwn);
  /// rms_norm of each head of q and k with attn_q_norm and attn_k_norm. If `optional` is true and the file lacks these
  /// weights, returns the heads unchanged.
  Qkv norm_each_head(Qkv heads, bool optional = false);
  /// Divides q and k by their rms over all heads, then multiplies them by attn_q_norm and attn_k_norm. One all-reduce
  /// sums the squares of q and the squares of k: two numbers per token.
  Qkv norm_projections(const Qkv& heads);
  /// If the file has `weight`, returns layer_norm of each head. Otherwise returns `heads`. `weight` holds separate
  /// factors for each head. `group` is kQueryHeads or kKvHeads.
  Tensor* norm_heads(Tensor* heads, CutGroup group, std::string_view weight, std::string_view result);
  /// Like qkv(), for files whose attn_q contains a query and a gate for each head. Also sets `gates`, f32 [head_dim,
  /// heads, t].
  Qkv qkv_and_gates(Tensor* x, Tensor*& gates);
  /// Applies RoPE to heads at the positions of their tokens. `factors` is a result of Decoder::rope_factors(), or
  /// nullptr.
  Tensor* rope(Tensor* heads, Tensor* factors, std::string_view result);
  /// If the model has an AttentionTemperature, multiplies queries by the factors of this temperature. Otherwise returns
  /// `queries`.
  Tensor* apply_temperature(Tensor* queries);
  /// Calls rope() for q and k, then apply_temperature() for q.
  Qkv apply_rope(Qkv heads, Tensor* factors = nullptr);
  /// The weight attn_sinks, f32 [heads].
  Tensor* sinks();
  /// If the layer has its own cache, writes k and v to this cache and attends to it. Otherwise attends to the cache of
  /// layer LayerHparams::kv_layer. Returns f32 [head_dim_v * heads, t]. In layers with values_in_keys, v is nullptr.
  Tensor* attention(Tensor* q, Tensor* k, Tensor* v, Tensor* sinks = nullptr);
  /// attended * sigmoid(gates). `attended` is a result of attention().
  Tensor* gate(Tensor* attended, Tensor* gates);
  /// Computes latent attention (LatentHparams) of x: f32 [latent.head_dim_v * heads, t].
  Tensor* latent_attention(Tensor* x);
  /// attn_output times the result of attention() or latent_attention().
  Tensor* project(Tensor* attended, Bias bias = Bias::kOptional);
  /// attention(), then project().
  Tensor* attend(const Qkv& heads) { return project(attention(heads.q, heads.k, heads.v)); }

  // Defined in recurrent.cpp.
  /// Applies a convolution and the gated delta rule (Yang et al., Gated Delta Networks, 2024) to attn_qkv times x. The
  /// result is normalised per head, gated by attn_gate times x, and multiplied by ssm_out. Returns f32 [embd, t].
  Tensor* delta_net(Tensor* x);
  /// shortconv.out_proj times (c * convolution(b * y)): f32 [embd, t]. shortconv.in_proj times x consists of b, c and
  /// y.
  Tensor* short_conv(Tensor* x);

  /// ffn_down times activation(ffn_gate * x, ffn_up * x). Devices divide the feed-forward columns. In layers with
  /// experts, returns the weighted sum of the `experts_used` best experts (Routing), plus the shared expert. Devices
  /// divide each expert by columns.
  Tensor* feed_forward(Tensor* x, const FeedForward& kind);
  /// dense() and experts() compute the two parts of feed_forward() separately. dense() computes the block that all
  /// tokens use. In layers with experts, this block is the shared expert (LayerHparams::shared_ff columns), but its
  /// tensors have the names of a dense block. experts() multiplies ffn_gate_inp by `routed` to select the experts, and
  /// applies these experts to x.
  Tensor* dense(Tensor* x, const FeedForward& kind);
  Tensor* experts(Tensor* x, Tensor* routed, const FeedForward& kind);

  /// Helpers for operations that only one architecture has. name() returns the full name of this layer's tensor `of`.
  /// linear() returns `of`.weight times x, plus `of`.bias. `rows` is the number of rows of the weight.
  std::string name(std::string_view of) const;
  Tensor* linear(std::string_view of, Tensor* x, int64_t rows, Cut cut, Bias bias, std::string_view result);

 private:
  Tensor* weight(std::string_view of, Shape shape, Cut cut, TensorRole role = TensorRole::kBlock);
  Tensor* scaled_rms(Tensor* x, Tensor* weight, std::string_view result);
  Tensor* product(std::string_view of, Tensor* matrix, Tensor* x, Cut cut, Bias bias, std::string_view result);
  Tensor* attention_to_parts(Tensor* q, Tensor* table);
  Tensor* by_heads(Tensor* x, int64_t dim);
  Tensor* by_tokens(Tensor* heads);
  std::optional<Qkv> fused_qkv(Tensor* x, Bias bias);
  Tensor* activate(Tensor* gate, Tensor* up, Activation activation, std::string_view result);
  // Defined in recurrent.cpp.
  struct DeltaGates {
    Tensor *decay, *beta;
  };
  struct DeltaInputs {
    Tensor *mixed, *z;
  };
  DeltaInputs delta_inputs(Tensor* x);
  void store_state(Tensor* cache, Tensor* all, int64_t rows, std::string_view result);
  Tensor* convolve(Tensor* x, std::string_view of, const Cut& cut);
  DeltaGates delta_gates(Tensor* x);
  // The next four functions are defined in latent_attention.cpp.
  Tensor* latent_queries(Tensor* x);
  Tensor* apply_rope_to_end(Tensor* heads, std::string_view result);
  Tensor* attend_to_latents(Tensor* q, Tensor* latents, Tensor* shared);
  Tensor* attend_to_heads(Tensor* q, Tensor* latents, Tensor* shared);
  Tensor* activate_fused(Tensor* gate_up, Activation activation, std::string_view result);
  // Defined in experts.cpp.
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
  Tensor *keys_ = nullptr, *values_ = nullptr;  // cache tensors after attention() has written to them
};

/// Options of usual_layers().
struct Blocks {
  FeedForward feed_forward = {};
  std::string_view norm = "ffn_norm";  ///< name of the norm before the feed-forward block
  bool norms_results = false;          ///< whether post_attention_norm and post_ffw_norm are applied
};

class Decoder {
 public:
  /// All arguments must outlive the Decoder.
  Decoder(std::string_view name, const Hparams& hparams, const KvCache& cache, BatchShape batch, WeightSource source);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Hparams& hparams() const { return h_; }
  std::span<Layer> layers() { return layers_; }

  /// Runs all layers in order. Each layer first adds attend(layer, norm of x) to x. Then the layer applies the
  /// feed-forward block to the norm of this sum, and adds the result.
  Tensor* usual_layers(Tensor* x, const Blocks& blocks, const std::function<Tensor*(Layer&, Tensor*)>& attend);
  /// Embeddings of the tokens (rows of token_embd), times the model's embedding_scale: f32 [embd, t].
  Tensor* embed();
  /// Frequency factors, f32 [dims / 2]. Returns rope_freqs if the file has this tensor. Otherwise returns
  /// rope_factors_long for a context longer than the original context, and rope_factors_short for any other context.
  /// Returns nullptr if the file has none of the three tensors.
  Tensor* rope_factors();
  Tensor* rope_factors(const RopeParams& rope);
  Tensor* rms_norm(Tensor* x, std::string_view weight, std::string_view result);
  Tensor* layer_norm(Tensor* x, std::string_view weight, std::string_view result);
  /// Selects the tokens of x whose logits are wanted: f32 [embd, outputs].
  Tensor* wanted_rows(Tensor* x);
  /// Drops all tokens whose logits are not wanted. The remaining layers must not write to a cache. Also drops these
  /// tokens from the tensors in `values`, f32 [n, t]; a tensor in `values` may be nullptr. Afterwards wanted_rows()
  /// returns x itself.
  void keep_requested_tokens(std::initializer_list<Tensor**> values);
  /// Completes the graph: multiplies the head matrix by x, then scales and caps the logits. The head matrix is the
  /// tensor `output`, or token_embd if the model has no separate head.
  void head(Tensor* x, Bias bias = Bias::kNone);

  /// For operations that only one architecture has: the graph, the tensor of a spec (WeightSource), and the token ids,
  /// i32 [t].
  Graph& graph() { return *out_.graph; }
  Tensor* weight(const TensorSpec& spec) { return source_(spec); }
  Tensor* tokens() { return out_.tokens; }

  /// Returns the completed graph. head() must be called first.
  DecoderGraph take();

 private:
  friend class Layer;

  /// x times `factor`; x itself if `factor` is 1.
  Tensor* scaled(Tensor* x, float factor, const std::string& result);
  Tensor* factors(const std::string& of, Tensor* x, int layer, bool optional = false);
  void add_inputs();
  Tensor* wanted_of(Tensor* of_tokens, std::string_view result);
  void add_outputs(Tensor* logits);

  const Hparams& h_;
  const KvCache& cache_;
  BatchShape batch_;
  WeightSource source_;
  DecoderGraph out_;
  // Whether layers compute all tokens of the batch. If false, layers compute only the tokens whose logits are wanted.
  // batch_.tokens is the number of computed tokens.
  bool has_all_ = true;
  Tensor *positions_ = nullptr, *sequences_ = nullptr;  // of the computed tokens
  Tensor* embedding_ = nullptr;
  std::vector<Layer> layers_;
};

}  // namespace shoal::models
