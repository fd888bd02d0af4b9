// The op gated_delta. The columns of the states are independent (devices/cpu/kernels/state_ops.h). A part processes all
// tokens for its columns. devices/cpu/ops/sequences.h describes the treatment of invalid sequences.
#include <cmath>
#include <span>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/ops/sequences.h"

namespace shoal::cpu {
namespace {

constexpr int kPositions = 6;         ///< source with the positions
constexpr int64_t kGroup = 32;        ///< maximum number of tokens per call of the kernel
constexpr int64_t kColumnsUnit = 16;  ///< the number of columns of each part is a multiple of this number

/// The node, its dimensions, and accessors for the floats of its operands.
struct Delta {
  Delta(const TeamContext& ctx, Tensor& of)
      : node(of),
        sequences(of, kPositions, ctx.workspace + ctx.part * Sequences::bytes(of, kPositions)),
        size(of.shape[0]),
        heads(of.shape[2]),
        key_heads(of.src[0]->shape[1]),
        tokens(of.src[6]->shape[0]),
        group(key_heads > 0 ? heads / key_heads : 0),
        tiled(std::get<GatedDeltaParams>(of.params).tiled) {}

  static const float* floats(const Tensor& tensor, int64_t i1, int64_t i2) {
    return reinterpret_cast<const float*>(tensor.data + i1 * tensor.strides[1] + i2 * tensor.strides[2]);
  }
  const float* q(int64_t key_head, int64_t token) const { return floats(*node.src[0], key_head, token); }
  const float* k(int64_t key_head, int64_t token) const { return floats(*node.src[1], key_head, token); }
  const float* v(int64_t head, int64_t token) const { return floats(*node.src[2], head, token); }
  /// Returns the row of a token in the result.
  float* result(int64_t head, int64_t token) const { return const_cast<float*>(floats(node, token, head)); }
  /// Returns a column of the state after the tokens of a sequence.
  float* new_state(int64_t sequence, int64_t head, int64_t column) const {
    return result(head, tokens + sequence * size + column);
  }
  /// Returns a column of the state before the tokens of a sequence, or nullptr if this state is zeros.
  const float* state(int64_t sequence, int64_t head, int64_t column) const {
    const int64_t slot = size == 0 ? -1 : sequences.slot(sequence, node.src[5]->shape[1] / size);
    return slot < 0 ? nullptr : floats(*node.src[5], slot * size + column, head);
  }
  int64_t state_stride() const { return static_cast<int64_t>(node.src[5]->strides[1] / sizeof(float)); }
  double decay(int64_t head, int64_t token) const { return share_of(*node.src[3], head, token); }
  float beta(int64_t head, int64_t token) const { return share_of(*node.src[4], head, token); }
  int64_t key_head_of(int64_t head) const { return tiled ? head % key_heads : head / group; }

  static float share_of(const Tensor& tensor, int64_t head, int64_t token) {
    return *reinterpret_cast<const float*>(tensor.data + head * tensor.strides[0] + token * tensor.strides[1]);
  }

  Tensor& node;
  Sequences sequences;
  int64_t size, heads, key_heads, tokens, group;
  bool tiled;
};

/// Columns [first, first + count) of a head.
struct Columns {
  int64_t head, first, count;
};

/// Sets the columns to zero in the rows of padding.
void clear_padding(const Delta& delta, const Columns& columns) {
  for (int64_t token = 0; token < delta.tokens; ++token) {
    if (!delta.sequences.is_padding(token)) continue;
    std::fill_n(delta.result(columns.head, token) + columns.first, columns.count, 0.0f);
  }
}

/// The tokens of a group, and space for their queries and keys.
struct Group {
  float* keys;
  DeltaToken tokens[kGroup];
};

/// Processes the tokens of a sequence in groups.
class SequenceRun {
 public:
  SequenceRun(const Delta& delta, int64_t sequence, const Columns& columns, Group& group)
      : delta_(delta),
        columns_(columns),
        key_head_(delta.key_head_of(columns.head)),
        group_(group),
        from_(delta.state(sequence, columns.head, columns.first)),
        from_stride_(delta.state_stride()),
        to_(delta.new_state(sequence, columns.head, columns.first)) {}

  void run(int64_t sequence) {
    const auto [begin, end] = delta_.sequences.range(sequence);
    for (int64_t token = begin; token < end; ++token) {
      if (!delta_.sequences.has(sequence, token)) continue;
      if (count_ == kGroup) run_group();
      add(token);
    }
    if (count_ > 0) run_group();
    if (from_ == to_) return;
    // The sequence has no tokens.
    for (int64_t j = 0; j < columns_.count; ++j) {
      float* const column = to_ + j * delta_.size;
      from_ == nullptr ? std::fill_n(column, delta_.size, 0.0f)
                       : std::copy_n(from_ + j * from_stride_, delta_.size, column);
    }
  }

 private:
  void add(int64_t token) {
    const bool begins = delta_.sequences.begins(token) || (count_ == 0 && from_ == nullptr);
    group_.tokens[count_++] = {delta_.q(key_head_, token),
                               delta_.k(key_head_, token),
                               delta_.v(columns_.head, token) + columns_.first,
                               delta_.result(columns_.head, token) + columns_.first,
                               static_cast<float>(std::exp(delta_.decay(columns_.head, token))),
                               delta_.beta(columns_.head, token),
                               begins};
  }

  void run_group() {
    if (count_ > 1) pack_keys();
    if (from_ == nullptr) from_ = to_;
    kernels().gated_delta({group_.tokens, count_, delta_.size, columns_.count, from_, from_stride_, to_});
    from_ = to_, from_stride_ = delta_.size;
    count_ = 0;
  }

  /// Copies queries and keys to adjacent memory. The distance between the rows of two tokens is often a large power of
  /// two, so these rows would evict each other from the L1 cache.
  void pack_keys() {
    float* to = group_.keys;
    for (DeltaToken& token : std::span(group_.tokens, static_cast<size_t>(count_))) {
      for (const float** row : {&token.q, &token.k}) {
        std::copy_n(*row, delta_.size, to);
        *row = to;
        to += delta_.size;
      }
    }
  }

  const Delta& delta_;
  const Columns columns_;
  const int64_t key_head_;
  Group& group_;
  const float* from_;  ///< the state before the next group, or nullptr if this state is zeros
  int64_t from_stride_;
  float* const to_;
  int64_t count_ = 0;
};

/// Bytes of workspace for the queries and keys of a part.
size_t bytes_of_keys(const Tensor& node) {
  const int64_t tokens = std::min(kGroup, node.src[kPositions]->shape[0]);
  return tokens < 2 ? 0 : (static_cast<size_t>(2 * tokens * node.shape[0]) * sizeof(float) + 63) / 64 * 64;
}

void run(const TeamContext& ctx, Tensor& node) {
  const Delta delta(ctx, node);
  std::byte* const memory = ctx.workspace + ctx.parts * Sequences::bytes(node, kPositions);
  Group group{reinterpret_cast<float*>(memory + ctx.part * bytes_of_keys(node)), {}};
  const int64_t units = (delta.size + kColumnsUnit - 1) / kColumnsUnit;
  const auto [begin, end] = share(ctx, delta.heads * units);
  for (int64_t at = begin; at < end;) {
    const int64_t head = at / units, last = std::min(end, (head + 1) * units);
    const int64_t first = (at - head * units) * kColumnsUnit;
    const Columns columns{head, first, std::min(delta.size, (last - head * units) * kColumnsUnit) - first};
    clear_padding(delta, columns);
    for (int64_t i = 0; i < delta.sequences.count(); ++i) SequenceRun(delta, i, columns, group).run(i);
    at = last;
  }
}

bool supports(const Tensor& node) {
  for (const int source : {0, 1, 2, 5}) {
    if (node.src[source]->dtype != DType::kF32 || !node.src[source]->is_row_contiguous()) return false;
  }
  for (const int source : {3, 4}) {
    if (node.src[source]->dtype != DType::kF32) return false;
  }
  return node.dtype == DType::kF32 && node.is_contiguous() && supports_sequences(node, kPositions);
}

size_t workspace(const Tensor& node, int parts) {
  return (Sequences::bytes(node, kPositions) + bytes_of_keys(node)) * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  const int64_t head_state = node.shape[0] * node.shape[0] * node.shape[2];
  return head_state * (Sequences::count_of(node, kPositions) + 3 * node.src[kPositions]->shape[0]);
}

}  // namespace

const OpKernel kGatedDeltaKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
