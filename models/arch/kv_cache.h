// The cached state of one sequence. An attention layer has the keys and values of the earlier tokens, each as
// [head_dim, rows, kv_heads]. Their type is f16 (default) or another type of cache_dtype_names(). Some attention layers
// read an earlier layer's cache instead. A recurrent layer has a state of fixed size in f32: the latest `taps - 1`
// inputs of its convolution, and the matrix of each value head, [head_dim, head_dim, v_heads]. declare_cache() creates
// tensors without memory, and the owner of the cache allocates them on its device. The tensors belong to `context` and
// live as long as the cache.
//
// The cache of a layer with a window is a ring buffer if the ring is smaller than the whole context. The ring has rows
// for the window and for one batch. Position p is in row p % rows:
//
//   context 8192, window 1024, batch 512: 1536 rows. Before the batch of positions 2048 to 2559, the ring holds
//   positions 512 to 2047. The first token of the batch attends to positions from 1025 on. The batch overwrites
//   positions 512 to 1023.
//
// A row of a latent cache holds the keys and values of all heads for one token (LayerHparams::values_in_keys). Latent
// caches may be divided into n parts of equal size. Position p is in row p / n of part p % n. The parts fill evenly, so
// devices with the same number of parts have equal work at any length of the sequence:
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
  int64_t batch = 0;  ///< maximum number of tokens written at a time; 0: no limit, so no layer has a ring
  int64_t parts = 1;  ///< number of parts of latent caches
};

enum class CachePart : uint8_t { kKeys, kValues, kConv, kState };

struct CacheTensor : TensorSpec {
  CachePart part = CachePart::kKeys;
  DType dtype = DType::kF32;
};

/// Tensors of one layer. A member is nullptr if the layer has no such tensor. Layers that share keys and values share
/// tensors.
struct LayerCache {
  Tensor *k = nullptr, *v = nullptr, *conv = nullptr, *state = nullptr;
};

struct KvCache {
  TensorContext context;
  std::vector<CacheTensor> specs;  ///< one for each tensor of `context`
  std::vector<LayerCache> layers;
  int64_t rows = 0;   ///< number of rows for the whole context
  int64_t parts = 1;  ///< number of parts per layer; more than 1 only for latent caches

  int64_t rows_of(size_t layer) const { return layers[layer].k->shape[1]; }
  /// Whether the layer's cache is a ring buffer.
  bool is_ring(size_t layer) const { return layers[layer].k != nullptr && rows_of(layer) < rows; }
};

/// The types that a cache may have, by their names in options. cache_dtype_names() returns "f16, f32, ... or iq4_nl".
std::optional<DType> cache_dtype_from_name(std::string_view name);
std::string cache_dtype_names();

/// Whether all caches of the model are latent. Only latent caches can be divided into parts.
bool has_latent_cache(const Hparams& hparams);
/// Row of a position in a cache that stores all parts one after another. Returns a negative position unchanged.
int64_t row_in_parts(int64_t position, int64_t parts, int64_t part_rows);
/// Last row of `part` whose position is at most `position`; -1 if there is no such row.
int64_t last_row_in_part(int64_t position, int64_t parts, int64_t part);

/// Cache tensors, layer by layer. If heads do not fill the blocks of a quantised type, the keys or values are f16.
/// Throws InvalidArgument in these cases:
/// - caches do not support a requested dtype
/// - a quantised type fits neither keys nor values of any layer
/// - `options` requests several parts, but some caches are not latent
std::vector<CacheTensor> cache_tensors(const Hparams& hparams, const KvCacheOptions& options);

/// Throws InvalidArgument like cache_tensors(), and also if the number of rows is below 1 or above 2^31 - 1.
void declare_cache(KvCache& cache, const Hparams& hparams, const KvCacheOptions& options);

/// One line about keys or values whose type differs from the requested type. Returns "" if there are none.
std::string other_types(const KvCache& cache, DType dtype_k, DType dtype_v);

}  // namespace shoal::models
