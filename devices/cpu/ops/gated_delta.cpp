// The op gated_delta. The columns of the states are independent (devices/cpu/kernels/state_ops.h). A part processes all
// tokens for its columns, in groups of tokens. A part orders its columns by key head, so that several heads use the
// same copies of keys and queries. devices/cpu/ops/sequences.h describes the treatment of invalid sequences.
#include <cmath>
#include <utility>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/ops/sequences.h"

namespace shoal::cpu {
namespace {

constexpr int kPositions = 6;         ///< source with the positions
constexpr int64_t kGroup = 32;        ///< maximum number of tokens per call of the kernel
constexpr int64_t kLine = 16;         ///< number of floats per cache line
constexpr int64_t kColumnsUnit = 16;  ///< the number of columns of each part is a multiple of this number

int64_t units_of(int64_t size) {
  return (size + kColumnsUnit - 1) / kColumnsUnit;
}

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

  /// Returns the i-th of the heads that use `key_head`.
  int64_t head_of(int64_t key_head, int64_t i) const { return tiled ? i * key_heads + key_head : key_head * group + i; }

  static float share_of(const Tensor& tensor, int64_t head, int64_t token) {
    return *reinterpret_cast<const float*>(tensor.data + head * tensor.strides[0] + token * tensor.strides[1]);
  }

  Tensor& node;
  Sequences sequences;
  int64_t size, heads, key_heads, tokens, group;
  bool tiled;
};

/// Tokens of a sequence, and copies of their queries, keys and values.
struct Group {
  int64_t count;
  int64_t numbers[kGroup];
  DeltaToken tokens[kGroup];
  float *queries, *keys, *values;
};

/// Copies a row to the next free row of `to`. The distance between the rows of two tokens is often a large power of
/// two, so the rows themselves would evict each other from the caches.
void pack(const float*& row, int64_t n, float*& to) {
  std::copy_n(row, n, to);
  row = to;
  to += n;
}

/// Loads a row of the result into the cache. A store to a row outside the cache would delay all later stores.
void prefetch(const float* row, int64_t n) {
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(row + i, 1);
}

/// Processes columns of the heads that use one key head. Columns are numbered in units of kColumnsUnit, consecutively
/// over these heads.
class Pass {
 public:
  Pass(const Delta& delta, int64_t key_head, int64_t begin, int64_t end, Group& group)
      : delta_(delta), key_head_(key_head), begin_(begin), end_(end), group_(group) {}

  void run() {
    for_columns([&](int64_t head, int64_t first, int64_t n) {
      for (int64_t token = 0; token < delta_.tokens; ++token) {
        if (delta_.sequences.is_padding(token)) std::fill_n(delta_.result(head, token) + first, n, 0.0f);
      }
    });
    for (int64_t i = 0; i < delta_.sequences.count(); ++i) run_sequence(i);
  }

 private:
  /// Calls f(head, first column, number of columns) for each head.
  template <class F>
  void for_columns(F f) const {
    const int64_t units = units_of(delta_.size);
    for (int64_t at = begin_; at < end_;) {
      const int64_t i = at / units, last = std::min(end_, (i + 1) * units), first = (at - i * units) * kColumnsUnit;
      f(delta_.head_of(key_head_, i), first, std::min(delta_.size, (last - i * units) * kColumnsUnit) - first);
      at = last;
    }
  }

  void run_sequence(int64_t sequence) {
    const auto [begin, end] = delta_.sequences.range(sequence);
    bool first = true;
    group_.count = 0;
    for (int64_t token = begin; token < end; ++token) {
      if (!delta_.sequences.has(sequence, token)) continue;
      if (group_.count == kGroup) run_group(sequence, std::exchange(first, false));
      group_.numbers[group_.count++] = token;
    }
    if (group_.count > 0) return run_group(sequence, first);
    for_columns([&](int64_t head, int64_t column, int64_t n) { keep_state(sequence, head, column, n); });
  }

  /// Processes the group, and removes its tokens. `first` is whether these tokens are the first of the sequence in the
  /// batch.
  void run_group(int64_t sequence, bool first) {
    const bool packs = group_.count > 1;
    float *queries = group_.queries, *keys = group_.keys;
    for (int64_t i = 0; i < group_.count; ++i) {
      DeltaToken& token = group_.tokens[i];
      token.q = delta_.q(key_head_, group_.numbers[i]);
      token.k = delta_.k(key_head_, group_.numbers[i]);
      if (packs) pack(token.q, delta_.size, queries), pack(token.k, delta_.size, keys);
    }
    for_columns([&](int64_t head, int64_t column, int64_t n) {
      float* const to = delta_.new_state(sequence, head, column);
      const float* const from = first ? delta_.state(sequence, head, column) : to;
      float* values = group_.values;
      for (int64_t i = 0; i < group_.count; ++i) {
        const int64_t number = group_.numbers[i];
        DeltaToken& token = group_.tokens[i];
        token.v = delta_.v(head, number) + column;
        if (packs) pack(token.v, n, values);
        token.out = delta_.result(head, number) + column;
        if (packs) prefetch(token.out, n);
        token.factor = static_cast<float>(std::exp(delta_.decay(head, number)));
        token.beta = delta_.beta(head, number);
        token.begins = delta_.sequences.begins(number) || (i == 0 && from == nullptr);
      }
      const int64_t stride = first ? delta_.state_stride() : delta_.size;
      kernels().gated_delta({group_.tokens, group_.count, delta_.size, n, from == nullptr ? to : from, stride, to});
    });
    group_.count = 0;
  }

  /// Writes the new state of a sequence without tokens.
  void keep_state(int64_t sequence, int64_t head, int64_t first, int64_t n) {
    for (int64_t j = first; j < first + n; ++j) {
      const float* const from = delta_.state(sequence, head, j);
      float* const to = delta_.new_state(sequence, head, j);
      from == nullptr ? std::fill_n(to, delta_.size, 0.0f) : std::copy_n(from, delta_.size, to);
    }
  }

  const Delta& delta_;
  const int64_t key_head_, begin_, end_;
  Group& group_;
};

/// Floats of workspace for the copies of a part: queries, keys and values.
int64_t copied_floats(const Tensor& node) {
  const int64_t tokens = std::min(kGroup, node.src[kPositions]->shape[0]);
  return tokens < 2 ? 0 : (3 * tokens * node.shape[0] + kLine - 1) / kLine * kLine;
}

void run(const TeamContext& ctx, Tensor& node) {
  const Delta delta(ctx, node);
  std::byte* const memory = ctx.workspace + ctx.parts * Sequences::bytes(node, kPositions);
  float* const copies = reinterpret_cast<float*>(memory) + ctx.part * copied_floats(node);
  const int64_t row = std::min(kGroup, delta.tokens) * delta.size, of_key = delta.group * units_of(delta.size);
  Group group{0, {}, {}, copies, copies + row, copies + 2 * row};
  const auto [begin, end] = share(ctx, delta.heads * units_of(delta.size));
  for (int64_t at = begin; at < end;) {
    const int64_t key_head = at / of_key, last = std::min(end, (key_head + 1) * of_key);
    Pass(delta, key_head, at - key_head * of_key, last - key_head * of_key, group).run();
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
  return (Sequences::bytes(node, kPositions) + static_cast<size_t>(copied_floats(node)) * sizeof(float)) *
         static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  const int64_t head_state = node.shape[0] * node.shape[0] * node.shape[2];
  return head_state * (Sequences::count_of(node, kPositions) + 3 * node.src[kPositions]->shape[0]);
}

}  // namespace

const OpKernel kGatedDeltaKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
