// What an architecture says of one tensor, a weight or a part of the KV cache: its name and shape, what it is for, and
// how it may be cut over devices. Plain values.
//
// A tensor that may be cut names what one of its axes counts: query heads, KV heads, feed-forward columns or
// vocabulary rows. The split policy (models/place/split_policy.h) divides each of these groups once per layer, and all
// tensors that count in the same group are cut alike; `scale` is how many elements of the axis one member of the group
// takes. The axis of a fused tensor has segments, each of which is cut as the tensor that it stands for.
//
//   attn_q      [256, 256]: axis 1 counts query heads, 32 rows each     {kQueryHeads, 1, 32}
//   attn_k      [256, 128]: axis 1 counts KV heads, 32 rows each        {kKvHeads, 1, 32}
//   attn_output [256, 256]: axis 0 counts query heads, 32 columns each  {kQueryHeads, 0, 32}
//   cache_k     [32, 512, 4]: axis 2 counts KV heads                    {kKvHeads, 2, 1}
//   attn_qkv    [256, 512]: query heads, then KV heads, twice
//               {kQueryHeads, 1, 32, {{{kKvHeads, 32}, {kKvHeads, 32}}}}
//   ssm_a       [6]: value heads of 2 key heads in tiled order, 0 1 0 1 0 1: each third is cut alike
//               {kStateHeads, 0, 1, {}, 3}
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "graph/tensor.h"

namespace shoal::models {

/// kStateHeads: the key heads of a layer that keeps a state instead of keys and values. kExperts: where they lie whole,
/// which no tensor says of itself (models/place/expert_split.h). kCacheParts: of a latent cache (kv_cache.h), each as
/// many rows as there are.
enum class CutGroup : uint8_t {
  kNone,
  kQueryHeads,
  kKvHeads,
  kStateHeads,
  kFeedForward,
  kExperts,
  kSharedExpert,
  kVocabulary,
  kCacheParts
};

struct CutSegment {
  CutGroup group = CutGroup::kNone;  ///< kNone: there is no such segment
  int64_t scale = 1;
  int64_t repeat = 1;  ///< this number of segments alike, one after the other
};

struct Cut {
  CutGroup group = CutGroup::kNone;  ///< kNone: every device has all of it
  int axis = 0;
  int64_t scale = 1;  ///< axis length = group length * scale, in each of the segments alike
  /// Of a fused tensor: what follows on the axis.
  std::array<CutSegment, 2> more = {};
  int64_t repeat = 1;  ///< as CutSegment::repeat, of the first segment
};

/// What placement, loading and predictions want to know of a tensor; names are for files and messages.
enum class TensorRole : uint8_t {
  kBlock,        ///< used whole in every step: matrices, norms, biases
  kEmbedding,    ///< rows are looked up; the output head too where there is no other
  kLookup,       ///< rows are looked up, and nothing else
  kHead,         ///< gives the logits
  kExperts,      ///< one matrix for each expert, or one row of biases, of which a token uses some; cut as they are
  kRopeFactors,  ///< frequency factors that all layers share
  kCache,
};

struct TensorSpec {
  std::string name;
  Shape shape{1, 1, 1, 1};
  int layer = -1;  ///< -1: of the whole model
  Cut cut = {};
  bool optional = false;
  /// In place of tensors that most files have: not among "all tensors" of an architecture.
  bool alternative = false;
  bool elementwise = false;  ///< added or multiplied element by element (norms, biases): f32 in every file
  TensorRole role = TensorRole::kBlock;
};

}  // namespace shoal::models
