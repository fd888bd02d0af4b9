// Loops of the ops that go along tokens with a state: causal_conv and gated_delta.
//
// The state of a head is a matrix S [size][size], in memory column by column (a column: the key elements of one value
// element). A token with key k, query q, value v, factor f and beta b turns it into f S + k e^T with
// e = b (v - f S^T k) and gives S^T q. There are two forms, which round differently:
//
// *Columns*: token by token, each column by itself; a column is read and written once where there is one token.
//
// *Chunks* of a text's tokens (Yang et al. 2024, arXiv:2406.06484). With S before the chunk and F_r the product of the
// factors up to token r, the e of all tokens follow from each other,
//   e_r = b_r (v_r - F_r S^T k_r) - sum over s < r of b_r F_r / F_s (k_r . k_s) e_s,
// the rows are F_r S^T q_r + sum over s <= r of F_r / F_s (q_r . k_s) e_s, and S becomes F S + sum of F / F_s k_s e_s^T
// with F that of the last token: products of small matrices. A block of columns lies with the value elements side by
// side, [size][width] with width = DeltaKernels::width.
//
// No inline functions here, as in kernels.h.
#pragma once

#include <cstdint>

namespace shoal::cpu {

/// to[i] = sum over j < taps of weights[j * stride + i] * inputs[j][i] for i < n; an input of nullptr is zeros.
struct ConvArgs {
  const float* const* inputs = nullptr;
  int64_t taps = 0;
  const float* weights = nullptr;
  int64_t stride = 0;
  int64_t n = 0;
  float* to = nullptr;
};

/// A token as some columns of a head see it: v and out begin with their first one.
struct DeltaToken {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  float* out = nullptr;
  float factor = 0;
  float beta = 0;
  bool begins = false;  ///< a text: S is zeros before it
};

struct DeltaColumns {
  const DeltaToken* tokens = nullptr;
  int64_t count = 0;  ///< at least 1
  int64_t size = 0;
  int64_t columns = 0;
  const float* from = nullptr;  ///< S before the tokens
  int64_t from_stride = 0;      ///< floats from column to column
  float* to = nullptr;          ///< S after them, columns without gaps
};

inline constexpr int64_t kDeltaChunk = 32;  ///< most tokens of a chunk, a multiple of any width

/// to[r * kDeltaChunk + s] = row r times column s, of `columns` [size][kDeltaChunk].
struct DeltaProducts {
  const float* rows = nullptr;
  int64_t row_stride = 0;  ///< floats
  int64_t count = 0;
  const float* columns = nullptr;
  int64_t size = 0;
  float* to = nullptr;
};

/// What a chunk's tokens have of each other in one head. [r * kDeltaChunk + s]: only s < r (errors) and s <= r (rows)
/// are of use.
struct DeltaWeights {
  const float* key_products = nullptr;    ///< k_r . k_s
  const float* query_products = nullptr;  ///< q_r . k_s
  const double* logarithm = nullptr;      ///< of F_r
  const float* beta = nullptr;
  int64_t count = 0;
  float* of_errors = nullptr;  ///< -b_r F_r / F_s (k_r . k_s)
  float* of_rows = nullptr;    ///< F_r / F_s (q_r . k_s)
};

/// A chunk of a head for a block of columns; v and out begin with the first one, strides are in floats.
struct DeltaChunk {
  const float* q = nullptr;
  const float* k = nullptr;
  int64_t q_stride = 0, k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t count = 0, size = 0;
  int64_t columns = 0;               ///< at most the width
  const float* of_errors = nullptr;  ///< as in DeltaWeights
  const float* of_rows = nullptr;
  const float* beta = nullptr;
  const float* kept = nullptr;    ///< F_r
  const float* to_end = nullptr;  ///< F / F_r
  bool begins = false;            ///< a text: S is zeros before it
  float* state = nullptr;         ///< S, changed
  float* errors = nullptr;        ///< scratch, 2 * kDeltaChunk * width
};

struct DeltaKernels {
  int64_t width;
  void (*columns)(const DeltaColumns& args);
  void (*products)(const DeltaProducts& args);
  void (*weights)(const DeltaWeights& args);
  void (*chunk)(const DeltaChunk& args);
};

}  // namespace shoal::cpu
