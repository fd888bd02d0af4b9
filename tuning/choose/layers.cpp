// Divides layers among groups of devices in proportion to the free memory of the groups.
#include <algorithm>
#include <numeric>
#include <set>

#include "models/arch/kv_cache.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

/// Bytes of weights and cache that the devices store. `layers`: bytes for each layer. `first`: bytes of the tensors
/// before the first layer. `last`: bytes of the tensors after the last layer. `host`: bytes that stay on the host.
struct LayerBytes {
  std::vector<double> layers;
  double first = 0, last = 0, host = 0;
};

LayerBytes bytes_of_layers(const Chooser& chooser, const Choice& choice) {
  const models::Model& model = chooser.model();
  const models::PlacementOptions options = chooser.options_of(choice);
  const int64_t layers = model.hparams.layers;
  LayerBytes bytes{std::vector<double>(static_cast<size_t>(layers), 0.0)};
  const bool all = options.device_layers < 0;
  const auto place_of = [&](const models::TensorSpec& spec) -> double& {
    if (spec.layer >= 0) return bytes.layers[static_cast<size_t>(spec.layer)];
    const bool is_looked_up = spec.role == models::TensorRole::kEmbedding || spec.role == models::TensorRole::kLookup;
    if (!all && (is_looked_up || options.device_layers <= layers)) return bytes.host;
    return is_looked_up && !model.is_tied() ? bytes.first : bytes.last;
  };
  std::set<int> left;  // layers with experts on the host
  for (const models::TensorSpec& spec : model.specs) {
    const bool is_new = spec.role == models::TensorRole::kExperts && !left.contains(spec.layer);
    if (is_new && static_cast<int64_t>(left.size()) < options.expert_layers) left.insert(spec.layer);
  }
  for (const models::TensorSpec& spec : model.specs) {
    if (spec.role == models::TensorRole::kExperts && left.contains(spec.layer)) continue;
    place_of(spec) += static_cast<double>(model.weights.find(spec.name)->bytes());
  }
  models::KvCache cache;
  const models::SessionOptions session = chooser.session_of(choice);
  declare_cache(cache, model.hparams, cache_options(session_size(model.hparams, session), session, 1));
  for (const models::TensorSpec& spec : cache.specs) {
    const Tensor* tensor = cache.context.find(spec.name);
    if (tensor != nullptr) place_of(spec) += static_cast<double>(tensor->bytes());
  }
  return bytes;
}

/// Free bytes of each group minus the compute memory and the margin of its devices. For a device without an entry in
/// `uses`, the function subtracts the largest compute memory of all entries.
std::vector<double> free_memory_for_layers(const Choice& choice, std::span<const models::DeviceUse> uses, size_t margin) {
  size_t most = 0;
  for (const models::DeviceUse& use : uses) most = std::max(most, use.use.compute + use.use.communication);
  std::vector<double> free_memory;
  for (const auto& group : choice.groups) {
    double room = 0;
    for (const Device* device : group) {
      const auto use =
          std::find_if(uses.begin(), uses.end(), [&](const auto& one) { return one.device == device->name(); });
      const size_t compute = use != uses.end() ? use->use.compute + use->use.communication : most;
      room += std::max(0.0, static_cast<double>(device->memory().free) - static_cast<double>(compute + margin));
    }
    free_memory.push_back(room);
  }
  return free_memory;
}

/// Fills the groups one after another, each up to the fraction `level` of its free memory. Returns the number of layers
/// by group.
std::vector<double> filled(std::span<const double> layers, std::span<const double> free_memory, double level) {
  std::vector<double> counts(free_memory.size(), 0.0);
  size_t next = 0;
  for (size_t g = 0; g < free_memory.size(); ++g) {
    double left = level * free_memory[g];
    while (next < layers.size() && layers[next] <= left) {
      left -= layers[next++];
      ++counts[g];
    }
  }
  return counts;
}

}  // namespace

std::vector<double> layers_by_free_memory(const Chooser& chooser, const Choice& choice,
                                    std::span<const models::DeviceUse> uses, size_t margin) {
  const int64_t layers = chooser.model().hparams.layers, wanted = chooser.options_of(choice).device_layers;
  const int64_t here = wanted < 0 ? layers : std::min(wanted, layers);
  const LayerBytes bytes = bytes_of_layers(chooser, choice);
  const auto divided = std::span(bytes.layers).last(static_cast<size_t>(here));
  std::vector<double> free_memory = free_memory_for_layers(choice, uses, margin);
  free_memory.front() = std::max(0.0, free_memory.front() - bytes.first);
  free_memory.back() = std::max(0.0, free_memory.back() - bytes.last);
  const double all = std::accumulate(divided.begin(), divided.end(), 0.0);
  const double space = std::accumulate(free_memory.begin(), free_memory.end(), 0.0);
  if (here == 0 || all <= 0 || space <= 0) return even_shares(free_memory.size());
  // Bisects for the lowest level at which all layers fit on the groups.
  double low = 0, high = 2 * all / space + 1;
  std::vector<double> counts = filled(divided, free_memory, high);
  for (int i = 0; i < 40; ++i) {
    const double level = (low + high) / 2;
    std::vector<double> tried = filled(divided, free_memory, level);
    const bool is_enough = std::accumulate(tried.begin(), tried.end(), 0.0) >= static_cast<double>(here);
    (is_enough ? high : low) = level;
    if (is_enough) counts = std::move(tried);
  }
  counts.back() += static_cast<double>(here) - std::accumulate(counts.begin(), counts.end(), 0.0);
  return counts;
}

}  // namespace shoal::tuning
