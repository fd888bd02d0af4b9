// An architecture describes a family of models. Each architecture has one row in architectures.def. The row names a
// function (decoder.h) that lists the tensors that a model file must or may contain, and creates the graph of one
// batch. scripts/reference creates the reference outputs for the tests of architectures.
//
// All functions are pure and thread-safe.
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

/// A tensor of an opened model: its spec in the architecture and its dtype in the file.
struct ModelTensor {
  const TensorSpec* spec = nullptr;
  DType dtype = DType::kF32;
};

/// Inputs of the layers of one page group (kv_cache.h).
struct PageInputs {
  Tensor* table = nullptr;       ///< i32 [KvCache::most_pages(), y]: list of pages of each sequence
  Tensor* cache_rows = nullptr;  ///< i32 [n]: row of the pool to which each token is written; < 0: not written
};

/// Input of the recurrent states that have `rows` rows.
struct StateInput {
  int64_t rows = 0;
  Tensor* ids = nullptr;  ///< i32 [rows * y]: row to which each row of the new states is written; < 0: not written
};

/// The graph of one batch of n tokens of y sequences. The caller writes the inputs before each run. `graph` owns all
/// tensors.
struct DecoderGraph {
  std::unique_ptr<Graph> graph;
  Tensor* tokens = nullptr;       ///< i32 [n]: token ids
  Tensor* positions = nullptr;    ///< i32 [n]: position of each token in its sequence
  Tensor* sequences = nullptr;    ///< i32 [n]: number of each token's sequence, in [0, y)
  Tensor* out_ids = nullptr;      ///< i32 [outputs]: indices of the tokens whose logits are wanted
  Tensor* temperature = nullptr;  ///< f32 [1, 1, n]: factors that multiply the queries; nullptr if the model has no
                                  ///< AttentionTemperature
  std::vector<PageInputs> pages;  ///< one entry per page group of the cache
  /// i32 [n, parts]: index of the last row to which a token attends in each part. nullptr if the cache is not divided
  /// into parts (kv_cache.h).
  Tensor* last_rows = nullptr;
  Tensor* slots = nullptr;         ///< i32 [y]: slot with the state of each sequence; nullptr if no layer is recurrent
  std::vector<StateInput> states;  ///< one entry per number of rows
  Tensor* logits = nullptr;        ///< f32 [vocab, outputs]; an output of the graph if no candidates are selected
  /// Ids (i32 [candidates, outputs]) and logits (f32 [1, candidates, outputs]) of each output's best tokens. The best
  /// token comes first; among equal logits, the lowest id comes first. If candidates are selected, both tensors are
  /// outputs of the graph; otherwise both are nullptr.
  Tensor* candidate_ids = nullptr;
  Tensor* candidate_logits = nullptr;
};

struct BatchShape {
  int64_t tokens = 1;
  int64_t outputs = 1;
  int64_t sequences = 1;
  int64_t candidates = 0;     ///< number of best tokens that the graph selects per output, at most the size of the
                              ///< vocabulary; 0: the graph outputs all logits
  bool keeps_logits = false;  ///< whether the logits are an output even if the graph selects candidates
  bool operator==(const BatchShape&) const = default;
};

/// Returns whether the tensor is in the file. Throws if a required tensor is missing.
using IsThere = std::function<bool(const TensorSpec&)>;

struct Architecture {
  std::string_view name;    ///< value of general.architecture, and prefix of the file's keys
  std::string_view models;  ///< readable names of the models
  RopeMode rope;            ///< which elements of a head are rotated together; not stored in files
  void (*define)(Decoder& decoder);
  ReadHparams read;

  /// The tensors of a model file in order of use. Frequency factors come last. Returns only tensors for which
  /// `is_there` returns true. If `is_there` is empty, returns every tensor for which TensorSpec::alternative is false,
  /// including optional tensors.
  std::vector<TensorSpec> tensors(const Hparams& hparams, const IsThere& is_there = {}) const;
  /// `weights` contains the weight tensors by name, and `cache` contains the tensors of the KV cache.
  DecoderGraph build(const Hparams& hparams, const TensorContext& weights, const KvCache& cache,
                     BatchShape batch) const;
};

/// All architectures, in the order of architectures.def.
std::span<const Architecture> architectures();
/// Finds an architecture by its name, or by its name in Ollama's files. Throws InvalidArgument for an unknown name; the
/// message contains the file and all known names.
const Architecture& find_architecture(std::string_view name, std::string_view path);

}  // namespace shoal::models
