// The default split-state callback: how the weights and the KV cache of a model lie over n devices.
//
// Each layer's attention is divided by query heads, its feed-forward block by columns, the output head by rows of the
// vocabulary; everything else is mirrored. Tensors that count in the same group are cut alike (tensor_spec.h), so a
// layer needs two all-reduces, after attn_output and after ffn_down, whatever the ratio.
//
// Units. A cut must not fall inside a quantisation block of a row, so the smallest share of a group is
//   lcm(block, elements per member) / elements per member,  over the tensors whose axis 0 counts in the group.
// tiny-kjv-5m (8 heads of 32, 4 KV heads, ff 768; attn_output and ffn_down are what axis 0 cuts):
//
//   file    block of attn_output    heads a unit      units   block of ffn_down    units of columns
//   f16     1                       1                 8       1 (taken as 32)      24
//   q8_0    32                      1                 8       32                   24
//   q4_k_m  256                     256 / 32 = 8      1       256                  3
//
// Heads go out in whole KV groups (2 query heads and their KV head; whole units where a unit is larger). Only when
// there are more devices with a share than groups are the query heads of a group divided, and then its KV head, with
// the rows of attn_k and attn_v and its cache, lies on all devices that have some of its query heads: 8 devices, f16:
//   query heads 1:{0} 1:{1} ... 1:{7}, KV heads 1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}.
// Where there are fewer units than devices some devices get none in this layer: q4_k_m has one unit of heads, so the
// attention of a layer lies on one device, and which one changes from layer to layer.
//
// Layers that read what an earlier layer keeps (LayerHparams::kv_layer) have its division: units are such that it is
// legal for all of them, and the bytes of all of them are given out with it.
//
// Experts. If a layer has routed experts, their columns are divided, or the experts (expert_split.h). Experts have an
// account of their own, because a token reads few of their bytes. Devices without anything of a layer's routed experts
// have more of its shared one. 8 devices, 128 experts of 768 columns in q4_k: 16:{0} 16:{1} ... 16:{7}.
//
// Latent caches lie whole on every device that has query heads, or in parts (latent_split.h), one for each device with
// a share, whatever its size.
//
// Ratios. Attention is divided so that the attention bytes given out so far, over all layers, come as close to the
// ratio as units allow, and feed-forward blocks likewise: the rounding error of one layer is made good in the next
// ones. Each unit goes to the device that is furthest behind its share (the lowest of equals). The two are accounted
// for apart because devices wait for each other after each: a device with more than its share of a layer's attention is
// not helped by less of its feed-forward block. The head comes last and evens out what is left of both. Example, 2
// devices, even, q4_k_m: layer 0's attention goes to device 0 and layer 1's to device 1; of the 3 units of layer 0's
// feed-forward block devices 0, 1, 0 get one each, of layer 1's devices 1, 0, 1. A device whose share is 0 gets
// nothing, but keeps its mirrored tensors.
//
// Immutable after construction; thread-safe. Construction throws InvalidArgument for a ratio that does not fit.
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

/// "3,1" or "0.9:0.1" -> shares of 1 in all: {0.75, 0.25}. An empty text: even. Throws InvalidArgument when an entry
/// is no number, negative or not finite, when all are 0, or when there is not one for each device.
std::vector<double> parse_ratio(std::string_view text, int devices);

/// Into how many units each group of a layer is divided (kVocabulary: the head), the least of all layers: shares that
/// differ by less than one of them may well be the same split. kExperts: the routed ones, where they lie whole.
///   tiny-kjv-5m q8_0: query heads 4 (whole KV groups), feed-forward 24, vocabulary 32
std::map<CutGroup, int64_t> split_units(const Hparams& hparams, std::span<const ModelTensor> tensors);

class SplitPolicy {
 public:
  /// `shares` as parse_ratio returns them. Weights only; the cache follows from the heads. `parts`: of latent caches by
  /// rows; 0: one for each device with a share.
  SplitPolicy(const Hparams& hparams, std::span<const ModelTensor> tensors, std::span<const double> shares,
              ExpertSplit experts = ExpertSplit::kInside, LatentSplit latent = LatentSplit::kMirrored,
              int64_t parts = 0);

  /// The answer for a weight or a tensor of the KV cache, by name.
  meta::SplitState operator()(const Tensor& tensor) const;

  int devices() const { return devices_; }
  /// How a group of a layer (-1 for the vocabulary) is divided.
  const meta::Partition& partition(int layer, CutGroup group) const;
  /// Inside if the model has no routed experts, or there is one device.
  ExpertSplit experts() const { return experts_; }
  /// Parts of the rows of latent caches; 1: mirrored, or there are none.
  int64_t latent_parts() const { return latent_parts_; }
  /// Split weight bytes given to each device, a shared KV head counted once.
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
