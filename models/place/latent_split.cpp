#include "models/place/latent_split.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "graph/ops/ops.h"

namespace shoal::models {
namespace {

constexpr std::array<std::string_view, 3> kLatentSplits{"auto", "mirrored", "rows"};
constexpr double kFloatBytes = sizeof(float);

/// What a device does for a layer, as nodes to ask for their costs: with `heads` of the heads and `parts` parts of
/// `rows` rows.
class LatentCosts {
 public:
  LatentCosts(const LayerHparams& layer, DType dtype, int64_t heads, int64_t rows, int64_t parts, int64_t tokens) {
    Tensor* k = caches_.add("k", dtype, {layer.head_dim_k, rows, 1, parts}, Role::kCache);
    Tensor* v = slice(graph_, k, {0, 0, layer.head_dim_v});
    Tensor* q = graph_.input("q", DType::kF32, {layer.head_dim_k, tokens, heads, 1});
    attention_ = attention(graph_, q, k, v, nullptr, nullptr, nullptr, {.parts = 1});
  }
  /// What it takes besides to merge the parts where there are `all`: what these count is packed, unpacked and used.
  double merging(const machine::CostModel& costs, int kind, int64_t all) {
    const Shape& s = attention_->shape;
    Tensor* lse = graph_.input("lse", DType::kF32, {all, s[1], s[2], 1});
    const double packing = costs.compute(*contiguous(graph_, slice(graph_, attention_, {0, s[0] - 1, 1})), kind) +
                           costs.compute(*contiguous(graph_, lse), kind);
    return packing + costs.compute(*merge_attention(graph_, attention_, lse), kind);
  }
  const Tensor* node() const { return attention_; }

 private:
  Graph graph_{"attention"};
  TensorContext caches_;
  Tensor* attention_ = nullptr;
};

}  // namespace

std::string_view name_of(LatentSplit split) {
  return kLatentSplits[static_cast<size_t>(split)];
}

LatentSplit parse_latent_split(std::string_view text) {
  const auto found = std::find(kLatentSplits.begin(), kLatentSplits.end(), text);
  require<InvalidArgument>(found != kLatentSplits.end(),
                           "a latent cache cannot be split '{}'; there are auto, mirrored and rows", text);
  return static_cast<LatentSplit>(found - kLatentSplits.begin());
}

double seconds_mirrored(const LayerHparams& layer, const meta::Partition& heads, const LatentOptions& options) {
  double longest = 0;
  for (int rank = 0; rank < heads.devices(); ++rank) {
    if (heads.local_length(rank) == 0) continue;
    const LatentCosts part(layer, options.dtype, heads.local_length(rank), options.rows, 1, options.tokens);
    longest = std::max(longest, options.costs.compute(*part.node(), options.costs.kind_of(rank)));
  }
  return longest;
}

double seconds_by_rows(const LayerHparams& layer, const meta::Partition& parts, const LatentOptions& options) {
  const int ranks = parts.devices();
  const int64_t all = parts.length(), rows = (options.rows + all - 1) / all;
  double longest = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int kind = options.costs.kind_of(rank);
    LatentCosts part(layer, options.dtype, layer.heads, rows, parts.local_length(rank), options.tokens);
    longest = std::max(longest, options.costs.compute(*part.node(), kind) + part.merging(options.costs, kind, all));
  }
  const double queries = kFloatBytes * static_cast<double>(layer.heads * options.tokens);  // with one element
  const auto collective = [&](Collective kind, double elements) {
    return options.costs.collective(kind, ranks, queries * elements) + options.costs.copy(queries * elements);
  };
  const auto values = static_cast<double>(layer.head_dim_v), count = static_cast<double>(all);
  // What all parts count; then sums over the devices' own, or all that the parts give, merged everywhere.
  const double merging = std::min(collective(Collective::kReduceScatter, values),
                                  collective(Collective::kAllGather, count * (values + 1)));
  return longest + collective(Collective::kAllGather, static_cast<double>(layer.head_dim_k)) +
         collective(Collective::kAllGather, count) + merging;
}

}  // namespace shoal::models
