// The KV cache of one text: for each layer the keys [head_dim, rows, kv_heads] and values of the tokens seen, as f16
// (default), f32 or q8_0. Declaring makes unplaced tensors; the owner of the cache allocates them on its device.
// The tensors belong to `context` and live as long as the cache.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/arch/hparams.h"
#include "models/arch/tensor_spec.h"

namespace shoal::models {

struct KvCacheOptions {
  int64_t rows = 0;
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
};

struct KvCache {
  TensorContext context;
  std::vector<Tensor*> k, v;  ///< one for each layer
  int64_t rows = 0;
};

/// Its tensors: of each layer keys, then values.
std::vector<TensorSpec> cache_tensors(const Hparams& hparams, int64_t rows);

/// Throws InvalidArgument for a dtype that a cache cannot have, one whose blocks do not fill a head, or no rows.
void declare_cache(KvCache& cache, const Hparams& hparams, const KvCacheOptions& options);

}  // namespace shoal::models
