// glu: act(gate) * up. Fused, a row of the source is the gate followed by the up part.
#include <array>

#include "devices/cpu/ops/activations.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr std::array kActivations = {UnaryKind::kSilu, UnaryKind::kGelu, UnaryKind::kGeluErf, UnaryKind::kGeluQuick,
                                     UnaryKind::kRelu};
static_assert(kActivations.size() == static_cast<size_t>(GluKind::kCount));

const Tensor* separate_up(const Tensor& node) {
  return node.src.size() > 1 ? node.src[1] : nullptr;
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& gate = *node.src[0];
  const bool fused = !separate_up(node);
  const Tensor& up = fused ? gate : *separate_up(node);
  const int64_t up_begin = fused ? node.shape[0] : 0;
  const Activation act = activation_for(kActivations[static_cast<size_t>(std::get<GluParams>(node.params).kind)]);
  const Shape walk = fused ? node.shape : flat_shape(node, gate, up);
  for_pieces(ctx, walk, [&](RowIndex row, int64_t begin, int64_t n) {
    float activated[kChunk], right[kChunk], out[kChunk];
    std::byte* result = row_at(node, row);
    act(load(gate, row_at(gate, row), begin, n, activated), activated, n);
    const float* factor = load(up, row_at(up, row), up_begin + begin, n, right);
    float* to = target(node, result, begin, out);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = activated[i] * factor[i];
    store(node, result, begin, n, to);
  });
}

bool supports(const Tensor& node) {
  const Tensor* up = separate_up(node);
  return is_float_result(node) && is_float(node.src[0]) && (!up || is_float(up));
}

int64_t work(const Tensor& node) {
  return node.elements() * 8;
}

}  // namespace

const OpKernel kGluKernel{run, supports, nullptr, work};

}  // namespace shoal::cpu
