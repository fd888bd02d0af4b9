// What architectures are written in. An architecture is one function over a Decoder and its layers:
//
//   void dense(Decoder& d) {
//     Tensor* x = d.embed();
//     for (Layer& l : d.layers()) {
//       Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
//       auto [q, k, v] = l.qkv(normed, Bias::kNone);
//       q = l.rope(q, nullptr, "q_rope");
//       k = l.rope(k, nullptr, "k_rope");
//       x = l.add(x, l.project(l.attention(q, k, v), Bias::kNone), "attn_residual");
//       normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
//       x = l.add(x, l.gated_ffn(normed, GluKind::kSwiglu), "ffn_residual");
//     }
//     d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
//   }
//
// Each call that needs a weight says its name, shape and cut to a WeightSource, which gives the tensor: of a scratch
// graph when tensors are declared, of the model when a graph is built (architecture.h). So there is no second list of
// weights. What differs between models is data: hyper-parameters of the layer, which say kind and base of RoPE, scale,
// window and soft-cap of attention; arguments; and tensors that are there or not.
//
// Shapes are innermost first, for t tokens: activations f32 [n, t], heads f32 [head_dim, heads, t]. `result` names the
// node. Nodes come in the order of the calls, so a call takes at most one other call as its argument. A Decoder lives
// while one graph is made; one thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

class Layer {
 public:
  Layer(Decoder& decoder, int index);

  /// x / rms(x) * `weight`.weight, which has a factor for each element.
  Tensor* rms_norm(Tensor* x, std::string_view weight, std::string_view result);
  Tensor* add(Tensor* a, Tensor* b, std::string_view result);

  /// attn_q, attn_k and attn_v times x, cut by KV heads and the query heads that share them.
  Qkv qkv(Tensor* x, Bias bias);
  /// Turns heads by their positions as the layer's RopeParams say. `factors`: Decoder::rope_factors() or nullptr.
  Tensor* rope(Tensor* heads, Tensor* factors, std::string_view result);
  /// Writes k and v to the cache and attends to it: f32 [head_dim_v * heads, t].
  Tensor* attention(Tensor* q, Tensor* k, Tensor* v);
  /// attn_output times what attention() gave.
  Tensor* project(Tensor* attended, Bias bias);

  /// ffn_down times (activation(ffn_gate x) * ffn_up x), cut by feed-forward columns.
  Tensor* gated_ffn(Tensor* x, GluKind activation);
  /// The same of the `experts_used` best experts, whose probabilities (soft_max of the router's logits) are scaled to
  /// a sum of 1 and weigh their results. Every expert is cut by its columns.
  Tensor* gated_experts(Tensor* x, GluKind activation);

 private:
  std::string name(std::string_view of) const;
  Tensor* weight(std::string_view of, Shape shape, Cut cut, TensorRole role = TensorRole::kBlock);
  Tensor* linear(std::string_view of, Tensor* x, int64_t rows, Cut cut, Bias bias, std::string_view result);
  Tensor* by_heads(Tensor* x, int64_t dim);
  Tensor* by_tokens(Tensor* heads);
  std::pair<Tensor*, Tensor*> route(Tensor* x);

  Decoder& d_;
  Graph& g_;
  int index_;
  const LayerHparams& h_;
};

class Decoder {
 public:
  /// All arguments outlive it.
  Decoder(std::string_view name, const Hparams& hparams, const KvCache& cache, BatchShape batch, WeightSource source);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Hparams& hparams() const { return h_; }
  std::span<Layer> layers() { return layers_; }

  /// The rows of token_embd that the tokens name: f32 [embd, t].
  Tensor* embed();
  /// rope_freqs, f32 [dims / 2]; nullptr where the model has none.
  Tensor* rope_factors();
  Tensor* rms_norm(Tensor* x, std::string_view weight, std::string_view result);
  /// Of x those of the tokens whose logits are wanted: f32 [embd, outputs].
  Tensor* wanted_rows(Tensor* x);
  /// Ends the graph: output (token_embd where the model has no other head) times x are the logits.
  void head(Tensor* x);

  /// The graph, once head() has ended it.
  DecoderGraph take();

 private:
  friend class Layer;

  Tensor* norm(Tensor* x, Tensor* weight, const std::string& result);
  void add_outputs(Tensor* logits);

  const Hparams& h_;
  const KvCache& cache_;
  BatchShape batch_;
  WeightSource source_;
  DecoderGraph out_;
  Tensor* embedding_ = nullptr;
  std::vector<Layer> layers_;
};

}  // namespace shoal::models
