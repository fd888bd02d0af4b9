#include "models/arch/decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace shoal::models {
namespace {

constexpr Cut kMirrored{};

}  // namespace

Layer::Layer(Decoder& decoder, int index)
    : d_(decoder), g_(*decoder.out_.graph), index_(index), h_(decoder.h_.layer(index)) {}

std::string Layer::name(std::string_view of) const {
  return fmt::format("blk.{}.{}", index_, of);
}

Tensor* Layer::weight(std::string_view of, Shape shape, Cut cut, TensorRole role) {
  return d_.source_({name(of) + ".weight", shape, index_, cut, false, false, role});
}

/// `of`.weight [x, rows] times x, plus `of`.bias. A cut of the rows cuts the bias alike; one of axis 0 makes partial
/// sums, to whose sum the whole bias is added.
Tensor* Layer::linear(std::string_view of, Tensor* x, int64_t rows, Cut cut, Bias bias, std::string_view result) {
  Tensor* matrix = weight(of, {x->shape[0], rows, 1, 1}, cut);
  Tensor* added = nullptr;
  if (bias != Bias::kNone) {
    const Cut with_rows = cut.axis == 1 ? Cut{cut.group, 0, cut.scale} : kMirrored;
    added = d_.source_({name(of) + ".bias", {rows, 1, 1, 1}, index_, with_rows, bias == Bias::kOptional, true});
  }
  if (added == nullptr) return mul_mat(g_, matrix, x, name(result));
  return shoal::add(g_, mul_mat(g_, matrix, x, name(result) + ".product"), added, name(result));
}

Tensor* Layer::rms_norm(Tensor* x, std::string_view of, std::string_view result) {
  Tensor* factors = d_.source_({name(of) + ".weight", {x->shape[0], 1, 1, 1}, index_, kMirrored, false, true});
  return d_.norm(x, factors, name(result));
}

Tensor* Layer::add(Tensor* a, Tensor* b, std::string_view result) {
  return shoal::add(g_, a, b, name(result));
}

/// [dim * heads, t] -> [dim, heads, t].
Tensor* Layer::by_heads(Tensor* x, int64_t dim) {
  return reshape(g_, x, {dim, x->shape[0] / dim, d_.batch_.tokens, 1}, x->name + ".heads");
}

/// [dim, heads, t] -> [dim, t, heads], a view.
Tensor* Layer::by_tokens(Tensor* heads) {
  return permute(g_, heads, {0, 2, 1, 3}, heads->name + ".by_token");
}

Qkv Layer::qkv(Tensor* x, Bias bias) {
  const int64_t k = h_.head_dim_k, v = h_.head_dim_v;
  Qkv out;
  out.q = by_heads(linear("attn_q", x, h_.heads * k, {CutGroup::kQueryHeads, 1, k}, bias, "q"), k);
  out.k = by_heads(linear("attn_k", x, h_.kv_heads * k, {CutGroup::kKvHeads, 1, k}, bias, "k"), k);
  out.v = by_heads(linear("attn_v", x, h_.kv_heads * v, {CutGroup::kKvHeads, 1, v}, bias, "v"), v);
  return out;
}

Tensor* Layer::rope(Tensor* heads, Tensor* factors, std::string_view result) {
  return shoal::rope(g_, heads, d_.out_.positions, factors, h_.rope, name(result));
}

Tensor* Layer::attention(Tensor* q, Tensor* k, Tensor* v) {
  const auto store = [&](Tensor* cache, Tensor* heads, std::string_view result) {
    return set_rows(g_, cache, by_tokens(heads), d_.out_.cache_rows, {}, name(result));
  };
  Tensor* keys = store(d_.cache_.k[static_cast<size_t>(index_)], k, "keys");
  Tensor* values = store(d_.cache_.v[static_cast<size_t>(index_)], v, "values");
  Tensor* heads = shoal::attention(g_, by_tokens(q), keys, values, d_.out_.positions, nullptr, nullptr, h_.attention,
                                   name("attention"));
  return reshape(g_, heads, {h_.head_dim_v * h_.heads, d_.batch_.tokens, 1, 1}, name("attention.merged"));
}

Tensor* Layer::project(Tensor* attended, Bias bias) {
  return linear("attn_output", attended, d_.h_.embd, {CutGroup::kQueryHeads, 0, h_.head_dim_v}, bias, "attn_out");
}

Tensor* Layer::gated_ffn(Tensor* x, GluKind activation) {
  const Cut columns{CutGroup::kFeedForward, 1, 1}, rows{CutGroup::kFeedForward, 0, 1};
  Tensor* gate = linear("ffn_gate", x, h_.ff, columns, Bias::kNone, "gate");
  Tensor* up = linear("ffn_up", x, h_.ff, columns, Bias::kNone, "up");
  Tensor* hidden = glu(g_, gate, up, activation, name("hidden"));
  return linear("ffn_down", hidden, d_.h_.embd, rows, Bias::kNone, "ffn_out");
}

/// Which experts each token takes, i32 [used, t], and their weights, f32 [1, used, t].
std::pair<Tensor*, Tensor*> Layer::route(Tensor* x) {
  const int64_t experts = d_.h_.experts, used = d_.h_.experts_used, t = d_.batch_.tokens;
  Tensor* logits = linear("ffn_gate_inp", x, experts, kMirrored, Bias::kNone, "router");
  Tensor* all = soft_max(g_, logits, nullptr, nullptr, {}, name("router.probabilities"));
  Tensor* ids = top_k(g_, all, used, name("router.ids"));
  Tensor* rows = reshape(g_, all, {1, experts, t, 1}, name("router.rows"));
  // The token axis is a batch axis of get_rows: each token's ids choose among its own probabilities.
  Tensor* best = get_rows(g_, rows, ids, {}, name("router.best"));
  Tensor* columns = reshape(g_, best, {used, t, 1, 1}, name("router.best_columns"));
  Tensor* total = sum_rows(g_, columns, name("router.total"));
  Tensor* weights = div(g_, columns, total, name("router.normalised"));
  return {ids, reshape(g_, weights, {1, used, t, 1}, name("router.weights"))};
}

Tensor* Layer::gated_experts(Tensor* x, GluKind activation) {
  const int64_t embd = d_.h_.embd, t = d_.batch_.tokens;
  const Cut columns{CutGroup::kFeedForward, 1, 1}, rows{CutGroup::kFeedForward, 0, 1};
  auto [ids, weights] = route(x);
  const auto times = [&, ids = ids](std::string_view of, Tensor* input, int64_t length, Cut cut,
                                    std::string_view result) {
    Tensor* matrices = weight(of, {input->shape[0], length, d_.h_.experts, 1}, cut, TensorRole::kExperts);
    return mul_mat_id(g_, matrices, input, ids, {}, name(result));
  };
  Tensor* input = reshape(g_, x, {embd, 1, t, 1}, name("experts.input"));
  Tensor* gate = times("ffn_gate_exps", input, h_.ff, columns, "experts.gate");
  Tensor* up = times("ffn_up_exps", input, h_.ff, columns, "experts.up");
  Tensor* hidden = glu(g_, gate, up, activation, name("experts.hidden"));
  Tensor* each = times("ffn_down_exps", hidden, embd, rows, "experts.each");
  Tensor* weighted = mul(g_, each, weights, name("experts.weighted"));
  // One chain from the partial products to their sum, so that nothing but the sum is ever reduced between devices.
  Tensor* by_element =
      contiguous(g_, permute(g_, weighted, {1, 0, 2, 3}, name("experts.by_element")), name("experts.columns"));
  return reshape(g_, sum_rows(g_, by_element, name("experts.sum")), {embd, t, 1, 1}, name("ffn_out"));
}

Decoder::Decoder(std::string_view name, const Hparams& hparams, const KvCache& cache, BatchShape batch,
                 WeightSource source)
    : h_(hparams), cache_(cache), batch_(batch), source_(std::move(source)) {
  out_.graph = std::make_unique<Graph>(fmt::format("{}_{}", name, batch.tokens));
  const Shape per_token{batch.tokens, 1, 1, 1};
  out_.tokens = out_.graph->input("tokens", DType::kI32, per_token);
  out_.positions = out_.graph->input("positions", DType::kI32, per_token);
  out_.cache_rows = out_.graph->input("cache_rows", DType::kI32, per_token);
  out_.out_ids = out_.graph->input("out_ids", DType::kI32, {batch.outputs, 1, 1, 1});
  for (int layer = 0; layer < hparams.layers; ++layer) layers_.emplace_back(*this, layer);
}

Tensor* Decoder::norm(Tensor* x, Tensor* weight, const std::string& result) {
  Graph& g = *out_.graph;
  return mul(g, shoal::rms_norm(g, x, {h_.norm_eps}, result + ".rms"), weight, result);
}

Tensor* Decoder::embed() {
  // The table stays whole: cut by rows, looking tokens up would cost one more all-reduce a step.
  embedding_ =
      source_({"token_embd.weight", {h_.embd, h_.vocab, 1, 1}, -1, kMirrored, false, false, TensorRole::kEmbedding});
  return get_rows(*out_.graph, embedding_, out_.tokens, {}, "embd");
}

Tensor* Decoder::rope_factors() {
  return source_(
      {"rope_freqs.weight", {h_.rope.dims / 2, 1, 1, 1}, -1, kMirrored, true, true, TensorRole::kRopeFactors});
}

Tensor* Decoder::rms_norm(Tensor* x, std::string_view of, std::string_view result) {
  Tensor* factors = source_({std::string(of) + ".weight", {x->shape[0], 1, 1, 1}, -1, kMirrored, false, true});
  return norm(x, factors, std::string(result));
}

Tensor* Decoder::wanted_rows(Tensor* x) {
  return get_rows(*out_.graph, x, out_.out_ids, {}, "out_rows");
}

void Decoder::head(Tensor* x) {
  const Cut rows{CutGroup::kVocabulary, 1, 1};
  Tensor* matrix = source_({"output.weight", {h_.embd, h_.vocab, 1, 1}, -1, rows, true, false, TensorRole::kHead});
  add_outputs(mul_mat(*out_.graph, matrix != nullptr ? matrix : embedding_, x, "logits"));
}

/// Makes the logits the graph's output, or their candidates.
void Decoder::add_outputs(Tensor* logits) {
  Graph& g = *out_.graph;
  out_.logits = logits;
  if (batch_.candidates == 0) {
    g.output(logits);
    return;
  }
  const int64_t vocab = logits->shape[0], outputs = logits->shape[1], k = std::min(batch_.candidates, vocab);
  out_.candidate_ids = k == 1 ? argmax(g, logits, "candidates") : top_k(g, logits, k, "candidates");
  Tensor* elements = reshape(g, logits, {1, vocab, outputs, 1}, "logits.elements");
  out_.candidate_logits = get_rows(g, elements, out_.candidate_ids, {}, "candidates.logits");
  g.output(out_.candidate_ids);
  g.output(out_.candidate_logits);
}

DecoderGraph Decoder::take() {
  check(out_.logits != nullptr, "the architecture of {} has no head", out_.graph->name());
  return std::move(out_);
}

}  // namespace shoal::models
