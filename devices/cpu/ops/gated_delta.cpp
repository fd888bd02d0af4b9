// The op gated_delta. The columns of the states are independent (devices/cpu/kernels/state_ops.h). If there are at most
// kFewTokens tokens, they are processed one by one, each token for all columns of a part. If there are more tokens,
// they are processed in chunks, each chunk for several blocks of columns. With chunks, a part orders its blocks by key
// head, so that several blocks use the same products of keys and queries. devices/cpu/ops/sequences.h describes the
// treatment of invalid sequences.
#include <cmath>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/ops/sequences.h"

namespace shoal::cpu {
namespace {

constexpr int kPositions = 6;         ///< source with the positions
constexpr int64_t kFewTokens = 8;     ///< maximum number of tokens that are processed one by one
constexpr int64_t kColumnsUnit = 16;  ///< if tokens are processed one by one, the number of columns of each part is a
                                      ///< multiple of this number
constexpr int64_t kPassHeads = 2;     ///< maximum number of heads whose blocks use the same products in one pass

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
  static int64_t stride(const Tensor& tensor, int axis) {
    return static_cast<int64_t>(tensor.strides[axis] / sizeof(float));
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
  int64_t state_stride() const { return stride(*node.src[5], 1); }
  double decay(int64_t head, int64_t token) const { return share_of(*node.src[3], head, token); }
  float beta(int64_t head, int64_t token) const { return share_of(*node.src[4], head, token); }
  int64_t key_head_of(int64_t head) const { return tiled ? head % key_heads : head / group; }
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

// --- token by token -----------------------------------------------------------------------------------------------

bool goes_by_tokens(int64_t tokens) {
  return tokens <= kFewTokens;
}

/// Processes columns [first, first + n) of a head's state for one sequence.
void run_columns(const Delta& delta, int64_t sequence, int64_t head, int64_t first, int64_t n) {
  DeltaToken tokens[kFewTokens];
  int64_t count = 0;
  const int64_t key_head = delta.key_head_of(head);
  const float* const from = delta.state(sequence, head, first);
  float* const to = delta.new_state(sequence, head, first);
  const auto [begin, end] = delta.sequences.range(sequence);
  for (int64_t token = begin; token < end; ++token) {
    if (!delta.sequences.has(sequence, token)) continue;
    tokens[count++] = {delta.q(key_head, token),
                       delta.k(key_head, token),
                       delta.v(head, token) + first,
                       delta.result(head, token) + first,
                       static_cast<float>(std::exp(delta.decay(head, token))),
                       delta.beta(head, token),
                       delta.sequences.begins(token) || (count == 0 && from == nullptr)};
  }
  if (count > 0) {
    kernels().delta.columns({tokens, count, delta.size, n, from == nullptr ? to : from, delta.state_stride(), to});
  } else if (from == nullptr) {
    std::fill_n(to, n * delta.size, 0.0f);
  } else {
    for (int64_t j = 0; j < n; ++j) std::copy_n(from + j * delta.state_stride(), delta.size, to + j * delta.size);
  }
}

/// Sets columns [first, first + n) of a head to zero in the rows of padding.
void clear_padding(const Delta& delta, int64_t head, int64_t first, int64_t n) {
  for (int64_t token = 0; token < delta.tokens; ++token) {
    if (delta.sequences.is_padding(token)) std::fill_n(delta.result(head, token) + first, n, 0.0f);
  }
}

void run_by_tokens(const TeamContext& ctx, const Delta& delta) {
  const int64_t units = (delta.size + kColumnsUnit - 1) / kColumnsUnit;
  const auto [begin, end] = share(ctx, delta.heads * units);
  for (int64_t at = begin; at < end;) {
    const int64_t head = at / units, last = std::min(end, (head + 1) * units);
    const int64_t first = (at - head * units) * kColumnsUnit;
    const int64_t n = std::min(delta.size, (last - head * units) * kColumnsUnit) - first;
    clear_padding(delta, head, first, n);
    for (int64_t i = 0; i < delta.sequences.count(); ++i) run_columns(delta, i, head, first, n);
    at = last;
  }
}

// --- by chunks ----------------------------------------------------------------------------------------------------

int64_t blocks_of(int64_t size) {
  return (size + kernels().delta.width - 1) / kernels().delta.width;
}

/// The arrays of a part in the workspace. Each array begins on a new cache line.
class Scratch {
 public:
  float *states, *key_columns, *key_products, *query_products, *of_errors, *of_rows, *errors;
  float *beta, *kept, *to_end;  ///< one number per token of a chunk
  double* logarithm;

  Scratch(std::byte* memory, int64_t size) : at_(reinterpret_cast<uintptr_t>(memory)) {
    const int64_t width = kernels().delta.width;
    take(states, kPassHeads * blocks_of(size) * size * width);
    take(key_columns, size * kDeltaChunk);
    for (float** products : {&key_products, &query_products, &of_errors, &of_rows}) {
      take(*products, kDeltaChunk * kDeltaChunk);
    }
    take(errors, 2 * kDeltaChunk * width);
    for (float** shares : {&beta, &kept, &to_end}) take(*shares, kDeltaChunk);
    take(logarithm, kDeltaChunk);
  }
  static size_t bytes(int64_t size) { return Scratch(nullptr, size).at_; }

 private:
  template <class T>
  void take(T*& piece, int64_t count) {
    piece = reinterpret_cast<T*>(at_);
    at_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }

  uintptr_t at_;
};

/// Consecutive tokens of one sequence that are processed together.
struct Chunk {
  int64_t begin = 0, count = 0;
  bool begins = false;  ///< whether the chunk begins the sequence
};

/// Returns the first chunk of a sequence at or after `token`. If no token of the sequence follows, the chunk's count is
/// 0.
Chunk chunk_from(const Sequences& sequences, int64_t sequence, int64_t token) {
  const int64_t end = sequences.range(sequence).end;
  while (token < end && !sequences.has(sequence, token)) ++token;
  Chunk chunk{token, 0, token < end && sequences.begins(token)};
  const auto goes_on = [&](int64_t next) {
    return next < end && sequences.has(sequence, next) && (next == chunk.begin || !sequences.begins(next));
  };
  while (chunk.count < kDeltaChunk && goes_on(chunk.begin + chunk.count)) ++chunk.count;
  return chunk;
}

/// Processes all tokens for blocks [first, last). The blocks belong to the heads that use one key head. Blocks are
/// numbered consecutively over these heads. Each head has blocks_ blocks.
class Pass {
 public:
  Pass(const Delta& delta, const Scratch& scratch, int64_t key_head, int64_t first, int64_t last)
      : delta_(delta), scratch_(scratch), key_head_(key_head), first_(first), last_(last) {}

  void run() {
    for (int64_t block = first_; block < last_; ++block)
      clear_padding(delta_, head(block), column(block), columns(block));
    for (int64_t i = 0; i < delta_.sequences.count(); ++i) run_sequence(i);
  }

 private:
  int64_t head(int64_t block) const { return delta_.head_of(key_head_, block / blocks_); }
  int64_t column(int64_t block) const { return block % blocks_ * width_; }
  int64_t columns(int64_t block) const { return std::min(width_, delta_.size - column(block)); }
  float* state(int64_t block) const { return scratch_.states + (block - first_) * delta_.size * width_; }

  void run_sequence(int64_t sequence) {
    for (int64_t block = first_; block < last_; ++block) load_state(sequence, block);
    for (Chunk chunk = chunk_from(delta_.sequences, sequence, delta_.sequences.range(sequence).begin); chunk.count > 0;) {
      run_chunk(chunk);
      chunk = chunk_from(delta_.sequences, sequence, chunk.begin + chunk.count);
    }
    for (int64_t block = first_; block < last_; ++block) {
      kernels().attention.transpose(state(block), width_, delta_.size, columns(block),
                                    delta_.new_state(sequence, head(block), column(block)), delta_.size);
    }
  }

  void load_state(int64_t sequence, int64_t block) {
    const int64_t n = columns(block);
    float* const to = state(block);
    const float* const from = delta_.state(sequence, head(block), column(block));
    if (from == nullptr) {
      std::fill_n(to, delta_.size * width_, 0.0f);
      return;
    }
    kernels().attention.transpose(from, delta_.state_stride(), n, delta_.size, to, width_);
    for (int64_t i = 0; i < delta_.size && n < width_; ++i) std::fill(to + i * width_ + n, to + (i + 1) * width_, 0.0f);
  }

  void run_chunk(const Chunk& chunk) {
    const int64_t k_stride = Delta::stride(*delta_.node.src[1], 2), q_stride = Delta::stride(*delta_.node.src[0], 2);
    const float *k = delta_.k(key_head_, chunk.begin), *q = delta_.q(key_head_, chunk.begin);
    kernels().attention.transpose(k, k_stride, chunk.count, delta_.size, scratch_.key_columns, kDeltaChunk);
    const auto products = [&](const float* rows, int64_t stride, float* to) {
      kernels().delta.products({rows, stride, chunk.count, scratch_.key_columns, delta_.size, to});
    };
    products(k, k_stride, scratch_.key_products);
    products(q, q_stride, scratch_.query_products);
    int64_t known = -1;  // the head whose weights are in the scratch
    for (int64_t block = first_; block < last_; ++block) {
      if (known != head(block)) weigh(chunk, known = head(block));
      const int64_t j = column(block);
      DeltaChunk args;
      args.q = q, args.q_stride = q_stride;
      args.k = k, args.k_stride = k_stride;
      args.v = delta_.v(known, chunk.begin) + j, args.v_stride = Delta::stride(*delta_.node.src[2], 2);
      args.out = delta_.result(known, chunk.begin) + j, args.out_stride = delta_.size;
      args.count = chunk.count, args.size = delta_.size, args.columns = columns(block);
      args.of_errors = scratch_.of_errors, args.of_rows = scratch_.of_rows;
      args.beta = scratch_.beta, args.kept = scratch_.kept, args.to_end = scratch_.to_end;
      args.begins = chunk.begins;
      args.state = state(block), args.errors = scratch_.errors;
      kernels().delta.chunk(args);
    }
  }

  /// Computes the weights of a chunk for a head. The logarithms are double, because the kernel needs differences of
  /// long sums.
  void weigh(const Chunk& chunk, int64_t head) {
    double sum = 0;
    for (int64_t r = 0; r < chunk.count; ++r) {
      scratch_.logarithm[r] = sum += std::max(delta_.decay(head, chunk.begin + r), kLeastDecay);
      scratch_.kept[r] = static_cast<float>(std::exp(sum));
      scratch_.beta[r] = delta_.beta(head, chunk.begin + r);
    }
    for (int64_t r = 0; r < chunk.count; ++r) {
      scratch_.to_end[r] = static_cast<float>(std::exp(sum - scratch_.logarithm[r]));
    }
    kernels().delta.weights({scratch_.key_products, scratch_.query_products, scratch_.logarithm, scratch_.beta,
                             chunk.count, scratch_.of_errors, scratch_.of_rows});
  }

  /// Lower bound for decays (logarithms of the factors). Without this bound, the difference of two infinite decays
  /// would be NaN. The exponential of the bound is far below the smallest f32.
  static constexpr double kLeastDecay = -1000;

  const Delta& delta_;
  const Scratch& scratch_;
  const int64_t key_head_, first_, last_;
  const int64_t width_ = kernels().delta.width, blocks_ = blocks_of(delta_.size);
};

void run_by_chunks(const TeamContext& ctx, const Delta& delta) {
  std::byte* const memory = ctx.workspace + ctx.parts * Sequences::bytes(delta.node, kPositions);
  const Scratch scratch(memory + ctx.part * Scratch::bytes(delta.size), delta.size);
  const int64_t blocks = blocks_of(delta.size), of_key = delta.group * blocks;
  const auto [begin, end] = share(ctx, delta.heads * blocks);
  for (int64_t at = begin; at < end;) {
    const int64_t key_head = at / of_key, first = at - key_head * of_key;
    const int64_t last = std::min({first + kPassHeads * blocks, of_key, end - key_head * of_key});
    Pass(delta, scratch, key_head, first, last).run();
    at += last - first;
  }
}

// --- the op -------------------------------------------------------------------------------------------------------

void run(const TeamContext& ctx, Tensor& node) {
  const Delta delta(ctx, node);
  goes_by_tokens(delta.tokens) ? run_by_tokens(ctx, delta) : run_by_chunks(ctx, delta);
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
  const size_t chunks = goes_by_tokens(node.src[kPositions]->shape[0]) ? 0 : Scratch::bytes(node.shape[0]);
  return (Sequences::bytes(node, kPositions) + chunks) * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  const int64_t head_state = node.shape[0] * node.shape[0] * node.shape[2];
  return head_state * (Sequences::count_of(node, kPositions) + 3 * node.src[kPositions]->shape[0]);
}

}  // namespace

const OpKernel kGatedDeltaKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
