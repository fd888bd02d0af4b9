// The op pool_2d. For each row of the result, the rows of its windows are combined into one row. Then the kernels
// combine the elements of this row. Sums are computed in f32.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// The existing elements [begin, end) of the source axis that window i covers. A window covers at least one element.
struct Window {
  int64_t begin, end;

  Window(const Tensor& node, int axis, int64_t i) {
    const auto& params = std::get<PoolParams>(node.params);
    const int64_t first = i * params.stride[axis] - params.pads[2 * axis];
    begin = std::max<int64_t>(first, 0);
    end = std::min(first + params.kernel[axis], node.src[0]->shape[axis]);
  }
  int64_t length() const { return end - begin; }
};

/// Two rows of the source's length, in the workspace.
struct Scratch {
  static size_t bytes(const Tensor& node) {
    return (2 * static_cast<size_t>(node.src[0]->shape[0]) * sizeof(float) + 63) / 64 * 64;
  }
  Scratch(const TeamContext& ctx, const Tensor& node)
      : combined(reinterpret_cast<float*>(ctx.workspace + ctx.part * bytes(node))),
        loaded(combined + node.src[0]->shape[0]) {}
  float *combined, *loaded;
};

/// Divides the sums of a row by the numbers of their elements.
void average(const Tensor& node, const Window& rows, float* to) {
  const auto& params = std::get<PoolParams>(node.params);
  const int64_t all = params.kernel[0] * params.kernel[1];
  for (int64_t i = 0; i < node.shape[0]; ++i) {
    to[i] /= static_cast<float>(params.count_pads ? all : Window(node, 0, i).length() * rows.length());
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const auto& params = std::get<PoolParams>(node.params);
  const auto kind = static_cast<size_t>(params.kind);
  const ImageKernels& images = kernels().images;
  const Scratch scratch(ctx, node);
  const int64_t length = x.shape[0];
  for_rows(ctx, node.shape, [&](RowIndex row) {
    const Window rows(node, 1, row.i1);
    const auto source = [&](int64_t i, float* to) { return load(x, row_at(x, {i, row.i2, row.i3}), 0, length, to); };
    const float* combined = source(rows.begin, scratch.combined);
    for (int64_t i = rows.begin + 1; i < rows.end; ++i) {
      images.combine[kind](combined, source(i, scratch.loaded), scratch.combined, length);
      combined = scratch.combined;
    }
    auto* to = reinterpret_cast<float*>(row_at(node, row));
    images.pool[kind]({combined, length, params.kernel[0], params.stride[0], params.pads[0], to, node.shape[0]});
    if (params.kind == PoolKind::kAverage) average(node, rows, to);
  });
}

bool supports(const Tensor& node) {
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]);
}

size_t workspace(const Tensor& node, int parts) {
  return Scratch::bytes(node) * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  const auto& params = std::get<PoolParams>(node.params);
  return node.rows() * (node.src[0]->shape[0] * params.kernel[1] + node.shape[0] * params.kernel[0]);
}

}  // namespace

const OpKernel kPool2dKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
