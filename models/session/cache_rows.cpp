#include "models/session/cache_rows.h"

#include <algorithm>
#include <vector>

#include "devices/buffer.h"

namespace shoal::models {
namespace {

/// Rows of a cache tensor, and their location in the saved bytes. In the saved bytes, the rows of each head are in
/// order of position.
struct Stretch {
  Rows rows;
  size_t at = 0;     ///< offset of the first head in the saved bytes
  size_t pitch = 0;  ///< bytes from one head to the next in the saved bytes, or from one row to the next if `is_part`
  bool is_part = false;
};

/// Number of rows that must be saved after `tokens` tokens: all rows of a recurrent state, all `tokens` rows of an
/// attention layer without a window, or at most `window` rows of an attention layer with a window. The number does not
/// depend on the size of the cache.
int64_t kept_rows(const CacheTensor& spec, const LayerHparams& layer, int64_t tokens) {
  if (!layer.attends()) return tokens > 0 ? spec.shape[1] : 0;
  return layer.attention.window == 0 ? tokens : std::min(tokens, layer.attention.window);
}

/// Calls use(tensor, stretch) once for each part of a latent cache, with the rows of positions [0, kept). Part p has
/// the positions p, p + parts, p + 2 * parts and so on. The rows of a part are consecutive in the cache, so each part
/// is one transfer.
template <class Use>
void for_each_part(Tensor& tensor, int64_t parts, int64_t kept, size_t at, Use&& use) {
  const size_t row = bytes_for(tensor.dtype, tensor.shape[0]);
  const int64_t part_rows = tensor.shape[1] / parts;
  for (int64_t part = 0; part < std::min(parts, kept); ++part) {
    const Rows rows{static_cast<size_t>(part * part_rows) * row, row,
                    static_cast<size_t>(last_row_in_part(kept - 1, parts, part) + 1), row};
    use(tensor, Stretch{rows, at + static_cast<size_t>(part) * row, static_cast<size_t>(parts) * row, true});
  }
}

/// Calls use(tensor, stretch) once for each cache tensor, twice if the rows of a ring wrap around, or once for each
/// part of a latent cache. Returns the number of saved bytes.
template <class Use>
size_t for_each_stretch(const KvCache& cache, const Hparams& h, int64_t tokens, CacheScope scope, Use&& use) {
  size_t at = 0;
  const std::span<Tensor* const> tensors = cache.context.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = *tensors[i];
    const CacheTensor& spec = cache.specs[i];
    const LayerHparams& layer = h.layer(spec.layer);
    if (scope == CacheScope::kOverwritten && layer.attends() && !cache.has_window(static_cast<size_t>(spec.layer))) {
      continue;
    }
    const size_t row = bytes_for(tensor.dtype, tensor.shape[0]);
    const int64_t kept = kept_rows(spec, layer, tokens), end = layer.attends() ? tokens : kept;
    const size_t pitch = static_cast<size_t>(kept) * row;
    if (cache.parts > 1) {
      for_each_part(tensor, cache.parts, kept, at, use);
      at += pitch;
      continue;
    }
    for (int64_t done = 0; done < kept;) {
      const int64_t first = (end - kept + done) % tensor.shape[1];
      const int64_t length = std::min(kept - done, tensor.shape[1] - first);
      const Rows rows{static_cast<size_t>(first) * row, static_cast<size_t>(length) * row,
                      static_cast<size_t>(tensor.shape[2]), static_cast<size_t>(tensor.shape[1]) * row};
      use(tensor, Stretch{rows, at + static_cast<size_t>(done) * row, pitch});
      done += length;
    }
    at += pitch * static_cast<size_t>(tensor.shape[2]);
  }
  return at;
}

}  // namespace

size_t cache_bytes(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope) {
  return for_each_stretch(cache, hparams, tokens, scope, [](Tensor&, const Stretch&) {});
}

void read_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope, std::byte* to) {
  for_each_stretch(cache, hparams, tokens, scope, [&](Tensor& tensor, const Stretch& stretch) {
    const Rows& rows = stretch.rows;
    if (!stretch.is_part) return tensor.buffer->get_2d(tensor, to + stretch.at, stretch.pitch, rows);
    std::vector<std::byte> part(rows.rows * rows.row_bytes);
    tensor_get(tensor, part.data(), rows.offset, part.size());
    for (size_t i = 0; i < rows.rows; ++i) {
      std::copy_n(&part[i * rows.row_bytes], rows.row_bytes, to + stretch.at + i * stretch.pitch);
    }
  });
}

void write_cache(const KvCache& cache, const Hparams& hparams, int64_t tokens, CacheScope scope,
                 const std::byte* from) {
  for_each_stretch(cache, hparams, tokens, scope, [&](Tensor& tensor, const Stretch& stretch) {
    const Rows& rows = stretch.rows;
    if (!stretch.is_part) return tensor.buffer->set_2d(tensor, from + stretch.at, stretch.pitch, rows);
    std::vector<std::byte> part(rows.rows * rows.row_bytes);
    for (size_t i = 0; i < rows.rows; ++i) {
      std::copy_n(from + stretch.at + i * stretch.pitch, rows.row_bytes, &part[i * rows.row_bytes]);
    }
    tensor_set(tensor, part.data(), rows.offset, part.size());
  });
}

}  // namespace shoal::models
