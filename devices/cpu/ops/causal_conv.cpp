// The op causal_conv. Each part processes a range of channels. The part transposes the weights of kPiece channels, then
// processes all tokens for these channels.
// devices/cpu/ops/sequences.h describes the treatment of invalid sequences.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/ops/sequences.h"

namespace shoal::cpu {
namespace {

constexpr int kPositions = 3;    ///< source with the positions
constexpr int64_t kPiece = 512;  ///< number of channels that are processed at a time
constexpr int64_t kLine = 16;    ///< number of floats per cache line; a cache line is written by only one part

/// The number of an input that does not exist. Inputs with numbers from 0 on are tokens. Inputs with other negative
/// numbers are in the state.
constexpr int64_t kNoInput = -(int64_t{1} << 62);

/// The inputs of a sequence.
struct Inputs {
  const Sequences& sequences;
  int64_t sequence, in_state;
  TokenRange range = sequences.range(sequence);

  /// Returns the number of the input before `input`. `input` may be the position after the last token.
  int64_t before(int64_t input) const {
    if (input == kNoInput || (input >= 0 && input < range.end && sequences.begins(input))) return kNoInput;
    if (input >= 0) {
      for (--input; input >= range.begin && !sequences.has(sequence, input);) --input;
      if (input >= range.begin) return input;
      input = 0;
    }
    return input > -in_state ? input - 1 : kNoInput;
  }
};

const float* floats_at(const Tensor& tensor, int64_t row, int64_t element) {
  return reinterpret_cast<const float*>(tensor.data + row * tensor.strides[1]) + element;
}

/// The arrays of a part in the workspace.
struct Scratch {
  std::byte* sequences;
  float* weights;        ///< [taps][kPiece]
  const float** inputs;  ///< [taps]

  static size_t bytes(const Tensor& node) {
    const auto taps = static_cast<size_t>(node.src[1]->shape[0]);
    return Sequences::bytes(node, kPositions) + (taps * (kPiece * sizeof(float) + sizeof(float*)) + 63) / 64 * 64;
  }
  Scratch(const TeamContext& ctx, const Tensor& node)
      : sequences(ctx.workspace + ctx.part * bytes(node)),
        weights(reinterpret_cast<float*>(sequences + Sequences::bytes(node, kPositions))),
        inputs(reinterpret_cast<const float**>(weights + node.src[1]->shape[0] * kPiece)) {}
};

/// Computes channels [first, first + n) of the rows of a sequence, and the new state of the sequence.
void run_sequence(Tensor& node, const Sequences& sequences, const Scratch& scratch, int64_t sequence, int64_t first,
                  int64_t n) {
  const Tensor &x = *node.src[0], &state = *node.src[2];
  const int64_t taps = node.src[1]->shape[0], in_state = taps - 1, tokens = x.shape[1];
  const int64_t slot = in_state == 0 ? -1 : sequences.slot(sequence, state.shape[1] / in_state);
  const Inputs inputs{sequences, sequence, slot < 0 ? 0 : in_state};
  const auto row_of = [&](int64_t input) -> const float* {
    if (input == kNoInput) return nullptr;
    return input >= 0 ? floats_at(x, input, first) : floats_at(state, (slot + 1) * in_state + input, first);
  };
  for (int64_t token = inputs.range.begin; token < inputs.range.end; ++token) {
    if (!sequences.has(sequence, token)) continue;
    int64_t input = token;
    for (int64_t j = taps - 1; j >= 0; --j) {
      scratch.inputs[j] = row_of(input);
      if (j > 0) input = inputs.before(input);
    }
    kernels().causal_conv(
        {scratch.inputs, taps, scratch.weights, kPiece, n, const_cast<float*>(floats_at(node, token, first))});
  }
  int64_t input = inputs.range.end;
  for (int64_t j = in_state - 1; j >= 0; --j) {
    input = inputs.before(input);
    float* const to = const_cast<float*>(floats_at(node, tokens + sequence * in_state + j, first));
    const float* const from = row_of(input);
    from == nullptr ? std::fill_n(to, n, 0.0f) : std::copy_n(from, n, to);
  }
}

/// Computes channels [first, first + n) of all results.
void run_piece(Tensor& node, const Sequences& sequences, const Scratch& scratch, int64_t first, int64_t n) {
  const Tensor& weight = *node.src[1];
  kernels().attention.transpose(floats_at(weight, first, 0), static_cast<int64_t>(weight.strides[1] / sizeof(float)), n,
                                weight.shape[0], scratch.weights, kPiece);
  for (int64_t token = 0; token < sequences.tokens(); ++token) {
    if (sequences.is_padding(token)) std::fill_n(const_cast<float*>(floats_at(node, token, first)), n, 0.0f);
  }
  for (int64_t i = 0; i < sequences.count(); ++i) run_sequence(node, sequences, scratch, i, first, n);
}

void run(const TeamContext& ctx, Tensor& node) {
  const Scratch scratch(ctx, node);
  const Sequences sequences(node, kPositions, scratch.sequences);
  const auto [begin, end] = share(ctx, node.shape[0], kLine);
  for (int64_t first = begin; first < end; first += kPiece) {
    run_piece(node, sequences, scratch, first, std::min(kPiece, end - first));
  }
}

bool supports(const Tensor& node) {
  for (const int source : {0, 1, 2}) {
    if (node.src[source]->dtype != DType::kF32 || !node.src[source]->is_row_contiguous()) return false;
  }
  return node.dtype == DType::kF32 && node.is_contiguous() && supports_sequences(node, kPositions);
}

size_t workspace(const Tensor& node, int parts) {
  return Scratch::bytes(node) * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  return node.elements() * node.src[1]->shape[0];
}

}  // namespace

const OpKernel kCausalConvKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
