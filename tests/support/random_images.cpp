#include <algorithm>

#include "graph/ops/ops.h"
#include "tests/support/random_values.h"

namespace shoal::test {

/// A convolution with 1 group, with as many groups as channels or with 2 groups, or group_norm.
void RandomImages::make_image() {
  const Value x = any();
  const Shape& s = x.tensor->shape;
  if (s[2] > 8 || x.tensor->empty()) return;
  const bool pairs = s[2] % 2 == 0;
  if (pick(4) == 0 && s[0] * s[1] >= 4) {
    return keep(group_norm(graph_, dense(x.tensor), pairs && pick(2) ? s[2] / 2 : 1, {1e-1f}), false, 3);
  }
  const int64_t groups = pick(3) != 0 ? 1 : pairs && pick(3) == 0 ? 2 : s[2], part = s[2] / groups;
  const std::array<int64_t, 2> stride{1 + pick(2), 1 + pick(2)}, dilation{1 + pick(2), 1 + pick(2)};
  const int64_t kw = 1 + pick(3), kh = s[1] == 1 && pick(2) ? 1 : 1 + pick(3), more = 1 + pick(groups == 1 ? 5 : 2);
  const double magnitude = x.magnitude * std::max(1.0, static_cast<double>(kw * kh * part) / 4);
  if (pick(2)) {
    Tensor* w = operand("w", random_float(false), {kw, kh, more, s[2]});
    return keep(conv_transpose_2d(graph_, w, x.tensor, {stride, {0, 0, 0, 0}, dilation, {0, 0}, groups}), false,
                magnitude);
  }
  const int64_t reach0 = dilation[0] * (kw - 1), reach1 = dilation[1] * (kh - 1);  // the pads fit every window
  const ConvParams params{stride, {reach0, pick(2), pick(2), reach1}, dilation, groups};
  if (s[1] == 1 && s[3] == 1 && kh == 1 && pick(2)) {
    Tensor* signal = reshape(graph_, dense(x.tensor), {s[0], s[2], 1, 1});
    Tensor* w = operand("w", random_float(false), {kw, part, more * groups, 1});
    const ConvParams along{{stride[0], 1}, {reach0, 1, 0, 0}, {dilation[0], 1}, groups};
    return keep(conv_1d(graph_, w, signal, along), false, magnitude);
  }
  Tensor* w = operand("w", random_float(false), {kw, kh, part, more * groups});
  keep(conv_2d(graph_, w, x.tensor, params), false, magnitude);
}

void RandomImages::make_pool() {
  const Value x = any();
  const Shape& s = x.tensor->shape;
  if (s[0] == 0 || s[1] == 0) return;
  PoolParams params{static_cast<PoolKind>(pick(2))};
  params.count_pads = pick(2) == 0;
  for (const int axis : {0, 1}) {
    params.kernel[axis] = 1 + pick(std::min<int64_t>(s[axis], 3));
    params.stride[axis] = 1 + pick(2);
    for (const int end : {0, 1}) params.pads[2 * axis + end] = pick(params.kernel[axis]);
  }
  keep(pool_2d(graph_, x.tensor, params), x.exact, x.magnitude);
}

void RandomImages::make_pad() {
  const Value x = any();
  const Shape& s = x.tensor->shape;
  PadParams params;
  params.mode = static_cast<PadMode>(pick(3));
  if (pick(2)) params.value = 0.5f;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const int64_t most = params.mode == PadMode::kReflect ? std::max<int64_t>(s[axis] - 1, 0) : s[axis] > 0 ? 2 : 0;
    for (auto* ends : {&params.before, &params.after})
      (*ends)[axis] = pick(3) == 0 ? pick(1 + std::min<int64_t>(most, 2)) : 0;
  }
  keep(pad(graph_, x.tensor, params), x.exact, std::max(x.magnitude, 0.5));
}

void RandomImages::make_upsample() {
  const Value x = any();
  if (x.tensor->empty()) return;
  const UpsampleParams params{{1 + pick(12), 1 + pick(8)}, static_cast<UpsampleMode>(pick(3))};
  keep(upsample(graph_, x.tensor, params), x.exact, x.magnitude);
}

}  // namespace shoal::test
