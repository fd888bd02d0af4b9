// The ops unary, scale, clamp (NaN stays NaN) and glu. glu is act(gate) * up. Each op looks up its function once and
// applies it to parts of rows.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run_unary(const TeamContext& ctx, Tensor& node) {
  map_pieces(ctx, node, kernels().rows.unary[static_cast<size_t>(std::get<UnaryParams>(node.params).kind)]);
}

void run_scale(const TeamContext& ctx, Tensor& node) {
  const ScaleParams& params = std::get<ScaleParams>(node.params);
  map_pieces(ctx, node, [&](const float* from, float* to, int64_t n) {
    kernels().rows.scale(from, params.scale, params.bias, to, n);
  });
}

void run_clamp(const TeamContext& ctx, Tensor& node) {
  const ClampParams& params = std::get<ClampParams>(node.params);
  map_pieces(ctx, node, [&](const float* from, float* to, int64_t n) {
    kernels().rows.clamp(from, params.min, params.max, to, n);
  });
}

const Tensor* separate_up(const Tensor& node) {
  return node.src.size() > 1 ? node.src[1] : nullptr;
}

/// If gate and up are fused, a row of the source contains the elements of gate, followed by the elements of up.
void run_glu(const TeamContext& ctx, Tensor& node) {
  const Tensor& gate = *node.src[0];
  const bool fused = !separate_up(node);
  const Tensor& up = fused ? gate : *separate_up(node);
  const int64_t up_begin = fused ? node.shape[0] : 0;
  const GluKernel apply = kernels().rows.glu[static_cast<size_t>(std::get<GluParams>(node.params).kind)];
  const Shape walk = fused ? node.shape : flat_shape(node, gate, up);
  const auto piece = [&](RowIndex row, int64_t begin, int64_t n) {
    float left[kChunk], right[kChunk], out[kChunk];
    std::byte* result = row_at(node, row);
    float* to = target(node, result, begin, out);
    apply(load(gate, row_at(gate, row), begin, n, left), load(up, row_at(up, row), up_begin + begin, n, right), to, n);
    store(node, result, begin, n, to);
  };
  for_pieces(ctx, walk, piece, chunk_for(node, gate, up));
}

bool supports_glu(const Tensor& node) {
  const Tensor* up = separate_up(node);
  return is_float_result(node) && is_float(node.src[0]) && (!up || is_float(up));
}

/// The work of ops whose function needs several operations per element.
int64_t work(const Tensor& node) {
  return node.elements() * 8;
}

}  // namespace

const OpKernel kUnaryKernel{run_unary, maps_floats, nullptr, work};
const OpKernel kScaleKernel{run_scale, maps_floats};
const OpKernel kClampKernel{run_clamp, maps_floats};
const OpKernel kGluKernel{run_glu, supports_glu, nullptr, work};

}  // namespace shoal::cpu
