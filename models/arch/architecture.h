// Architectures: one table row per model family. Each architecture has one function (decoder.h), which serves two
// purposes: it lists the tensors that a model file must or may contain, and it creates the graph of one batch. An
// architecture consists of one file and one row of architectures.def. scripts/reference creates the reference outputs
// for its tests.
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

/// A tensor of an opened model: the spec from its architecture and the dtype in the file.
struct ModelTensor {
  const TensorSpec* spec = nullptr;
  DType dtype = DType::kF32;
};

/// Inputs of layers whose cache is a ring (kv_cache.h). Cache writes and attention of these layers use these inputs
/// instead of DecoderGraph::cache_rows and positions.
struct WindowInputs {
  int64_t window = 0, rows = 0;
  Tensor* cache_rows = nullptr;  ///< i32 [n]: row to which each token is written; < 0: not written
  Tensor* last_rows = nullptr;   ///< i32 [n]: last row that holds a position
  Tensor* mask = nullptr;        ///< f16 [rows, n]: 0 for rows that the token attends to, -inf for other rows
};

/// The graph of one batch of n tokens. Inputs are written before each run. `graph` owns all tensors.
struct DecoderGraph {
  std::unique_ptr<Graph> graph;
  Tensor* tokens = nullptr;       ///< i32 [n]: token ids
  Tensor* positions = nullptr;    ///< i32 [n]: position of each token in its sequence
  Tensor* cache_rows = nullptr;   ///< i32 [n]: row of the KV cache to which each token is written; < 0: not written
  Tensor* out_ids = nullptr;      ///< i32 [outputs]: indices of the tokens whose logits are wanted
  Tensor* temperature = nullptr;  ///< f32 [1, 1, n]: factors of the queries (AttentionTemperature); or nullptr
  Tensor* state_rows = nullptr;   ///< i32 [r]: 0, 1, ... r - 1, for writing states of r rows; or nullptr
  /// i32 [n, parts]: for each token and part, the index of the last row of the part that the token attends to. nullptr
  /// unless the cache is divided into parts (kv_cache.h). part_rows is the number of rows of each part.
  Tensor* last_rows = nullptr;
  int64_t part_rows = 0;
  std::vector<WindowInputs> windows;  ///< one entry per window length with ring caches
  Tensor* logits = nullptr;           ///< f32 [vocab, outputs]; an output of the graph unless candidates are selected
  /// Ids and logits of the best tokens of each output, best first, lower ids first among equals: i32 [candidates,
  /// outputs] and f32 [1, candidates, outputs]. Outputs of the graph, or nullptr if the logits are the output.
  Tensor* candidate_ids = nullptr;
  Tensor* candidate_logits = nullptr;
};

struct BatchShape {
  int64_t tokens = 1;
  int64_t outputs = 1;
  int64_t candidates = 0;  ///< number of best tokens to select per output, at most the vocabulary; 0: output all logits
  bool operator==(const BatchShape&) const = default;
};

/// Returns whether the tensor is in the file. Throws if a required tensor is missing.
using IsThere = std::function<bool(const TensorSpec&)>;

struct Architecture {
  std::string_view name;    ///< general.architecture of the file, and prefix of its keys
  std::string_view models;  ///< readable names of its models
  RopeMode rope;            ///< which elements of a head are rotated together; files do not store it
  void (*define)(Decoder& decoder);
  ReadHparams read;

  /// The tensors of a model file, in order of use, with frequency factors last. `is_there` selects tensors. Without
  /// `is_there`, returns all required and optional tensors, but no TensorSpec::alternative.
  std::vector<TensorSpec> tensors(const Hparams& hparams, const IsThere& is_there = {}) const;
  /// `weights` contains the weight tensors by name, `cache` the tensors of the KV cache.
  DecoderGraph build(const Hparams& hparams, const TensorContext& weights, const KvCache& cache,
                     BatchShape batch) const;
};

/// All architectures, in the order of architectures.def.
std::span<const Architecture> architectures();
/// Finds an architecture by its name, or by its name in Ollama's files. Throws InvalidArgument for an unknown name; the
/// message contains the file and all known names.
const Architecture& find_architecture(std::string_view name, std::string_view path);

}  // namespace shoal::models
