#include "tuning/choose/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "machine/cost_model.h"
#include "machine/expert_load.h"
#include "models/arch/kv_cache.h"
#include "models/place/layer_division.h"

namespace shoal::tuning {
namespace {

using models::CutGroup;
using models::ExpertSplit;
using models::LatentSplit;

// Smallest relative gain for which ExpertSplit::kWhole is selected. Smaller gains are rounding errors.
constexpr double kLeastGain = 1e-6;

/// Dimensions and matrices of the experts of one layer.
struct ExpertLayer {
  int64_t experts = 0, used = 0, ff = 0, shared_ff = 0;
  std::vector<models::ModelTensor> matrices;  ///< the columns are on axis 1 (gate, up) or axis 0 (down)
  std::vector<models::ModelTensor> shared;    ///< matrices of the shared expert, which all tokens use
};

/// Layers with routed experts, by layer number.
std::map<int, ExpertLayer> expert_layers(const models::Hparams& h, std::span<const models::ModelTensor> tensors) {
  std::map<int, ExpertLayer> layers;
  for (const models::ModelTensor& tensor : tensors) {
    const models::TensorSpec& spec = *tensor.spec;
    const bool is_shared =
        spec.cut.group == CutGroup::kSharedExpert && spec.layer >= 0 && h.layer(spec.layer).experts > 0;
    if (!is_shared && !models::is_of_experts(spec)) continue;
    const models::LayerHparams& own = h.layer(spec.layer);
    ExpertLayer& layer = layers[spec.layer];
    (is_shared ? layer.shared_ff : layer.ff) = is_shared ? own.shared_ff : own.ff;
    if (!is_shared) layer.experts = own.experts, layer.used = h.experts_used;
    if (!spec.elementwise) (is_shared ? layer.shared : layer.matrices).push_back(tensor);
  }
  return layers;
}

/// Seconds that the experts of a layer take on the slowest device. `parts`: the partition of each expert's columns
/// (inside), or the partition of the experts (whole). `shared`: the partition of the shared expert's columns.
double expert_seconds(const machine::CostModel& costs, const ExpertLayer& layer, int64_t tokens, ExpertSplit split,
                      const meta::Partition& parts, const meta::Partition& shared) {
  const bool is_whole = split == ExpertSplit::kWhole;
  double longest = 0;
  std::vector<int64_t> counts;
  std::vector<std::vector<double>> pairs(layer.matrices.size());  // seconds that one additional (token, selected
                                                                  // expert) pair takes, by matrix and rank
  for (int rank = 0; rank < parts.devices(); ++rank) {
    const int kind = costs.kind_of(rank);
    const int64_t own = parts.local_length(rank), own_shared = layer.shared.empty() ? 0 : shared.local_length(rank);
    const int64_t columns = is_whole ? layer.ff : own, among = is_whole ? layer.experts : 0;
    Graph graph("experts");
    TensorContext weights;
    // Returns a shard of a matrix. The shard has `own_ff` of the `ff` columns of the matrix, and `experts` experts.
    const auto weight = [&](const models::ModelTensor& matrix, int64_t ff, int64_t own_ff, int64_t experts) {
      Shape shape = matrix.spec->shape;
      shape[matrix.spec->cut.axis] = shape[matrix.spec->cut.axis] / ff * own_ff;
      shape[2] = experts;
      return weights.add(matrix.spec->name, matrix.dtype, shape);
    };
    const auto input = [&](const Tensor* w, int64_t slots, int64_t rows) {
      return graph.input(w->name + ".x", DType::kF32, {w->shape[0], slots, rows, 1});
    };
    counts.push_back(own);
    double sum = 0;
    for (const models::ModelTensor& matrix : layer.shared) {
      if (own_shared == 0) break;
      Tensor* w = weight(matrix, layer.shared_ff, own_shared, 1);
      sum += costs.compute(*mul_mat(graph, w, input(w, tokens, 1)), kind);
    }
    if (is_whole || own > 0) {
      Tensor* ids = graph.input("ids", DType::kI32, {layer.used, tokens, 1, 1});
      // An elementwise op reads the gate and up results and writes their product.
      sum += costs.copy(3.0 * static_cast<double>(columns * layer.used * tokens) * sizeof(float));
      for (size_t i = 0; i < layer.matrices.size(); ++i) {
        Tensor* w = weight(layer.matrices[i], layer.ff, columns, is_whole ? own : layer.experts);
        const int64_t slots = layer.matrices[i].spec->cut.axis == 0 ? layer.used : 1;
        const Tensor* node = mul_mat_id(graph, w, input(w, slots, tokens), ids);
        sum += costs.compute(*node, kind, among);
        if (is_whole) pairs[i].push_back(costs.pair_seconds(*node, kind, among));
      }
    }
    longest = std::max(longest, sum);
  }
  for (const std::vector<double>& of_matrix : pairs) {
    if (is_whole) longest += machine::expected_excess(counts, of_matrix, layer.used, tokens);
  }
  return longest;
}

/// The sum of expert_seconds() over all layers. Equal layers are evaluated only once.
double expert_seconds(const machine::CostModel& costs, const std::map<int, ExpertLayer>& layers, int64_t tokens,
                      ExpertSplit split, const models::Division& division) {
  std::map<std::string, double> known;
  double sum = 0;
  for (const auto& [number, layer] : layers) {
    const CutGroup group = split == ExpertSplit::kInside ? CutGroup::kFeedForward : CutGroup::kExperts;
    const meta::Partition& parts = division.partitions.at({number, group});
    const auto found = division.partitions.find({number, CutGroup::kSharedExpert});
    const meta::Partition shared = found == division.partitions.end() ? meta::Partition() : found->second;
    std::string key = fmt::format("{} {} {} {}", layer.experts, layer.ff, parts.to_string(), shared.to_string());
    for (const auto* matrices : {&layer.matrices, &layer.shared}) {
      for (const models::ModelTensor& matrix : *matrices) key += fmt::format(" {}", name_of(matrix.dtype));
    }
    const auto [cost, is_new] = known.try_emplace(std::move(key), 0.0);
    if (is_new) cost->second = expert_seconds(costs, layer, tokens, split, parts, shared);
    sum += cost->second;
  }
  return sum;
}

/// Adds the attention of one device to the graph. The attention reads `rows` rows of one layer's latent cache.
Tensor* attend(Graph& graph, TensorContext& caches, const AskedWays& asked, const models::LayerHparams& layer,
               int64_t heads, int64_t rows, int64_t parts) {
  Tensor* k = caches.add("k", asked.cache_type, {layer.head_dim_k, rows, 1, parts}, Role::kCache);
  Tensor* v = slice(graph, k, {0, 0, layer.head_dim_v});
  Tensor* q = graph.input("q", DType::kF32, {layer.head_dim_k, asked.tokens, heads, 1});
  return attention(graph, q, k, v, nullptr, nullptr, nullptr, {.parts = 1});
}

/// Seconds that the attention of one layer takes on the slowest device if the cache is mirrored.
double mirrored_seconds(const machine::CostModel& costs, const AskedWays& asked, const models::LayerHparams& layer,
                        const meta::Partition& heads) {
  double longest = 0;
  for (int rank = 0; rank < heads.devices(); ++rank) {
    if (heads.local_length(rank) == 0) continue;
    Graph graph("attention");
    TensorContext caches;
    const Tensor* node = attend(graph, caches, asked, layer, heads.local_length(rank), asked.rows, 1);
    longest = std::max(longest, costs.compute(*node, costs.kind_of(rank)));
  }
  return longest;
}

/// Seconds that the attention of one layer takes if the devices divide the cache rows. `sharers`: the ranks that store
/// cache rows, one entry per part of the rows.
double row_seconds(const machine::CostModel& costs, const AskedWays& asked, const models::LayerHparams& layer,
                   std::span<const int> sharers, int ranks) {
  const auto all = static_cast<int64_t>(sharers.size());
  double longest = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t parts = std::count(sharers.begin(), sharers.end(), rank);
    const int kind = costs.kind_of(rank);
    Graph graph("attention");
    TensorContext caches;
    Tensor* part = attend(graph, caches, asked, layer, layer.heads, (asked.rows + all - 1) / all, parts);
    // The devices pack and unpack the log-sum-exp values of all parts, and the merge reads these values.
    const Shape& s = part->shape;
    Tensor* lse = graph.input("lse", DType::kF32, {all, s[1], s[2], 1});
    double seconds = 0;
    for (const Tensor* node : {part, contiguous(graph, slice(graph, part, {0, s[0] - 1, 1})), contiguous(graph, lse),
                               merge_attention(graph, part, lse)}) {
      seconds += costs.compute(*node, kind);
    }
    longest = std::max(longest, seconds);
  }
  // Bytes of one f32 value for each head and token of the queries.
  const double queries = sizeof(float) * static_cast<double>(layer.heads * asked.tokens);
  const auto collective = [&](Collective kind, double elements) {
    return costs.collective(kind, ranks, queries * elements) + costs.copy(queries * elements);
  };
  const auto values = static_cast<double>(layer.head_dim_v), count = static_cast<double>(all);
  // The devices first gather the log-sum-exp values. Then they merge the results with the faster of two methods:
  //
  // - a reduce_scatter of weighted results
  // - an all_gather of all results, after which every device merges all results
  const double merging = std::min(collective(Collective::kReduceScatter, values),
                                  collective(Collective::kAllGather, count * (values + 1)));
  return longest + collective(Collective::kAllGather, static_cast<double>(layer.head_dim_k)) +
         collective(Collective::kAllGather, count) + merging;
}

}  // namespace

std::optional<ExpertSplit> parse_expert_split(std::string_view text) {
  if (text == "auto") return std::nullopt;
  for (const ExpertSplit split : {ExpertSplit::kInside, ExpertSplit::kWhole}) {
    if (name_of(split) == text) return split;
  }
  fail<InvalidArgument>("unknown expert split '{}'; use auto, inside or whole", text);
}

std::optional<LatentSplit> parse_latent_split(std::string_view text) {
  if (text == "auto") return std::nullopt;
  for (const LatentSplit split : {LatentSplit::kMirrored, LatentSplit::kRows}) {
    if (name_of(split) == text) return split;
  }
  fail<InvalidArgument>("unknown latent split '{}'; use auto, mirrored or rows", text);
}

Ways faster_ways(const models::Model& model, const std::vector<Device*>& group, std::span<const double> shares,
                 const machine::MachineModel* machine, const AskedWays& asked) {
  const models::Hparams& h = model.hparams;
  Ways ways{asked.experts.value_or(ExpertSplit::kInside), asked.latent.value_or(LatentSplit::kMirrored), asked.tokens,
            asked.rows};
  std::vector<int> sharers;
  for (size_t d = 0; d < shares.size(); ++d) {
    if (shares[d] > 0) sharers.push_back(static_cast<int>(d));
  }
  const bool chooses_experts = !asked.experts && h.experts_used > 0 && group.size() > 1;
  const bool chooses_latent = !asked.latent && asked.rows > 0 && models::has_latent_cache(h) && sharers.size() > 1;
  if (!chooses_experts && !chooses_latent) return ways;
  std::vector<std::string> names;
  for (const Device* device : group) names.push_back(device->name());
  const auto costs = machine::CostModel::of({std::shared_ptr<const void>(), machine}, names);
  const std::vector<models::ModelTensor> tensors = model.split_tensors();
  const models::Division inside = models::divide(h, tensors, shares, ExpertSplit::kInside);
  if (chooses_experts) {
    const std::map<int, ExpertLayer> layers = expert_layers(h, tensors);
    ways.inside = expert_seconds(costs, layers, asked.tokens, ExpertSplit::kInside, inside);
    ways.whole = expert_seconds(costs, layers, asked.tokens, ExpertSplit::kWhole,
                                models::divide(h, tensors, shares, ExpertSplit::kWhole));
    if (ways.whole < ways.inside * (1 - kLeastGain)) ways.experts = ExpertSplit::kWhole;
  }
  if (chooses_latent) {
    models::cache_tensors(h, {.dtype_k = asked.cache_type});  // throws if the cache type does not fit the cache rows
    for (int layer = 0; layer < h.layers; ++layer) {
      ways.mirrored +=
          mirrored_seconds(costs, asked, h.layer(layer), inside.partitions.at({layer, CutGroup::kQueryHeads}));
      ways.by_rows += row_seconds(costs, asked, h.layer(layer), sharers, static_cast<int>(shares.size()));
    }
    if (ways.by_rows < ways.mirrored) ways.latent = LatentSplit::kRows;
  }
  return ways;
}

Ways take_faster_ways(const models::Model& model, const models::DeviceGroups& groups, const AskedWays& asked,
                      models::PlacementOptions& options) {
  const bool by_layer = options.mode == models::SplitMode::kLayer;
  const models::DeviceGroups meshes = by_layer ? groups : models::joined(groups);
  std::vector<double> shares =
      models::parse_ratio(options.ratio, static_cast<int>(by_layer ? meshes.size() : meshes.front().size()));
  AskedWays wanted = asked;
  if (options.cache_on_host && !asked.latent) wanted.latent = LatentSplit::kMirrored;
  Ways ways{wanted.experts.value_or(ExpertSplit::kInside), wanted.latent.value_or(LatentSplit::kMirrored)};
  for (size_t g = 0; g < meshes.size(); ++g) {
    const size_t devices = meshes[g].size();
    if (devices < 2 || (by_layer && shares[g] <= 0)) continue;
    if (by_layer) shares.assign(devices, 1.0 / static_cast<double>(devices));
    ways = faster_ways(model, meshes[g], shares, options.machine.get(), wanted);
    break;
  }
  options.experts = ways.experts, options.latent = ways.latent;
  return ways;
}

}  // namespace shoal::tuning
