#include "meta/plan/joined_norm.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "graph/readers.h"

namespace shoal::meta {
namespace {

using collectives::FusedNorm;

/// The nodes of a rank that one call may compute.
struct Chain {
  const Tensor *reduced, *sum, *norm, *scaled;

  /// Index of the source of `sum` that is the reduced value. The other source is the residual.
  int place() const { return &behind_views(*sum->src[0]) == reduced ? 0 : 1; }
  const Tensor& in() const { return *reduced->src[0]; }
  const Tensor& residual() const { return *sum->src[1 - place()]; }
  const Tensor& weight() const { return *scaled->src[scaled->src[0] == norm ? 1 : 0]; }
};

/// Returns the collective at node `begin` and the next three nodes that are neither views nor empty. Returns nullopt if
/// there are fewer than three of these nodes before `end`.
std::optional<Chain> chain_at(const Graph& graph, int begin, int end) {
  const Tensor* next[3] = {};
  size_t count = 0;
  for (int i = begin + 1; i < end && count < 3; ++i) {
    const Tensor* node = graph.nodes()[static_cast<size_t>(i)];
    if (!is_view(node->op) && !node->empty()) next[count++] = node;
  }
  if (count < 3) return {};
  return Chain{graph.nodes()[static_cast<size_t>(begin)], next[0], next[1], next[2]};
}

bool is_sum_and_scaled_norm(const Chain& chain, const Readers& readers) {
  const Tensor &sum = *chain.sum, &norm = *chain.norm, &scaled = *chain.scaled;
  if (chain.reduced->op != Op::kAllReduce || sum.op != Op::kAdd) return false;
  if (norm.op != Op::kRmsNorm || scaled.op != Op::kMul) return false;
  const auto is_reduced = [&](const Tensor* source) { return &behind_views(*source) == chain.reduced; };
  return is_reduced(sum.src[0]) != is_reduced(sum.src[1]) && norm.src[0] == &sum &&
         (scaled.src[0] == &norm) != (scaled.src[1] == &norm) && readers.is_read_once(*chain.reduced) &&
         readers.is_read_once(norm);
}

bool is_dense(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 && tensor.is_contiguous();
}
/// True if all values are dense and have rows of the same shape, and the norm's factor is a row of a weight. The factor
/// must be a weight, because a communicator may read it in advance.
bool has_plain_rows(const Chain& chain) {
  const Tensor& scaled = *chain.scaled;
  const auto fits = [&](const Tensor& tensor) { return is_dense(tensor) && same_shape(tensor, scaled); };
  return is_dense(chain.in()) && chain.in().elements() == scaled.elements() && fits(*chain.sum->src[0]) &&
         fits(*chain.sum->src[1]) && fits(*chain.sum) && fits(*chain.norm) && fits(scaled) &&
         is_dense(chain.weight()) && chain.weight().shape == Shape{scaled.shape[0], 1, 1, 1} &&
         chain.weight().storage()->role == Role::kWeight;
}

/// True if only the norm reads the sum. The memory plan then gives the scaled norm the memory of the sum.
bool has_no_sum(const Chain& chain) {
  return chain.sum->data == chain.scaled->data;
}

bool overlap(const Tensor& a, const Tensor& b) {
  return a.data < b.data + b.span_bytes() && b.data < a.data + a.span_bytes();
}
/// True if the memory plan treated the nodes as one node (MemoryPlanOptions::fused).
bool is_placed_well(const Chain& chain) {
  const auto fits = [&](const Tensor& result) {
    const auto is_apart_or_equal = [&](const Tensor& source) {
      return !overlap(result, source) || result.data == source.data;
    };
    return is_apart_or_equal(chain.in()) && is_apart_or_equal(chain.residual()) && !overlap(result, chain.weight());
  };
  return fits(*chain.sum) && fits(*chain.scaled) && (!overlap(*chain.sum, *chain.scaled) || has_no_sum(chain));
}

/// Returns the one-column mul_mat whose result is reduced, or nullptr if a call cannot begin with this mul_mat. No
/// computed node may be between the mul_mat and the collective, and node `begin` must precede the mul_mat.
const Tensor* product_before(const Chain& chain, const Graph& graph, int begin, const Readers& readers,
                             const collectives::FusedLimits& limits) {
  const Tensor& product = behind_views(chain.in());
  if (product.is_leaf() || product.op != Op::kMulMat || product.id <= begin || !readers.is_read_once(product))
    return {};
  for (int i = product.id + 1; i < chain.reduced->id; ++i) {
    const Tensor& node = *graph.nodes()[static_cast<size_t>(i)];
    if (!is_view(node.op) && !node.empty()) return {};
  }
  const Tensor &a = *product.src[0], &b = *product.src[1];
  const bool is_column = product.rows() == 1 && is_dense(product) && b.rows() == 1 && is_dense(b);
  const bool is_known = limits.may_begin_with(a.dtype) && a.rows() == a.shape[1] && a.storage()->role == Role::kWeight;
  return is_column && is_known ? &product : nullptr;
}

FusedNorm call_of(const Chain& chain, const char* what) {
  const auto floats = [](const Tensor& tensor) { return reinterpret_cast<float*>(tensor.data); };
  const Tensor& scaled = *chain.scaled;
  return {floats(chain.in()),
          floats(chain.residual()),
          floats(chain.weight()),
          has_no_sum(chain) ? nullptr : floats(*chain.sum),
          floats(scaled),
          scaled.shape[0],
          scaled.rows(),
          std::get<NormParams>(chain.norm->params).eps,
          what};
}

/// Parameters of a call except addresses. These parameters must be equal on all ranks.
struct Form {
  int64_t row, rows;
  float epsilon;
  explicit Form(const Chain& chain)
      : row(chain.scaled->shape[0]),
        rows(chain.scaled->rows()),
        epsilon(std::get<NormParams>(chain.norm->params).eps) {}
  bool operator==(const Form&) const = default;
};

class Joining {
 public:
  Joining(Plan& plan, const collectives::FusedLimits& limits) : plan_(plan), limits_(limits) {
    for (const RankPlan& local : plan.ranks) readers_.emplace_back(whole(*local.graph), local.shown);
  }

  /// Moves the sum and the norm from step i + 1 into step i, if step i is an all-reduce and both steps are in one
  /// segment.
  void join(size_t i) {
    Step &step = plan_.steps[i], &next = plan_.steps[i + 1];
    if (step.collective != Collective::kAllReduce || next.kind != StepKind::kCompute || begins_segment(i + 1)) return;
    std::vector<int> ends;
    std::optional<Form> first;
    for (size_t rank = 0; rank < readers_.size(); ++rank) {
      const auto chain = chain_at(*plan_.ranks[rank].graph, step.ranges[rank].begin, next.ranges[rank].end);
      if (!chain || !is_sum_and_scaled_norm(*chain, readers_[rank]) || !has_plain_rows(*chain)) return;
      const Form form(*chain);
      if (!first) first = form;
      if (*first != form || !limits_.allow(form.row, form.rows)) return;
      ends.push_back(chain->scaled->id + 1);
    }
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      step.ranges[rank].end = next.ranges[rank].begin = ends[rank];
    }
    if (first->rows == 1) join_product(i);
  }

 private:
  /// Moves the product from step i - 1 into step i, on all ranks or on no rank.
  void join_product(size_t i) {
    if (i == 0 || plan_.steps[i - 1].kind != StepKind::kCompute || begins_segment(i)) return;
    Step &before = plan_.steps[i - 1], &step = plan_.steps[i];
    std::vector<int> begins;
    for (size_t rank = 0; rank < readers_.size(); ++rank) {
      const Graph& graph = *plan_.ranks[rank].graph;
      const auto chain = chain_at(graph, step.ranges[rank].begin, step.ranges[rank].end);
      const Tensor* product = product_before(*chain, graph, before.ranges[rank].begin, readers_[rank], limits_);
      if (product == nullptr) return;
      begins.push_back(product->id);
    }
    for (size_t rank = 0; rank < begins.size(); ++rank) {
      before.ranges[rank].end = step.ranges[rank].begin = begins[rank];
    }
  }
  bool begins_segment(size_t step) const { return std::ranges::binary_search(plan_.segments, static_cast<int>(step)); }

  Plan& plan_;
  const collectives::FusedLimits& limits_;
  std::vector<Readers> readers_;
};

}  // namespace

void join_norms(Plan& plan, const collectives::FusedLimits& limits) {
  if (limits == collectives::FusedLimits()) return;
  Joining joining(plan, limits);
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) {
    if (plan.steps[i].kind == StepKind::kCollective) joining.join(i);
  }
}

bool is_joined(const Step& step) {
  return step.kind == StepKind::kCollective && step.ranges[0].end - step.ranges[0].begin > 1;
}

FusedNorm joined_norm(const Graph& graph, const NodeRange& range, const char* what) {
  const auto nodes = graph.nodes();
  int collective = range.begin;
  while (!is_collective(nodes[static_cast<size_t>(collective)]->op)) ++collective;
  const auto chain = chain_at(graph, collective, range.end);
  check(chain.has_value() && is_placed_well(*chain), "the nodes of {} cannot run as one call", what);
  FusedNorm call = call_of(*chain, what);
  if (collective > range.begin) call.product = nodes[static_cast<size_t>(range.begin)];
  return call;
}

}  // namespace shoal::meta
