// causal_conv: each thread computes several consecutive result columns of one channel. The first blocks compute the
// rows of the tokens. Each of the last blocks computes the new state of one sequence.
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/state_tokens.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 4;

struct Conv {
  View x, weight, state;
  StateTokens tokens;
  float* to;
  uint32_t tiles;         ///< number of channel tiles
  uint32_t token_blocks;  ///< number of blocks per channel tile that compute rows of tokens

  __device__ int64_t channels() const { return x.shape[0]; }
  __device__ int64_t taps() const { return weight.shape[0]; }
};

/// Each input of a sequence has a number. The inputs of this call's tokens have numbers from 0 on. The inputs in the
/// state have negative numbers. kNoInput stands for a missing input.
constexpr int64_t kNoInput = -(int64_t{1} << 62);

/// Returns the number of the input before `input` in the same sequence.
__device__ __forceinline__ int64_t input_before(const Conv& conv, int64_t input, int sequence) {
  if (input >= 0 && conv.tokens.begins(input)) return kNoInput;
  int found = kNoSequence;  // skips padding, and tokens of sequences that do not exist
  for (--input; input >= 0 && (found = conv.tokens.sequence_of(input)) == kNoSequence;) --input;
  if (input >= 0 && found != sequence) input = -1;
  return input > -conv.taps() ? input : kNoInput;
}

/// `slot` is the slot of the sequence.
__device__ __forceinline__ float input_at(const Conv& conv, int64_t input, int64_t slot, int64_t channel) {
  if (input < 0 && slot == kNoSlot) return 0;
  const std::byte* row =
      input >= 0 ? row_at(conv.x, input, 0, 0) : row_at(conv.state, (slot + 1) * (conv.taps() - 1) + input, 0, 0);
  return load_as<float>(row + channel * static_cast<int64_t>(sizeof(float)));
}

__device__ __forceinline__ float result_of_token(const Conv& conv, int64_t token, int64_t channel) {
  float sum = 0;
  const int sequence = conv.tokens.sequence_of(token);
  if (sequence == kNoSequence) return sum;
  const int64_t slot = conv.tokens.slot_of(sequence);
  const std::byte* weights = row_at(conv.weight, channel, 0, 0);
  int64_t input = token;
  for (int64_t j = conv.taps() - 1; j >= 0 && input != kNoInput; --j, input = input_before(conv, input, sequence)) {
    const float weight = load_as<float>(weights + j * static_cast<int64_t>(sizeof(float)));
    sum = fmaf(weight, input_at(conv, input, slot, channel), sum);
    if (j == 0) break;
  }
  return sum;
}

/// Writes the channel's new state of a sequence. All lanes of a warp call write_state().
__device__ __forceinline__ void write_state(const Conv& conv, int sequence, int64_t channel) {
  const TokenRange range = conv.tokens.range_of(sequence);
  if (channel >= conv.channels()) return;
  const int64_t rows = conv.taps() - 1, slot = conv.tokens.slot_of(sequence);
  const bool unused = range.first >= range.end;
  int64_t input = !unused ? range.end - 1 : conv.tokens.clears_unused() ? kNoInput : -1;
  float* const to = conv.to + (conv.tokens.positions.count + sequence * rows) * conv.channels() + channel;
  for (int64_t i = rows - 1; i >= 0; --i) {
    to[i * conv.channels()] = input == kNoInput ? 0.0f : input_at(conv, input, slot, channel);
    if (input != kNoInput) input = input_before(conv, input, sequence);
  }
}

__global__ void __launch_bounds__(kThreads) causal_conv(Conv conv) {
  let_next_start();
  wait_for_previous();
  const int64_t channel = static_cast<int64_t>(blockIdx.x % conv.tiles) * kThreads + threadIdx.x;
  const uint32_t block = blockIdx.x / conv.tiles;
  if (block >= conv.token_blocks) return write_state(conv, static_cast<int>(block - conv.token_blocks), channel);
  if (channel >= conv.channels()) return;
  const int64_t first = static_cast<int64_t>(block) * kColumns;
  for (int64_t token = first; token < conv.tokens.positions.count && token < first + kColumns; ++token) {
    conv.to[token * conv.channels() + channel] = result_of_token(conv, token, channel);
  }
}

/// Returns a launch's parameters without the number of blocks.
Conv conv_of(const Tensor& node) {
  const Tensor &x = *node.src[0], &weight = *node.src[1], &state = *node.src[2];
  return {view_of(x),
          view_of(weight),
          view_of(state),
          state_tokens_of(node, 3, state, weight.shape[0] - 1),
          reinterpret_cast<float*>(node.data),
          static_cast<uint32_t>(divided_up(node.shape[0], kThreads)),
          static_cast<uint32_t>(divided_up(x.shape[1], kColumns))};
}
int64_t blocks_of(const Tensor& node) {
  const int64_t tokens = node.src[0]->shape[1], rows = node.src[1]->shape[0] - 1;
  const int64_t sequences = rows == 0 ? 0 : (node.shape[1] - tokens) / rows;
  return divided_up(node.shape[0], kThreads) * (divided_up(tokens, kColumns) + sequences);
}

void run(const LaunchContext& context, Tensor& node) {
  launch_early(context, causal_conv, dim3(static_cast<unsigned>(blocks_of(node))), dim3(kThreads), 0, conv_of(node));
}

bool supports(const Tensor& node) {
  for (const int source : {0, 1, 2}) {
    if (node.src[source]->dtype != DType::kF32 || !node.src[source]->is_row_contiguous()) return false;
  }
  return node.dtype == DType::kF32 && node.is_contiguous() && has_integer_tokens(node, 3) &&
         node.shape[1] <= 0x7fffffff && blocks_of(node) <= 0x7fffffff;
}

}  // namespace

const OpKernel kCausalConvKernel{run, supports, nullptr};

}  // namespace shoal::cuda
