// Recurrent layers have a state of fixed size instead of keys and values. A recurrent layer consists of a causal
// convolution and the gated delta rule (Qwen 3.5), or of a gated convolution alone (LFM 2).
//
// Devices divide all tensors by key heads. A value head is on the same device as its key head. Example: attn_qkv with 2
// key heads and 6 value heads on two devices. In tiled order, the second device has q1, k1, v1, v3 and v5.
//
//   tiled      q0 q1 | k0 k1 | v0 v1 | v2 v3 | v4 v5     five segments, divided in the same way
//   grouped    q0 q1 | k0 k1 | v0 v1 v2 v3 v4 v5         three segments; value heads of a key head are adjacent
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/arch/decoder.h"

namespace shoal::models {
namespace {

/// Returns the cut of an axis with `scale` elements per value head.
Cut of_values(const RecurrentHparams& r, int axis, int64_t scale) {
  return {CutGroup::kStateHeads, axis, r.tiled ? scale : scale * r.group(), {}, r.tiled ? r.group() : 1};
}

/// Returns the cut of an axis with the channels of the convolution. The segments are queries, keys and values.
Cut of_channels(const RecurrentHparams& r, int axis) {
  const Cut values = of_values(r, axis, r.head_dim);
  return {CutGroup::kStateHeads,
          axis,
          r.head_dim,
          {{{CutGroup::kStateHeads, r.head_dim}, {CutGroup::kStateHeads, values.scale, values.repeat}}}};
}

}  // namespace

/// Writes the new states to the cache. `all` is the result of the convolution or the delta rule: the rows of the
/// tokens, followed by `rows` rows of each sequence's new state.
void Layer::store_state(Tensor* cache, Tensor* all, int64_t rows, std::string_view result) {
  if (rows == 0) return;
  const auto& states = d_.out_.states;
  const auto input = std::find_if(states.begin(), states.end(), [&](const StateInput& of) { return of.rows == rows; });
  Tensor* fresh = slice(g_, all, {1, d_.batch_.tokens, rows * d_.batch_.sequences}, name(result) + ".rows");
  g_.output(set_rows(g_, cache, fresh, input->ids, {}, name(result)));
}

/// The causal convolution of x: [channels, t] -> [channels, t].
Tensor* Layer::convolve(Tensor* x, std::string_view of, const Cut& cut) {
  const int64_t taps = h_.recurrent.taps;
  Tensor* kernel = d_.source_({name(of) + ".weight", {taps, x->shape[0], 1, 1}, index_, cut, false, false, true});
  Tensor* cache = d_.cache_.layers[static_cast<size_t>(index_)].conv;
  Tensor* all = causal_conv(g_, x, kernel, cache, d_.out_.positions, name("conv"), {d_.out_.sequences, d_.out_.slots});
  store_state(cache, all, taps - 1, "conv_state");
  return slice(g_, all, {1, 0, d_.batch_.tokens}, name("conv.tokens"));
}

/// `decay` is the logarithm of the fraction of the state that each token keeps. `beta` is the fraction of the
/// prediction error that the delta rule corrects. Both tensors are f32 [v_heads, t].
Layer::DeltaGates Layer::delta_gates(Tensor* x) {
  const RecurrentHparams& r = h_.recurrent;
  const int64_t t = d_.batch_.tokens, group = r.group();
  const Cut both{CutGroup::kStateHeads, 1, 2 * group};
  DeltaGates out;
  Tensor* alpha = nullptr;
  if (Tensor* fused =
          d_.source_({name("ssm_ba.weight"), {x->shape[0], 2 * r.v_heads, 1, 1}, index_, both, true, true})) {
    require<InvalidArgument>(!r.tiled, "{}: a fused matrix for beta and alpha requires value heads in grouped order",
                             name("ssm_ba.weight"));
    // Each key head has `2 * group` rows: first the betas of its value heads, then the alphas of its value heads.
    Tensor* heads = reshape(g_, mul_mat(g_, fused, x, name("ba")), {2 * group, r.k_heads, t, 1}, name("ba.heads"));
    const auto part = [&](int64_t begin, std::string_view result) {
      Tensor* some = contiguous(g_, slice(g_, heads, {0, begin, group}, name(result) + ".part"), name(result) + ".own");
      return reshape(g_, some, {r.v_heads, t, 1, 1}, name(result));
    };
    out.beta = part(0, "beta"), alpha = part(group, "alpha");
  } else {
    out.beta = linear("ssm_beta", x, r.v_heads, of_values(r, 1, 1), Bias::kNone, "beta");
    alpha = linear("ssm_alpha", x, r.v_heads, of_values(r, 1, 1), Bias::kNone, "alpha");
  }
  out.beta = unary(g_, out.beta, UnaryKind::kSigmoid, name("beta.sigmoid"));
  const auto by_head = [&](std::string_view of) {
    return d_.source_({name(of), {r.v_heads, 1, 1, 1}, index_, of_values(r, 0, 1), false, false, true});
  };
  Tensor* moved = shoal::add(g_, alpha, by_head("ssm_dt.bias"), name("alpha.moved"));
  Tensor* steps = unary(g_, moved, UnaryKind::kSoftplus, name("alpha.softplus"));
  out.decay = mul(g_, steps, by_head("ssm_a"), name("decay"));
  return out;
}

/// Returns the input channels of the convolution, [channels, t], and the gates of the values, [head_dim, v_heads, t].
Layer::DeltaInputs Layer::delta_inputs(Tensor* x) {
  const RecurrentHparams& r = h_.recurrent;
  const int64_t d = r.head_dim, t = d_.batch_.tokens, group = r.group(), each = 2 * (1 + group) * d;
  const Cut by_keys{CutGroup::kStateHeads, 1, each};
  Tensor* fused =
      d_.source_({name("ssm_in.weight"), {x->shape[0], each * r.k_heads, 1, 1}, index_, by_keys, true, true});
  if (fused == nullptr) {
    Tensor* mixed = linear("attn_qkv", x, r.channels(), of_channels(r, 1), Bias::kNone, "qkv_mixed");
    return {mixed, by_heads(linear("attn_gate", x, d * r.v_heads, of_values(r, 1, d), Bias::kNone, "z"), d)};
  }
  require<InvalidArgument>(!r.tiled, "{}: a fused input matrix requires value heads in grouped order",
                           name("ssm_in.weight"));
  // Each key head has consecutive rows: its query, its key, the values of its value heads, and the gates of its value
  // heads.
  Tensor* heads = reshape(g_, mul_mat(g_, fused, x, name("in")), {each, r.k_heads, t, 1}, name("in.heads"));
  const auto part = [&](int64_t begin, int64_t length, std::string_view result) {
    Tensor* some = contiguous(g_, slice(g_, heads, {0, begin, length}, name(result) + ".part"), name(result) + ".own");
    return reshape(g_, some, {length * r.k_heads, t, 1, 1}, name(result));
  };
  Tensor* q = part(0, d, "q_mixed");
  Tensor* k = part(d, d, "k_mixed");
  Tensor* v = part(2 * d, group * d, "v_mixed");
  Tensor* mixed = concat(g_, {q, k, v}, 0, name("qkv_mixed"));
  return {mixed, by_heads(part((2 + group) * d, group * d, "z"), d)};
}

Tensor* Layer::delta_net(Tensor* x) {
  const RecurrentHparams& r = h_.recurrent;
  const int64_t d = r.head_dim, t = d_.batch_.tokens;
  const auto [mixed, z] = delta_inputs(x);
  const DeltaGates gates = delta_gates(x);
  Tensor* convolved = convolve(mixed, "ssm_conv1d", of_channels(r, 1));
  Tensor* heads = by_heads(unary(g_, convolved, UnaryKind::kSilu, name("conv.silu")), d);
  const auto part = [&](int64_t begin, int64_t length, std::string_view result) {
    return slice(g_, heads, {1, begin, length}, name(result));
  };
  // Divides each vector by its rms and multiplies the result by `factor`. A factor of 1 / sqrt(d) gives vectors of
  // length 1. Queries are also divided by sqrt(d).
  const auto unit = [&](Tensor* vectors, float factor, std::string_view result) {
    const float least = d_.h_.norm_eps * d_.h_.norm_eps / static_cast<float>(d);  // epsilon for the mean of squares
    Tensor* normed = shoal::rms_norm(g_, vectors, {least}, name(result) + ".rms");
    return scale(g_, normed, {factor}, name(result));
  };
  const float root = 1.0f / std::sqrt(static_cast<float>(d));
  Tensor* q = unit(part(0, r.k_heads, "q"), root * root, "q_unit");
  Tensor* k = unit(part(r.k_heads, r.k_heads, "k"), root, "k_unit");
  Tensor* v = part(2 * r.k_heads, r.v_heads, "v");
  Tensor* cache = d_.cache_.layers[static_cast<size_t>(index_)].state;
  Tensor* all = gated_delta(g_, q, k, v, gates.decay, gates.beta, cache, d_.out_.positions, {r.tiled}, name("delta"),
                            {d_.out_.sequences, d_.out_.slots});
  store_state(cache, all, d, "state");
  Tensor* out = permute(g_, slice(g_, all, {1, 0, t}, name("delta.tokens")), {0, 2, 1, 3}, name("delta.heads"));
  Tensor* gated = glu(g_, z, rms_norm(out, "ssm_norm", "delta.normed"), GluKind::kSwiglu, name("delta.gated"));
  Tensor* merged = reshape(g_, gated, {d * r.v_heads, t, 1, 1}, name("delta.merged"));
  return linear("ssm_out", merged, d_.h_.embd, of_values(r, 0, d), Bias::kNone, "delta_out");
}

Tensor* Layer::short_conv(Tensor* x) {
  const int64_t n = h_.recurrent.channels();
  const Cut thirds{CutGroup::kStateHeads, 1, 1, {}, 3};
  Tensor* all = linear("shortconv.in_proj", x, 3 * n, thirds, Bias::kNone, "bcx");
  const auto part = [&](int64_t which, std::string_view result) {
    return slice(g_, all, {0, which * n, n}, name(result));
  };
  Tensor* input = mul(g_, part(0, "b"), part(2, "x"), name("bx"));
  Tensor* mixed = mul(g_, part(1, "c"), convolve(input, "shortconv.conv", {CutGroup::kStateHeads, 1, 1}), name("y"));
  return linear("shortconv.out_proj", mixed, d_.h_.embd, {CutGroup::kStateHeads, 0, 1}, Bias::kNone, "conv_out");
}

}  // namespace shoal::models
