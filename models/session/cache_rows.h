// Reads and writes the contents of a model's caches as bytes. The bytes hold the rows of each cache tensor that are
// still needed after `tokens` tokens, in the order of a contiguous tensor. They do not depend on devices, context or
// batches. Blocking; the streams that use the caches must be idle.
//
//   12 tokens, a window of 8, a ring of 32 rows: rows 4 to 11 of the layer's tensors; for a recurrent layer, its state
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/arch/kv_cache.h"

namespace shoal::models {

enum class CacheScope : uint8_t {
  kAll,
  kOverwritten,  ///< only contents that later tokens overwrite: states of recurrent layers, and ring caches
};

/// Number of bytes of the contents after `tokens` tokens.
size_t cache_bytes(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope);
/// read_cache() and write_cache() throw the errors of devices.
void read_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope, std::byte* to);
void write_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope, const std::byte* from);

}  // namespace shoal::models
