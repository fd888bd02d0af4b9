// Reads and writes the contents of a model's caches as bytes. For each cache tensor, the bytes hold the rows that are
// needed after `tokens` tokens, in the order of a contiguous tensor. The bytes do not depend on the devices, the
// context or the batches. The functions block. The streams that use the caches must be idle.
//
//   after 12 tokens: rows 4 to 11 of a layer with a window of 8 and a ring of 32 rows; all rows of a recurrent state
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/arch/kv_cache.h"

namespace shoal::models {

enum class CacheScope : uint8_t {
  kAll,
  kOverwritten,  ///< only contents that later tokens overwrite: states of recurrent layers, and ring caches
};

/// Size of the saved contents after `tokens` tokens, in bytes.
size_t cache_bytes(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope);
/// read_cache() and write_cache() throw the errors of devices.
void read_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope, std::byte* to);
void write_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope, const std::byte* from);

}  // namespace shoal::models
