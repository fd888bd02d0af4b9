#include "meta/check/rule_trial.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "graph/text.h"
#include "meta/check/shard_elements.h"

namespace shoal::meta {
namespace {

/// Tolerance for results of the dtype. If the result is Partial, each addend is rounded separately.
double tolerance_of(DType dtype, double f32_tolerance) {
  if (dtype == DType::kF16) return 4e-3;
  if (dtype == DType::kBF16) return 4e-2;
  return f32_tolerance;
}

bool is_close(double got, double expected, double tolerance) {
  if (got == expected || (std::isnan(got) && std::isnan(expected))) return true;
  return std::abs(got - expected) <= tolerance * (1.0 + std::abs(expected));
}

/// The addend of `rank` in a Partial tensor with these values. If `integers` is true, all addends are integers.
Values addend(const Values& values, bool integers, int ranks, int rank, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> noise(-1.0, 1.0);
  Values result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<double> parts(ranks);
    parts[0] = 0.6 * values[i] + noise(random);
    if (ranks > 2) parts[1] = 0.3 * values[i] + noise(random);
    for (double& part : parts) part = integers ? std::round(part) : part;
    parts[ranks - 1] = values[i] - std::accumulate(parts.begin(), parts.end() - 1, 0.0);
    result[i] = parts[rank];
  }
  return result;
}

}  // namespace

std::string place_of(int64_t element, const Shape& shape) {
  Shape place{};
  int axes = 1;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    place[axis] = element % shape[axis];
    element /= shape[axis];
    if (shape[axis] > 1) axes = axis + 1;
  }
  return fmt::format("[{}]", fmt::join(place.begin(), place.begin() + axes, ", "));
}

RuleSubject::RuleSubject(const Graph& graph, Reference reference)
    : node_(*graph.nodes().back()), reference_(std::move(reference)) {
  require<InvalidArgument>(graph.nodes().size() == 1, "a case has one node, got {}:\n{}", graph.nodes().size(),
                           to_string(graph));
  values_ = reference_.evaluate(graph, reference_.leaves);
}

Values RuleSubject::local_values(const RuleTrial& trial, size_t i, int rank) const {
  const Tensor& source = *node_.src[i];
  const Values& whole = reference_.leaves.at(&source);
  if (trial.sources[i].is_partial()) {
    const bool integers = !traits(source.dtype).is_float;
    return addend(whole, integers, trial.ranks, rank, static_cast<unsigned>(i));
  }
  Values local;
  for (const int64_t element : shard_elements(source.shape, trial.sources[i], rank)) local.push_back(whole[element]);
  return local;
}

Values RuleSubject::run_rank(const RuleTrial& trial, int rank) const {
  Graph graph;
  TensorContext persistent;
  TensorValues leaves;
  std::vector<Tensor*> sources;
  for (size_t i = 0; i < node_.src.size(); ++i) {
    const Tensor* source = node_.src[i];
    sources.push_back(nullptr);
    if (source == nullptr) continue;
    const Shape shape = trial.sources[i].local_shape(source->shape, rank);
    const std::string name = fmt::format("source{}", i);
    sources[i] = source->is_persistent() ? persistent.add(name, source->dtype, shape, source->role)
                                         : graph.input(name, source->dtype, shape);
    leaves[sources[i]] = local_values(trial, i, rank);
  }
  const Tensor* local = graph.add_node(node_.op, trial.params(rank), std::move(sources));
  const Shape expected = trial.result.local_shape(node_.shape, rank);
  require<InvalidArgument>(local->shape == expected, "rank {} gets {}, its shard of the result is {}", rank,
                           shoal::to_string(local->shape), shoal::to_string(expected));
  return reference_.evaluate(graph, leaves);
}

std::string RuleSubject::run(const RuleTrial& trial) const {
  const Values& expected = values_;
  const double tolerance = tolerance_of(node_.dtype, reference_.f32_tolerance);
  const auto differs = [&](int64_t element, double got) {
    return fmt::format("{}: element {} is {}, expected {}", trial.name, place_of(element, node_.shape), got,
                       expected[element]);
  };
  Values sum(expected.size(), 0.0);
  try {
    for (size_t i = 0; i < node_.src.size(); ++i) {
      if (node_.src[i] == nullptr) continue;
      check_layout(trial.sources[i], node_.src[i]->dtype, node_.src[i]->shape, trial.ranks,
                   fmt::format("source {}", i));
    }
    check_layout(trial.result, node_.dtype, node_.shape, trial.ranks, "result");
    for (int rank = 0; rank < trial.ranks; ++rank) {
      const Values local = run_rank(trial, rank);
      const std::vector<int64_t> elements = shard_elements(node_.shape, trial.result, rank);
      for (size_t i = 0; i < elements.size(); ++i) {
        sum[elements[i]] += local[i];
        if (trial.result.is_partial() || is_close(local[i], expected[elements[i]], tolerance)) continue;
        return differs(elements[i], local[i]);
      }
    }
  } catch (const Error& error) {
    return fmt::format("{}: {}", trial.name, error.what());
  }
  for (size_t i = 0; i < sum.size() && trial.result.is_partial(); ++i) {
    if (!is_close(sum[i], expected[i], tolerance)) return differs(static_cast<int64_t>(i), sum[i]);
  }
  return {};
}

}  // namespace shoal::meta
