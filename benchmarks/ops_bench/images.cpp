// Convolutions with the sizes of image models, for one image.
#include <fmt/format.h>

#include "benchmarks/ops_bench/subject.h"
#include "graph/ops/ops.h"

namespace shoal::bench {
namespace {

struct Conv {
  const char* name;
  int64_t kernel, inputs, results, size;  ///< width and height of the kernel; channels; width and height of the input
  int64_t stride = 1, groups = 1;
  bool transposed = false;
};

constexpr Conv kConvs[] = {
    {"3x3", 3, 320, 320, 64},
    {"3x3", 3, 128, 128, 256},
    {"3x3", 3, 1280, 1280, 8},
    {"1x1", 1, 640, 640, 32},
    {"3x3/stride:2", 3, 320, 320, 64, 2},
    {"3x3", 3, 128, 3, 256},
    {"3x3", 3, 4, 320, 64},
    {"transposed:4x4/stride:2", 4, 128, 128, 64, 2, 1, true},
    {"depthwise:3x3", 3, 256, 256, 64, 1, 256},
};

/// The expected element (column, row) of a result channel. Pads are kernel / 2, or 1 for transposed convolutions.
double expected(const Conv& conv, const Leaf& w, const Leaf& x, int64_t column, int64_t row, int64_t channel) {
  const int64_t inputs = conv.inputs / conv.groups, first = channel / (conv.results / conv.groups) * inputs;
  const int64_t pad = conv.transposed ? 1 : conv.kernel / 2;
  double sum = 0;
  for (int64_t i = 0; i < inputs; ++i) {
    for (int64_t ky = 0; ky < conv.kernel; ++ky) {
      for (int64_t kx = 0; kx < conv.kernel; ++kx) {
        const int64_t at_x = conv.transposed ? column + pad - kx : column * conv.stride - pad + kx;
        const int64_t at_y = conv.transposed ? row + pad - ky : row * conv.stride - pad + ky;
        const int64_t step = conv.transposed ? conv.stride : 1;
        if (at_x < 0 || at_y < 0 || at_x % step != 0 || at_y % step != 0) continue;
        if (at_x / step >= conv.size || at_y / step >= conv.size) continue;
        const int64_t kernel = conv.transposed ? (first + i) * conv.results + channel : channel * inputs + i;
        sum += static_cast<double>(w.at(kx, kernel * conv.kernel + ky)) *
               x.at(at_x / step, (first + i) * conv.size + at_y / step);
      }
    }
  }
  return sum;
}

Cost build_conv(Subject& s, const Conv& conv) {
  const int64_t inputs = conv.inputs / conv.groups, pad = conv.transposed ? 1 : conv.kernel / 2;
  const Leaf& x = s.leaf(DType::kF32, {conv.size, conv.size, conv.inputs, 1});
  const Leaf& w = conv.transposed ? s.leaf(DType::kF32, {conv.kernel, conv.kernel, conv.results, conv.inputs})
                                  : s.leaf(DType::kF32, {conv.kernel, conv.kernel, inputs, conv.results});
  const std::array<int64_t, 2> stride{conv.stride, conv.stride};
  const std::array<int64_t, 4> pads{pad, pad, pad, pad};
  Tensor* y = conv.transposed
                  ? conv_transpose_2d(s.graph(), w.tensor, x.tensor, {.stride = stride, .pads = pads})
                  : conv_2d(s.graph(), w.tensor, x.tensor, {.stride = stride, .pads = pads, .groups = conv.groups});
  s.node(y);
  // Each weight is multiplied by all inputs, or by one input per result. This number includes pads.
  const Tensor& multiplied = conv.transposed ? *x.tensor : *y;
  const auto pixels = static_cast<double>(multiplied.shape[0] * multiplied.shape[1]);
  Cost cost{.bytes = static_cast<double>(w.tensor->bytes() + x.tensor->bytes() + y->bytes()),
            .ops = 2.0 * static_cast<double>(w.tensor->elements()) * pixels};
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t at = i * (y->elements() - 1) / 255;
    const int64_t column = at % y->shape[0], row = at / y->shape[0] % y->shape[1];
    cost.samples.push_back({at, expected(conv, w, x, column, row, at / (y->shape[0] * y->shape[1]))});
  }
  return cost;
}

}  // namespace

void add_images(Target& target) {
  for (const Conv& conv : kConvs) {
    add_benchmark(target,
                  fmt::format("conv/{}/channels:{}x{}/size:{}", conv.name, conv.inputs, conv.results, conv.size),
                  [&conv](Subject& s) { return build_conv(s, conv); });
  }
}

}  // namespace shoal::bench
