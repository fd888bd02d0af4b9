// The sequences of a batch, for ops with a state (causal_conv, gated_delta). A token with a negative position is
// padding. A token with a sequence outside [0, count()) is treated like padding. A token with position 0 is the first
// of its sequence.
#pragma once

#include <algorithm>

#include "devices/cpu/op_kernel.h"
#include "graph/tensor.h"

namespace shoal::cpu {

/// Tokens [begin, end). The range of a sequence contains all its tokens, and may contain padding.
struct TokenRange {
  int64_t begin = 0, end = 0;
};

class Sequences {
 public:
  /// The number of sequences of an op whose source `positions` contains the positions. The next two sources are the
  /// sequences and slots.
  static int64_t count_of(const Tensor& node, int positions) {
    const Tensor* const slots = node.src[positions + 2];
    return slots == nullptr ? 1 : slots->shape[0];
  }
  /// Bytes of workspace per part.
  static size_t bytes(const Tensor& node, int positions) {
    return (static_cast<size_t>(count_of(node, positions)) * sizeof(TokenRange) + 63) / 64 * 64;
  }

  Sequences(const Tensor& node, int positions, std::byte* memory)
      : positions_(*node.src[positions]),
        sequences_(node.src[positions + 1]),
        slots_(node.src[positions + 2]),
        count_(count_of(node, positions)),
        ranges_(reinterpret_cast<TokenRange*>(memory)) {
    std::fill_n(ranges_, count_, TokenRange{tokens(), 0});
    for (int64_t token = 0; token < tokens(); ++token) {
      if (is_padding(token)) continue;
      TokenRange& range = ranges_[sequence_of(token)];
      range = {std::min(range.begin, token), token + 1};
    }
  }

  int64_t count() const { return count_; }
  int64_t tokens() const { return positions_.shape[0]; }
  bool is_padding(int64_t token) const { return at(positions_, token) < 0 || !in_range(sequence_of(token), count_); }
  bool begins(int64_t token) const { return at(positions_, token) == 0; }
  /// Whether `token` is a token of `sequence`, not padding.
  bool has(int64_t sequence, int64_t token) const { return !is_padding(token) && sequence_of(token) == sequence; }
  /// The range of a sequence without tokens ends before its begin.
  TokenRange range(int64_t sequence) const { return ranges_[sequence]; }
  /// Returns the slot with the state of the sequence before its tokens. The result is -1 if this state is zeros, or if
  /// the new state is zeros.
  int64_t slot(int64_t sequence, int64_t slots) const {
    if (slots_ == nullptr) return 0;
    const int64_t slot = at(*slots_, sequence);
    return in_range(slot, slots) && ranges_[sequence].end > 0 ? slot : -1;
  }

 private:
  static int32_t at(const Tensor& integers, int64_t i) {
    return *reinterpret_cast<const int32_t*>(integers.data + i * integers.strides[0]);
  }
  static bool in_range(int64_t i, int64_t n) { return i >= 0 && i < n; }
  int64_t sequence_of(int64_t token) const { return sequences_ == nullptr ? 0 : at(*sequences_, token); }

  const Tensor& positions_;
  const Tensor *sequences_, *slots_;
  int64_t count_;
  TokenRange* ranges_;
};

/// Whether the i32 sources of an op with a state have the right dtype.
inline bool supports_sequences(const Tensor& node, int positions) {
  return std::all_of(node.src.begin() + positions, node.src.end(),
                     [](const Tensor* source) { return source == nullptr || source->dtype == DType::kI32; });
}

}  // namespace shoal::cpu
