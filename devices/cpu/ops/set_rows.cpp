// The ops set_rows and set_slice. They convert rows to the dtype of the cache and write them in place. In set_rows, the
// same part makes all writes to a row of the cache. So if several ids are equal, the row with the last of these ids is
// always written last.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "graph/ops/select.h"

namespace shoal::cpu {
namespace {

/// Converts elements [begin, begin + n) of a row. `to` receives the result.
void write_piece(const Tensor& rows, const std::byte* from, int64_t begin, int64_t n, DType dtype, std::byte* to) {
  float scratch[kChunk];
  convert(dtype, load(rows, from, begin, n, scratch), to, n);
}

void write_row(const Tensor& rows, const std::byte* from, const Tensor& cache, std::byte* to) {
  const DTypeTraits& type = traits(cache.dtype);
  for (int64_t begin = 0; begin < cache.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, cache.shape[0] - begin);
    write_piece(rows, from, begin, n, cache.dtype, to + begin / type.block_elems * type.block_bytes);
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& cache = *node.src[0];
  const Tensor& rows = *node.src[1];
  const Tensor& ids = *node.src[2];
  const auto& params = std::get<SelectParams>(node.params);
  const bool own2 = ids.shape[1] > 1, own3 = ids.shape[2] > 1;  // whether axes 2 and 3 have ids of their own
  for (int64_t i3 = 0; i3 < rows.shape[3]; ++i3) {
    for (int64_t i2 = 0; i2 < rows.shape[2]; ++i2) {
      for (int64_t i1 = 0; i1 < rows.shape[1]; ++i1) {
        const int64_t index = local_index(params, cache.shape[1], index_at(ids, i1, own2 ? i2 : 0, own3 ? i3 : 0));
        if (index < 0 || (index + i2) % ctx.parts != ctx.part) continue;
        write_row(rows, row_at(rows, {i1, i2, i3}), cache, row_at(cache, {index, i2, i3}));
      }
    }
  }
}

void run_slice(const TeamContext& ctx, Tensor& node) {
  const Tensor &cache = *node.src[0], &x = *node.src[1];
  const auto& params = std::get<SetSliceParams>(node.params);
  const DTypeTraits& type = traits(cache.dtype);
  for_written_runs(params, x.shape[params.axis], [&](const WrittenRun& run) {
    Shape shape = x.shape;
    shape[params.axis] = run.length;
    for_pieces(ctx, shape, [&](RowIndex row, int64_t begin, int64_t n) {
      const auto moved = [&](int64_t by) {
        const int64_t at[] = {0, row.i1, row.i2, row.i3};
        const auto index = [&](int axis) { return at[axis] + (axis == params.axis ? by : 0); };
        return RowIndex{index(1), index(2), index(3)};
      };
      const auto element = [&](int64_t by) { return begin + (params.axis == 0 ? by : 0); };
      std::byte* to = row_at(cache, moved(run.to));
      to += element(run.to) / type.block_elems * type.block_bytes;
      write_piece(x, row_at(x, moved(run.from)), element(run.from), n, cache.dtype, to);
    });
  });
}

bool is_writable(const Tensor& node) {
  const Tensor& cache = *node.src[0];
  return cache.is_row_contiguous() && traits(cache.dtype).from_f32 && is_float(node.src[1]);
}

bool supports(const Tensor& node) {
  const DType ids = node.src[2]->dtype;
  return is_writable(node) && (ids == DType::kI32 || ids == DType::kI64);
}

bool supports_slice(const Tensor& node) {
  const auto& params = std::get<SetSliceParams>(node.params);
  const int64_t block = params.axis == 0 ? traits(node.dtype).block_elems : 1;
  return is_writable(node) && can_write_runs(params, node.src[1]->shape[params.axis], block);
}

int64_t work(const Tensor& node) {
  return node.src[1]->elements() * 4;
}

}  // namespace

const OpKernel kSetRowsKernel{run, supports, nullptr, work};
const OpKernel kSetSliceKernel{run_slice, supports_slice, nullptr, work};

}  // namespace shoal::cpu
