// The default split-state callback: divides the weights and the KV cache of a model over n devices.
//
// Each layer's attention is divided by query heads, its feed-forward block by columns, and the output head by rows of
// the vocabulary. All other tensors are mirrored. Tensors of the same group are cut alike (tensor_spec.h), so a layer
// needs two all-reduces, regardless of the shares of the devices: after attn_output and after ffn_down.
//
// Units. A cut must not divide a quantisation block of a row, so groups are divided in units. For a tensor that is cut
// along axis 0, the number of members per unit is
//   lcm(block, elements per member) / elements per member
// The unit of a group is the lcm of these numbers over all tensors of the group that are cut along axis 0. Example:
// tiny-kjv-5m has 8 heads of 32 elements, 4 KV heads and 768 feed-forward columns. attn_output and ffn_down are cut
// along axis 0:
//
//   file    block of attn_output    heads per unit    units   block of ffn_down    column units
//   f16     1                       1                 8       1 (taken as 32)      24
//   q8_0    32                      1                 8       32                   24
//   q4_k_m  256                     256 / 32 = 8      1       256                  3
//
// Heads are assigned in whole KV groups (here 2 query heads and their KV head), or in whole units if a unit is larger.
// If the number of devices with a share exceeds the number of groups, the query heads of a group are divided. In this
// case, every device with query heads of a group also holds the group's KV head: its rows of attn_k and attn_v, and its
// cache. Example with 8 devices and f16, as number:{devices}:
//   query heads 1:{0} 1:{1} ... 1:{7}, KV heads 1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}.
// If a layer has fewer units than devices, some devices get no unit of the layer. For example, q4_k_m has one unit of
// heads. Each layer's attention is then on one device, and this device changes from layer to layer.
//
// Layers that read an earlier layer's cache (LayerHparams::kv_layer) are divided like the earlier layer. The units of
// these layers are combined (lcm), and their bytes are assigned together.
//
// Experts. Routed experts are divided either by their columns or as whole experts (expert_split.h). Their bytes are
// counted in a separate ledger (ShareLedger), because a token reads few of the experts. Devices without any part of a
// layer's routed experts get more of the layer's shared expert. Example with 8 devices and 128 whole experts: 16:{0}
// 16:{1} ... 16:{7}.
//
// Latent caches are either whole on every device that has query heads, or divided into parts (latent_split.h). By
// default, each device with a share gets one part, regardless of the size of the share.
//
// Ratios. After each layer, the attention bytes assigned so far follow the ratio as closely as units allow. The same
// holds for the bytes of feed-forward blocks. Later layers thus correct the rounding errors of earlier layers. Each
// unit goes to the device with the largest deficit (among equal deficits, to the device with the lowest index).
// Attention and feed-forward blocks have separate ledgers, because devices wait for each other after each block: less
// feed-forward work does not make up for more attention work. The output head is assigned last and evens out the
// remaining errors of both ledgers. Example with 2 devices, even shares and q4_k_m: device 0 gets the attention of
// layer 0, and device 1 gets the attention of layer 1. The 3 units of the feed-forward block go to devices 0, 1, 0 in
// layer 0 and to devices 1, 0, 1 in layer 1. A device with share 0 gets only mirrored tensors.
//
// Immutable after construction; thread-safe. The constructor throws InvalidArgument for a ratio that does not fit.
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

/// Number of units of each group: the minimum over all layers. kVocabulary is the group of the output head. For
/// kExperts, each routed expert is one unit. Shares that differ by less than one unit may give the same split.
///   tiny-kjv-5m q8_0: query heads 4 (whole KV groups), feed-forward 24, vocabulary 32
std::map<CutGroup, int64_t> split_units(const Hparams& hparams, std::span<const ModelTensor> tensors);

class SplitPolicy {
 public:
  /// `shares` is a result of parse_ratio(). `tensors` are the weights; caches are divided like the heads. `parts` is
  /// the number of parts of a latent cache that is divided by rows; 0: one part for each device with a share.
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
  /// Number of parts of latent caches; 1 if these caches are mirrored or absent.
  int64_t latent_parts() const { return latent_parts_; }
  /// Bytes of split weights on each device. A shared KV head is counted once.
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
