#include "models/place/layer_division.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "models/place/split_division.h"

namespace shoal::models {
namespace {

/// Number of devices with a share above 0.
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

/// Divides the members of a group. `busy` is the partition of another group, or nullptr. For each device without
/// members in `busy`, the wanted number of members grows by half a unit. If there are fewer units than devices, these
/// devices are therefore preferred.
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

/// Divides query heads among the devices (split_policy.h): in whole KV groups, or in parts of KV groups if there are
/// fewer groups than devices.
meta::Partition divide_heads(ShareLedger& ledger, const LayerHparams& h, int64_t unit, double bytes) {
  std::vector<double> wanted = wanted_members(ledger, h.heads, bytes);
  int64_t whole = std::lcm(unit, h.group());
  bool share_groups = h.group() % unit == 0 && devices_with_share(ledger) > h.heads / whole;
  std::vector<int64_t> counts = share_groups ? divide_groups(ledger, wanted, h.heads, h.group(), unit)
                                             : divide_units(ledger, wanted, h.heads, whole);
  enter(ledger, counts, h.heads, bytes);
  return meta::Partition::from_shares(counts);
}

}  // namespace

bool is_of_experts(const TensorSpec& spec) {
  return spec.role == TensorRole::kExperts && spec.cut.group == CutGroup::kFeedForward;
}

Cut cut_of(const TensorSpec& spec, ExpertSplit split) {
  if (split == ExpertSplit::kInside || !is_of_experts(spec)) return spec.cut;
  return {CutGroup::kExperts, spec.elementwise ? 1 : 2, 1};  // the expert axis is 2 in matrices and 1 in biases
}

Needs collect_needs(std::span<const ModelTensor> tensors, ExpertSplit split) {
  Needs needs;
  for (const ModelTensor& tensor : tensors) {
    const TensorSpec& spec = *tensor.spec;
    const Cut cut = cut_of(spec, split);
    if (cut.group == CutGroup::kNone) continue;
    GroupNeeds& group = needs[{spec.layer, cut.group}];
    check(cut.axis != 0 || spec.elementwise || cut.more[0].group == CutGroup::kNone,
          "the division would cut quantisation blocks of {}", spec.name);
    int64_t elements = std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
    group.bytes += static_cast<double>(bytes_for(tensor.dtype, elements));
    if (cut.axis != 0) continue;
    int64_t block = traits(tensor.dtype).block_elems;
    // A segment is cut only if its length is a multiple of the block length.
    const int64_t segment = spec.shape[0] / cut.repeat;
    const int64_t least = segment % block == 0 ? block : segment;
    group.block_unit = std::lcm(group.block_unit, std::lcm(least, cut.scale) / cut.scale);
  }
  return needs;
}

int64_t plain_unit(const GroupNeeds& needs, int64_t length, int64_t smallest) {
  const int64_t unit = std::lcm(needs.block_unit, length % smallest == 0 ? smallest : 1);
  return std::min(needs.block_unit == 1 ? smallest : unit, length);
}

GroupNeeds needs_of_heads(const Needs& needs, const Hparams& h, int layer) {
  GroupNeeds all;
  const auto find = [&](int of, CutGroup group) {
    const auto found = needs.find({of, group});
    return found == needs.end() ? GroupNeeds() : found->second;
  };
  for (int other = layer; other < h.layers; ++other) {
    if (other != layer && h.layer(other).kv_layer != layer) continue;
    check(h.layer(other).heads == h.layer(layer).heads, "layers {} and {} share a KV cache but not a head count", other,
          layer);
    const GroupNeeds q = find(other, CutGroup::kQueryHeads);
    all.block_unit = std::lcm(all.block_unit, q.block_unit);
    all.bytes += q.bytes + find(other, CutGroup::kKvHeads).bytes;
  }
  return all;
}

int64_t state_unit(const RecurrentHparams& r) {
  return r.v_heads == 0 ? kFeedForwardUnit : 1;
}

Division divide(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares,
                ExpertSplit split) {
  Division out;
  // The shared expert has its own ledger. A token reads few bytes of the routed experts, so bytes of the shared expert
  // must not compensate for bytes of the routed experts.
  ShareLedger attention(shares), feed_forward(shares), experts(shares), shared_experts(shares), whole(shares);
  Needs needs = collect_needs(tensors, split);
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
      check(kv_heads.has_value(), "the division {} of the heads cuts a group of {} heads", heads.to_string(),
            own.group());
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
    add(CutGroup::kExperts, experts, own.experts, 1);
    add(CutGroup::kFeedForward, feed_forward, own.ff, kFeedForwardUnit);
    // Devices without columns of the routed experts are preferred for the shared expert.
    const auto shared = needs.find({layer, CutGroup::kSharedExpert});
    const auto routed = out.partitions.find({layer, CutGroup::kFeedForward});
    if (shared != needs.end()) {
      out.partitions[shared->first] =
          divide_plain(shared_experts, shared->second, own.shared_ff, kFeedForwardUnit,
                       split == ExpertSplit::kInside && routed != out.partitions.end() ? &routed->second : nullptr);
    }
  }
  whole.add(attention);
  whole.add(feed_forward);
  whole.add(experts);
  whole.add(shared_experts);
  if (auto head = needs.find({-1, CutGroup::kVocabulary}); head != needs.end()) {
    out.partitions[head->first] = divide_plain(whole, head->second, h.vocab, kVocabularyUnit);
  }
  out.bytes.assign(whole.given().begin(), whole.given().end());
  return out;
}

}  // namespace shoal::models
