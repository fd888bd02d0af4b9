#include "models/place/expert_split.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "machine/expert_load.h"

namespace shoal::models {
namespace {

constexpr std::array<std::string_view, 3> kNames{"auto", "inside", "whole"};

/// What a device does for a layer's experts, as nodes to ask for their costs.
class Products {
 public:
  /// With `columns` of each of `here` experts.
  Products(const ExpertLayer& layer, int64_t columns, int64_t here, int64_t tokens) {
    Tensor* ids = graph_.input("ids", DType::kI32, {layer.used, tokens, 1, 1});
    for (const ModelTensor& matrix : layer.matrices) {
      const Cut& cut = matrix.spec->cut;
      Shape shape = matrix.spec->shape;
      shape[cut.axis] = shape[cut.axis] / layer.ff * columns;
      shape[2] = here;
      const int64_t slots = cut.axis == 0 ? layer.used : 1;
      Tensor* x = graph_.input(matrix.spec->name + ".x", DType::kF32, {shape[0], slots, tokens, 1});
      nodes_.push_back(mul_mat_id(graph_, weights_.add(matrix.spec->name, matrix.dtype, shape), x, ids));
    }
    // Gate and up are read, and what is made of them is written.
    hidden_bytes_ = 3.0 * static_cast<double>(columns * layer.used * tokens * static_cast<int64_t>(sizeof(float)));
  }

  std::span<const Tensor* const> nodes() const { return nodes_; }

  /// Of a rank of that kind, for its average part of `experts` (0: it has all).
  double seconds(const machine::CostModel& costs, int kind, int64_t experts) const {
    double sum = costs.copy(hidden_bytes_);
    for (const Tensor* node : nodes_) sum += costs.compute(*node, kind, experts);
    return sum;
  }

 private:
  Graph graph_{"experts"};
  TensorContext weights_;
  std::vector<const Tensor*> nodes_;
  double hidden_bytes_ = 0;
};

/// What a rank takes for its columns of the expert that all tokens use.
double shared_seconds(const ExpertLayer& layer, const meta::Partition& columns, int rank,
                      const ExpertOptions& options) {
  if (layer.shared.empty() || columns.local_length(rank) == 0) return 0;
  Graph graph("shared");
  TensorContext weights;
  double sum = 0;
  for (const ModelTensor& matrix : layer.shared) {
    const Cut& cut = matrix.spec->cut;
    Shape shape = matrix.spec->shape;
    shape[cut.axis] = shape[cut.axis] / layer.shared_ff * columns.local_length(rank);
    Tensor* x = graph.input(matrix.spec->name + ".x", DType::kF32, {shape[0], options.tokens, 1, 1});
    const Tensor* node = mul_mat(graph, weights.add(matrix.spec->name, matrix.dtype, shape), x);
    sum += options.costs.compute(*node, options.costs.kind_of(rank), 0);
  }
  return sum;
}

}  // namespace

std::string_view name_of(ExpertSplit split) {
  return kNames[static_cast<size_t>(split)];
}

ExpertSplit parse_expert_split(std::string_view text) {
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  require<InvalidArgument>(found != kNames.end(), "experts cannot be split '{}'; there are auto, inside and whole",
                           text);
  return static_cast<ExpertSplit>(found - kNames.begin());
}

bool is_of_experts(const TensorSpec& spec) {
  return spec.role == TensorRole::kExperts && spec.cut.group == CutGroup::kFeedForward;
}

int expert_axis(const TensorSpec& spec) {
  return spec.elementwise ? 1 : 2;
}

double seconds_inside(const ExpertLayer& layer, const ExpertParts& parts, const ExpertOptions& options) {
  double longest = 0;
  for (int rank = 0; rank < parts.experts.devices(); ++rank) {
    const int64_t columns = parts.experts.local_length(rank);
    double seconds = shared_seconds(layer, parts.shared, rank, options);
    if (columns > 0) {
      const Products products(layer, columns, layer.experts, options.tokens);
      seconds += products.seconds(options.costs, options.costs.kind_of(rank), 0);
    }
    longest = std::max(longest, seconds);
  }
  return longest;
}

double seconds_whole(const ExpertLayer& layer, const ExpertParts& parts, const ExpertOptions& options) {
  double longest = 0;
  std::vector<int64_t> counts;
  std::vector<std::vector<double>> pairs(layer.matrices.size());  // seconds, by matrix and rank
  for (int rank = 0; rank < parts.experts.devices(); ++rank) {
    const int kind = options.costs.kind_of(rank);
    counts.push_back(parts.experts.local_length(rank));
    const Products products(layer, layer.ff, counts.back(), options.tokens);
    longest = std::max(longest, products.seconds(options.costs, kind, layer.experts) +
                                    shared_seconds(layer, parts.shared, rank, options));
    for (size_t i = 0; i < pairs.size(); ++i) {
      pairs[i].push_back(options.costs.pair_seconds(*products.nodes()[i], kind, layer.experts));
    }
  }
  for (const std::vector<double>& seconds : pairs) {
    longest += machine::expected_excess(counts, seconds, layer.used, options.tokens);
  }
  return longest;
}

}  // namespace shoal::models
