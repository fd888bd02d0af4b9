#include "models/place/expert_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "machine/expert_load.h"

namespace shoal::models {
namespace {

constexpr std::array<std::string_view, 4> kNames{"auto", "inside", "whole", "groups"};

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

/// `experts` has `slices` of each. `alike`: ranks that have slices of the same ones, one for each slice, which are busy
/// at once.
double seconds_of(const ExpertLayer& layer, const ExpertParts& parts, int64_t slices,
                  std::span<const std::vector<int>> alike, const ExpertOptions& options) {
  const meta::Partition& experts = parts.experts;
  double longest = 0;
  std::vector<int64_t> counts;
  std::vector<std::vector<double>> pairs(layer.matrices.size());  // seconds, by matrix and ranks that are alike
  for (const std::vector<int>& ranks : alike) {
    const auto slices_of = [&](int rank) { return std::count(ranks.begin(), ranks.end(), rank); };
    counts.push_back(experts.local_length(ranks.front()) / slices_of(ranks.front()));
    for (std::vector<double>& seconds : pairs) seconds.push_back(0);
    for (const int rank : ranks) {
      const int kind = options.costs.kind_of(rank);
      const auto times = static_cast<double>(slices_of(rank));
      const Products products(layer, layer.ff / slices, counts.back(), options.tokens);
      longest = std::max(longest, times * products.seconds(options.costs, kind, layer.experts) +
                                      shared_seconds(layer, parts.shared, rank, options));
      for (size_t i = 0; i < pairs.size(); ++i) {
        const double seconds = times * options.costs.pair_seconds(*products.nodes()[i], kind, layer.experts);
        pairs[i].back() = std::max(pairs[i].back(), seconds);
      }
    }
  }
  for (const std::vector<double>& seconds : pairs) {
    longest += machine::expected_excess(counts, seconds, layer.used, options.tokens);
  }
  return longest;
}

}  // namespace

std::string to_string(const ExpertWay& way) {
  const std::string name(kNames[static_cast<size_t>(way.split)]);
  return way.slices > 0 ? fmt::format("{}:{}", name, way.slices) : name;
}

ExpertWay parse_expert_way(std::string_view text) {
  constexpr std::string_view kOfSize = "groups:";
  if (text.starts_with(kOfSize)) {
    const std::string_view size = text.substr(kOfSize.size());
    int64_t slices = 0;
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), slices);
    const bool is_whole = error == std::errc() && end == size.data() + size.size();
    require<InvalidArgument>(is_whole && slices >= 2, "groups are of 2 devices or more, got '{}'", text);
    return {ExpertSplit::kGroups, slices};
  }
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  require<InvalidArgument>(found != kNames.end(),
                           "experts cannot be split '{}'; there are auto, inside, whole, groups and groups:N", text);
  return static_cast<ExpertSplit>(found - kNames.begin());
}

bool is_of_experts(const TensorSpec& spec) {
  return spec.role == TensorRole::kExperts && spec.cut.group == CutGroup::kFeedForward;
}

int expert_axis(const TensorSpec& spec) {
  return spec.elementwise ? 1 : 2;
}

Shape sliced(const TensorSpec& spec, int64_t slices) {
  Shape shape = spec.shape;
  shape[spec.cut.axis] /= slices;
  shape[expert_axis(spec)] *= slices;
  return shape;
}

int64_t slices_of(const TensorSpec& spec, const Tensor& tensor) {
  return is_of_experts(spec) ? spec.shape[spec.cut.axis] / tensor.shape[spec.cut.axis] : 1;
}

std::vector<std::vector<int>> expert_groups(std::span<const double> shares, int64_t slices) {
  std::vector<int> sharers;
  for (size_t d = 0; d < shares.size(); ++d) {
    if (shares[d] > 0) sharers.push_back(static_cast<int>(d));
  }
  const auto count = static_cast<int64_t>(sharers.size()), size = std::min(count, slices);
  std::vector<std::vector<int>> groups(static_cast<size_t>(count / size));
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int64_t j = 0; j < slices; ++j) {
      groups[g].push_back(sharers[g * static_cast<size_t>(size) + static_cast<size_t>(j * size / slices)]);
    }
  }
  return groups;
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
  std::vector<std::vector<int>> ranks;
  for (int rank = 0; rank < parts.experts.devices(); ++rank) ranks.push_back({rank});
  return seconds_of(layer, parts, 1, ranks, options);
}

double seconds_groups(const ExpertLayer& layer, const ExpertParts& parts, std::span<const std::vector<int>> groups,
                      const ExpertOptions& options) {
  return seconds_of(layer, parts, parts.experts.length() / layer.experts, groups, options);
}

}  // namespace shoal::models
