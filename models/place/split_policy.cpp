#include "models/place/split_policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "models/place/layer_division.h"

namespace shoal::models {
namespace {

/// Whether every device owns every run of the partition, for example because all devices share a single KV head.
bool is_everywhere(const meta::Partition& partition) {
  return std::all_of(partition.runs().begin(), partition.runs().end(), [&](const meta::Run& run) {
    return static_cast<int>(run.owners.size()) == partition.devices() && partition.devices() > 1;
  });
}

double parse_share(std::string_view entry, std::string_view text) {
  while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
  while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
  double value = 0.0;
  auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), value);
  bool whole = error == std::errc() && end == entry.data() + entry.size();
  require<InvalidArgument>(whole && std::isfinite(value) && value >= 0.0,
                           "bad ratio '{}': '{}' is not a number >= 0; give one for each device, such as 3,1", text,
                           entry);
  return value;
}

}  // namespace

std::vector<double> parse_ratio(std::string_view text, int devices) {
  if (text.empty()) return std::vector<double>(devices, 1.0 / devices);
  std::vector<double> shares;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find_first_of(",:/", begin), text.size());
    shares.push_back(parse_share(text.substr(begin, end - begin), text));
    begin = end + 1;
  }
  require<InvalidArgument>(static_cast<int>(shares.size()) == devices,
                           "bad ratio '{}': it has {} numbers for {} devices; give one for each device", text,
                           shares.size(), devices);
  double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (std::isinf(sum)) {  // valid numbers, but their sum overflows
    double largest = *std::max_element(shares.begin(), shares.end());
    for (double& share : shares) share /= largest;
    sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  }
  require<InvalidArgument>(sum > 0.0, "bad ratio '{}': the shares add up to {}; at least one must be above 0", text,
                           sum);
  for (double& share : shares) share /= sum;
  return shares;
}

std::map<CutGroup, int64_t> split_units(const Hparams& h, std::span<const ModelTensor> tensors) {
  std::map<CutGroup, int64_t> units;
  const auto add = [&](CutGroup group, int64_t length, int64_t unit) {
    const int64_t count = (length + unit - 1) / unit;
    const auto [known, is_new] = units.emplace(group, count);
    if (!is_new) known->second = std::min(known->second, count);
  };
  const Needs all = collect_needs(tensors, ExpertSplit::kInside);
  for (const auto& [key, needs] : all) {
    const CutGroup group = key.second;
    const LayerHparams& layer = key.first < 0 ? h : h.layer(key.first);
    if (group == CutGroup::kQueryHeads && layer.kv_layer < 0) {
      // If there is a single KV head, all devices have a copy of this KV head, so the query heads can be divided.
      const int64_t together = layer.kv_heads == 1 ? 1 : layer.group();
      add(group, layer.heads, std::lcm(needs_of_heads(all, h, key.first).block_unit, together));
    }
    if (group == CutGroup::kStateHeads) {
      add(group, layer.recurrent.k_heads, plain_unit(needs, layer.recurrent.k_heads, state_unit(layer.recurrent)));
    }
    if (group == CutGroup::kFeedForward) {
      add(group, layer.ff, plain_unit(needs, layer.ff, kFeedForwardUnit));
      if (layer.experts > 0) add(CutGroup::kExperts, layer.experts, 1);
    }
    if (group == CutGroup::kSharedExpert)
      add(group, layer.shared_ff, plain_unit(needs, layer.shared_ff, kFeedForwardUnit));
    if (group == CutGroup::kVocabulary) add(group, h.vocab, plain_unit(needs, h.vocab, kVocabularyUnit));
  }
  return units;
}

SplitPolicy::SplitPolicy(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares,
                         ExpertSplit experts, LatentSplit latent, int64_t parts)
    : devices_(static_cast<int>(shares.size())) {
  const bool has_experts = std::any_of(tensors.begin(), tensors.end(),
                                       [](const ModelTensor& tensor) { return is_of_experts(*tensor.spec); });
  if (has_experts && devices_ > 1) experts_ = experts;
  Division division = divide(h, tensors, shares, experts_);
  for (const ModelTensor& tensor : tensors) {
    cuts_[tensor.spec->name] = {tensor.spec->layer, cut_of(*tensor.spec, experts_)};
  }
  partitions_ = std::move(division.partitions);
  bytes_ = std::move(division.bytes);
  const auto sharers = std::count_if(shares.begin(), shares.end(), [](double share) { return share > 0; });
  if (parts == 0) parts = sharers;
  if (latent == LatentSplit::kRows && parts > 1 && has_latent_cache(h)) divide_cache(h, shares, sharers, parts);
  const KvCacheOptions cache{.rows = latent_parts_, .parts = latent_parts_};
  for (const TensorSpec& spec : cache_tensors(h, cache)) cuts_[spec.name] = {spec.layer, spec.cut};
}

// Divides the parts of a latent cache as evenly as possible over the devices with a share.
void SplitPolicy::divide_cache(const Hparams& h, std::span<const double> shares, int64_t sharers, int64_t parts) {
  std::vector<int64_t> counts;
  int64_t sharer = 0;
  for (const double share : shares) {
    counts.push_back(share > 0 ? parts * (sharer + 1) / sharers - parts * sharer / sharers : 0);
    sharer += share > 0;
  }
  latent_parts_ = parts;
  const meta::Partition divided = meta::Partition::from_shares(counts);
  for (int layer = 0; layer < h.layers; ++layer) partitions_.insert({{layer, CutGroup::kCacheParts}, divided});
}

const meta::Partition& SplitPolicy::partition(int layer, CutGroup group) const {
  auto found = partitions_.find({layer, group});
  require<InvalidArgument>(found != partitions_.end(), "layer {} has no tensors in this split group", layer);
  return found->second;
}

meta::SplitState SplitPolicy::operator()(const Tensor& tensor) const {
  auto found = cuts_.find(tensor.name);
  require<InvalidArgument>(found != cuts_.end(), "the split policy does not know the tensor {}", describe(tensor));
  const auto& [layer, cut] = found->second;
  const bool is_mirrored = cut.group == CutGroup::kNone ||
                           (cut.more[0].group == CutGroup::kNone && is_everywhere(partition(layer, cut.group)));
  if (is_mirrored) return meta::SplitState::mirrored();
  if (cut.group == CutGroup::kCacheParts) {
    const meta::Partition& parts = partition(layer, cut.group);
    if (tensor.shape[cut.axis] % parts.length() != 0) return meta::SplitState::mirrored();  // the cache has no parts
    return meta::SplitState::split(cut.axis, parts.scale_up(tensor.shape[cut.axis] / parts.length()));
  }
  std::vector<meta::Partition> segments;
  const auto append = [&, layer = layer](CutGroup group, int64_t scale, int64_t repeat) {
    segments.insert(segments.end(), static_cast<size_t>(repeat), partition(layer, group).scale_up(scale));
  };
  append(cut.group, cut.scale, cut.repeat);
  for (const CutSegment& next : cut.more) {
    if (next.group != CutGroup::kNone) append(next.group, next.scale, next.repeat);
  }
  return meta::SplitState::split(cut.axis, segments.size() == 1 ? segments[0] : meta::Partition::concat(segments));
}

}  // namespace shoal::models
