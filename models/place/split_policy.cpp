#include "models/place/split_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "models/place/split_division.h"

namespace shoal::models {
namespace {

// Feed-forward columns and vocabulary rows are cut in multiples of this even where no block asks for it: shares that
// fill whole vector registers and cache lines.
constexpr int64_t kFeedForwardUnit = 32;
constexpr int64_t kVocabularyUnit = 32;
// Experts lie whole where that is so much faster: less is rounding.
constexpr double kLeastGain = 1e-6;
// Shares that differ by less count as equal.
constexpr double kEqual = 1.01;

/// What the tensors of one group of one layer ask of its division.
struct GroupNeeds {
  int64_t block_unit = 1;  ///< members per unit so that no quantisation block is cut
  double bytes = 0.0;
};

using Needs = std::map<std::pair<int, CutGroup>, GroupNeeds>;
using Partitions = std::map<std::pair<int, CutGroup>, meta::Partition>;

/// As the tensor says, or by experts.
Cut cut_of(const TensorSpec& spec, ExpertSplit split) {
  if (split != ExpertSplit::kInside && is_of_experts(spec)) return {CutGroup::kExperts, expert_axis(spec), 1};
  return spec.cut;
}

Needs collect_needs(std::span<const ModelTensor> tensors, ExpertSplit split) {
  Needs needs;
  for (const ModelTensor& tensor : tensors) {
    const TensorSpec& spec = *tensor.spec;
    const Cut cut = cut_of(spec, split);
    if (cut.group == CutGroup::kNone) continue;
    GroupNeeds& group = needs[{spec.layer, cut.group}];
    check(cut.axis != 0 || spec.elementwise || cut.more[0].group == CutGroup::kNone, "blocks of {} would be cut",
          spec.name);
    int64_t elements = std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
    group.bytes += static_cast<double>(bytes_for(tensor.dtype, elements));
    if (cut.axis != 0) continue;
    int64_t block = traits(tensor.dtype).block_elems;
    // Segments that do not begin with a block are not cut.
    const int64_t segment = spec.shape[0] / cut.repeat;
    const int64_t least = segment % block == 0 ? block : segment;
    group.block_unit = std::lcm(group.block_unit, std::lcm(least, cut.scale) / cut.scale);
  }
  return needs;
}

/// Devices [0, n) that get anything at all.
int64_t devices_with_share(const ShareLedger& ledger) {
  int64_t count = 0;
  for (int d = 0; d < ledger.devices(); ++d) count += ledger.share(d) > 0.0;
  return count;
}

void enter(ShareLedger& ledger, std::span<const int64_t> counts, int64_t length, double bytes) {
  for (int d = 0; d < ledger.devices(); ++d) {
    ledger.give(d, bytes * static_cast<double>(counts[d]) / static_cast<double>(length));
  }
}

std::vector<double> wanted_members(const ShareLedger& ledger, int64_t length, double bytes) {
  std::vector<double> wanted = ledger.wanted(bytes);
  for (double& w : wanted) w *= static_cast<double>(length) / bytes;
  return wanted;
}

int64_t plain_unit(const GroupNeeds& needs, int64_t length, int64_t smallest) {
  const int64_t unit = std::lcm(needs.block_unit, length % smallest == 0 ? smallest : 1);
  return std::min(needs.block_unit == 1 ? smallest : unit, length);
}

/// Devices that have something of `busy` come after others where units do not go round.
meta::Partition divide_plain(ShareLedger& ledger, const GroupNeeds& needs, int64_t length, int64_t smallest,
                             const meta::Partition* busy = nullptr) {
  const int64_t unit = plain_unit(needs, length, smallest);
  std::vector<double> wanted = wanted_members(ledger, length, needs.bytes);
  for (int d = 0; busy != nullptr && d < ledger.devices(); ++d) {
    if (busy->local_length(d) == 0) wanted[d] += static_cast<double>(unit) / 2;
  }
  std::vector<int64_t> counts = divide_units(ledger, std::move(wanted), length, unit);
  enter(ledger, counts, length, needs.bytes);
  return meta::Partition::from_shares(counts);
}

/// Query heads. See the header: whole KV groups, or parts of groups when there are more devices than groups.
meta::Partition divide_heads(ShareLedger& ledger, const LayerHparams& h, int64_t unit, double bytes) {
  std::vector<double> wanted = wanted_members(ledger, h.heads, bytes);
  int64_t whole = std::lcm(unit, h.group());
  bool share_groups = h.group() % unit == 0 && devices_with_share(ledger) > h.heads / whole;
  std::vector<int64_t> counts = share_groups ? divide_groups(ledger, wanted, h.heads, h.group(), unit)
                                             : divide_units(ledger, wanted, h.heads, whole);
  enter(ledger, counts, h.heads, bytes);
  return meta::Partition::from_shares(counts);
}

/// What the query heads of a layer ask of their division, and those of layers that read what it keeps, which are
/// divided alike; and the bytes that go with them.
GroupNeeds needs_of_heads(const Needs& needs, const Hparams& h, int layer) {
  GroupNeeds all;
  const auto find = [&](int of, CutGroup group) {
    const auto found = needs.find({of, group});
    return found == needs.end() ? GroupNeeds() : found->second;
  };
  for (int other = layer; other < h.layers; ++other) {
    if (other != layer && h.layer(other).kv_layer != layer) continue;
    check(h.layer(other).heads == h.layer(layer).heads, "layer {} has other heads than layer {}", other, layer);
    const GroupNeeds q = find(other, CutGroup::kQueryHeads);
    all.block_unit = std::lcm(all.block_unit, q.block_unit);
    all.bytes += q.bytes + find(other, CutGroup::kKvHeads).bytes;
  }
  return all;
}

/// Key heads; or channels, as vectors and cache lines have them.
int64_t state_unit(const RecurrentHparams& r) {
  return r.v_heads == 0 ? kFeedForwardUnit : 1;
}

/// One KV head that all devices share.
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
                           "bad ratio '{}': '{}' is no number >= 0; give one for each device, such as 3,1", text,
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
  if (std::isinf(sum)) {  // numbers that are fine, but too large to add up
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
      // A single KV head is shared as soon as there are two devices.
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

namespace {

/// All groups of all layers, and the bytes of each device.
struct Division {
  Partitions partitions;
  std::vector<double> bytes;
};

/// Experts go to groups of devices as others do to devices.
class GroupDivision {
 public:
  GroupDivision(std::span<const double> shares, int64_t slices)
      : slices_(slices), groups_(expert_groups(shares, slices)), ledger_(shares_of(groups_, shares)) {}

  /// By slices. What devices have of it is entered in `devices`.
  meta::Partition divide(ShareLedger& devices, const GroupNeeds& needs, int64_t experts) {
    const meta::Partition by_group = divide_plain(ledger_, needs, experts, 1);
    std::vector<meta::Run> runs;
    for (int64_t slice = 0; slice < slices_; ++slice) {
      for (size_t g = 0; g < groups_.size(); ++g) {
        const int device = groups_[g][static_cast<size_t>(slice)];
        const int64_t count = by_group.local_length(static_cast<int>(g));
        runs.push_back({count, {device}});
        devices.give(device, needs.bytes * static_cast<double>(count) / static_cast<double>(experts * slices_));
      }
    }
    return {devices.devices(), std::move(runs)};
  }

 private:
  /// A device counts as often as it has slices, so that all of a group have the same.
  static std::vector<double> shares_of(std::span<const std::vector<int>> groups, std::span<const double> shares) {
    std::vector<double> of_groups;
    for (const std::vector<int>& devices : groups) {
      of_groups.push_back(0);
      for (const int device : devices) of_groups.back() += shares[static_cast<size_t>(device)];
    }
    const double sum = std::accumulate(of_groups.begin(), of_groups.end(), 0.0);
    for (double& share : of_groups) share /= sum;
    return of_groups;
  }

  int64_t slices_;
  std::vector<std::vector<int>> groups_;
  ShareLedger ledger_;
};

/// With columns in `slices`; in groups those of experts are divided inside, too, for layers that are not in slices.
Division divide(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares,
                ExpertSplit split, int64_t slices = 1) {
  Division out;
  // What all tokens use beside experts has its own: more of it would not help a device with fewer bytes of experts, of
  // which a token uses few.
  ShareLedger attention(shares), feed_forward(shares), experts(shares), beside(shares), whole(shares);
  Needs needs = collect_needs(tensors, split);
  const Needs inside = slices > 1 ? collect_needs(tensors, ExpertSplit::kInside) : Needs();
  GroupDivision groups(shares, slices);
  for (int layer = 0; layer < h.layers; ++layer) {
    const LayerHparams& own = h.layer(layer);
    if (own.attends() && own.kv_layer >= 0) {
      const int writer = static_cast<int>(own.kv_layer);
      for (const CutGroup group : {CutGroup::kQueryHeads, CutGroup::kKvHeads}) {
        out.partitions[{layer, group}] = out.partitions.at({writer, group});
      }
    } else if (own.attends()) {
      const GroupNeeds all = needs_of_heads(needs, h, layer);
      meta::Partition heads = divide_heads(attention, own, all.block_unit, all.bytes);
      std::optional<meta::Partition> kv_heads = heads.group(own.group());
      check(kv_heads.has_value(), "heads {} do not map onto groups of {}", heads.to_string(), own.group());
      out.partitions[{layer, CutGroup::kQueryHeads}] = std::move(heads);
      out.partitions[{layer, CutGroup::kKvHeads}] = *std::move(kv_heads);
    } else {
      out.partitions[{layer, CutGroup::kStateHeads}] = divide_plain(attention, needs[{layer, CutGroup::kStateHeads}],
                                                                    own.recurrent.k_heads, state_unit(own.recurrent));
    }
    const auto add = [&](CutGroup group, ShareLedger& ledger, int64_t length, int64_t unit) {
      const auto found = needs.find({layer, group});
      if (found != needs.end()) out.partitions[found->first] = divide_plain(ledger, found->second, length, unit);
    };
    const auto of_experts = needs.find({layer, CutGroup::kExperts});
    if (slices > 1 && of_experts != needs.end()) {
      out.partitions[of_experts->first] = groups.divide(experts, of_experts->second, own.experts);
      ShareLedger unsliced(shares);
      out.partitions[{layer, CutGroup::kFeedForward}] =
          divide_plain(unsliced, inside.at({layer, CutGroup::kFeedForward}), own.ff, kFeedForwardUnit);
    } else {
      add(CutGroup::kExperts, experts, own.experts, 1);
    }
    add(CutGroup::kFeedForward, feed_forward, own.ff, kFeedForwardUnit);
    // Beside experts of which some devices have nothing these have more of the one that all tokens use.
    const auto shared = needs.find({layer, CutGroup::kSharedExpert});
    const auto routed = out.partitions.find({layer, CutGroup::kFeedForward});
    if (shared != needs.end()) {
      out.partitions[shared->first] =
          divide_plain(beside, shared->second, own.shared_ff, kFeedForwardUnit,
                       split == ExpertSplit::kInside && routed != out.partitions.end() ? &routed->second : nullptr);
    }
  }
  whole.add(attention);
  whole.add(feed_forward);
  whole.add(experts);
  whole.add(beside);
  if (auto head = needs.find({-1, CutGroup::kVocabulary}); head != needs.end()) {
    out.partitions[head->first] = divide_plain(whole, head->second, h.vocab, kVocabularyUnit);
  }
  out.bytes.assign(whole.given().begin(), whole.given().end());
  return out;
}

/// The layers with routed experts, by number.
std::map<int, ExpertLayer> expert_layers(const Hparams& h, std::span<const ModelTensor> tensors) {
  std::map<int, ExpertLayer> layers;
  for (const ModelTensor& tensor : tensors) {
    const TensorSpec& spec = *tensor.spec;
    if (spec.cut.group == CutGroup::kSharedExpert && spec.layer >= 0 && h.layer(spec.layer).experts > 0) {
      ExpertLayer& layer = layers[spec.layer];
      layer.shared_ff = h.layer(spec.layer).shared_ff;
      if (!spec.elementwise) layer.shared.push_back(tensor);
    }
    if (!is_of_experts(spec)) continue;
    const LayerHparams& own = h.layer(spec.layer);
    ExpertLayer& layer = layers[spec.layer];
    layer.experts = own.experts, layer.used = h.experts_used, layer.ff = own.ff;
    if (!spec.elementwise) layer.matrices.push_back(tensor);
  }
  return layers;
}

/// Layers that are alike are costed once.
class ExpertCosts {
 public:
  using Seconds = std::function<double(const ExpertLayer&, const ExpertParts&, const ExpertOptions&)>;
  ExpertCosts(Seconds seconds, const ExpertOptions& options) : seconds_(std::move(seconds)), options_(options) {}

  double of(const ExpertLayer& layer, const ExpertParts& parts) {
    std::string key =
        fmt::format("{} {} {} {}", layer.experts, layer.ff, parts.experts.to_string(), parts.shared.to_string());
    for (const ModelTensor& matrix : layer.matrices) key += fmt::format(" {}", name_of(matrix.dtype));
    for (const ModelTensor& matrix : layer.shared) key += fmt::format(" {}", name_of(matrix.dtype));
    const auto [found, is_new] = known_.try_emplace(std::move(key), 0.0);
    if (is_new) found->second = seconds_(layer, parts, options_);
    return found->second;
  }

 private:
  Seconds seconds_;
  const ExpertOptions& options_;
  std::map<std::string, double> known_;
};

/// Can the columns of all of them be cut into `slices` without cutting blocks, or units of kFeedForwardUnit where
/// nothing asks for these?
bool can_slice(const Needs& inside, const std::map<int, ExpertLayer>& layers, int64_t slices, bool is_asked_for) {
  return std::all_of(layers.begin(), layers.end(), [&](const auto& one) {
    const GroupNeeds& needs = inside.at({one.first, CutGroup::kFeedForward});
    const int64_t unit = is_asked_for ? needs.block_unit : plain_unit(needs, one.second.ff, kFeedForwardUnit);
    return one.second.ff % (slices * unit) == 0;
  });
}

/// All devices of a group have as many bytes of experts, and should have.
bool have_equal_shares(std::span<const std::vector<int>> groups, std::span<const double> shares) {
  return std::all_of(groups.begin(), groups.end(), [&](const std::vector<int>& devices) {
    const auto [least, most] = std::minmax_element(devices.begin(), devices.end(), [&](int a, int b) {
      return shares[static_cast<size_t>(a)] < shares[static_cast<size_t>(b)];
    });
    return shares[static_cast<size_t>(*most)] <= kEqual * shares[static_cast<size_t>(*least)];
  });
}

/// The ways to divide routed experts, of which one is taken.
class ExpertSearch {
 public:
  ExpertSearch(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares,
               const ExpertOptions& options)
      : h_(h), tensors_(tensors), shares_(shares), options_(options), layers_(expert_layers(h, tensors)) {}

  /// Throws InvalidArgument for groups that are asked for and not possible.
  Division run(ExpertChoice& choice) {
    const ExpertWay& way = options_.way;
    const auto sharers = std::count_if(shares_.begin(), shares_.end(), [](double share) { return share > 0; });
    if (layers_.empty() || shares_.size() < 2) return divide(h_, tensors_, shares_, ExpertSplit::kInside);
    choice.tokens = options_.tokens;
    if (way.split == ExpertSplit::kAuto || way.split == ExpertSplit::kInside) {
      take(choice, choice.inside, ExpertSplit::kInside, 1, seconds_inside);
    }
    if (way.split == ExpertSplit::kAuto || way.split == ExpertSplit::kWhole) {
      take(choice, choice.whole, ExpertSplit::kWhole, 1, seconds_whole);
    }
    if ((way.split == ExpertSplit::kAuto && options_.may_be_sliced) || way.split == ExpertSplit::kGroups) {
      const bool is_asked_for = way.slices > 0;
      const Needs inside = collect_needs(tensors_, ExpertSplit::kInside);
      const int64_t least = is_asked_for ? way.slices : 2, most = is_asked_for ? way.slices : sharers / 2;
      for (int64_t slices = least; slices <= most; ++slices) {
        const auto groups = expert_groups(shares_, slices);
        // Without being asked: no device is left over, and none gets more than its share.
        const bool is_fair = sharers % slices == 0 && have_equal_shares(groups, shares_);
        if ((!is_asked_for && !is_fair) || !can_slice(inside, layers_, slices, is_asked_for)) continue;
        take(choice, choice.groups[slices], ExpertSplit::kGroups, slices,
             [&](const ExpertLayer& layer, const ExpertParts& parts, const ExpertOptions& options) {
               return seconds_groups(layer, parts, groups, options);
             });
      }
      require<InvalidArgument>(
          best_.has_value(),
          "experts of {} columns cannot be divided over {} device(s) as {}: no slice may cut a quantisation block, and "
          "without a number there must be two or more groups of as many devices with equal shares; use inside or whole",
          layers_.begin()->second.ff, sharers, to_string(way));
    }
    choice.chosen = way.split == ExpertSplit::kAuto || (way.split == ExpertSplit::kGroups && way.slices == 0);
    return *std::move(best_);
  }

 private:
  void take(ExpertChoice& choice, double& seconds, ExpertSplit split, int64_t slices, ExpertCosts::Seconds of_layer) {
    Division division = divide(h_, tensors_, shares_, split, slices);
    ExpertCosts costs(std::move(of_layer), options_);
    const CutGroup group = split == ExpertSplit::kInside ? CutGroup::kFeedForward : CutGroup::kExperts;
    for (const auto& [number, layer] : layers_) {
      const auto shared = division.partitions.find({number, CutGroup::kSharedExpert});
      const bool has_shared = shared != division.partitions.end();
      seconds +=
          costs.of(layer, {division.partitions.at({number, group}), has_shared ? shared->second : meta::Partition()});
    }
    if (best_ && seconds >= seconds_ * (1 - kLeastGain)) return;
    seconds_ = seconds, best_ = std::move(division);
    choice.split = split, choice.slices = slices;
  }

  const Hparams& h_;
  std::span<const ModelTensor> tensors_;
  std::span<const double> shares_;
  const ExpertOptions& options_;
  std::map<int, ExpertLayer> layers_;
  std::optional<Division> best_;
  double seconds_ = 0;
};

}  // namespace

SplitPolicy::SplitPolicy(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares,
                         const ExpertOptions& experts, const LatentOptions& latent, int64_t parts)
    : devices_(static_cast<int>(shares.size())) {
  Division division = ExpertSearch(h, tensors, shares, experts).run(experts_);
  for (const ModelTensor& tensor : tensors) {
    cuts_[tensor.spec->name] = {tensor.spec->layer, cut_of(*tensor.spec, experts_.split), tensor.spec->cut};
  }
  partitions_ = std::move(division.partitions);
  bytes_ = std::move(division.bytes);
  choose_latent(h, shares, latent, parts);
  const KvCacheOptions cache{.rows = latent_.parts, .parts = latent_.parts};
  for (const TensorSpec& spec : cache_tensors(h, cache)) cuts_[spec.name] = {spec.layer, spec.cut, spec.cut};
}

void SplitPolicy::choose_latent(const Hparams& h, std::span<const double> shares, const LatentOptions& options,
                                int64_t parts) {
  const auto sharers = std::count_if(shares.begin(), shares.end(), [](double share) { return share > 0; });
  if (!has_latent_cache(h) || parts == 1 || (parts == 0 && sharers < 2)) return;
  if (parts == 0) parts = sharers;
  // As evenly as goes: of groups of devices the first says how many parts there are.
  std::vector<int64_t> counts;
  int64_t sharer = 0;
  for (const double share : shares) {
    counts.push_back(share > 0 ? parts * (sharer + 1) / sharers - parts * sharer / sharers : 0);
    sharer += share > 0;
  }
  const meta::Partition divided = meta::Partition::from_shares(counts);
  LatentChoice& choice = latent_;
  choice.split = options.split;
  if (options.split == LatentSplit::kAuto) {
    choice.chosen = true, choice.rows = options.rows, choice.tokens = options.tokens;
    for (int layer = 0; layer < h.layers; ++layer) {
      choice.mirrored += seconds_mirrored(h.layer(layer), partition(layer, CutGroup::kQueryHeads), options);
      choice.by_rows += seconds_by_rows(h.layer(layer), divided, options);
    }
    choice.split = choice.by_rows < choice.mirrored ? LatentSplit::kRows : LatentSplit::kMirrored;
  }
  if (choice.split != LatentSplit::kRows) return;
  choice.parts = parts;
  for (int layer = 0; layer < h.layers; ++layer) partitions_.insert({{layer, CutGroup::kCacheParts}, divided});
}

const meta::Partition& SplitPolicy::partition(int layer, CutGroup group) const {
  auto found = partitions_.find({layer, group});
  require<InvalidArgument>(found != partitions_.end(), "layer {} has no such group of tensors", layer);
  return found->second;
}

meta::SplitState SplitPolicy::operator()(const Tensor& tensor) const {
  auto found = cuts_.find(tensor.name);
  require<InvalidArgument>(found != cuts_.end(), "the split policy does not know the tensor {}", describe(tensor));
  const int layer = found->second.layer;
  // In groups experts that are not in slices are divided inside.
  const Cut& cut = experts_.slices > 1 && found->second.cut.group == CutGroup::kExperts &&
                           tensor.shape[found->second.cut.axis] != partition(layer, CutGroup::kExperts).length()
                       ? found->second.of_columns
                       : found->second.cut;
  const bool is_mirrored = cut.group == CutGroup::kNone ||
                           (cut.more[0].group == CutGroup::kNone && is_everywhere(partition(layer, cut.group)));
  if (is_mirrored) return meta::SplitState::mirrored();
  if (cut.group == CutGroup::kCacheParts) {
    const meta::Partition& parts = partition(layer, cut.group);
    if (tensor.shape[cut.axis] % parts.length() != 0) return meta::SplitState::mirrored();  // it is in no parts
    return meta::SplitState::split(cut.axis, parts.scale_up(tensor.shape[cut.axis] / parts.length()));
  }
  std::vector<meta::Partition> segments;
  const auto append = [&](CutGroup group, int64_t scale, int64_t repeat) {
    segments.insert(segments.end(), static_cast<size_t>(repeat), partition(layer, group).scale_up(scale));
  };
  append(cut.group, cut.scale, cut.repeat);
  for (const CutSegment& next : cut.more) {
    if (next.group != CutGroup::kNone) append(next.group, next.scale, next.repeat);
  }
  return meta::SplitState::split(cut.axis, segments.size() == 1 ? segments[0] : meta::Partition::concat(segments));
}

}  // namespace shoal::models
