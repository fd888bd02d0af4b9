// Builders of every op. Shapes are written [innermost, ...]; lower-case letters are axis lengths.
// Every builder throws InvalidArgument "[op name] ..." with both shapes when sources do not fit, accepts
// zero-length axes, and returns the new node. f32 results unless said otherwise. A `?` source may be nullptr.
#pragma once

#include <string>
#include <vector>

#include "graph/collective.h"
#include "graph/graph.h"

namespace shoal {

/// table [x, r, c, d] (any dtype), ids i32 [i, c, d] -> f32 [x, i, c, d] (i32 table -> i32).
/// Row ids[j] of the table; ids outside [0, r) are an error of the caller that gives zeros.
Tensor* get_rows(Graph& g, Tensor* table, Tensor* ids, SelectParams params = {}, std::string name = {});
/// cache [x, r, h, z], rows f32 [x, i, h, z], ids i32 or i64 [i] -> the cache's own storage with row
/// ids[j] of each (h, z) replaced by rows[:, j], converted to its dtype. cache must be a persistent
/// tensor or the result of another set_rows on it, rows no part of it. Negative or too large ids are skipped.
Tensor* set_rows(Graph& g, Tensor* cache, Tensor* rows, Tensor* ids, SelectParams params = {}, std::string name = {});

/// a [k, m, C, D] (any float or quantised dtype), b [k, n, c, d] (f32, f16, bf16), C divides c, D divides d
/// -> f32 [m, n, c, d] = sum over k of a[k, m, c / (c/C), ...] * b[k, n, c, ...]. k == 0 gives zeros.
Tensor* mul_mat(Graph& g, Tensor* a, Tensor* b, std::string name = {});

/// Where ranges (SelectParams) of rows or experts begin that no id names: behind all i32.
inline constexpr int64_t kNoId = int64_t{1} << 40;
/// experts [k, m, e], x f32 [k, u or 1, t], ids i32 [u, t] -> [m, u, t]: expert ids[u, t] times x[:, u, t].
Tensor* mul_mat_id(Graph& g, Tensor* experts, Tensor* x, Tensor* ids, SelectParams params = {}, std::string name = {});

/// Element-wise; the result has a's dtype (f32, f16, bf16; i32 for add, sub, mul) and the broadcast shape:
/// on each axis the two lengths are equal or one of them is 1.
Tensor* add(Graph& g, Tensor* a, Tensor* b, std::string name = {});
Tensor* sub(Graph& g, Tensor* a, Tensor* b, std::string name = {});
Tensor* mul(Graph& g, Tensor* a, Tensor* b, std::string name = {});
Tensor* div(Graph& g, Tensor* a, Tensor* b, std::string name = {});
/// x * scale + bias.
Tensor* scale(Graph& g, Tensor* x, ScaleParams params, std::string name = {});
Tensor* unary(Graph& g, Tensor* x, UnaryKind kind, std::string name = {});
Tensor* clamp(Graph& g, Tensor* x, ClampParams params, std::string name = {});
/// act(gate) * up. Two sources of one shape, or fused: x [2m, ...] = gate [m, ...] | up [m, ...] -> [m, ...].
Tensor* glu(Graph& g, Tensor* gate, Tensor* up, GluKind kind, std::string name = {});
Tensor* glu_fused(Graph& g, Tensor* gate_up, GluKind kind, std::string name = {});

/// x / sqrt(mean(x^2) + eps) over axis 0. No weight: multiply by it afterwards.
Tensor* rms_norm(Graph& g, Tensor* x, NormParams params, std::string name = {});
/// (x - mean) / sqrt(var + eps) over axis 0.
Tensor* layer_norm(Graph& g, Tensor* x, NormParams params, std::string name = {});
/// soft-max over axis 0 of x [s, t, h, z] * scale + mask? f32 or f16 [s, t, 1|h, 1|z]; sinks? f32 [h]: one more
/// logit per head that takes its share of the sum and gives no output. A row masked wholly gives zeros.
Tensor* soft_max(Graph& g, Tensor* x, Tensor* mask, Tensor* sinks, SoftMaxParams params, std::string name = {});
/// x [d, h, t, z] rotated by positions i32 [t]; freq_factors? f32 [dims / 2].
Tensor* rope(Graph& g, Tensor* x, Tensor* positions, Tensor* freq_factors, RopeParams params, std::string name = {});
/// [a, ...] -> [1, ...].
Tensor* sum_rows(Graph& g, Tensor* x, std::string name = {});
/// [a, ...] -> i32 [1, ...]: index of the largest of axis 0, the first of equals.
Tensor* argmax(Graph& g, Tensor* x, std::string name = {});
/// [a, ...] -> i32 [k, ...]: indices of the k largest, largest first, lower index first among equals.
Tensor* top_k(Graph& g, Tensor* x, int64_t k, std::string name = {});

/// q f32 [d, t, h, z or 1]; k [d, s, h/g, z]; v [e, s, h/g, z] (f32, f16, bf16 or q8_0); positions? i32 [t, z or 1];
/// mask? f32 or f16 [s, t], added to the scores; sinks? f32 [h] -> [e, h, t, z] (heads next to the head's
/// own axis, ready to be reshaped to [e * h, t]). A query that sees no row gives zeros. With params.parts > 0 -> [e +
/// 1, h, t, z]: the last element of a row, its lse, is the logarithm of the sum of e^score, a sink's among them; -inf
/// of none.
Tensor* attention(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* positions, Tensor* mask, Tensor* sinks,
                  AttentionParams params, std::string name = {});
/// What queries give over all of z parts of the rows, of what they give over each (AttentionParams::parts):
/// parts f32 [e + 1, h, t, z], lse f32 [y, h, t]: of all parts, y >= z where `parts` has some of them -> [e, h, t], sum
/// over the parts that are there of e^(part[e] - log(sum over y of e^lse)) * part[:e]. Parts with -inf may hold
/// anything; where all lse are -inf zeros.
///   e = 1, parts (6, 0) and (2, log 3), lse (0, log 3): 6 * 1/4 + 2 * 3/4 = 3
Tensor* merge_attention(Graph& g, Tensor* parts, Tensor* lse, std::string name = {});

/// Ops with a state go over the tokens of a batch in their order. positions i32 [t]: a token at 0 starts a text, for
/// which nothing before it counts, neither tokens nor the state; one below 0 is padding, which gives zeros and is
/// passed over. All but positions are f32, rows (axis 0) without gaps. The result is that of the tokens, then the new
/// state.
///
/// A causal convolution of each channel. x [c, t], weight [k, c], k >= 1, state [c, k - 1]: the inputs before the
/// batch, oldest first -> [c, t + k - 1]: column i < t is the sum over j of weight[j] times the input k - 1 - j before
/// token i (zeros before the text); the others are the latest k - 1 inputs.
Tensor* causal_conv(Graph& g, Tensor* x, Tensor* weight, Tensor* state, Tensor* positions, std::string name = {});
/// The gated delta rule (Yang et al. 2024, arXiv:2412.06464). q, k [d, g, t], v [d, h, t], g divides h; decay [h, t]:
/// the logarithm of the factor, at most 0; beta [h, t]; state [d, d, h]: S of each head, [key element, value element]
/// -> [d, t + d, h]: a row for each token, then S. Of a head:
///   S *= e^decay; e = beta (v - S^T k); S += k e^T; row = S^T q.
Tensor* gated_delta(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* decay, Tensor* beta, Tensor* state,
                    Tensor* positions, GatedDeltaParams params, std::string name = {});

/// Converts any dtype to any other (integers by value); the result is contiguous.
Tensor* cast(Graph& g, Tensor* x, DType dtype, std::string name = {});
/// The same values stored without gaps.
Tensor* contiguous(Graph& g, Tensor* x, std::string name = {});
/// Sources of one dtype that agree on all other axes, one after the other along `axis`. At least one.
Tensor* concat(Graph& g, std::vector<Tensor*> sources, int axis, std::string name = {});
/// Tiles x until it has `shape`.
Tensor* repeat(Graph& g, Tensor* x, Shape shape, std::string name = {});
Tensor* fill(Graph& g, FillParams params, std::string name = {});

/// Same elements in the same order, other shape. x must be contiguous; one entry of -1 is inferred.
Tensor* reshape(Graph& g, Tensor* x, Shape shape, std::string name = {});
/// Indices [begin, begin + length) of one axis.
Tensor* slice(Graph& g, Tensor* x, SliceParams params, std::string name = {});
Tensor* permute(Graph& g, Tensor* x, std::array<int, 4> axes, std::string name = {});
/// Swaps axes 0 and 1.
Tensor* transpose(Graph& g, Tensor* x, std::string name = {});

/// A collective of local graphs: x is contiguous, results are flat [count]. Without counts it keeps x's shape.
Tensor* collective(Graph& g, Collective kind, Tensor* x, CollectiveParams params, std::string name = {});

}  // namespace shoal
