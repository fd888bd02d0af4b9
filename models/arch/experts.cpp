// Feed-forward blocks of experts: routing, the routed experts, and the shared expert.
#include "base/error.h"
#include "models/arch/decoder.h"

namespace shoal::models {
namespace {

// Lower bound of the divisor that normalises expert weights. Without this bound, a sum of sigmoids could be almost 0.
constexpr float kLeastTotal = 6.103515625e-5f;  // 2^-14

}  // namespace

/// Lowers the preferences [experts, t] of experts outside the best groups, so that these experts are never chosen.
Tensor* Layer::without_other_groups(Tensor* preferred) {
  constexpr float kNever = -1e30f;
  const Routing& routing = d_.h_.routing;
  const int64_t groups = routing.groups, size = h_.experts / groups, t = d_.batch_.tokens;
  const auto named = [&](std::string_view what) { return name(fmt::format("router.groups.{}", what)); };
  Tensor* members = reshape(g_, preferred, {size, groups, t, 1}, named("members"));
  Tensor* rows = reshape(g_, preferred, {1, size, groups, t}, named("rows"));
  const int64_t count = routing.group_best;
  Tensor* best = get_rows(g_, rows, top_k(g_, members, count, named("best_ids")), {}, named("best"));
  Tensor* sums = sum_rows(g_, reshape(g_, best, {count, groups, t, 1}, named("best_of_each")), named("sums"));
  Tensor* scores = reshape(g_, sums, {groups, t, 1, 1}, named("scores"));
  Tensor* order = top_k(g_, scores, routing.groups_used, named("used"));
  Tensor* last = slice(g_, order, {0, routing.groups_used - 1, 1}, named("last_used"));
  Tensor* least = get_rows(g_, reshape(g_, scores, {1, groups, t, 1}, named("score_rows")), contiguous(g_, last), {},
                           named("least"));
  Tensor* below = sub(g_, reshape(g_, least, {1, t, 1, 1}, named("least_of_token")), scores, named("below"));
  Tensor* dropped = unary(g_, below, UnaryKind::kStep, named("dropped"));
  Tensor* penalty = reshape(g_, scale(g_, dropped, {kNever}, named("penalty")), {1, groups, t, 1}, named("of_group"));
  return reshape(g_, shoal::add(g_, members, penalty, named("allowed")), {h_.experts, t, 1, 1}, named("preferred"));
}

/// Returns the chosen experts of each token, i32 [used, t], and their weights, f32 [1, used, t].
Layer::Chosen Layer::route(Tensor* x, Bias bias) {
  const int64_t count = h_.experts, used = d_.h_.experts_used, t = d_.batch_.tokens;
  const Routing& routing = d_.h_.routing;
  Tensor* logits = linear("ffn_gate_inp", x, count, {}, bias, "router");
  Tensor* all = logits;
  if (routing.gating == Gating::kSoftMax)
    all = soft_max(g_, logits, nullptr, nullptr, {}, name("router.probabilities"));
  if (routing.gating == Gating::kSigmoid) all = unary(g_, logits, UnaryKind::kSigmoid, name("router.probabilities"));
  if (routing.gating == Gating::kSqrtSoftplus) {
    Tensor* positive = unary(g_, logits, UnaryKind::kSoftplus, name("router.softplus"));
    all = unary(g_, positive, UnaryKind::kSqrt, name("router.probabilities"));
  }
  // Some models add a bias to the probabilities before the selection of experts. The weights of the experts do not
  // include this bias.
  Tensor* preference = d_.source_({name("exp_probs_b.bias"), {count, 1, 1, 1}, index_, {}, true, false, true});
  Tensor* preferred = preference == nullptr ? all : add(all, preference, "router.preferred");
  if (routing.groups > 1) preferred = without_other_groups(preferred);
  Tensor* ids = top_k(g_, preferred, used, name("router.ids"));
  Tensor* rows = reshape(g_, all, {1, count, t, 1}, name("router.rows"));
  // The token axis is a batch axis of get_rows, so the ids of a token select probabilities of the same token.
  Tensor* best = get_rows(g_, rows, ids, {}, name("router.best"));
  Tensor* weights = reshape(g_, best, {used, t, 1, 1}, name("router.best_columns"));
  if (routing.gating == Gating::kSoftMaxOfChosen) {
    weights = soft_max(g_, weights, nullptr, nullptr, {}, name("router.normalised"));
  } else if (routing.normalised) {
    Tensor* total = sum_rows(g_, weights, name("router.total"));
    if (routing.gating != Gating::kSoftMax) {
      total = clamp(g_, total, {kLeastTotal, std::numeric_limits<float>::max()}, name("router.divisor"));
    }
    weights = div(g_, weights, total, name("router.normalised"));
  }
  weights = d_.scaled(weights, routing.scale, name("router.scaled"));
  return {ids, reshape(g_, weights, {1, used, t, 1}, name("router.weights"))};
}

/// Multiplies `x` by the scales of the experts' matrices. `x` contains the results or the weights of the chosen
/// experts. Returns `x` if the file has no scales. Files with nvfp4 weights have scales. If `usual` is true, files with
/// other weight types may also have scales.
Tensor* Layer::times_factors(std::string_view of, Tensor* x, Tensor* ids, bool usual, std::string_view result) {
  const int64_t count = h_.experts, used = ids->shape[0], t = ids->shape[1];
  Tensor* of_all = d_.source_({name(of) + ".scale", {count, 1, 1, 1}, index_, {}, true, !usual, true});
  if (of_all == nullptr) return x;
  const auto named = [&](std::string_view what) { return name(fmt::format("{}.{}", result, what)); };
  Tensor* rows = reshape(g_, of_all, {1, count, 1, 1}, named("factor_rows"));
  Tensor* flat = reshape(g_, ids, {used * t, 1, 1, 1}, named("factor_ids"));
  Tensor* of_ids = get_rows(g_, rows, flat, {}, named("factors_of_ids"));
  return mul(g_, x, reshape(g_, of_ids, {1, used, t, 1}, named("factors")), name(result));
}

/// Biases of the experts in `ids`, f32 [length, used, t]; nullptr if there are none.
Tensor* Layer::expert_biases(std::string_view of, Tensor* ids, int64_t length, Cut cut, Bias bias) {
  if (bias == Bias::kNone) return nullptr;
  const Shape shape{length, h_.experts, 1, 1};
  const TensorRole role = cut.group == CutGroup::kNone ? TensorRole::kBlock : TensorRole::kExperts;
  Tensor* table = d_.source_({name(of) + ".bias", shape, index_, cut, bias == Bias::kOptional, false, true, role});
  if (table == nullptr) return nullptr;
  const int64_t used = ids->shape[0], t = ids->shape[1];
  const std::string result = name(of);
  Tensor* flat = reshape(g_, ids, {used * t, 1, 1, 1}, result + ".ids");
  Tensor* rows = get_rows(g_, table, flat, {}, result + ".rows");
  return reshape(g_, rows, {table->shape[0], used, t, 1}, result + ".biases");
}

/// Weighted sum of the experts' results: [n, used, t] -> [n, t].
Tensor* Layer::sum_of_experts(Tensor* each, Tensor* weights, std::string_view prefix, std::string_view result) {
  const auto named = [&](std::string_view what) { return name(fmt::format("{}.{}", prefix, what)); };
  Tensor* weighted = mul(g_, each, weights, named("weighted"));
  // The nodes form a single chain from the partial products to the weighted sum, so that devices reduce only the sum.
  Tensor* by_element = contiguous(g_, permute(g_, weighted, {1, 0, 2, 3}, named("by_element")), named("columns"));
  return reshape(g_, sum_rows(g_, by_element, named("sum")), {each->shape[0], each->shape[2], 1, 1}, name(result));
}

/// Applies gate and up of the experts in `ids` to `input`, [embd, 1, t]. Returns the input of ffn_down_exps:
/// [ff, used, t]. Some files fuse the matrices of gate and up (ffn_gate_up_exps).
Tensor* Layer::hidden_of_experts(Tensor* input, Tensor* ids, const FeedForward& kind) {
  const Shape shape{d_.h_.embd, h_.ff, h_.experts, 1}, both{shape[0], 2 * h_.ff, h_.experts, 1};
  const Cut columns{CutGroup::kFeedForward, 1, 1}, twice{CutGroup::kFeedForward, 1, 1, {{{CutGroup::kFeedForward, 1}}}};
  if (kind.bias != Bias::kRequired) {
    Tensor* fused =
        d_.source_({name("ffn_gate_up_exps.weight"), both, index_, twice, true, true, false, TensorRole::kExperts});
    if (fused != nullptr) {
      Tensor* product = mul_mat_id(g_, fused, input, ids, {}, name("experts.gate_up"));
      Tensor* gate_up = times_factors("ffn_gate_up_exps", product, ids, false, "experts.gate_up.scaled");
      return activate_fused(gate_up, kind.activation, "experts.hidden");
    }
  }
  const auto part = [&](std::string_view of, std::string_view result) {
    Tensor* matrices = weight(of, shape, columns, TensorRole::kExperts);
    Tensor* product = mul_mat_id(g_, matrices, input, ids, {}, name(result));
    product = times_factors(of, product, ids, false, fmt::format("{}.scaled", result));
    Tensor* added = expert_biases(of, ids, h_.ff, {CutGroup::kFeedForward, 0, 1}, kind.bias);
    return added == nullptr ? product : add(product, added, fmt::format("{}.biased", result));
  };
  Tensor* gate = part("ffn_gate_exps", "experts.gate");
  return activate(gate, part("ffn_up_exps", "experts.up"), kind.activation, "experts.hidden");
}

Tensor* Layer::experts(Tensor* x, Tensor* routed, const FeedForward& kind) {
  const int64_t embd = d_.h_.embd, t = d_.batch_.tokens;
  const auto [ids, weights] = route(routed, kind.bias);
  Tensor* input = reshape(g_, x, {embd, 1, t, 1}, name("experts.input"));
  const Cut rows{CutGroup::kFeedForward, 0, 1};
  Tensor* hidden = hidden_of_experts(input, ids, kind);
  Tensor* down = weight("ffn_down_exps", {h_.ff, embd, h_.experts, 1}, rows, TensorRole::kExperts);
  Tensor* factors = times_factors("ffn_down_exps", weights, ids, kind.factors, "experts.weights");
  // This product comes directly before the weighted sum, so that devices can fuse the product and the sum.
  Tensor* each = mul_mat_id(g_, down, hidden, ids, {}, name("experts.each"));
  Tensor* sum = sum_of_experts(each, factors, "experts", "ffn_out");
  // The biases are added once, after the devices have reduced the sum.
  Tensor* biases = expert_biases("ffn_down_exps", ids, embd, {}, kind.bias);
  if (biases == nullptr) return sum;
  return add(sum, sum_of_experts(biases, weights, "experts.biases", "experts.bias"), "ffn_out.biased");
}

Tensor* Layer::shared_expert(Tensor* x, const FeedForward& kind) {
  const Cut columns{CutGroup::kSharedExpert, 1, 1}, rows{CutGroup::kSharedExpert, 0, 1};
  Tensor* gate = linear("ffn_gate_shexp", x, h_.shared_ff, columns, Bias::kNone, "shared.gate");
  Tensor* up = linear("ffn_up_shexp", x, h_.shared_ff, columns, Bias::kNone, "shared.up");
  Tensor* hidden = activate(gate, up, kind.activation, "shared.hidden");
  Tensor* out = linear("ffn_down_shexp", hidden, d_.h_.embd, rows, Bias::kNone, "shared.out");
  if (!kind.shared_gate) return out;
  Tensor* share = unary(g_, linear("ffn_gate_inp_shexp", x, 1, {}, Bias::kNone, "shared.router"), UnaryKind::kSigmoid,
                        name("shared.share"));
  return mul(g_, out, share, name("shared.weighted"));
}

}  // namespace shoal::models
