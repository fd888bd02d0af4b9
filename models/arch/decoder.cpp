#include "models/arch/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

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
  return d_.source_({name(of) + ".weight", shape, index_, cut, false, false, false, role});
}

/// `of`.weight times x, plus `of`.bias. `rows` is the number of rows of the weight. If the rows are cut, the bias is
/// cut in the same way. If axis 0 is cut, the products are partial sums. The whole bias is then added after the
/// all-reduce.
Tensor* Layer::linear(std::string_view of, Tensor* x, int64_t rows, Cut cut, Bias bias, std::string_view result) {
  return product(of, weight(of, {x->shape[0], rows, 1, 1}, cut), x, cut, bias, result);
}

Tensor* Layer::product(std::string_view of, Tensor* matrix, Tensor* x, Cut cut, Bias bias, std::string_view result) {
  const int64_t rows = matrix->shape[1];
  Tensor* added = nullptr;
  if (bias != Bias::kNone) {
    const Cut with_rows = cut.axis == 1 ? Cut{cut.group, 0, cut.scale} : kMirrored;
    added = d_.source_({name(of) + ".bias", {rows, 1, 1, 1}, index_, with_rows, bias == Bias::kOptional, false, true});
  }
  // nvfp4 weights have an additional scale tensor. Router weights are never nvfp4.
  Tensor* factor = nullptr;
  if (of != "ffn_gate_inp") {
    factor = d_.source_({name(of) + ".scale", {1, 1, 1, 1}, index_, kMirrored, true, true, true});
  }
  const std::string product = name(result) + (added == nullptr ? "" : ".product");
  Tensor* made = mul_mat(g_, matrix, x, factor == nullptr ? product : product + ".unscaled");
  if (factor != nullptr) made = mul(g_, made, factor, product);
  return added == nullptr ? made : shoal::add(g_, made, added, name(result));
}

Tensor* Layer::scaled_rms(Tensor* x, Tensor* weight, std::string_view result) {
  return mul(g_, shoal::rms_norm(g_, x, {d_.h_.norm_eps}, name(result) + ".rms"), weight, name(result));
}

Tensor* Layer::rms_norm(Tensor* x, std::string_view of, std::string_view result) {
  return scaled_rms(x, d_.factors(name(of), x, index_), result);
}

Tensor* Layer::unit_rms(Tensor* x, std::string_view result) {
  return shoal::rms_norm(g_, x, {d_.h_.norm_eps}, name(result));
}

Tensor* Layer::layer_norm(Tensor* x, std::string_view of, std::string_view result) {
  Tensor* weight = d_.factors(name(of), x, index_);
  return mul(g_, shoal::layer_norm(g_, x, {d_.h_.norm_eps}, name(result) + ".centred"), weight, name(result));
}

Tensor* Layer::add(Tensor* a, Tensor* b, std::string_view result) {
  return shoal::add(g_, a, b, name(result));
}

Tensor* Layer::residual(Tensor* x, Tensor* added, std::string_view result) {
  return add(x, d_.scaled(added, d_.h_.residual_scale, added->name + ".scaled"), result);
}

/// [dim * heads, t] -> [dim, heads, t].
Tensor* Layer::by_heads(Tensor* x, int64_t dim) {
  return reshape(g_, x, {dim, x->shape[0] / dim, d_.batch_.tokens, 1}, x->name + ".heads");
}

/// [dim, heads, t] -> [dim, t, heads], a view.
Tensor* Layer::by_tokens(Tensor* heads) {
  return permute(g_, heads, {0, 2, 1, 3}, heads->name + ".by_token");
}

/// If the file has attn_qkv, computes q, k and v with one product. All three results are views of this product, so no
/// data is copied.
std::optional<Qkv> Layer::fused_qkv(Tensor* x, Bias bias) {
  const int64_t k = h_.head_dim_k, v = h_.head_dim_v, all = h_.heads + 2 * h_.kv_heads;
  Cut cut{CutGroup::kQueryHeads, 1, k, {{{CutGroup::kKvHeads, k}, {CutGroup::kKvHeads, v}}}};
  const int64_t rows = h_.heads * k + h_.kv_heads * (k + v);
  TensorSpec spec{name("attn_qkv.weight"), {x->shape[0], rows, 1, 1}, index_, cut, true, true};
  Tensor* matrix = d_.source_(spec);
  if (matrix == nullptr) return std::nullopt;
  require<InvalidArgument>(k == v, "{}: keys of {} elements and values of {} elements in one tensor are not supported",
                           spec.name, k, v);
  Tensor* product = mul_mat(g_, matrix, x, name("qkv"));
  if (bias != Bias::kNone) {
    cut.axis = 0;
    Tensor* added = d_.source_({name("attn_qkv.bias"), {rows, 1, 1, 1}, index_, cut, true, true, true});
    if (added != nullptr) product = shoal::add(g_, product, added, name("qkv.biased"));
  }
  Tensor* heads = reshape(g_, product, {k, all, d_.batch_.tokens, 1}, name("qkv.heads"));
  const auto part = [&](int64_t begin, int64_t length, std::string_view result) {
    return slice(g_, heads, {1, begin, length}, name(result));
  };
  Qkv out;
  out.q = part(0, h_.heads, "q");
  out.k = part(h_.heads, h_.kv_heads, "k");
  out.v = part(h_.heads + h_.kv_heads, h_.kv_heads, "v");
  return out;
}

Qkv Layer::qkv(Tensor* x, Bias bias, Values values) {
  const bool own = h_.kv_layer < 0;
  if (const std::optional<Qkv> fused = own ? fused_qkv(x, bias) : std::nullopt) return *fused;
  const int64_t k = h_.head_dim_k, v = h_.head_dim_v;
  Qkv out;
  out.q = by_heads(linear("attn_q", x, h_.heads * k, {CutGroup::kQueryHeads, 1, k}, bias, "q"), k);
  if (!own) return out;
  out.k = by_heads(linear("attn_k", x, h_.kv_heads * k, {CutGroup::kKvHeads, 1, k}, bias, "k"), k);
  const Cut by_values{CutGroup::kKvHeads, 1, v};
  const bool may_be_keys = values == Values::kMayBeKeys && k == v;
  Tensor* matrix =
      d_.source_({name("attn_v.weight"), {x->shape[0], h_.kv_heads * v, 1, 1}, index_, by_values, may_be_keys});
  out.v = matrix == nullptr ? out.k : by_heads(product("attn_v", matrix, x, by_values, bias, "v"), v);
  return out;
}

Qkv Layer::qkv_and_gates(Tensor* x, Tensor*& gates) {
  const int64_t k = h_.head_dim_k, v = h_.head_dim_v;
  Cut both{CutGroup::kQueryHeads, 1, 2 * k};
  Tensor* heads = by_heads(linear("attn_q", x, h_.heads * 2 * k, both, Bias::kOptional, "q_and_gates"), 2 * k);
  gates = slice(g_, heads, {0, k, k}, name("q_gates"));
  Qkv out;
  out.q = slice(g_, heads, {0, 0, k}, name("q"));
  out.k = by_heads(linear("attn_k", x, h_.kv_heads * k, {CutGroup::kKvHeads, 1, k}, Bias::kOptional, "k"), k);
  out.v = by_heads(linear("attn_v", x, h_.kv_heads * v, {CutGroup::kKvHeads, 1, v}, Bias::kOptional, "v"), v);
  return out;
}

Tensor* Layer::gate(Tensor* attended, Tensor* gates) {
  Tensor* open = unary(g_, gates, UnaryKind::kSigmoid, name("q_gates.sigmoid"));
  return mul(g_, attended, reshape(g_, open, attended->shape, name("q_gates.merged")), name("attention.gated"));
}

Qkv Layer::norm_each_head(Qkv heads, bool optional) {
  const auto norm = [&](Tensor* x, std::string_view of, std::string_view result) {
    Tensor* weight = d_.factors(name(of), x, index_, optional);
    return weight == nullptr ? x : scaled_rms(x, weight, result);
  };
  heads.q = norm(heads.q, "attn_q_norm", "q_normed");
  heads.k = norm(heads.k, "attn_k_norm", "k_normed");
  return heads;
}

Qkv Layer::norm_projections(const Qkv& heads) {
  const int64_t dim = h_.head_dim_k, t = d_.batch_.tokens;
  const auto flat = [&](Tensor* x) { return reshape(g_, x, {x->shape[0] * x->shape[1], t, 1, 1}, x->name + ".flat"); };
  const auto mean = [&](Tensor* x) {
    Tensor* sum = sum_rows(g_, unary(g_, x, UnaryKind::kSqr, x->name + ".squares"), x->name + ".sum");
    return scale(g_, sum, {1.0f / static_cast<float>(x->shape[0])}, x->name + ".mean");
  };
  Tensor *q = flat(heads.q), *k = flat(heads.k);
  Tensor* q_mean = mean(q);
  Tensor* both = concat(g_, {q_mean, mean(k)}, 0, name("qk_means"));
  Tensor* rms =
      unary(g_, scale(g_, both, {1.0f, d_.h_.norm_eps}, name("qk_means.eps")), UnaryKind::kSqrt, name("qk_rms"));
  const auto normed = [&](Tensor* x, int64_t which, CutGroup group, std::string_view of, std::string_view result) {
    const Shape elements{x->shape[0], 1, 1, 1};
    Tensor* weight = d_.source_({name(of) + ".weight", elements, index_, {group, 0, dim}, false, false, true});
    Tensor* by = slice(g_, rms, {0, which, 1}, name(result) + ".rms");
    return by_heads(mul(g_, div(g_, x, by, name(result) + ".divided"), weight, name(result)), dim);
  };
  Qkv out = heads;
  out.q = normed(q, 0, CutGroup::kQueryHeads, "attn_q_norm", "q_normed");
  out.k = normed(k, 1, CutGroup::kKvHeads, "attn_k_norm", "k_normed");
  return out;
}

Tensor* Layer::norm_heads(Tensor* heads, CutGroup group, std::string_view of, std::string_view result) {
  const Shape elements{heads->shape[0], heads->shape[1], 1, 1};
  Tensor* weight = d_.source_({name(of) + ".weight", elements, index_, {group, 1, 1}, true, false, true});
  if (weight == nullptr) return heads;
  return mul(g_, shoal::layer_norm(g_, heads, {d_.h_.norm_eps}, name(result) + ".centred"), weight, name(result));
}

Tensor* Layer::rope(Tensor* heads, Tensor* factors, std::string_view result) {
  if (h_.rope.dims == 0) return heads;
  return shoal::rope(g_, heads, d_.positions_, factors, h_.rope, name(result));
}

Tensor* Layer::apply_temperature(Tensor* queries) {
  if (d_.out_.temperature == nullptr) return queries;
  return mul(g_, queries, d_.out_.temperature, name("q_tempered"));
}

Qkv Layer::apply_rope(Qkv heads, Tensor* factors) {
  heads.q = apply_temperature(rope(heads.q, factors, "q_rope"));
  heads.k = rope(heads.k, factors, "k_rope");
  return heads;
}

Tensor* Layer::sinks() {
  const Cut by_heads{CutGroup::kQueryHeads, 0, 1};
  return d_.source_({name("attn_sinks.weight"), {h_.heads, 1, 1, 1}, index_, by_heads, false, false, true});
}

Tensor* Layer::attention(Tensor* q, Tensor* k, Tensor* v, Tensor* sinks) {
  const auto layer = static_cast<size_t>(index_);
  const PageInputs& pages = d_.out_.pages[static_cast<size_t>(d_.cache_.group_of[layer])];
  const auto store = [&](Tensor* cache, Tensor* heads, std::string_view result) {
    return set_rows(g_, cache, by_tokens(heads), pages.cache_rows, {}, name(result));
  };
  if (h_.kv_layer < 0) {
    check(d_.has_all_, "{}: after keep_requested_tokens() no layer may write a cache", name("keys"));
    keys_ = store(d_.cache_.layers[layer].k, k, "keys");
    values_ = h_.values_in_keys ? slice(g_, keys_, {0, 0, h_.head_dim_v}, name("values"))
                                : store(d_.cache_.layers[layer].v, v, "values");
  } else {
    const Layer& writer = d_.layers_[static_cast<size_t>(h_.kv_layer)];
    keys_ = writer.keys_, values_ = writer.values_;
  }
  if (d_.out_.last_rows != nullptr) return attention_to_parts(q, pages.table);
  AttentionParams params = h_.attention;
  params.page = d_.cache_.page;
  Tensor* heads = paged_attention(g_, by_tokens(q), keys_, values_, d_.positions_, sinks, pages.table, d_.sequences_,
                                  params, name("attention"));
  return reshape(g_, heads, {h_.head_dim_v * h_.heads, d_.batch_.tokens, 1, 1}, name("attention.merged"));
}

/// Queries attend to each part of the cache separately. merge_attention() then merges the partial results.
Tensor* Layer::attention_to_parts(Tensor* q, Tensor* table) {
  const int64_t parts = d_.cache_.parts, e = h_.head_dim_v;
  AttentionParams params = h_.attention;
  params.parts = parts;
  params.page = d_.cache_.page / parts;
  Tensor* k = reshape(g_, keys_, {keys_->shape[0], keys_->shape[1] / parts, 1, parts}, name("keys.parts"));
  Tensor* v = slice(g_, k, {0, 0, e}, name("values.parts"));
  Tensor* each = paged_attention(g_, by_tokens(q), k, v, d_.out_.last_rows, nullptr, table, d_.sequences_, params,
                                 name("attention.parts"));
  Tensor* lse = permute(g_, slice(g_, each, {0, e, 1}, name("attention.lse")), {3, 1, 2, 0}, name("attention.all_lse"));
  Tensor* heads = merge_attention(g_, each, lse, name("attention"));
  return reshape(g_, heads, {e * h_.heads, d_.batch_.tokens, 1, 1}, name("attention.merged"));
}

Tensor* Layer::project(Tensor* attended, Bias bias) {
  const Cut by_heads{CutGroup::kQueryHeads, 0, attended->shape[0] / h_.heads};
  return linear("attn_output", attended, d_.h_.embd, by_heads, bias, "attn_out");
}

Tensor* Layer::activate(Tensor* gate, Tensor* up, Activation activation, std::string_view result) {
  if (activation == Activation::kSwiglu) return glu(g_, gate, up, GluKind::kSwiglu, name(result));
  if (activation == Activation::kGeglu) return glu(g_, gate, up, GluKind::kGeglu, name(result));
  constexpr float kMost = 7.0f, kInfinity = std::numeric_limits<float>::infinity();
  gate = clamp(g_, gate, {-kInfinity, kMost}, name(result) + ".gate");
  up = clamp(g_, up, {-kMost, kMost}, name(result) + ".up");
  // Computes f(gate) * up + f(gate) instead of f(gate) * (up + 1), with f(x) = x * sigmoid(1.702 x). If a device does
  // not have an expert, the gate and up of this expert are 0. Every intermediate result must then also be 0. The
  // intermediate result up + 1 would be 1.
  Tensor* once = unary(g_, gate, UnaryKind::kGeluQuick, name(result) + ".gate_once");
  return add(glu(g_, gate, up, GluKind::kGegluQuick, name(result) + ".gated"), once, result);
}

Tensor* Layer::activate_fused(Tensor* gate_up, Activation activation, std::string_view result) {
  check(activation != Activation::kClampedSwiglu, "fused matrices do not support the clamped SwiGLU");
  return glu_fused(g_, gate_up, activation == Activation::kSwiglu ? GluKind::kSwiglu : GluKind::kGeglu, name(result));
}

Tensor* Layer::feed_forward(Tensor* x, const FeedForward& kind) {
  if (h_.experts == 0) return dense(x, kind);
  Tensor* chosen = experts(x, x, kind);
  return h_.shared_ff == 0 ? chosen : add(chosen, shared_expert(x, kind), "ffn_out");
}

Tensor* Layer::dense(Tensor* x, const FeedForward& kind) {
  const bool is_shared = h_.experts > 0;
  const CutGroup group = is_shared ? CutGroup::kSharedExpert : CutGroup::kFeedForward;
  const int64_t ff = is_shared ? h_.shared_ff : h_.ff;
  const Cut columns{group, 1, 1}, rows{group, 0, 1};
  Tensor* hidden = nullptr;
  if (kind.fused) {
    check(kind.bias == Bias::kNone, "fused matrices of dense blocks do not support biases");
    const Cut both{group, 1, 1, {{{group, 1}}}};
    hidden = activate_fused(linear("ffn_up", x, 2 * ff, both, Bias::kNone, "gate_up"), kind.activation, "hidden");
  } else {
    Tensor* gate = linear("ffn_gate", x, ff, columns, kind.bias, "gate");
    hidden = activate(gate, linear("ffn_up", x, ff, columns, kind.bias, "up"), kind.activation, "hidden");
  }
  return linear("ffn_down", hidden, d_.h_.embd, rows, kind.bias, "ffn_out");
}

Decoder::Decoder(std::string_view name, const Hparams& hparams, const KvCache& cache, BatchShape batch,
                 WeightSource source)
    : h_(hparams), cache_(cache), batch_(batch), source_(std::move(source)) {
  out_.graph = std::make_unique<Graph>(fmt::format("{}_{}", name, batch.tokens));
  add_inputs();
  for (int layer = 0; layer < hparams.layers; ++layer) layers_.emplace_back(*this, layer);
}

void Decoder::add_inputs() {
  const auto input = [&](const std::string& what, Shape shape) { return out_.graph->input(what, DType::kI32, shape); };
  const int64_t n = batch_.tokens, y = batch_.sequences;
  out_.tokens = input("tokens", {n, 1, 1, 1});
  out_.positions = positions_ = input("positions", {n, 1, 1, 1});
  out_.sequences = sequences_ = input("sequences", {n, 1, 1, 1});
  out_.out_ids = input("out_ids", {batch_.outputs, 1, 1, 1});
  if (h_.temperature.scale != 0.0f) {
    out_.temperature = out_.graph->input("temperature", DType::kF32, {1, 1, n, 1});
  }
  for (const PageGroup& group : cache_.groups) {
    const std::string prefix = group.window == 0 ? "" : fmt::format("window_{}.", group.window);
    out_.pages.push_back(
        {input(prefix + "table", {cache_.most_pages(), y, 1, 1}), input(prefix + "cache_rows", {n, 1, 1, 1})});
  }
  if (cache_.parts > 1) out_.last_rows = input("last_rows", {n, cache_.parts, 1, 1});
  for (const CacheTensor& spec : cache_.specs) {
    if (spec.part != CachePart::kConv && spec.part != CachePart::kState) continue;
    if (out_.slots == nullptr) out_.slots = input("slots", {y, 1, 1, 1});
    const int64_t rows = spec.shape[1] / cache_.slots;
    const auto is_same = [&](const StateInput& other) { return other.rows == rows; };
    if (rows == 0 || std::any_of(out_.states.begin(), out_.states.end(), is_same)) continue;
    out_.states.push_back({rows, input(fmt::format("state_{}.ids", rows), {rows * y, 1, 1, 1})});
  }
}

Tensor* Decoder::scaled(Tensor* x, float factor, const std::string& result) {
  return factor == 1.0f ? x : scale(*out_.graph, x, {factor}, result);
}

/// Returns the vector `of`.weight. It has one factor for each index of axis 0 of x.
Tensor* Decoder::factors(const std::string& of, Tensor* x, int layer, bool optional) {
  return source_({of + ".weight", {x->shape[0], 1, 1, 1}, layer, kMirrored, optional, false, true});
}

Tensor* Decoder::usual_layers(Tensor* x, const Blocks& blocks, const std::function<Tensor*(Layer&, Tensor*)>& attend) {
  for (Layer& l : layers_) {
    Tensor* attended = attend(l, l.rms_norm(x, "attn_norm", "attn_normed"));
    if (blocks.norms_results) attended = l.rms_norm(attended, "post_attention_norm", "attn_out_normed");
    x = l.residual(x, attended, "attn_residual");
    Tensor* ffn = l.feed_forward(l.rms_norm(x, blocks.norm, "ffn_normed"), blocks.feed_forward);
    if (blocks.norms_results) ffn = l.rms_norm(ffn, "post_ffw_norm", "ffn_out_normed");
    x = l.residual(x, ffn, "ffn_residual");
  }
  return x;
}

Tensor* Decoder::embed() {
  // The embedding table is mirrored. If devices divided the rows of the table, the token lookup would need one more
  // all-reduce per batch.
  embedding_ = source_(
      {"token_embd.weight", {h_.embd, h_.vocab, 1, 1}, -1, kMirrored, false, false, false, TensorRole::kEmbedding});
  return scaled(get_rows(*out_.graph, embedding_, out_.tokens, {}, "embd"), h_.embedding_scale, "embd_scaled");
}

Tensor* Decoder::rope_factors() {
  return rope_factors(h_.rope);
}

Tensor* Decoder::rope_factors(const RopeParams& rope) {
  if (rope.dims == 0) return nullptr;
  const auto find = [&](std::string name, bool alternative) {
    const Shape pairs{rope.dims / 2, 1, 1, 1};
    return source_({std::move(name), pairs, -1, kMirrored, true, alternative, true, TensorRole::kRopeFactors});
  };
  Tensor* for_all = find("rope_freqs.weight", false);
  Tensor* for_long = find("rope_factors_long.weight", true);
  Tensor* for_short = find("rope_factors_short.weight", true);
  require<InvalidArgument>((for_long == nullptr) == (for_short == nullptr),
                           "only one of rope_factors_long and rope_factors_short is in the file; convert the model "
                           "again");
  if (for_all != nullptr) return for_all;
  return is_long(h_, cache_.longest) ? for_long : for_short;
}

Tensor* Decoder::rms_norm(Tensor* x, std::string_view of, std::string_view result) {
  Tensor* weight = factors(std::string(of), x, -1);
  Graph& g = *out_.graph;
  return mul(g, shoal::rms_norm(g, x, {h_.norm_eps}, std::string(result) + ".rms"), weight, std::string(result));
}

Tensor* Decoder::layer_norm(Tensor* x, std::string_view of, std::string_view result) {
  Tensor* weight = factors(std::string(of), x, -1);
  Graph& g = *out_.graph;
  return mul(g, shoal::layer_norm(g, x, {h_.norm_eps}, std::string(result) + ".centred"), weight, std::string(result));
}

Tensor* Decoder::wanted_rows(Tensor* x) {
  return has_all_ ? get_rows(*out_.graph, x, out_.out_ids, {}, "out_rows") : x;
}

/// Returns the elements of `of_tokens`, i32 [tokens], for the tokens whose logits are wanted.
Tensor* Decoder::wanted_of(Tensor* of_tokens, std::string_view result) {
  Graph& g = *out_.graph;
  Tensor* rows = reshape(g, of_tokens, {1, batch_.tokens, 1, 1}, fmt::format("{}.rows", result));
  Tensor* wanted = get_rows(g, rows, out_.out_ids, {}, std::string(result));
  return reshape(g, wanted, {batch_.outputs, 1, 1, 1}, fmt::format("{}.flat", result));
}

void Decoder::keep_requested_tokens(std::initializer_list<Tensor**> values) {
  check(out_.temperature == nullptr, "keep_requested_tokens() does not support attention temperatures");
  if (batch_.tokens == 1) return;
  for (Tensor** value : values) {
    if (*value != nullptr) *value = get_rows(*out_.graph, *value, out_.out_ids, {}, (*value)->name + ".wanted");
  }
  positions_ = wanted_of(positions_, "out_positions");
  sequences_ = wanted_of(sequences_, "out_sequences");
  batch_.tokens = batch_.outputs;
  has_all_ = false;
}

void Decoder::head(Tensor* x, Bias bias) {
  Graph& g = *out_.graph;
  const Cut rows{CutGroup::kVocabulary, 1, 1};
  Tensor* matrix =
      source_({"output.weight", {h_.embd, h_.vocab, 1, 1}, -1, rows, true, false, false, TensorRole::kHead});
  Tensor* added = nullptr;
  if (bias != Bias::kNone) {
    const Cut elements{CutGroup::kVocabulary, 0, 1};
    added = source_({"output.bias", {h_.vocab, 1, 1, 1}, -1, elements, bias == Bias::kOptional, false, true});
  }
  // nvfp4 weights have an additional scale tensor.
  Tensor* factor = source_({"output.scale", {1, 1, 1, 1}, -1, kMirrored, true, true, true});
  Tensor* logits = mul_mat(g, matrix != nullptr ? matrix : embedding_, x, "logits");
  if (factor != nullptr) logits = mul(g, logits, factor, "logits.of_scale");
  if (added != nullptr) logits = add(g, logits, added, "logits.biased");
  logits = scaled(logits, h_.logit_scale, "logits.scaled");
  if (const float cap = h_.logit_softcap; cap > 0.0f) {
    Tensor* bent = unary(g, scale(g, logits, {1.0f / cap}, "logits.of_cap"), UnaryKind::kTanh, "logits.tanh");
    logits = scale(g, bent, {cap}, "logits.capped");
  }
  add_outputs(logits);
}

/// Marks the logits, or the selected candidates, as outputs of the graph.
void Decoder::add_outputs(Tensor* logits) {
  Graph& g = *out_.graph;
  out_.logits = logits;
  if (batch_.candidates == 0 || batch_.keeps_logits) g.output(logits);
  if (batch_.candidates == 0) return;
  const int64_t vocab = logits->shape[0], outputs = logits->shape[1], k = std::min(batch_.candidates, vocab);
  out_.candidate_ids = k == 1 ? argmax(g, logits, "candidates") : top_k(g, logits, k, "candidates");
  Tensor* elements = reshape(g, logits, {1, vocab, outputs, 1}, "logits.elements");
  out_.candidate_logits = get_rows(g, elements, out_.candidate_ids, {}, "candidates.logits");
  g.output(out_.candidate_ids);
  g.output(out_.candidate_logits);
}

DecoderGraph Decoder::take() {
  check(out_.logits != nullptr, "the architecture of graph {} does not call head()", out_.graph->name());
  return std::move(out_);
}

}  // namespace shoal::models
