// Loops of causal_conv and gated_delta. These ops have a state that changes with each token.
//
// In gated_delta, the state of a head is a matrix S [size][size], stored column by column. S has one column per element
// of a value. A column has one number per element of a key. A token has key k, query q, value v, factor f and beta b.
// The error of the token is e = b (v - f S^T k). The token changes S to f S + k e^T. The result of the token is S^T q
// with the new S. Two forms of kernels compute this result. The two forms round differently.
//
// The *columns* form processes one token after another, and each column separately. For a single token, each column is
// read and written once.
//
// The *chunks* form processes several tokens of a sequence at a time (Yang et al. 2024, arXiv:2406.06484). Let S be the
// state before the chunk, F_r the product of the factors up to token r, and F the product of all factors of the chunk.
// The errors, the results and the new state are products of small matrices:
//   e_r = b_r (v_r - F_r S^T k_r) - sum over s < r of b_r F_r / F_s (k_r . k_s) e_s
//   result r = F_r S^T q_r + sum over s <= r of F_r / F_s (q_r . k_s) e_s
//   new S = F S + sum over s of F / F_s k_s e_s^T
// A block of columns is stored as [size][width] with width = DeltaKernels::width. So elements of neighbouring columns
// are next to each other.
//
// kernels.h gives the reason why this header has no inline functions.
#pragma once

#include <cstdint>

namespace shoal::cpu {

/// to[i] = sum over j < taps of weights[j * stride + i] * inputs[j][i] for i < n. If inputs[j] is nullptr, inputs[j][i]
/// counts as zero.
struct ConvArgs {
  const float* const* inputs = nullptr;
  int64_t taps = 0;
  const float* weights = nullptr;
  int64_t stride = 0;
  int64_t n = 0;
  float* to = nullptr;
};

/// The data of one token for a range of columns of a head. `v` and `out` begin at the first column of the range.
struct DeltaToken {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  float* out = nullptr;
  float factor = 0;
  float beta = 0;
  bool begins = false;  ///< whether the token is the first of a sequence; if true, S before the token is zero
};

struct DeltaColumns {
  const DeltaToken* tokens = nullptr;
  int64_t count = 0;  ///< number of tokens, at least 1
  int64_t size = 0;
  int64_t columns = 0;
  const float* from = nullptr;  ///< S before the tokens
  int64_t from_stride = 0;      ///< floats from one column to the next
  float* to = nullptr;          ///< S after the tokens; there are no gaps between the columns
};

inline constexpr int64_t kDeltaChunk = 32;  ///< maximum number of tokens in a chunk, a multiple of every width

/// to[r * kDeltaChunk + s] is the dot product of row r of `rows` and column s of `columns` [size][kDeltaChunk].
struct DeltaProducts {
  const float* rows = nullptr;
  int64_t row_stride = 0;  ///< in floats
  int64_t count = 0;
  const float* columns = nullptr;
  int64_t size = 0;
  float* to = nullptr;
};

/// Weights of one head for each pair of tokens r and s of a chunk. The weight of a pair is at [r * kDeltaChunk + s]. In
/// `of_errors`, only elements with s < r are meaningful. In `of_rows`, only elements with s <= r are meaningful.
struct DeltaWeights {
  const float* key_products = nullptr;    ///< k_r . k_s
  const float* query_products = nullptr;  ///< q_r . k_s
  const double* logarithm = nullptr;      ///< logarithm of F_r
  const float* beta = nullptr;
  int64_t count = 0;
  float* of_errors = nullptr;  ///< -b_r F_r / F_s (k_r . k_s)
  float* of_rows = nullptr;    ///< F_r / F_s (q_r . k_s)
};

/// The data of one chunk for a block of columns of a head. `v` and `out` begin at the first column of the block.
/// Strides are in floats.
struct DeltaChunk {
  const float* q = nullptr;
  const float* k = nullptr;
  int64_t q_stride = 0, k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t count = 0, size = 0;
  int64_t columns = 0;               ///< number of columns of the block, at most DeltaKernels::width
  const float* of_errors = nullptr;  ///< as in DeltaWeights
  const float* of_rows = nullptr;
  const float* beta = nullptr;
  const float* kept = nullptr;    ///< F_r
  const float* to_end = nullptr;  ///< F / F_r
  bool begins = false;            ///< whether the chunk begins a sequence; if true, S before the chunk is zero
  float* state = nullptr;         ///< S, updated in place
  float* errors = nullptr;        ///< scratch of 2 * kDeltaChunk * width floats
};

struct DeltaKernels {
  int64_t width;
  void (*columns)(const DeltaColumns& args);
  void (*products)(const DeltaProducts& args);
  void (*weights)(const DeltaWeights& args);
  void (*chunk)(const DeltaChunk& args);
};

}  // namespace shoal::cpu
