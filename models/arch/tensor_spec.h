// Describes one tensor of an architecture, either a weight or a cache tensor: name, shape, role, and how devices may
// divide the tensor. All types are plain values.
//
// A Cut names an axis and the group of members along this axis: query heads, KV heads, feed-forward columns or
// vocabulary rows. The split policy (models/place/split_policy.h) divides each group once per layer, so all tensors of
// a group are divided in the same way. `scale` is the number of elements per member of the group. The axis of a fused
// tensor consists of segments. Each segment replaces a tensor that other files store separately, and is divided like
// that tensor.
//
//   attn_q      [256, 256]: axis 1 has 32 rows per query head           {kQueryHeads, 1, 32}
//   attn_k      [256, 128]: axis 1 has 32 rows per KV head              {kKvHeads, 1, 32}
//   attn_output [256, 256]: axis 0 has 32 columns per query head        {kQueryHeads, 0, 32}
//   cache_k     [32, 512, 4]: axis 2 has one element per KV head        {kKvHeads, 2, 1}
//   attn_qkv    [256, 512]: query heads, then KV heads of k and of v
//               {kQueryHeads, 1, 32, {{{kKvHeads, 32}, {kKvHeads, 32}}}}
//   ssm_a       [6]: 6 value heads in tiled order, with key heads 0 1 0 1 0 1: three segments, divided in the same way
//               {kStateHeads, 0, 1, {}, 3}
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "graph/tensor.h"

namespace shoal::models {

/// - kStateHeads: key heads of a recurrent layer.
/// - kExperts: whole experts. Only the split policy sets this group (models/place/expert_split.h); architectures do not
///   use it.
/// - kCacheParts: parts of a latent cache (kv_cache.h). All parts have the same number of rows.
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
  CutGroup group = CutGroup::kNone;  ///< kNone: the segment is absent
  int64_t scale = 1;
  int64_t repeat = 1;  ///< number of consecutive segments that are divided in the same way
};

struct Cut {
  CutGroup group = CutGroup::kNone;  ///< kNone: mirrored on every device
  int axis = 0;
  int64_t scale = 1;  ///< number of axis elements per member of the group in each of the `repeat` segments
  /// Further segments on the axis of a fused tensor.
  std::array<CutSegment, 2> more = {};
  int64_t repeat = 1;  ///< like CutSegment::repeat, for the first segment
};

/// Role of a tensor. Placement, loading and predictions use the role and not the name.
enum class TensorRole : uint8_t {
  kBlock,        ///< read completely in every step: matrices, norms, biases
  kEmbedding,    ///< rows are looked up; also the output head if the file has no separate head
  kLookup,       ///< rows are looked up; never the output head
  kHead,         ///< the output head, which gives the logits
  kExperts,      ///< one matrix (or row of biases) per expert; a token uses only some of the experts
  kRopeFactors,  ///< frequency factors that all layers share
  kCache,
};

struct TensorSpec {
  std::string name;
  Shape shape{1, 1, 1, 1};
  int layer = -1;  ///< index of the layer; -1: the tensor belongs to the whole model
  Cut cut = {};
  bool optional = false;
  /// Whether the tensor replaces tensors that most files have. Architecture::tensors() omits alternative tensors if
  /// `is_there` is empty.
  bool alternative = false;
  bool elementwise = false;  ///< whether an op adds or multiplies the tensor element by element (norms, biases); f32 in
                             ///< every file
  TensorRole role = TensorRole::kBlock;
};

}  // namespace shoal::models
