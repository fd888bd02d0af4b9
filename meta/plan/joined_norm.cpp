#include "meta/plan/joined_norm.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "graph/readers.h"

namespace shoal::meta {
namespace {

using collectives::FusedNorm;

/// The nodes of a rank that one call may do.
struct Chain {
  const Tensor *reduced, *sum, *norm, *product;

  /// Which source of the sum is the reduced value; the other one is the residual.
  int place() const { return &behind_views(*sum->src[0]) == reduced ? 0 : 1; }
  const Tensor& in() const { return *reduced->src[0]; }
  const Tensor& residual() const { return *sum->src[1 - place()]; }
  const Tensor& weight() const { return *product->src[product->src[0] == norm ? 1 : 0]; }
};

/// Node `begin`, a collective, and the next three that run, of nodes [begin, end).
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
  const Tensor &sum = *chain.sum, &norm = *chain.norm, &product = *chain.product;
  if (chain.reduced->op != Op::kAllReduce || sum.op != Op::kAdd) return false;
  if (norm.op != Op::kRmsNorm || product.op != Op::kMul) return false;
  const auto is_reduced = [&](const Tensor* source) { return &behind_views(*source) == chain.reduced; };
  return is_reduced(sum.src[0]) != is_reduced(sum.src[1]) && norm.src[0] == &sum &&
         (product.src[0] == &norm) != (product.src[1] == &norm) && readers.is_read_once(*chain.reduced) &&
         readers.is_read_once(norm);
}

bool is_dense(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 && tensor.is_contiguous();
}
/// All rows of one shape, the weight one row.
bool has_plain_rows(const Chain& chain) {
  const Tensor& product = *chain.product;
  const auto fits = [&](const Tensor& tensor) { return is_dense(tensor) && same_shape(tensor, product); };
  return is_dense(chain.in()) && chain.in().elements() == product.elements() && fits(*chain.sum->src[0]) &&
         fits(*chain.sum->src[1]) && fits(*chain.sum) && fits(*chain.norm) && fits(product) &&
         is_dense(chain.weight()) && chain.weight().shape == Shape{product.shape[0], 1, 1, 1};
}

bool overlap(const Tensor& a, const Tensor& b) {
  return a.data < b.data + b.span_bytes() && b.data < a.data + a.span_bytes();
}
/// The norm is the last one that reads the sum, whose place the product has taken.
bool has_no_sum(const Chain& chain) {
  return chain.sum->data == chain.product->data;
}
/// Memory is planned for one node after the other: a result may lie on what the call still reads.
bool is_placed_well(const Chain& chain, const Readers& readers) {
  const Tensor &sum = *chain.sum, &product = *chain.product;
  const auto fits = [](const Tensor& result, const Tensor& source) {
    return !overlap(result, source) || result.data == source.data;
  };
  return fits(sum, chain.in()) && fits(sum, chain.residual()) && fits(product, chain.in()) &&
         fits(product, chain.residual()) && !overlap(sum, chain.weight()) && !overlap(product, chain.weight()) &&
         (!overlap(sum, product) || (has_no_sum(chain) && readers.is_read_once(sum)));
}

FusedNorm call_of(const Chain& chain, const char* what) {
  const auto floats = [](const Tensor& tensor) { return reinterpret_cast<float*>(tensor.data); };
  const Tensor& product = *chain.product;
  return {floats(chain.in()),
          floats(chain.residual()),
          floats(chain.weight()),
          has_no_sum(chain) ? nullptr : floats(*chain.sum),
          floats(product),
          product.shape[0],
          product.rows(),
          std::get<NormParams>(chain.norm->params).eps,
          what};
}

bool are_alike(const FusedNorm& a, const FusedNorm& b) {
  return a.row == b.row && a.rows == b.rows && a.epsilon == b.epsilon;
}

class Joining {
 public:
  Joining(Plan& plan, const collectives::Communicator& communicator) : plan_(plan), communicator_(communicator) {
    for (const RankPlan& rank : plan.ranks) readers_.emplace_back(*rank.graph, rank.shown);
  }

  /// The steps `i` and i + 1, where they are a collective and what follows it in one segment.
  void join(size_t i) {
    Step &step = plan_.steps[i], &next = plan_.steps[i + 1];
    if (step.collective != Op::kAllReduce || next.kind != StepKind::kCompute || begins_segment(i + 1)) return;
    std::vector<int> ends;
    std::optional<FusedNorm> first;
    for (size_t rank = 0; rank < readers_.size(); ++rank) {
      const auto chain = chain_at(*plan_.ranks[rank].graph, step.ranges[rank].begin, next.ranges[rank].end);
      if (!chain || !is_sum_and_scaled_norm(*chain, readers_[rank])) return;
      if (!has_plain_rows(*chain) || !is_placed_well(*chain, readers_[rank])) return;
      const FusedNorm call = call_of(*chain, step.tensor.c_str());
      if (!first) first = call;
      if (!are_alike(*first, call) || !communicator_.can_fuse(call)) return;
      ends.push_back(chain->product->id + 1);
    }
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      step.ranges[rank].end = next.ranges[rank].begin = ends[rank];
    }
  }

 private:
  bool begins_segment(size_t step) const {
    return std::find(plan_.segments.begin(), plan_.segments.end(), static_cast<int>(step)) != plan_.segments.end();
  }

  Plan& plan_;
  const collectives::Communicator& communicator_;
  std::vector<Readers> readers_;
};

}  // namespace

void join_norms(Plan& plan, const collectives::Communicator& communicator) {
  Joining joining(plan, communicator);
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) {
    if (plan.steps[i].kind == StepKind::kCollective) joining.join(i);
  }
}

bool is_joined(const Step& step) {
  return step.kind == StepKind::kCollective && step.ranges[0].end - step.ranges[0].begin > 1;
}

FusedNorm joined_norm(const Plan& plan, const Step& step, int rank) {
  const auto number = static_cast<size_t>(rank);
  const NodeRange& range = step.ranges[number];
  const auto chain = chain_at(*plan.ranks[number].graph, range.begin, range.end);
  check(chain.has_value(), "the step of {} is not joined", step.tensor);
  return call_of(*chain, step.tensor.c_str());
}

}  // namespace shoal::meta
