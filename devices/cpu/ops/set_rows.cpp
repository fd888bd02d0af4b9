// The op set_rows. It converts rows to the dtype of the cache and writes them in place. The same part makes all writes
// to a row of the cache. So if several ids are equal, the row with the last of these ids is always written last.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "graph/ops/select.h"

namespace shoal::cpu {
namespace {

void write_row(const Tensor& rows, const std::byte* from, const Tensor& cache, std::byte* to) {
  const DTypeTraits& type = traits(cache.dtype);
  float scratch[kChunk];
  for (int64_t begin = 0; begin < cache.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, cache.shape[0] - begin);
    const float* values = load(rows, from, begin, n, scratch);
    convert(cache.dtype, values, to + begin / type.block_elems * type.block_bytes, n);
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& cache = *node.src[0];
  const Tensor& rows = *node.src[1];
  const Tensor& ids = *node.src[2];
  const auto& params = std::get<SelectParams>(node.params);
  for (int64_t i3 = 0; i3 < rows.shape[3]; ++i3) {
    for (int64_t i2 = 0; i2 < rows.shape[2]; ++i2) {
      for (int64_t i1 = 0; i1 < rows.shape[1]; ++i1) {
        const int64_t index = local_index(params, cache.shape[1], index_at(ids, i1));
        if (index < 0 || (index + i2) % ctx.parts != ctx.part) continue;
        write_row(rows, row_at(rows, {i1, i2, i3}), cache, row_at(cache, {index, i2, i3}));
      }
    }
  }
}

bool supports(const Tensor& node) {
  const Tensor& cache = *node.src[0];
  const DType ids = node.src[2]->dtype;
  return cache.is_row_contiguous() && traits(cache.dtype).from_f32 && is_float(node.src[1]) &&
         (ids == DType::kI32 || ids == DType::kI64);
}

int64_t work(const Tensor& node) {
  return node.src[1]->elements() * 4;
}

}  // namespace

const OpKernel kSetRowsKernel{run, supports, nullptr, work};

}  // namespace shoal::cpu
