#include "models/arch/llama.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "graph/ops/ops.h"

namespace shoal::models {
namespace {

constexpr Cut kMirrored{};

std::string block(int64_t layer, std::string_view name) {
  return fmt::format("blk.{}.{}", layer, name);
}

void add_attention_tensors(std::vector<TensorSpec>& out, const Hparams& h, int layer) {
  auto add = [&](std::string_view name, Shape shape, Cut cut) {
    out.push_back({block(layer, name), shape, layer, cut});
  };
  auto add_bias = [&](std::string_view name, int64_t length, Cut cut) {
    out.push_back({block(layer, name), {length, 1, 1, 1}, layer, cut, true, true});
  };
  int64_t q = h.heads * h.head_dim_k, k = h.kv_heads * h.head_dim_k, v = h.kv_heads * h.head_dim_v;
  Cut q_rows{CutGroup::kQueryHeads, 1, h.head_dim_k}, q_bias{CutGroup::kQueryHeads, 0, h.head_dim_k};
  Cut k_rows{CutGroup::kKvHeads, 1, h.head_dim_k}, k_bias{CutGroup::kKvHeads, 0, h.head_dim_k};
  Cut v_rows{CutGroup::kKvHeads, 1, h.head_dim_v}, v_bias{CutGroup::kKvHeads, 0, h.head_dim_v};
  Cut out_columns{CutGroup::kQueryHeads, 0, h.head_dim_v};
  out.push_back({block(layer, "attn_norm.weight"), {h.embd, 1, 1, 1}, layer, kMirrored, false, true});
  add("attn_q.weight", {h.embd, q, 1, 1}, q_rows);
  add("attn_k.weight", {h.embd, k, 1, 1}, k_rows);
  add("attn_v.weight", {h.embd, v, 1, 1}, v_rows);
  add("attn_output.weight", {h.heads * h.head_dim_v, h.embd, 1, 1}, out_columns);
  add_bias("attn_q.bias", q, q_bias);
  add_bias("attn_k.bias", k, k_bias);
  add_bias("attn_v.bias", v, v_bias);
  add_bias("attn_output.bias", h.embd, kMirrored);
}

void add_ffn_tensors(std::vector<TensorSpec>& out, const Hparams& h, int layer) {
  auto add = [&](std::string_view name, Shape shape, Cut cut) {
    out.push_back({block(layer, name), shape, layer, cut});
  };
  Cut columns{CutGroup::kFeedForward, 1, 1}, rows{CutGroup::kFeedForward, 0, 1};
  out.push_back({block(layer, "ffn_norm.weight"), {h.embd, 1, 1, 1}, layer, kMirrored, false, true});
  if (h.experts == 0) {
    add("ffn_gate.weight", {h.embd, h.ff, 1, 1}, columns);
    add("ffn_up.weight", {h.embd, h.ff, 1, 1}, columns);
    add("ffn_down.weight", {h.ff, h.embd, 1, 1}, rows);
    return;
  }
  add("ffn_gate_inp.weight", {h.embd, h.experts, 1, 1}, kMirrored);
  add("ffn_gate_exps.weight", {h.embd, h.ff, h.experts, 1}, columns);
  add("ffn_up_exps.weight", {h.embd, h.ff, h.experts, 1}, columns);
  add("ffn_down_exps.weight", {h.ff, h.embd, h.experts, 1}, rows);
}

/// Builds one graph; lives only while it does.
class Builder {
 public:
  Builder(const Hparams& hparams, const TensorContext& weights, const KvCache& cache, BatchShape batch)
      : h_(hparams), weights_(weights), cache_(cache), batch_(batch) {
    out_.graph = std::make_unique<Graph>(fmt::format("llama_{}", batch.tokens));
  }

  DecoderGraph run() {
    Shape per_token{batch_.tokens, 1, 1, 1};
    out_.tokens = g().input("tokens", DType::kI32, per_token);
    out_.positions = g().input("positions", DType::kI32, per_token);
    out_.cache_rows = g().input("cache_rows", DType::kI32, per_token);
    out_.out_ids = g().input("out_ids", DType::kI32, {batch_.outputs, 1, 1, 1});
    Tensor* x = get_rows(g(), weight("token_embd.weight"), out_.tokens, {}, "embd");
    for (layer_ = 0; layer_ < h_.layers; ++layer_) {
      x = add(g(), x, attention_block(x), name("attn_residual"));
      x = add(g(), x, ffn_block(x), name("ffn_residual"));
    }
    x = get_rows(g(), x, out_.out_ids, {}, "out_rows");
    x = norm(x, weight("output_norm.weight"), "out_norm");
    Tensor* head = weights_.find("output.weight");
    Tensor* logits = mul_mat(g(), head ? head : weight("token_embd.weight"), x, "logits");
    add_outputs(out_, logits, batch_.candidates);
    return std::move(out_);
  }

 private:
  Graph& g() { return *out_.graph; }
  std::string name(std::string_view of) const { return block(layer_, of); }

  Tensor* weight(std::string_view name) const {
    Tensor* tensor = weights_.find(name);
    check(tensor != nullptr, "weight {} was not declared", name);
    return tensor;
  }
  Tensor* layer_weight(std::string_view of) const { return weight(name(of)); }

  Tensor* norm(Tensor* x, Tensor* weight, const std::string& name) {
    return mul(g(), rms_norm(g(), x, {h_.norm_eps}, name + ".rms"), weight, name);
  }

  /// `of`.weight times x, plus `of`.bias where the model has one.
  Tensor* linear(std::string_view of, Tensor* x, std::string_view result) {
    Tensor* bias = weights_.find(name(std::string(of) + ".bias"));
    Tensor* weight = layer_weight(std::string(of) + ".weight");
    if (!bias) return mul_mat(g(), weight, x, name(result));
    return add(g(), mul_mat(g(), weight, x, name(result) + ".product"), bias, name(result));
  }

  /// [dim * heads, t] -> [dim, heads, t].
  Tensor* by_heads(Tensor* x, int64_t dim) {
    return reshape(g(), x, {dim, x->shape[0] / dim, batch_.tokens, 1}, x->name + ".heads");
  }
  /// [dim, heads, t] -> [dim, t, heads], a view.
  Tensor* by_tokens(Tensor* x) { return permute(g(), x, {0, 2, 1, 3}, x->name + ".by_token"); }

  Tensor* attention_block(Tensor* x) {
    Tensor* normed = norm(x, layer_weight("attn_norm.weight"), name("attn_normed"));
    Tensor* q = by_heads(linear("attn_q", normed, "q"), h_.head_dim_k);
    Tensor* k = by_heads(linear("attn_k", normed, "k"), h_.head_dim_k);
    Tensor* v = by_heads(linear("attn_v", normed, "v"), h_.head_dim_v);
    Tensor* factors = weights_.find("rope_freqs.weight");
    q = rope(g(), q, out_.positions, factors, h_.rope, name("q_rope"));
    k = rope(g(), k, out_.positions, factors, h_.rope, name("k_rope"));
    Tensor* keys = set_rows(g(), cache_.k[layer_], by_tokens(k), out_.cache_rows, {}, name("keys"));
    Tensor* values = set_rows(g(), cache_.v[layer_], by_tokens(v), out_.cache_rows, {}, name("values"));
    AttentionParams params;
    params.scale = 1.0f / std::sqrt(static_cast<float>(h_.head_dim_k));
    params.causal = true;
    Tensor* heads =
        attention(g(), by_tokens(q), keys, values, out_.positions, nullptr, nullptr, params, name("attention"));
    Tensor* merged = reshape(g(), heads, {h_.head_dim_v * h_.heads, batch_.tokens, 1, 1}, name("attention.merged"));
    return linear("attn_output", merged, "attn_out");
  }

  Tensor* ffn_block(Tensor* x) {
    Tensor* normed = norm(x, layer_weight("ffn_norm.weight"), name("ffn_normed"));
    return h_.experts == 0 ? dense_ffn(normed) : expert_ffn(normed);
  }

  Tensor* dense_ffn(Tensor* x) {
    Tensor* gate = mul_mat(g(), layer_weight("ffn_gate.weight"), x, name("gate"));
    Tensor* up = mul_mat(g(), layer_weight("ffn_up.weight"), x, name("up"));
    Tensor* hidden = glu(g(), gate, up, GluKind::kSwiglu, name("hidden"));
    return mul_mat(g(), layer_weight("ffn_down.weight"), hidden, name("ffn_out"));
  }

  /// Which experts each token takes, i32 [used, t], and their weights, f32 [1, used, t].
  std::pair<Tensor*, Tensor*> route(Tensor* x) {
    int64_t used = h_.experts_used, t = batch_.tokens;
    Tensor* logits = mul_mat(g(), layer_weight("ffn_gate_inp.weight"), x, name("router"));
    Tensor* all = soft_max(g(), logits, nullptr, nullptr, {}, name("router.probabilities"));
    Tensor* ids = top_k(g(), all, used, name("router.ids"));
    Tensor* rows = reshape(g(), all, {1, h_.experts, t, 1}, name("router.rows"));
    // The token axis is a batch axis of get_rows: each token's ids choose among its own probabilities.
    Tensor* best = get_rows(g(), rows, ids, {}, name("router.best"));
    Tensor* columns = reshape(g(), best, {used, t, 1, 1}, name("router.best_columns"));
    Tensor* total = sum_rows(g(), columns, name("router.total"));
    Tensor* weights = div(g(), columns, total, name("router.normalised"));
    return {ids, reshape(g(), weights, {1, used, t, 1}, name("router.weights"))};
  }

  Tensor* expert_ffn(Tensor* x) {
    int64_t t = batch_.tokens;
    auto [ids, weights] = route(x);
    Tensor* input = reshape(g(), x, {h_.embd, 1, t, 1}, name("experts.input"));
    Tensor* gate = mul_mat_id(g(), layer_weight("ffn_gate_exps.weight"), input, ids, {}, name("experts.gate"));
    Tensor* up = mul_mat_id(g(), layer_weight("ffn_up_exps.weight"), input, ids, {}, name("experts.up"));
    Tensor* hidden = glu(g(), gate, up, GluKind::kSwiglu, name("experts.hidden"));
    Tensor* each = mul_mat_id(g(), layer_weight("ffn_down_exps.weight"), hidden, ids, {}, name("experts.each"));
    Tensor* weighted = mul(g(), each, weights, name("experts.weighted"));
    // One chain from the partial products to their sum, so that nothing but the sum is ever reduced between devices.
    Tensor* by_element =
        contiguous(g(), permute(g(), weighted, {1, 0, 2, 3}, name("experts.by_element")), name("experts.columns"));
    return reshape(g(), sum_rows(g(), by_element, name("experts.sum")), {h_.embd, t, 1, 1}, name("ffn_out"));
  }

  const Hparams& h_;
  const TensorContext& weights_;
  const KvCache& cache_;
  BatchShape batch_;
  int64_t layer_ = 0;
  DecoderGraph out_;
};

}  // namespace

std::vector<TensorSpec> llama_tensors(const Hparams& h) {
  std::vector<TensorSpec> out;
  Cut rows{CutGroup::kVocabulary, 1, 1};
  // The table stays whole: cut by rows, looking tokens up would cost one more all-reduce a step.
  out.push_back({"token_embd.weight", {h.embd, h.vocab, 1, 1}, -1, kMirrored, false});
  for (int layer = 0; layer < h.layers; ++layer) {
    add_attention_tensors(out, h, layer);
    add_ffn_tensors(out, h, layer);
  }
  out.push_back({"output_norm.weight", {h.embd, 1, 1, 1}, -1, kMirrored, false, true});
  // Absent: the embedding serves as the head too.
  out.push_back({"output.weight", {h.embd, h.vocab, 1, 1}, -1, rows, true});
  out.push_back({"rope_freqs.weight", {h.rope.dims / 2, 1, 1, 1}, -1, kMirrored, true, true});
  return out;
}

DecoderGraph build_llama(const Hparams& hparams, const TensorContext& weights, const KvCache& cache, BatchShape batch) {
  return Builder(hparams, weights, cache, batch).run();
}

}  // namespace shoal::models
