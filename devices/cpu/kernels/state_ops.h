// Loops of causal_conv and gated_delta. These ops have a state that changes with each token.
//
// In gated_delta, the state of a head is a matrix S [size][size], stored column by column. S has one column per element
// of a value. A column has one number per element of a key. A token has key k, query q, value v, factor f and beta b.
// The error of the token is e = b (v - f S^T k). The token changes S to f S + k e^T. The result of the token is S^T q
// with the new S.
//
// Each number is computed with the same operations in the same order, for any number of tokens and columns. A sum over
// key elements has one partial sum per lane of a vector. The partial sums are added in the order of sum_lanes(). So the
// result of a token does not depend on the division of its sequence into batches.
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

struct DeltaArgs {
  const DeltaToken* tokens = nullptr;
  int64_t count = 0;  ///< number of tokens, at least 1
  int64_t size = 0;
  int64_t columns = 0;
  const float* from = nullptr;  ///< S before the tokens; may equal `to`
  int64_t from_stride = 0;      ///< floats from one column to the next
  float* to = nullptr;          ///< S after the tokens; there are no gaps between the columns
};

}  // namespace shoal::cpu
