#include "models/arch/kv_cache.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace shoal::models {
namespace {

// Rows of a ring are a multiple of this, so that kernels have no rest.
constexpr int64_t kRowUnit = 32;
constexpr std::array kCacheDTypes{DType::kF16, DType::kF32, DType::kQ8_0};

void check_dtype(std::string_view what, DType dtype, int64_t head_dim) {
  bool known = std::find(kCacheDTypes.begin(), kCacheDTypes.end(), dtype) != kCacheDTypes.end();
  require<InvalidArgument>(known, "a KV cache cannot hold {} as {}; use f16, f32 or q8_0", what, name_of(dtype));
  require<InvalidArgument>(head_dim % traits(dtype).block_elems == 0,
                           "heads of {} elements do not fill the blocks of {} that {} have; use f16 or f32 for the {}",
                           head_dim, traits(dtype).block_elems, name_of(dtype), what);
}

int64_t rows_of(const LayerHparams& layer, const KvCacheOptions& options) {
  if (layer.attention.window == 0 || options.batch == 0) return options.rows;
  const int64_t needed = layer.attention.window + options.batch;
  return std::min(options.rows, (needed + kRowUnit - 1) / kRowUnit * kRowUnit);
}

}  // namespace

std::vector<TensorSpec> cache_tensors(const Hparams& h, const KvCacheOptions& options) {
  constexpr Cut kByHeads{CutGroup::kKvHeads, 2, 1};
  std::vector<TensorSpec> specs;
  for (int i = 0; i < h.layers; ++i) {
    const LayerHparams& layer = h.layer(i);
    const int64_t rows = rows_of(layer, options);
    for (const auto& [name, dim] : {std::pair{"cache_k", layer.head_dim_k}, {"cache_v", layer.head_dim_v}}) {
      specs.push_back({fmt::format("{}.{}", name, i), {dim, rows, layer.kv_heads, 1}, i, kByHeads});
      specs.back().role = TensorRole::kCache;
    }
  }
  return specs;
}

void declare_cache(KvCache& cache, const Hparams& h, const KvCacheOptions& options) {
  check_dtype("keys", options.dtype_k, h.head_dim_k);
  check_dtype("values", options.dtype_v, h.head_dim_v);
  // Positions and cache rows are i32.
  require<InvalidArgument>(options.rows > 0 && options.rows <= std::numeric_limits<int32_t>::max(),
                           "a context of {} tokens is not possible; use 1 to {}", options.rows,
                           std::numeric_limits<int32_t>::max());
  cache.rows = options.rows;
  for (const TensorSpec& spec : cache_tensors(h, options)) {
    const bool keys = cache.k.size() == cache.v.size();
    const DType dtype = keys ? options.dtype_k : options.dtype_v;
    (keys ? cache.k : cache.v).push_back(cache.context.add(spec.name, dtype, spec.shape, Role::kCache));
  }
}

}  // namespace shoal::models
