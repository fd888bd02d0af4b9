// conv_2d and conv_transpose_2d: one launch per phase (graph/convolution.h). With many result channels per group, a
// block computes a tile of kTile results of kTile channels. Its threads copy kSteps terms of the inputs and weights to
// shared memory at a time, and each thread adds the products of 16 results. With few channels, each thread computes one
// result. Both kernels add the terms of a result in the order channel, tap of axis 1, tap of axis 0, so they give the
// same bits.
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/view.h"
#include "graph/convolution.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;
constexpr int kSteps = 16;
constexpr int kEach = kTile / 16;            ///< a thread computes kEach x kEach results
constexpr int64_t kLeastChannels = 16;       ///< the least channels per group for tiles
constexpr int64_t kMostBlocks = 0x7fffffff;  ///< also the largest number of terms

/// One phase. Strides of sources are in bytes, and strides of the result are in floats.
struct Conv {
  ConvAxis axes[2];
  ConvChannels channels;
  DType dtype;         ///< of the weights
  const std::byte* w;  ///< the first tap of the phase
  int64_t w_taps[2], w_input, w_channel, w_group;
  View x;
  float* to;
  int64_t to_steps[2], to_channel, to_batch;

  __host__ __device__ int64_t results() const { return axes[0].results * axes[1].results; }
  __host__ __device__ int64_t terms() const { return axes[0].taps * axes[1].taps * channels.inputs; }
  __host__ __device__ int64_t tiles() const { return divided_up(results(), kTile); }
  __host__ __device__ int64_t channel_tiles() const { return divided_up(channels.results, kTile); }
};

/// The channel and the taps of one term.
struct Term {
  int64_t input, tap0, tap1;
};
__device__ __forceinline__ Term term_of(const Conv& conv, int64_t number) {
  const auto k = static_cast<uint32_t>(number), taps0 = static_cast<uint32_t>(conv.axes[0].taps);
  const uint32_t row = k / taps0, taps1 = static_cast<uint32_t>(conv.axes[1].taps);
  return {row / taps1, k % taps0, row % taps1};
}

/// The position of a result in its phase.
struct Place {
  int64_t q0, q1;
};
__device__ __forceinline__ Place place_of(const Conv& conv, int64_t result) {
  return {result % conv.axes[0].results, result / conv.axes[0].results};
}

__device__ __forceinline__ float input_at(const Conv& conv, const std::byte* x, const Place& place, const Term& term) {
  const ConvAxis &a0 = conv.axes[0], &a1 = conv.axes[1];
  const int64_t i0 = a0.x_first + place.q0 * a0.x_step + term.tap0 * a0.x_tap;
  const int64_t i1 = a1.x_first + place.q1 * a1.x_step + term.tap1 * a1.x_tap;
  if (i0 < 0 || i0 >= a0.inputs || i1 < 0 || i1 >= a1.inputs) return 0;
  return load_as<float>(x + i0 * conv.x.strides[0] + i1 * conv.x.strides[1] + term.input * conv.x.strides[2]);
}

__device__ __forceinline__ float weight_at(const Conv& conv, const std::byte* w, const Term& term) {
  return float_at(conv.dtype, w + term.tap0 * conv.w_taps[0] + term.tap1 * conv.w_taps[1] + term.input * conv.w_input);
}

__device__ __forceinline__ const std::byte* inputs_of(const Conv& conv, int64_t group, int64_t batch) {
  return row_at(conv.x, 0, group * conv.channels.inputs, batch);
}

__device__ __forceinline__ float* result_at(const Conv& conv, const Place& place, int64_t channel, int64_t batch) {
  return conv.to + place.q0 * conv.to_steps[0] + place.q1 * conv.to_steps[1] + channel * conv.to_channel +
         batch * conv.to_batch;
}

__global__ void __launch_bounds__(kThreads) conv_each(Conv conv) {
  let_next_start();
  wait_for_previous();
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, plane = number / conv.results();
  const int64_t channels = conv.channels.groups * conv.channels.results, channel = plane % channels;
  const int64_t batch = plane / channels, group = channel / conv.channels.results;
  if (batch >= conv.x.shape[3]) return;
  const Place place = place_of(conv, number % conv.results());
  const std::byte* x = inputs_of(conv, group, batch);
  const std::byte* w = conv.w + group * conv.w_group + channel % conv.channels.results * conv.w_channel;
  float sum = 0;
  Term term{0, 0, 0};
  for (; term.input < conv.channels.inputs; ++term.input) {
    for (term.tap1 = 0; term.tap1 < conv.axes[1].taps; ++term.tap1) {
      for (term.tap0 = 0; term.tap0 < conv.axes[0].taps; ++term.tap0)
        sum = fmaf(weight_at(conv, w, term), input_at(conv, x, place, term), sum);
    }
  }
  *result_at(conv, place, channel, batch) = sum;
}

__global__ void __launch_bounds__(kThreads) conv_tiles(Conv conv) {
  __shared__ float xs[kSteps][kTile], ws[kSteps][kTile + 1];
  let_next_start();
  wait_for_previous();
  const int column = static_cast<int>(threadIdx.x) % 16, row = static_cast<int>(threadIdx.x) / 16;
  const int64_t planes = blockIdx.x / conv.tiles(), groups = planes / conv.channel_tiles();
  const int64_t first = blockIdx.x % conv.tiles() * kTile, first_channel = planes % conv.channel_tiles() * kTile;
  const int64_t group = groups % conv.channels.groups, batch = groups / conv.channels.groups;
  const std::byte* x = inputs_of(conv, group, batch);
  const std::byte* w = conv.w + group * conv.w_group;
  Place places[kEach];  // of results `column`, column + 16, ... of the tile
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t result = first + column + 16 * i, last = conv.results() - 1;
    places[i] = place_of(conv, result < last ? result : last);
  }
  float sums[kEach][kEach] = {};
  const int64_t terms = conv.terms();
  for (int64_t k = 0; k < terms; k += kSteps) {
    const bool has_input = k + row < terms, has_weight = k + column < terms;
    const Term input = term_of(conv, has_input ? k + row : 0), weight = term_of(conv, has_weight ? k + column : 0);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t channel = first_channel + row + 16 * i;
      xs[row][column + 16 * i] = has_input ? input_at(conv, x, places[i], input) : 0.0f;
      ws[column][row + 16 * i] =
          has_weight && channel < conv.channels.results ? weight_at(conv, w + channel * conv.w_channel, weight) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
          sums[c][i] = fmaf(ws[step][row + 16 * c], xs[step][column + 16 * i], sums[c][i]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    const int64_t channel = first_channel + row + 16 * c;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (channel < conv.channels.results && first + column + 16 * i < conv.results())
        *result_at(conv, places[i], group * conv.channels.results + channel, batch) = sums[c][i];
    }
  }
}

Conv conv_of(const Tensor& node, int64_t phase) {
  const Tensor& w = *node.src[0];
  const ConvAxis a0 = conv_axis(node, 0, phase % conv_phases(node, 0));
  const ConvAxis a1 = conv_axis(node, 1, phase / conv_phases(node, 0));
  const auto stride = [&](int axis) { return static_cast<int64_t>(w.strides[axis]); };
  const bool transposed = node.op == Op::kConvTranspose2d;
  Conv conv{{a0, a1},
            conv_channels(node),
            w.dtype,
            w.data + a0.tap_first * stride(0) + a1.tap_first * stride(1),
            {a0.tap_step * stride(0), a1.tap_step * stride(1)},
            transposed ? stride(3) : stride(2),
            transposed ? stride(2) : stride(3),
            0,
            view_of(*node.src[1]),
            reinterpret_cast<float*>(node.data) + a0.first + a1.first * node.shape[0],
            {a0.step, a1.step * node.shape[0]},
            node.shape[0] * node.shape[1],
            node.shape[0] * node.shape[1] * node.shape[2]};
  conv.w_group = (transposed ? conv.channels.inputs : conv.channels.results) * stride(3);
  return conv;
}

int64_t blocks_of(const Conv& conv) {
  const int64_t planes = conv.channels.groups * conv.x.shape[3];
  if (conv.channels.results < kLeastChannels)
    return divided_up(conv.results() * conv.channels.results * planes, kThreads);
  return conv.tiles() * conv.channel_tiles() * planes;
}

void run(const LaunchContext& context, Tensor& node) {
  for (int64_t phase = 0; phase < conv_phases(node, 0) * conv_phases(node, 1); ++phase) {
    const Conv conv = conv_of(node, phase);
    if (conv.results() == 0) continue;
    const auto kernel = conv.channels.results < kLeastChannels ? conv_each : conv_tiles;
    launch_early(context, kernel, dim3(static_cast<unsigned>(blocks_of(conv))), dim3(kThreads), 0, conv);
  }
}

bool supports(const Tensor& node) {
  const Conv conv = conv_of(node, 0);  // no other phase has more results
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]) &&
         node.src[1]->dtype == DType::kF32 && blocks_of(conv) <= kMostBlocks && node.src[0]->elements() <= kMostBlocks;
}

}  // namespace

const OpKernel kConv2dKernel{run, supports, nullptr};
const OpKernel kConvTranspose2dKernel{run, supports, nullptr};

}  // namespace shoal::cuda
