// The cached state of the sequences of a model. An attention layer has the keys and values of earlier tokens in a pool,
// [head_dim, rows, kv_heads] each. Their type is f16 (default) or another type of cache_dtype_names(). Some attention
// layers read an earlier layer's cache instead. A recurrent layer has states of fixed size in f32: the latest `taps -
// 1` inputs of its convolution, and the matrix of each value head, [head_dim, head_dim, v_heads]. declare_cache()
// creates tensors without memory, and the owner of the cache allocates them on its device. The tensors belong to
// `context` and live as long as the cache.
//
// The rows of a pool are divided into pages of `page` rows. A list of pages belongs to each sequence. Position p of a
// sequence is in row p % page of page number list[p / page]. Page i has the rows from i * page on. The same list
// applies to all layers of a page group, and to all devices:
//
//   page 32, list {5, 0}: position 40 is in row 8 of page 0, which is row 8 of the pool
//
// Layers with a window form groups of their own, if the pool is then smaller. These layers need only the pages of the
// window. In an engine, a sequence takes new pages, and the pages behind its window become free (cache_memory.h). A
// session has one sequence, which uses its pages as a ring. With 48 pages, page i of the list is i % 48:
//
//   context 8192, window 1024, batch 512: 1536 rows. Before the batch of positions 2048 to 2559, the ring holds
//   positions 512 to 2047. The first token of the batch attends to positions from 1025 on. The batch overwrites
//   positions 512 to 1023.
//
// A row of a latent cache holds the keys and values of all heads for one token (LayerHparams::values_in_keys). Latent
// caches may be divided into n parts of equal size. Each part has page / n rows of each page, and the list applies to
// each part. Position p is in part p % n. With the list {0, 1, 2, ...}, it is in row p / n of this part. The parts fill
// evenly, so devices with the same number of parts have equal work at any length of the sequence:
//
//   pages of 6 rows in 3 parts, list {0, 1}: positions 0 3 6 9 | 1 4 7 10 | 2 5 8 11
//
// The states of a recurrent layer are in slots. Slot i has the rows from i * n on, for n rows per state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "models/arch/hparams.h"
#include "models/arch/tensor_spec.h"

namespace shoal::models {

struct KvCacheOptions {
  int64_t rows = 0;  ///< number of tokens of all sequences; declare_cache() rounds it up to whole pages
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
  int64_t batch = 0;    ///< maximum number of tokens written at a time; 0: no limit, so all layers are in one group
  int64_t parts = 1;    ///< number of parts of latent caches
  int64_t windows = 0;  ///< number of sequences whose windows fit into the pools of groups with a window; 0: one
                        ///< sequence uses these pools as rings
  int64_t slots = 1;    ///< number of states of each recurrent layer
};

/// Attention layers whose sequences have the same lists of pages.
struct PageGroup {
  int64_t window = 0;  ///< number of latest tokens whose pages are needed; 0: all tokens
  int64_t pages = 0;   ///< number of pages in the pools of these layers
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
  std::vector<PageGroup> groups;  ///< in order of their first layers
  std::vector<int> group_of;      ///< index of each layer's group; -1 for recurrent layers
  int64_t page = 0;               ///< number of rows per page
  int64_t rows = 0;               ///< number of rows of a pool without a window
  int64_t longest = 0;            ///< maximum number of tokens of a sequence
  int64_t parts = 1;              ///< number of parts per layer; more than 1 only for latent caches
  int64_t slots = 1;              ///< number of states of each recurrent layer

  int64_t rows_of(size_t layer) const { return layers[layer].k->shape[1]; }
  /// Maximum number of pages of a sequence.
  int64_t most_pages() const { return (longest + page - 1) / page; }
  /// Whether the layer's pool may hold only the pages of a window.
  bool has_window(size_t layer) const { return group_of[layer] >= 0 && groups[group_of[layer]].window > 0; }
};

/// The types that a cache may have, by their names in options. cache_dtype_names() returns "f16, f32, ... or iq4_nl".
std::optional<DType> cache_dtype_from_name(std::string_view name);
std::string cache_dtype_names();

/// Whether all caches of the model are latent. Only latent caches can be divided into parts.
bool has_latent_cache(const Hparams& hparams);
/// Number of rows of a page, for a cache with `parts` parts.
int64_t page_rows(int64_t parts);
/// Row of a position in the pools of a group. `pages` is the list of the sequence. Returns a negative position
/// unchanged.
int64_t row_of(const KvCache& cache, const PageGroup& group, std::span<const int32_t> pages, int64_t position);
/// Last row of `part` whose position is at most `position`; -1 if there is no such row.
int64_t last_row_in_part(int64_t position, int64_t parts, int64_t part);

/// Cache tensors, layer by layer. If heads do not fill the blocks of a quantised type, the keys or values are f16.
/// Throws InvalidArgument in these cases:
/// - caches do not support a requested dtype
/// - a quantised type fits neither keys nor values of any layer
/// - `options` requests several parts, but some caches are not latent
std::vector<CacheTensor> cache_tensors(const Hparams& hparams, const KvCacheOptions& options);

/// Throws InvalidArgument like cache_tensors(), and also if the number of rows is below 1 or above 2^31 - 64.
void declare_cache(KvCache& cache, const Hparams& hparams, const KvCacheOptions& options);

/// One line about keys or values whose type differs from the requested type. Returns "" if there are none.
std::string other_types(const KvCache& cache, DType dtype_k, DType dtype_v);

}  // namespace shoal::models
