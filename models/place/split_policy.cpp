#include "models/place/split_policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "models/place/split_division.h"

namespace shoal::models {
namespace {

// Feed-forward columns and vocabulary rows are cut in multiples of this even where no block asks for it: shares that
// fill whole vector registers and cache lines.
constexpr int64_t kFeedForwardUnit = 32;
constexpr int64_t kVocabularyUnit = 32;

/// What the tensors of one group of one layer ask of its division.
struct GroupNeeds {
  int64_t block_unit = 1;  ///< members per unit so that no quantisation block is cut
  double bytes = 0.0;
};

using Needs = std::map<std::pair<int, CutGroup>, GroupNeeds>;

Needs collect_needs(std::span<const ModelTensor> tensors) {
  Needs needs;
  for (const ModelTensor& tensor : tensors) {
    const TensorSpec& spec = *tensor.spec;
    if (spec.cut.group == CutGroup::kNone) continue;
    GroupNeeds& group = needs[{spec.layer, spec.cut.group}];
    check(spec.cut.axis != 0 || spec.elementwise || spec.cut.more[0].group == CutGroup::kNone,
          "blocks of {} would be cut", spec.name);
    int64_t elements = std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
    group.bytes += static_cast<double>(bytes_for(tensor.dtype, elements));
    if (spec.cut.axis != 0) continue;
    int64_t block = traits(tensor.dtype).block_elems;
    // Segments that do not begin with a block are not cut.
    const int64_t segment = spec.shape[0] / spec.cut.repeat;
    const int64_t least = segment % block == 0 ? block : segment;
    group.block_unit = std::lcm(group.block_unit, std::lcm(least, spec.cut.scale) / spec.cut.scale);
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

meta::Partition divide_plain(ShareLedger& ledger, const GroupNeeds& needs, int64_t length, int64_t smallest) {
  std::vector<int64_t> counts =
      divide_units(ledger, wanted_members(ledger, length, needs.bytes), length, plain_unit(needs, length, smallest));
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
  for (const auto& [key, needs] : collect_needs(tensors)) {
    const CutGroup group = key.second;
    const LayerHparams& layer = key.first < 0 ? h : h.layer(key.first);
    if (group == CutGroup::kQueryHeads) add(group, layer.heads, std::lcm(needs.block_unit, layer.group()));
    if (group == CutGroup::kStateHeads) {
      add(group, layer.recurrent.k_heads, plain_unit(needs, layer.recurrent.k_heads, state_unit(layer.recurrent)));
    }
    if (group == CutGroup::kFeedForward) add(group, layer.ff, plain_unit(needs, layer.ff, kFeedForwardUnit));
    if (group == CutGroup::kSharedExpert)
      add(group, layer.shared_ff, plain_unit(needs, layer.shared_ff, kFeedForwardUnit));
    if (group == CutGroup::kVocabulary) add(group, h.vocab, plain_unit(needs, h.vocab, kVocabularyUnit));
  }
  return units;
}

SplitPolicy::SplitPolicy(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares)
    : devices_(static_cast<int>(shares.size())) {
  ShareLedger attention(shares), feed_forward(shares), whole(shares);
  Needs needs = collect_needs(tensors);
  for (int layer = 0; layer < h.layers; ++layer) {
    const LayerHparams& own = h.layer(layer);
    if (own.attends()) {
      const GroupNeeds &q = needs[{layer, CutGroup::kQueryHeads}], &kv = needs[{layer, CutGroup::kKvHeads}];
      meta::Partition heads = divide_heads(attention, own, q.block_unit, q.bytes + kv.bytes);
      std::optional<meta::Partition> kv_heads = heads.group(own.group());
      check(kv_heads.has_value(), "heads {} do not map onto groups of {}", heads.to_string(), own.group());
      partitions_[{layer, CutGroup::kQueryHeads}] = std::move(heads);
      partitions_[{layer, CutGroup::kKvHeads}] = *std::move(kv_heads);
    } else {
      partitions_[{layer, CutGroup::kStateHeads}] = divide_plain(attention, needs[{layer, CutGroup::kStateHeads}],
                                                                 own.recurrent.k_heads, state_unit(own.recurrent));
    }
    partitions_[{layer, CutGroup::kFeedForward}] =
        divide_plain(feed_forward, needs[{layer, CutGroup::kFeedForward}], own.ff, kFeedForwardUnit);
    if (own.shared_ff == 0) continue;
    partitions_[{layer, CutGroup::kSharedExpert}] =
        divide_plain(feed_forward, needs[{layer, CutGroup::kSharedExpert}], own.shared_ff, kFeedForwardUnit);
  }
  whole.add(attention);
  whole.add(feed_forward);
  if (auto head = needs.find({-1, CutGroup::kVocabulary}); head != needs.end()) {
    partitions_[head->first] = divide_plain(whole, head->second, h.vocab, kVocabularyUnit);
  }
  for (const ModelTensor& tensor : tensors) cuts_[tensor.spec->name] = {tensor.spec->layer, tensor.spec->cut};
  for (const TensorSpec& spec : cache_tensors(h, {.rows = 1})) cuts_[spec.name] = {spec.layer, spec.cut};
  bytes_.assign(whole.given().begin(), whole.given().end());
}

const meta::Partition& SplitPolicy::partition(int layer, CutGroup group) const {
  auto found = partitions_.find({layer, group});
  require<InvalidArgument>(found != partitions_.end(), "layer {} has no such group of tensors", layer);
  return found->second;
}

meta::SplitState SplitPolicy::operator()(const Tensor& tensor) const {
  auto found = cuts_.find(tensor.name);
  require<InvalidArgument>(found != cuts_.end(), "the split policy does not know the tensor {}", describe(tensor));
  const auto& [layer, cut] = found->second;
  const bool is_mirrored = cut.group == CutGroup::kNone ||
                           (cut.more[0].group == CutGroup::kNone && is_everywhere(partition(layer, cut.group)));
  if (is_mirrored) return meta::SplitState::mirrored();
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
