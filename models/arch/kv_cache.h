// What a model keeps of one text. A layer that attends has keys [head_dim, rows, kv_heads] and values of the tokens
// seen, as f16 (default) or another type of cache_dtype_names(); or reads those of an earlier layer. A recurrent layer
// has a state of fixed size, in f32: the latest inputs of its convolution, [channels, taps - 1], and the matrix of each
// value head, [head_dim, head_dim, v_heads]. Declaring makes unplaced tensors; the owner of the cache allocates them on
// its device. The tensors belong to `context` and live as long as the cache.
//
// A layer with a window keeps only what a batch can see, if that is less than the whole context: rows for the window
// and for a batch. Position p is then in row p % rows:
//
//   context 8192, window 1024, batch 512: 1536 rows; before 512 tokens from 2048 on they hold positions 512 to 2047,
//   of which 1025 on are seen; the batch overwrites 512 to 1023
//
// Latent caches, whose one row of a token is keys and values of all heads (LayerHparams::values_in_keys), may lie in n
// parts of as many rows, which fill evenly: position p is in row p / n of part p % n, so that devices can have some
// parts each, and all work at any length of the text:
//
//   context 10, 3 parts of 4 rows: positions 0 3 6 9 | 1 4 7 | 2 5 8
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "models/arch/hparams.h"
#include "models/arch/tensor_spec.h"

namespace shoal::models {

struct KvCacheOptions {
  int64_t rows = 0;
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
  int64_t batch = 0;  ///< most tokens written at a time; 0: any number, so that all layers keep all rows
  int64_t parts = 1;  ///< of latent caches
};

enum class CachePart : uint8_t { kKeys, kValues, kConv, kState };

struct CacheTensor : TensorSpec {
  CachePart part = CachePart::kKeys;
  DType dtype = DType::kF32;
};

/// What one layer keeps; nullptr: nothing of that kind. Layers that share keys and values have the same tensors.
struct LayerCache {
  Tensor *k = nullptr, *v = nullptr, *conv = nullptr, *state = nullptr;
};

struct KvCache {
  TensorContext context;
  std::vector<CacheTensor> specs;  ///< of each of the context's tensors
  std::vector<LayerCache> layers;
  int64_t rows = 0;   ///< of the whole context
  int64_t parts = 1;  ///< of its layers, which are latent ones if there are several

  int64_t rows_of(size_t layer) const { return layers[layer].k->shape[1]; }
  /// Does a layer keep its window only?
  bool is_ring(size_t layer) const { return layers[layer].k != nullptr && rows_of(layer) < rows; }
};

/// The types that it may have, as users write them: "f16, f32, ... or iq4_nl".
std::optional<DType> cache_dtype_from_name(std::string_view name);
std::string cache_dtype_names();

/// Can its caches lie in parts? All are latent ones.
bool has_latent_cache(const Hparams& hparams);
/// The row in which a position lies, of parts one behind the other; a position below 0 is none of them.
int64_t row_in_parts(int64_t position, int64_t parts, int64_t part_rows);
/// Of a part that cannot have all positions up to one: the last row that it has of them, -1 for none.
int64_t last_row_in_part(int64_t position, int64_t parts, int64_t part);

/// Its tensors, layer by layer. Keys or values whose heads do not fill the blocks of a quantised type are f16. Throws
/// InvalidArgument for a dtype that a cache cannot have, for quantised types that neither keys nor values of any layer
/// can have, and for parts of caches that are not latent.
std::vector<CacheTensor> cache_tensors(const Hparams& hparams, const KvCacheOptions& options);

/// Throws InvalidArgument as cache_tensors does, and for no rows.
void declare_cache(KvCache& cache, const Hparams& hparams, const KvCacheOptions& options);

/// A line that says which keys or values have another type than was asked for; "" if all have it.
std::string other_types(const KvCache& cache, DType dtype_k, DType dtype_v);

}  // namespace shoal::models
