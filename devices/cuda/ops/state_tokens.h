// Tokens of ops with a state (causal_conv, gated_delta): the position and the sequence of each token, and the slot that
// holds the state of each sequence (StateSlots in graph/ops/ops.h). A token with a negative position is padding. The
// token with position 0 is the first token of a sequence. Without StateSlots, there is one sequence, and the state is
// slot 0.
#pragma once

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/reduce.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

inline constexpr int kNoSequence = -1;
inline constexpr int64_t kNoSlot = -1;

/// A view of an i32 tensor with one axis.
struct Integers {
  const std::byte* data = nullptr;
  int64_t stride = 0, count = 0;

  __device__ int32_t operator[](int64_t i) const { return load_as<int32_t>(data + i * stride); }
};

/// The tokens [first, end) contain all tokens of a sequence. The range is empty if there are no tokens.
struct TokenRange {
  uint32_t first = 0, end = 0;
  bool others = false;  ///< whether the batch contains padding, or tokens of sequences that do not exist
};

struct StateTokens {
  Integers positions, sequences, slots;  ///< without StateSlots, `sequences` and `slots` have no data
  int64_t slot_count = 1;                ///< number of slots of the state

  __device__ bool is_padding(int64_t token) const { return positions[token] < 0; }
  __device__ bool begins(int64_t token) const { return positions[token] == 0; }
  /// Returns kNoSequence for padding, and if the sequence does not exist.
  __device__ int sequence_of(int64_t token) const {
    if (is_padding(token)) return kNoSequence;
    if (sequences.data == nullptr) return 0;
    const int sequence = sequences[token];
    return sequence >= 0 && sequence < slots.count ? sequence : kNoSequence;
  }
  /// Returns the slot that holds the state of the sequence, or kNoSlot if the state is zeros.
  __device__ int64_t slot_of(int sequence) const {
    if (slots.data == nullptr) return 0;
    const int64_t slot = slots[sequence];
    return slot >= 0 && slot < slot_count ? slot : kNoSlot;
  }
  /// Whether the new state of a sequence without tokens is zeros instead of the old state.
  __device__ bool clears_unused() const { return slots.data != nullptr; }
  __host__ __device__ int64_t sequence_count() const { return slots.data == nullptr ? 1 : slots.count; }

  /// All lanes of a warp call range_of() and get the same result.
  __device__ TokenRange range_of(int sequence) const {
    const auto tokens = static_cast<uint32_t>(positions.count);
    TokenRange range{tokens, 0};
    bool others = false;
    for (uint32_t token = threadIdx.x % kWarp; token < tokens; token += kWarp) {
      const int found = sequence_of(token);
      others = others || found == kNoSequence;
      if (found != sequence) continue;
      range.first = min(range.first, token);
      range.end = token + 1;
    }
    range.first = __reduce_min_sync(kAllLanes, range.first);
    range.end = __reduce_max_sync(kAllLanes, range.end);
    range.others = __ballot_sync(kAllLanes, others) != 0;
    return range;
  }
};

inline Integers integers_of(const Tensor* tensor) {
  if (tensor == nullptr) return {};
  return {tensor->data, static_cast<int64_t>(tensor->strides[0]), tensor->shape[0]};
}

/// `first` is the index of the source `positions`. The sources `sequences` and `slots` follow. A slot has `rows` rows
/// of `state`.
inline StateTokens state_tokens_of(const Tensor& node, size_t first, const Tensor& state, int64_t rows) {
  const auto source = [&](size_t index) { return index < node.src.size() ? node.src[index] : nullptr; };
  return {integers_of(source(first)), integers_of(source(first + 1)), integers_of(source(first + 2)),
          rows == 0 ? 1 : state.shape[1] / rows};
}

/// Whether the sources `positions`, `sequences` and `slots` are i32 or absent.
inline bool has_integer_tokens(const Tensor& node, size_t first) {
  for (size_t i = first; i < node.src.size() && i < first + 3; ++i) {
    if (node.src[i] != nullptr && node.src[i]->dtype != DType::kI32) return false;
  }
  return true;
}

}  // namespace shoal::cuda
