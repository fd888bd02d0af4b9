// The op causal_conv. Each part processes a range of channels. The part transposes the weights of kPiece channels, then
// processes all tokens for these channels.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/positions.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr int64_t kPiece = 512;  ///< number of channels that are processed at a time
constexpr int64_t kLine = 16;    ///< number of floats per cache line; a cache line is written by only one part

/// The number of an input that does not exist. Inputs with numbers from 0 on are tokens. Inputs with other negative
/// numbers are in the state.
constexpr int64_t kNoInput = -(int64_t{1} << 62);

/// Returns the number of the input before `input`. `input` may be the position after the last token.
int64_t input_before(const SequencePositions& positions, int64_t in_state, int64_t input) {
  if (input >= 0 && input < positions.count() && positions.begins(input)) return kNoInput;
  for (--input; input >= 0 && positions.is_padding(input);) --input;
  return input >= -in_state ? input : kNoInput;
}

const float* floats_at(const Tensor& tensor, int64_t row, int64_t element) {
  return reinterpret_cast<const float*>(tensor.data + row * tensor.strides[1]) + element;
}

/// The arrays of a part in the workspace.
struct Scratch {
  float* weights;        ///< [taps][kPiece]
  const float** inputs;  ///< [taps]

  static size_t bytes(int64_t taps) {
    return (static_cast<size_t>(taps) * (kPiece * sizeof(float) + sizeof(float*)) + 63) / 64 * 64;
  }
  Scratch(const TeamContext& ctx, int64_t taps)
      : weights(reinterpret_cast<float*>(ctx.workspace + ctx.part * bytes(taps))),
        inputs(reinterpret_cast<const float**>(weights + taps * kPiece)) {}
};

/// Computes channels [first, first + n) of all results.
void run_piece(Tensor& node, const Scratch& scratch, int64_t first, int64_t n) {
  const Tensor &x = *node.src[0], &weight = *node.src[1], &state = *node.src[2];
  const SequencePositions positions(*node.src[3]);
  const int64_t taps = weight.shape[0], in_state = taps - 1, tokens = x.shape[1];
  kernels().attention.transpose(floats_at(weight, first, 0), static_cast<int64_t>(weight.strides[1] / sizeof(float)), n,
                                taps, scratch.weights, kPiece);
  const auto row_of = [&](int64_t input) -> const float* {
    if (input == kNoInput) return nullptr;
    return input >= 0 ? floats_at(x, input, first) : floats_at(state, in_state + input, first);
  };
  for (int64_t token = 0; token < tokens; ++token) {
    float* const to = const_cast<float*>(floats_at(node, token, first));
    if (positions.is_padding(token)) {
      std::fill_n(to, n, 0.0f);
      continue;
    }
    int64_t input = token;
    for (int64_t j = taps - 1; j >= 0; --j) {
      scratch.inputs[j] = row_of(input);
      if (j > 0 && input != kNoInput) input = input_before(positions, in_state, input);
    }
    kernels().causal_conv({scratch.inputs, taps, scratch.weights, kPiece, n, to});
  }
  int64_t input = tokens;
  for (int64_t j = in_state - 1; j >= 0; --j) {
    if (input != kNoInput) input = input_before(positions, in_state, input);
    float* const to = const_cast<float*>(floats_at(node, tokens + j, first));
    const float* const from = row_of(input);
    from == nullptr ? std::fill_n(to, n, 0.0f) : std::copy_n(from, n, to);
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const Scratch scratch(ctx, node.src[1]->shape[0]);
  const auto [begin, end] = share(ctx, node.shape[0], kLine);
  for (int64_t first = begin; first < end; first += kPiece)
    run_piece(node, scratch, first, std::min(kPiece, end - first));
}

bool supports(const Tensor& node) {
  for (const int source : {0, 1, 2}) {
    if (node.src[source]->dtype != DType::kF32 || !node.src[source]->is_row_contiguous()) return false;
  }
  return node.dtype == DType::kF32 && node.is_contiguous() && node.src[3]->dtype == DType::kI32;
}

size_t workspace(const Tensor& node, int parts) {
  return Scratch::bytes(node.src[1]->shape[0]) * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  return node.elements() * node.src[1]->shape[0];
}

}  // namespace

const OpKernel kCausalConvKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
