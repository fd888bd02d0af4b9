// The fused selection of experts. A warp selects the experts of one token. Each lane holds the probabilities and sort
// keys of up to 16 experts. Experts are assigned to lanes like the elements of a row in soft_max. The warp repeatedly
// selects the best remaining expert, until `used` experts are selected.
#include "devices/cuda/ops/fused.h"

#include <algorithm>
#include <limits>

#include "devices/cuda/kernels/activations.h"
#include "devices/cuda/ops/float_rows.h"

namespace shoal::cuda {
namespace {

using Nodes = std::span<Tensor* const>;

constexpr int64_t kMostExperts = kWarpRowLength;
constexpr int64_t kMostUsed = kWarp;
constexpr float kNoLimit = std::numeric_limits<float>::infinity();

enum class Gating { kNone, kSoftMax, kSigmoid, kSqrtSoftplus };
enum class Normalising { kNone, kSoftMax, kSum };

struct Router {
  const float* logits = nullptr;
  const float* choice = nullptr;  ///< values that decide which experts are chosen; nullptr: the probabilities decide
  int64_t choice_stride = 0;      ///< stride from one token to the next, in elements
  bool adds_choice = false;       ///< whether `choice` is added to the probabilities instead of replacing the
                                  ///< probabilities
  int32_t* ids = nullptr;
  float* weights = nullptr;
  int experts = 0, used = 0, tokens = 0;
  Gating gating = Gating::kNone;
  Normalising normalising = Normalising::kNone;
  float logit_scale = 1;
  float least_total = -kNoLimit, largest_total = kNoLimit;
  float scale = 1, bias = 0;
};

using Quads = float[kHeldQuads][kQuad];

/// Calls f(value, expert) for each of the lane's values.
template <class Values, class F>
__device__ __forceinline__ void for_held(const Router& r, unsigned lane, Values& values, F&& f) {
#pragma unroll
  for (int j = 0; j < kHeldQuads; ++j) {
    if (j * kWarp * kQuad >= r.experts) break;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) f(values[j][i], (j * kWarp + static_cast<int>(lane)) * kQuad + i);
  }
}

/// Computes the probabilities with the same bits as the op soft_max.
__device__ __forceinline__ void apply_soft_max(const Router& r, unsigned lane, Quads& values) {
  float top = minus_infinity(), sum = 0;
  for_held(r, lane, values, [&](float& value, int expert) {
    value = expert < r.experts ? value * r.logit_scale : minus_infinity();
    top = fmaxf(top, value);
  });
  top = warp_max(top);
  if (top == minus_infinity()) top = 0;
  for_held(r, lane, values, [&](float& value, int) { value = expf(value - top); });
#pragma unroll
  for (int j = 0; j < kHeldQuads; ++j) {
    if (j * kWarp * kQuad >= r.experts) break;
    sum += (values[j][0] + values[j][1]) + (values[j][2] + values[j][3]);
  }
  // The op soft_max stores rounded products. Here, kept() prevents the compiler from fusing a product with a later
  // addition.
  const float total = warp_sum(sum), factor = total == 0 ? 0.0f : 1.0f / total;
  for_held(r, lane, values, [&](float& value, int) { value = __uint_as_float(kept(__float_as_uint(value * factor))); });
}

__device__ __forceinline__ void apply_gating(const Router& r, unsigned lane, Quads& values) {
  if (r.gating == Gating::kNone) return;
  if (r.gating == Gating::kSoftMax) return apply_soft_max(r, lane, values);
  for_held(r, lane, values, [&](float& value, int) {
    value = r.gating == Gating::kSigmoid ? activate(UnaryKind::kSigmoid, value)
                                         : activate(UnaryKind::kSqrt, activate(UnaryKind::kSoftplus, value));
  });
}

/// Returns the weight of the lane's chosen expert. A lane whose number is `used` or higher has no expert and only
/// contributes to the reductions.
__device__ __forceinline__ float weight_of(const Router& r, bool is_used, float weight) {
  if (r.normalising == Normalising::kSoftMax) {
    float top = warp_max(is_used ? weight : minus_infinity());
    if (top == minus_infinity()) top = 0;
    const float power = is_used ? expf(weight - top) : 0.0f, total = warp_sum(power);
    weight = power * (total == 0 ? 0.0f : 1.0f / total);
  } else if (r.normalising == Normalising::kSum) {
    float total = static_cast<float>(warp_sum(is_used ? static_cast<double>(weight) : 0.0));
    if (total < r.least_total) total = r.least_total;
    if (total > r.largest_total) total = r.largest_total;
    weight /= total;
  }
  return weight * r.scale + r.bias;
}

__global__ void __launch_bounds__(kWarpRowThreads) route(Router r) {
  const RowTeam<true> team;
  const auto lane = static_cast<unsigned>(team.thread);
  let_next_start();
  wait_for_previous();
  if (team.row >= r.tokens) return;
  const auto row_of = [&](const float* first) {
    return FloatRow<float>(reinterpret_cast<const std::byte*>(first), sizeof(float), r.experts);
  };
  const auto load = [&](const FloatRow<float>& row, Quads& values) {
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) row.load((j * kWarp + lane) * kQuad, values[j]);
  };
  Quads values, added = {};
  load(row_of(r.logits + team.row * r.experts), values);
  if (r.choice) load(row_of(r.choice + team.row * r.choice_stride), added);
  apply_gating(r, lane, values);

  constexpr uint32_t kNaN = 1, kTaken = 0;  // every number has a sort key that is larger than these two constants
  constexpr uint32_t kNoExpert = UINT32_MAX;
  uint32_t orders[kHeldQuads][kQuad];
#pragma unroll
  for (int j = 0; j < kHeldQuads; ++j) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float by = !r.choice ? values[j][i] : r.adds_choice ? values[j][i] + added[j][i] : added[j][i];
      const bool is_expert = (j * kWarp + static_cast<int>(lane)) * kQuad + i < r.experts;
      orders[j][i] = is_expert ? max(order_of(by), kNaN) : kTaken;
    }
  }
  float chosen = 0;
  int chosen_id = 0;
#pragma unroll 1
  for (int slot = 0; slot < r.used; ++slot) {
    uint32_t best = kTaken;
    uint32_t best_id = kNoExpert;
    for_held(r, lane, orders, [&](uint32_t order, int expert) {
      if (order > best) best = order, best_id = expert;
    });
    const uint32_t top = __reduce_max_sync(kAllLanes, best);
    const auto id = static_cast<int>(__reduce_min_sync(kAllLanes, best == top ? best_id : kNoExpert));
    float value = 0;
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        const bool is_it = (j * kWarp + static_cast<int>(lane)) * kQuad + i == id;
        if (is_it) value = values[j][i], orders[j][i] = kTaken;
      }
    }
    value = __shfl_sync(kAllLanes, value, id / kQuad % kWarp);
    if (static_cast<int>(lane) == slot) chosen = value, chosen_id = id;
  }
  const bool is_used = static_cast<int>(lane) < r.used;
  const float weight = weight_of(r, is_used, chosen);
  if (!is_used) return;
  r.ids[team.row * r.used + lane] = chosen_id;
  r.weights[team.row * r.used + lane] = weight;
}

// --- search for the nodes of a selection ---

/// Whether `view` contains all elements of `node` in rows of `length` elements.
bool has_all_of(const Tensor& view, const Tensor& node, int64_t length) {
  return view.storage() == node.storage() && view.view_offset == node.view_offset && view.is_contiguous() &&
         view.elements() == node.elements() && view.shape[0] == length;
}
const float* floats_of(const Tensor& tensor) {
  return reinterpret_cast<const float*>(tensor.data);
}
bool is_plain_soft_max(const Tensor& node) {
  return node.op == Op::kSoftMax && std::none_of(node.src.begin() + 1, node.src.end(), [](auto* x) { return x; });
}
bool is_unary(const Tensor& node, UnaryKind kind) {
  return node.op == Op::kUnary && std::get<UnaryParams>(node.params).kind == kind;
}

/// Tests whether a sequence of nodes is a selection of experts.
class Chain {
 public:
  /// `readers` is nullptr if an earlier call has checked the readers of the nodes.
  Chain(Nodes nodes, const Readers* readers) : nodes_(nodes), readers_(readers) {}

  bool find() {
    find_gating();
    if (!find_choice()) return false;
    find_normalising();
    if (const Tensor* node = next(Op::kScale)) {
      if (has_all_of(*node->src[0], *weights_, router_.used) && is_read(*weights_, 1)) {
        const auto& params = std::get<ScaleParams>(node->params);
        router_.scale = params.scale, router_.bias = params.bias;
        take(node);
      }
    }
    router_.ids = reinterpret_cast<int32_t*>(ids_->data);
    router_.weights = reinterpret_cast<float*>(weights_->data);
    return has_room();
  }
  size_t count() const { return count_; }
  const Router& router() const { return router_; }

 private:
  const Tensor* next(Op op) const {
    return count_ < nodes_.size() && nodes_[count_]->op == op ? nodes_[count_] : nullptr;
  }
  bool is_read(const Tensor& node, int times) const { return !readers_ || readers_->is_read(node, times); }
  void take(const Tensor* weights) { weights_ = weights, ++count_; }

  /// Finds the nodes that compute probabilities. If these nodes are missing, the router uses the logits instead of
  /// probabilities.
  void find_gating() {
    const Tensor& first = *nodes_[0];
    if (is_plain_soft_max(first)) {
      router_.gating = Gating::kSoftMax;
      router_.logit_scale = std::get<SoftMaxParams>(first.params).scale;
    } else if (is_unary(first, UnaryKind::kSigmoid)) {
      router_.gating = Gating::kSigmoid;
    } else if (nodes_.size() > 1 && is_unary(first, UnaryKind::kSoftplus) && is_unary(*nodes_[1], UnaryKind::kSqrt) &&
               nodes_[1]->src[0] == &first && is_read(first, 1)) {
      router_.gating = Gating::kSqrtSoftplus;
      ++count_;
    } else {
      return;
    }
    logits_ = first.src[0];
    all_ = nodes_[count_++];
  }
  /// Finds the nodes that add `choice` to the probabilities, select the ids, and read the probabilities of the chosen
  /// experts.
  bool find_choice() {
    const Tensor* sum = next(Op::kAdd);
    if (sum != nullptr) {
      const bool first = all_ ? sum->src[0] == all_ : same_shape(*sum->src[0], *sum);
      if (all_ == nullptr) all_ = logits_ = sum->src[first ? 0 : 1];
      if (sum->src[first ? 0 : 1] != all_ || sum->src[0] == sum->src[1] || !is_read(*sum, 1)) return false;
      choice_ = sum->src[first ? 1 : 0];
      router_.adds_choice = true;
      ++count_;
    }
    ids_ = next(Op::kTopK);
    if (ids_ == nullptr) return false;
    const Tensor *by = ids_->src[0], *expected = sum ? sum : all_;
    if (expected && by != expected) return false;
    ++count_;
    const Tensor* best = next(Op::kGetRows);
    if (best == nullptr || best->src[1] != ids_ || !std::get<SelectParams>(best->params).ranges.empty()) return false;
    take(best);
    const Tensor& table = *best->src[0];
    if (all_ == nullptr) {
      all_ = logits_ = &table;
      if (!has_all_of(*by, table, by->shape[0])) choice_ = by;
    }
    router_.experts = static_cast<int>(by->shape[0]), router_.used = static_cast<int>(ids_->shape[0]);
    router_.tokens = static_cast<int>(ids_->rows());
    return has_all_of(table, *all_, 1) && table.shape[1] == by->shape[0] && best->elements() == ids_->elements() &&
           (router_.gating == Gating::kNone || is_read(*all_, 2));
  }
  void find_normalising() {
    const auto has_weights = [&](const Tensor* node) { return has_all_of(*node->src[0], *weights_, router_.used); };
    if (const Tensor* node = next(Op::kSoftMax)) {
      const bool is_plain = is_plain_soft_max(*node) && std::get<SoftMaxParams>(node->params).scale == 1.0f;
      if (!is_plain || !has_weights(node) || !is_read(*weights_, 1)) return;
      router_.normalising = Normalising::kSoftMax;
      return take(node);
    }
    const Tensor* total = next(Op::kSumRows);
    if (total == nullptr || !has_weights(total) || !is_read(*weights_, 2) || !is_read(*total, 1)) return;
    const Nodes behind = nodes_.subspan(count_ + 1);
    const bool clamps = !behind.empty() && behind[0]->op == Op::kClamp && behind[0]->src[0] == total;
    const Tensor* divisor = clamps ? behind[0] : total;
    if (behind.size() <= size_t{clamps} || !is_read(*divisor, 1)) return;
    const Tensor* node = behind[clamps];
    if (node->op != Op::kDiv || !has_weights(node) || node->src[1] != divisor) return;
    if (clamps) {
      const auto& params = std::get<ClampParams>(divisor->params);
      router_.least_total = params.min, router_.largest_total = params.max;
    }
    router_.normalising = Normalising::kSum;
    count_ += 1 + size_t{clamps};
    take(node);
  }

  /// Whether dtypes, sizes and overlaps of tensors allow the kernel to run. A warp reads all values of its token before
  /// it writes its results. At that time, other warps may still read the values of their tokens. So with several
  /// tokens, the results must not overlap the values.
  bool has_room() {
    const int64_t experts = router_.experts, tokens = router_.tokens;
    const auto is_plain = [](const Tensor& x) { return x.dtype == DType::kF32 && x.is_contiguous(); };
    if (experts > kMostExperts || router_.used > kMostUsed || ids_->rows() > INT32_MAX) return false;
    if (!is_plain(*logits_) || !is_plain(*all_) || logits_->elements() != experts * tokens || !is_plain(*weights_)) {
      return false;
    }
    router_.logits = floats_of(*logits_);
    if (overlap(*ids_, *weights_)) return false;
    const auto is_apart = [&](const Tensor& x) {
      return tokens == 1 || (!overlap(x, *ids_) && !overlap(x, *weights_));
    };
    if (choice_ != nullptr) {
      router_.choice = floats_of(*choice_);
      router_.choice_stride = choice_->rows() == 1 ? 0 : experts;
      const bool fits = choice_->shape[0] == experts && (choice_->rows() == 1 || choice_->rows() == tokens);
      if (!is_plain(*choice_) || !fits || !is_apart(*choice_)) return false;
    }
    return is_apart(*logits_);
  }

  Nodes nodes_;
  const Readers* readers_;
  size_t count_ = 0;
  const Tensor *logits_ = nullptr, *all_ = nullptr, *choice_ = nullptr, *ids_ = nullptr, *weights_ = nullptr;
  Router router_;
};

}  // namespace

size_t count_router(Nodes nodes, const Readers& readers) {
  Chain chain(nodes, &readers);
  return chain.find() ? chain.count() : 0;
}

void router_run(const LaunchContext& context, Nodes nodes) {
  Chain chain(nodes, nullptr);
  chain.find();
  const Router& router = chain.router();
  const int64_t warps = kWarpRowThreads / kWarp;
  const unsigned threads = router.tokens == 1 ? kWarp : kWarpRowThreads;
  launch_early(context, route, dim3(static_cast<unsigned>((router.tokens + warps - 1) / warps)), dim3(threads), 0,
               router);
}

}  // namespace shoal::cuda
