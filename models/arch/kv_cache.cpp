#include "models/arch/kv_cache.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace shoal::models {
namespace {

constexpr int64_t kPageRows = 32, kDividedPageRows = 64;
constexpr std::array kCacheDTypes{DType::kF16,  DType::kF32,  DType::kBF16, DType::kQ8_0,  DType::kQ5_1,
                                  DType::kQ5_0, DType::kQ4_1, DType::kQ4_0, DType::kIQ4_NL};

void check_dtype(std::string_view what, DType dtype) {
  bool known = std::find(kCacheDTypes.begin(), kCacheDTypes.end(), dtype) != kCacheDTypes.end();
  require<InvalidArgument>(known, "a KV cache cannot hold {} as {}; use {}", what, name_of(dtype), cache_dtype_names());
}

bool fills_blocks(int64_t head_dim, DType dtype) {
  return head_dim % traits(dtype).block_elems == 0;
}

int64_t pages_for(int64_t tokens, int64_t page) {
  return (tokens + page - 1) / page;
}

/// The group of a layer's window. A ring has the pages of the window and of one batch. Otherwise, each sequence also
/// needs two pages that are partly used.
PageGroup group_for(int64_t window, const KvCacheOptions& options) {
  const int64_t page = page_rows(options.parts);
  const PageGroup whole{0, pages_for(options.rows, page)};
  if (window == 0 || options.batch == 0) return whole;
  const int64_t pages = options.windows == 0
                            ? pages_for(window + options.batch, page)
                            : options.windows * (pages_for(window, page) + 2) + pages_for(options.batch, page);
  return pages < whole.pages ? PageGroup{window, pages} : whole;
}

/// Returns the index of the layer's group. Adds the group to `groups` if it is new.
int add_group(std::vector<PageGroup>& groups, const LayerHparams& layer, const KvCacheOptions& options) {
  if (!layer.attends()) return -1;
  const PageGroup group = group_for(layer.attention.window, options);
  const auto found =
      std::find_if(groups.begin(), groups.end(), [&](const PageGroup& other) { return other.window == group.window; });
  if (found != groups.end()) return static_cast<int>(found - groups.begin());
  groups.push_back(group);
  return static_cast<int>(groups.size()) - 1;
}

/// Returns the cut of the channels of a convolution. Before a delta rule, the channels are the elements of queries,
/// keys and values, and devices divide them by heads. Without a delta rule, each channel counts as one member of
/// CutGroup::kStateHeads.
Cut by_channels(const RecurrentHparams& r) {
  if (r.v_heads == 0) return {CutGroup::kStateHeads, 0, 1};
  const CutSegment values{CutGroup::kStateHeads, r.tiled ? r.head_dim : r.head_dim * r.group(),
                          r.tiled ? r.group() : 1};
  return {CutGroup::kStateHeads, 0, r.head_dim, {{{CutGroup::kStateHeads, r.head_dim}, values}}};
}

class Lister {
 public:
  explicit Lister(const KvCacheOptions& options) : options_(options) {
    check_dtype("keys", options.dtype_k);
    check_dtype("values", options.dtype_v);
  }

  void add_attention(int index, const LayerHparams& layer) {
    constexpr Cut kByHeads{CutGroup::kKvHeads, 2, 1};
    const int64_t rows = group_for(layer.attention.window, options_).pages * page_rows(options_.parts);
    const Cut cut = options_.parts > 1 ? Cut{CutGroup::kCacheParts, 1, rows / options_.parts} : kByHeads;
    const bool keys_fill = !layer.values_in_keys || fills_blocks(layer.head_dim_v, options_.dtype_k);
    const DType dtype_k = possible("keys", options_.dtype_k, keys_fill ? layer.head_dim_k : layer.head_dim_v);
    add("cache_k", {layer.head_dim_k, rows, layer.kv_heads, 1}, index, cut, CachePart::kKeys, dtype_k);
    if (layer.values_in_keys) return;
    const DType dtype_v = possible("values", options_.dtype_v, layer.head_dim_v);
    add("cache_v", {layer.head_dim_v, rows, layer.kv_heads, 1}, index, kByHeads, CachePart::kValues, dtype_v);
  }

  void add_recurrent(int index, const RecurrentHparams& r) {
    add("cache_conv", {r.channels(), (r.taps - 1) * options_.slots, 1, 1}, index, by_channels(r), CachePart::kConv,
        DType::kF32);
    if (r.v_heads == 0) return;
    const Cut by_heads{CutGroup::kStateHeads, 2, r.tiled ? 1 : r.group(), {}, r.tiled ? r.group() : 1};
    add("cache_state", {r.head_dim, r.head_dim * options_.slots, r.v_heads, 1}, index, by_heads, CachePart::kState,
        DType::kF32);
  }

  std::vector<CacheTensor> take() {
    require<InvalidArgument>(refusal_.empty() || is_quantised_, "{}", refusal_);
    return std::move(out_);
  }

 private:
  /// Returns `dtype`, or f16 if heads do not fill the blocks of `dtype`.
  DType possible(std::string_view what, DType dtype, int64_t head_dim) {
    if (fills_blocks(head_dim, dtype)) {
      is_quantised_ |= traits(dtype).is_quantized;
      return dtype;
    }
    refusal_ = fmt::format("heads of {} elements do not fill whole blocks of {} ({}); use f16 or f32 for the {}",
                           head_dim, traits(dtype).block_elems, name_of(dtype), what);
    return DType::kF16;
  }

  void add(std::string_view name, Shape shape, int layer, const Cut& cut, CachePart part, DType dtype) {
    CacheTensor tensor;
    tensor.name = fmt::format("{}.{}", name, layer);
    tensor.shape = shape, tensor.layer = layer, tensor.cut = cut;
    tensor.role = TensorRole::kCache, tensor.part = part, tensor.dtype = dtype;
    out_.push_back(std::move(tensor));
  }

  const KvCacheOptions& options_;
  std::vector<CacheTensor> out_;
  bool is_quantised_ = false;  ///< whether some tensor has a quantised type
  std::string refusal_;        ///< error message if some heads do not fill whole blocks; else ""
};

/// Members of LayerCache, indexed by CachePart.
constexpr std::array<Tensor * LayerCache::*, 4> kPlaces{&LayerCache::k, &LayerCache::v, &LayerCache::conv,
                                                        &LayerCache::state};

}  // namespace

std::optional<DType> cache_dtype_from_name(std::string_view name) {
  const std::optional<DType> named = dtype_from_name(name);
  const bool known = named && std::find(kCacheDTypes.begin(), kCacheDTypes.end(), *named) != kCacheDTypes.end();
  return known ? named : std::nullopt;
}

std::string cache_dtype_names() {
  std::string names;
  for (size_t i = 0; i < kCacheDTypes.size(); ++i) {
    if (i > 0) names += i + 1 < kCacheDTypes.size() ? ", " : " or ";
    names += name_of(kCacheDTypes[i]);
  }
  return names;
}

bool has_latent_cache(const Hparams& h) {
  for (int i = 0; i < h.layers; ++i) {
    const LayerHparams& layer = h.layer(i);
    if (!layer.attends() || !layer.values_in_keys || layer.attention.window > 0) return false;
  }
  return h.layers > 0;
}

int64_t page_rows(int64_t parts) {
  return parts == 1 ? kPageRows : pages_for(kDividedPageRows, parts) * parts;
}

int64_t row_of(const KvCache& cache, const PageGroup& group, std::span<const int32_t> pages, int64_t position) {
  if (position < 0) return position;
  const int64_t first = pages[static_cast<size_t>(position / cache.page)] * cache.page, in_page = position % cache.page;
  if (cache.parts == 1) return first + in_page;
  const int64_t part_rows = group.pages * cache.page / cache.parts;
  return in_page % cache.parts * part_rows + (first + in_page) / cache.parts;
}

int64_t last_row_in_part(int64_t position, int64_t parts, int64_t part) {
  return position < part ? -1 : (position - part) / parts;
}

std::vector<CacheTensor> cache_tensors(const Hparams& h, const KvCacheOptions& options) {
  require<InvalidArgument>(options.parts >= 1 && (options.parts == 1 || has_latent_cache(h)),
                           "{} cache parts are not possible; use 1 (several parts require that all caches are latent)",
                           options.parts);
  Lister lister(options);
  for (int i = 0; i < h.layers; ++i) {
    const LayerHparams& layer = h.layer(i);
    if (!layer.attends()) lister.add_recurrent(i, layer.recurrent);
    if (layer.attends() && layer.kv_layer < 0) lister.add_attention(i, layer);
  }
  return lister.take();
}

void declare_cache(KvCache& cache, const Hparams& h, const KvCacheOptions& options) {
  // Positions and cache rows are i32, which limits the number of rows.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 64 * 64;
  require<InvalidArgument>(options.rows > 0 && options.rows <= kMost,
                           "a context of {} tokens is not possible; use 1 to {}", options.rows, kMost);
  cache.specs = cache_tensors(h, options);
  cache.page = page_rows(options.parts);
  cache.rows = pages_for(options.rows, cache.page) * cache.page;
  cache.longest = options.rows;
  cache.parts = options.parts;
  cache.slots = options.slots;
  cache.layers.resize(static_cast<size_t>(h.layers));
  for (int i = 0; i < h.layers; ++i) cache.group_of.push_back(add_group(cache.groups, h.layer(i), options));
  for (const CacheTensor& spec : cache.specs) {
    cache.layers[static_cast<size_t>(spec.layer)].*kPlaces[static_cast<size_t>(spec.part)] =
        cache.context.add(spec.name, spec.dtype, spec.shape, Role::kCache);
  }
  for (int i = 0; i < h.layers; ++i) {
    const int64_t shared = h.layer(i).kv_layer;
    if (shared >= 0) cache.layers[static_cast<size_t>(i)] = cache.layers[static_cast<size_t>(shared)];
  }
}

std::string other_types(const KvCache& cache, DType dtype_k, DType dtype_v) {
  std::string text;
  for (const auto& [part, what, asked] :
       {std::tuple{CachePart::kKeys, "keys", dtype_k}, std::tuple{CachePart::kValues, "values", dtype_v}}) {
    int64_t all = 0, others = 0, head_dim = 0;
    for (const CacheTensor& spec : cache.specs) {
      if (spec.part != part) continue;
      ++all;
      if (spec.dtype == asked) continue;
      ++others;
      head_dim = spec.shape[0];
    }
    if (others == 0) continue;
    text += fmt::format("{}cached {} are f16 in {} of {} layers: heads of {} elements do not fill the blocks of {}",
                        text.empty() ? "" : "; ", what, others, all, head_dim, name_of(asked));
  }
  return text;
}

}  // namespace shoal::models
