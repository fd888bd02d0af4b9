// The default split-state callback: divides the weights and the KV cache of a model over n devices.
//
// Each layer's attention is divided by query heads, its feed-forward block by columns, and the output head by rows of
// the vocabulary. All other tensors are mirrored. Tensors of the same group are cut in the same way (tensor_spec.h). A
// layer therefore needs two all-reduces for any shares: one after attn_output and one after ffn_down.
//
// Units. A cut must not divide a quantisation block of a row, so groups are divided in units. For a tensor that is cut
// along axis 0, the number of members per unit is
//   lcm(block, elements per member) / elements per member
// The unit of a group is the lcm of these numbers over all tensors of the group that are cut along axis 0. Example:
// tiny-kjv-5m has 8 heads of 32 elements, 4 KV heads and 768 feed-forward columns. attn_output and ffn_down are cut
// along axis 0:
//
//   file    block of attn_output    heads per unit    units of heads   block of ffn_down    units of columns
//   f16     1                       1                 8                1 (taken as 32)      24
//   q8_0    32                      1                 8                32                   24
//   q4_k_m  256                     256 / 32 = 8      1                256                  3
//
// Heads are assigned in whole KV groups (here 2 query heads and their KV head), or in whole units if a unit is larger
// than a group. If the number of devices with a share exceeds the number of groups, the query heads of a group are
// divided. In this case, every device with query heads of a group also holds the KV head of the group: the rows of this
// KV head in attn_k and attn_v, and its cache. Example with 8 devices and f16 (1:{0,1} means 1 head on devices 0 and
// 1):
//   query heads 1:{0} 1:{1} ... 1:{7}, KV heads 1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}.
// If a layer has fewer units than devices, some devices get no unit of the layer. For example, q4_k_m has one unit of
// heads. Each layer's attention is then on one device, and this device changes from layer to layer.
//
// Layers that read an earlier layer's cache (LayerHparams::kv_layer) are divided like the earlier layer. The units of
// all layers that use the same cache are combined (lcm), and the bytes of these layers are assigned together.
//
// Experts. Routed experts are divided either by their columns or as whole experts (expert_split.h). Routed and shared
// experts are counted in separate ledgers (ShareLedger), because a token reads few of the routed experts. If routed
// experts are divided by columns, devices without columns in a layer are preferred for the layer's shared expert.
// Example of whole experts with 8 devices and 128 experts: 16:{0} 16:{1} ... 16:{7}.
//
// Each latent cache is either mirrored on the devices that have query heads, or divided into parts (latent_split.h). By
// default, each device with a share gets one part, regardless of the size of the share.
//
// Ratios. After each layer, the attention bytes assigned so far follow the ratio as closely as the units allow. The
// same holds for the bytes of feed-forward blocks. Later layers thus correct the rounding errors of earlier layers.
// Each unit goes to the device with the largest deficit. If several devices have equal deficits, the unit goes to the
// device with the lowest index. Attention and feed-forward blocks have separate ledgers, because devices wait for each
// other after each block. Less feed-forward work on a device therefore does not compensate for more attention work. The
// output head is assigned last and evens out the remaining errors of all ledgers. Example with 2 devices, even shares
// and q4_k_m: device 0 gets the attention of layer 0, and device 1 gets the attention of layer 1. The 3 units of the
// feed-forward block go to devices 0, 1, 0 in layer 0 and to devices 1, 0, 1 in layer 1. A device with share 0 gets
// only mirrored tensors.
//
// Immutable after construction; thread-safe.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "meta/meta.h"
#include "models/arch/architecture.h"
#include "models/place/expert_split.h"
#include "models/place/latent_split.h"

namespace shoal::models {

/// Converts a ratio such as "3,1" or "0.9:0.1" into shares with sum 1: "3,1" gives {0.75, 0.25}. An empty text gives
/// even shares. Throws InvalidArgument if an entry is not a finite number >= 0, if all entries are 0, or if the number
/// of entries is not `devices`.
std::vector<double> parse_ratio(std::string_view text, int devices);

/// Returns the number of units of each group, as the minimum over all layers. kVocabulary is the group of the output
/// head. For kExperts, each routed expert is one unit. Shares that differ by less than one unit may give the same
/// split.
///   tiny-kjv-5m q8_0: query heads 4 (whole KV groups), feed-forward 24, vocabulary 32
std::map<CutGroup, int64_t> split_units(const Hparams& hparams, std::span<const ModelTensor> tensors);

class SplitPolicy {
 public:
  /// `shares` is a result of parse_ratio(). `tensors` are the weights. Caches are divided like the KV heads or key
  /// heads of their layers. `parts` is the number of parts of a latent cache that is divided by rows; 0: one part for
  /// each device with a share.
  SplitPolicy(const Hparams& hparams, std::span<const ModelTensor> tensors, std::span<const double> shares,
              ExpertSplit experts = ExpertSplit::kInside, LatentSplit latent = LatentSplit::kMirrored,
              int64_t parts = 0);

  /// Returns the split state of a weight or KV cache tensor. The tensor is looked up by name.
  meta::SplitState operator()(const Tensor& tensor) const;

  int devices() const { return devices_; }
  /// Partition of a group in a layer. Layer -1 gives the partition of the vocabulary.
  const meta::Partition& partition(int layer, CutGroup group) const;
  /// Mode of dividing routed experts; kInside if the model has no routed experts or there is only one device.
  ExpertSplit experts() const { return experts_; }
  /// Number of parts of each latent cache; 1 if the model has no latent caches or these caches are mirrored.
  int64_t latent_parts() const { return latent_parts_; }
  /// Bytes of split weights on each device. The sum over all devices counts a shared KV head once.
  std::span<const double> bytes() const { return bytes_; }

 private:
  void divide_cache(const Hparams& hparams, std::span<const double> shares, int64_t sharers, int64_t parts);

  int devices_;
  ExpertSplit experts_ = ExpertSplit::kInside;
  int64_t latent_parts_ = 1;
  std::map<std::pair<int, CutGroup>, meta::Partition> partitions_;
  struct Placed {
    int layer;
    Cut cut;
  };
  std::unordered_map<std::string, Placed> cuts_;
  std::vector<double> bytes_;
};

}  // namespace shoal::models
