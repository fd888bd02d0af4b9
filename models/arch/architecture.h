// Architectures: one row per kind of model. A row says which tensors a model file must hold and how they may be cut
// over devices, and builds the graph of one batch. Adding an architecture is one file and one row in architecture.cpp.
//
// A tensor that may be cut names what one of its axes counts: query heads, KV heads, feed-forward columns or
// vocabulary rows. The split policy (split_policy.h) divides each of these groups once per layer, and all tensors that
// count in the same group are cut alike; `scale` is how many elements of the axis one member of the group takes.
//
//   attn_q      [256, 256]: axis 1 counts query heads, 32 rows each     {kQueryHeads, 1, 32}
//   attn_k      [256, 128]: axis 1 counts KV heads, 32 rows each        {kKvHeads, 1, 32}
//   attn_output [256, 256]: axis 0 counts query heads, 32 columns each  {kQueryHeads, 0, 32}
//   cache_k     [32, 512, 4]: axis 2 counts KV heads                    {kKvHeads, 2, 1}
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "models/arch/hparams.h"
#include "models/arch/kv_cache.h"

namespace shoal::models {

enum class CutGroup : uint8_t { kNone, kQueryHeads, kKvHeads, kFeedForward, kVocabulary };

struct Cut {
  CutGroup group = CutGroup::kNone;  ///< kNone: every device has all of it
  int axis = 0;
  int64_t scale = 1;  ///< axis length = group length * scale
};

struct TensorSpec {
  std::string name;
  Shape shape{1, 1, 1, 1};
  int layer = -1;  ///< -1: of the whole model
  Cut cut;
  bool optional = false;
  bool elementwise = false;  ///< added or multiplied element by element (norms, biases): f32 in every file
};

/// A tensor of the model at hand: what its architecture says of it and the dtype that the file gives it.
struct ModelTensor {
  const TensorSpec* spec = nullptr;
  DType dtype = DType::kF32;
};

/// The graph of one batch. Inputs are written before each run; everything belongs to `graph`.
struct DecoderGraph {
  std::unique_ptr<Graph> graph;
  Tensor* tokens = nullptr;      ///< i32 [n]: token ids
  Tensor* positions = nullptr;   ///< i32 [n]: place of each token in its text
  Tensor* cache_rows = nullptr;  ///< i32 [n]: row of the KV cache that each token is written to; < 0: to none
  Tensor* out_ids = nullptr;     ///< i32 [outputs]: tokens of the batch whose logits are wanted
  Tensor* logits = nullptr;      ///< f32 [vocab, outputs], an output of the graph unless candidates are
  /// The candidates best tokens of each output, best first, the lower id of equals: i32 [candidates, outputs] and f32
  /// [1, candidates, outputs], outputs of the graph. nullptr where logits are.
  Tensor* candidate_ids = nullptr;
  Tensor* candidate_logits = nullptr;
};

struct BatchShape {
  int64_t tokens = 1;
  int64_t outputs = 1;
  int64_t candidates = 0;  ///< tokens that each output gives in place of all logits (at most the vocabulary); 0: logits
  bool operator==(const BatchShape&) const = default;
};

struct Architecture {
  std::string_view name;
  /// All tensors of a model file, optional ones included.
  std::vector<TensorSpec> (*tensors)(const Hparams& hparams);
  /// `weights` holds the tensors by name, `cache` those of the KV cache.
  DecoderGraph (*build)(const Hparams& hparams, const TensorContext& weights, const KvCache& cache, BatchShape batch);
};

/// Ends a decoder graph, for architectures: makes `logits` its output, or their candidates.
void add_outputs(DecoderGraph& decoder, Tensor* logits, int64_t candidates);

/// Throws InvalidArgument that names the file and lists the known ones.
const Architecture& find_architecture(std::string_view name, std::string_view path);

}  // namespace shoal::models
