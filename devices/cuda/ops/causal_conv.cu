// causal_conv: each thread computes several consecutive result columns of one channel.
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/texts.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 4;

struct Conv {
  View x, weight, state;
  StatePositions texts;
  float* to;
  uint32_t tiles;  ///< number of channel tiles

  __device__ int64_t channels() const { return x.shape[0]; }
  __device__ int64_t tokens() const { return x.shape[1]; }
  __device__ int64_t taps() const { return weight.shape[0]; }
};

/// Each input of a sequence has a number. The inputs of this call's tokens have numbers from 0 on. The inputs in the
/// state have negative numbers. kNoInput stands for a missing input.
constexpr int64_t kNoInput = -(int64_t{1} << 62);

/// Returns the number of the input before `input` in the same sequence. If `input` equals the number of tokens, this
/// function returns the last input.
__device__ __forceinline__ int64_t input_before(const Conv& conv, int64_t input) {
  if (input >= 0 && input < conv.tokens() && conv.texts.begins(input)) return kNoInput;
  for (--input; input >= 0 && conv.texts.is_padding(input);) --input;
  return input > -conv.taps() ? input : kNoInput;
}

__device__ __forceinline__ float input_at(const Conv& conv, int64_t input, int64_t channel) {
  const std::byte* row = input >= 0 ? row_at(conv.x, input, 0, 0) : row_at(conv.state, conv.taps() - 1 + input, 0, 0);
  return load_as<float>(row + channel * static_cast<int64_t>(sizeof(float)));
}

__device__ __forceinline__ float result_of_token(const Conv& conv, int64_t token, int64_t channel) {
  float sum = 0;
  if (conv.texts.is_padding(token)) return sum;
  const std::byte* weights = row_at(conv.weight, channel, 0, 0);
  int64_t input = token;
  for (int64_t j = conv.taps() - 1; j >= 0 && input != kNoInput; --j, input = input_before(conv, input)) {
    sum += load_as<float>(weights + j * static_cast<int64_t>(sizeof(float))) * input_at(conv, input, channel);
    if (j == 0) break;
  }
  return sum;
}

/// Returns element i of the channel's new state.
__device__ __forceinline__ float new_state(const Conv& conv, int64_t i, int64_t channel) {
  int64_t input = conv.tokens();
  for (int64_t j = conv.taps() - 1; j > i && input != kNoInput; --j) input = input_before(conv, input);
  return input == kNoInput ? 0.0f : input_at(conv, input, channel);
}

__global__ void __launch_bounds__(kThreads) causal_conv(Conv conv) {
  let_next_start();
  wait_for_previous();
  const int64_t channel = static_cast<int64_t>(blockIdx.x % conv.tiles) * kThreads + threadIdx.x;
  if (channel >= conv.channels()) return;
  const int64_t all = conv.tokens() + conv.taps() - 1, first = static_cast<int64_t>(blockIdx.x / conv.tiles) * kColumns;
  for (int64_t column = first; column < all && column < first + kColumns; ++column) {
    const int64_t of_state = column - conv.tokens();
    conv.to[column * conv.channels() + channel] =
        of_state < 0 ? result_of_token(conv, column, channel) : new_state(conv, of_state, channel);
  }
}

int64_t tiles_of(const Tensor& node) {
  return (node.shape[0] + kThreads - 1) / kThreads;
}
int64_t blocks_of(const Tensor& node) {
  return tiles_of(node) * ((node.shape[1] + kColumns - 1) / kColumns);
}

void run(const LaunchContext& context, Tensor& node) {
  const Conv conv{view_of(*node.src[0]),
                  view_of(*node.src[1]),
                  view_of(*node.src[2]),
                  state_positions_of(*node.src[3]),
                  reinterpret_cast<float*>(node.data),
                  static_cast<uint32_t>(tiles_of(node))};
  launch_early(context, causal_conv, dim3(static_cast<unsigned>(blocks_of(node))), dim3(kThreads), 0, conv);
}

bool supports(const Tensor& node) {
  for (const int source : {0, 1, 2}) {
    if (node.src[source]->dtype != DType::kF32 || !node.src[source]->is_row_contiguous()) return false;
  }
  return node.dtype == DType::kF32 && node.is_contiguous() && node.src[3]->dtype == DType::kI32 &&
         blocks_of(node) <= 0x7fffffff;
}

}  // namespace

const OpKernel kCausalConvKernel{run, supports, nullptr};

}  // namespace shoal::cuda
