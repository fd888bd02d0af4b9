// Architectures: one row per kind of model, one function each (decoder.h). The function is run twice: to declare, which
// gives the tensors that a model file must or may hold, and to build the graph of one batch. An architecture is one file
// and one row of architectures.def; scripts/reference makes the reference of its tests.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "models/arch/hparams.h"
#include "models/arch/kv_cache.h"
#include "models/arch/tensor_spec.h"

namespace shoal::models {

class Decoder;

/// A tensor of the model at hand: what its architecture says of it and the dtype that the file gives it.
struct ModelTensor {
  const TensorSpec* spec = nullptr;
  DType dtype = DType::kF32;
};

/// What layers with a window have in place of positions and rows where their cache is a ring (kv_cache.h).
struct WindowInputs {
  int64_t window = 0, rows = 0;
  Tensor* cache_rows = nullptr;  ///< i32 [n]: row that each token is written to; < 0: to none
  Tensor* last_rows = nullptr;   ///< i32 [n]: no row behind this one has been written
  Tensor* mask = nullptr;        ///< f16 [rows, n]: 0 for rows that the token sees, -inf for others
};

/// The graph of one batch. Inputs are written before each run; everything belongs to `graph`.
struct DecoderGraph {
  std::unique_ptr<Graph> graph;
  Tensor* tokens = nullptr;       ///< i32 [n]: token ids
  Tensor* positions = nullptr;    ///< i32 [n]: place of each token in its text
  Tensor* cache_rows = nullptr;   ///< i32 [n]: row of the KV cache that each token is written to; < 0: to none
  Tensor* out_ids = nullptr;      ///< i32 [outputs]: tokens of the batch whose logits are wanted
  Tensor* temperature = nullptr;  ///< f32 [1, 1, n]: what queries are multiplied by (AttentionTemperature); or nullptr
  Tensor* state_rows = nullptr;   ///< i32 [n]: 0, 1, ... n - 1, for states that are written whole; or nullptr
  /// Where the cache lies in parts (kv_cache.h): i32 [n, parts], of each part the last row that a token sees; and rows
  /// of a part. Else nullptr.
  Tensor* last_rows = nullptr;
  int64_t part_rows = 0;
  std::vector<WindowInputs> windows;  ///< one for each length of window whose caches are rings
  Tensor* logits = nullptr;           ///< f32 [vocab, outputs], an output of the graph unless candidates are
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

/// Is a tensor there? Throws for one that must be and is not.
using IsThere = std::function<bool(const TensorSpec&)>;

struct Architecture {
  std::string_view name;    ///< general.architecture of the file, and the prefix of its keys
  std::string_view models;  ///< whose files these are, for people
  RopeMode rope;            ///< files do not say it
  void (*define)(Decoder& decoder);
  ReadHparams read;

  /// The tensors of a model file in the order in which they are used, frequency factors last; all, optional ones
  /// included but no alternatives, unless `is_there` says which.
  std::vector<TensorSpec> tensors(const Hparams& hparams, const IsThere& is_there = {}) const;
  /// `weights` holds the tensors by name, `cache` those of the KV cache.
  DecoderGraph build(const Hparams& hparams, const TensorContext& weights, const KvCache& cache,
                     BatchShape batch) const;
};

/// All of them, as listed in architectures.def.
std::span<const Architecture> architectures();
/// Also by the name that Ollama's files have. Throws InvalidArgument that names the file and lists the known ones.
const Architecture& find_architecture(std::string_view name, std::string_view path);

}  // namespace shoal::models
