// What a model's caches hold after some tokens, as bytes: of each cache tensor the rows that are still needed, in the
// order of a contiguous tensor, whatever the devices, the context and the batches are. Blocking; the streams that use
// the caches must be idle.
//
//   12 tokens, a window of 8, a ring of 32 rows: rows 4 to 11 of its layers' tensors; of a recurrent layer its state
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/arch/kv_cache.h"

namespace shoal::models {

enum class CacheScope : uint8_t {
  kAll,
  kOverwritten,  ///< only what later tokens overwrite: states of recurrent layers, and caches that are rings
};

/// After `tokens` tokens.
size_t cache_bytes(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope);
/// Throws what failed.
void read_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope, std::byte* to);
void write_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope, const std::byte* from);

}  // namespace shoal::models
