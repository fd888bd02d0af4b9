// Builders of all ops. Shapes are written [innermost, ...]; letters are axis lengths. Every builder returns the new
// node and accepts zero-length axes. If the shapes of the sources do not match, the builder throws InvalidArgument with
// the text "[op name] ..." and both shapes. Results are f32 unless stated otherwise. A source marked `?` may be
// nullptr.
#pragma once

#include <string>
#include <vector>

#include "graph/collective.h"
#include "graph/graph.h"

namespace shoal {

/// table [x, r, c, d] (any dtype), ids i32 [i, c, d] -> f32 [x, i, c, d] (i32 if the table is i32).
/// Selects row ids[j] of the table. An id outside [0, r) is a caller error and gives zeros.
Tensor* get_rows(Graph& g, Tensor* table, Tensor* ids, SelectParams params = {}, std::string name = {});
/// cache [x, r, h, z], rows f32 [x, i, h, z], ids i32 or i64 [i] -> a node that aliases the cache. Writes rows[:, j],
/// converted to the cache's dtype, into row ids[j] of the cache for each (h, z). `cache` must be a persistent tensor or
/// the result of another set_rows or set_slice on this tensor. `rows` must not be part of the cache. Ids outside [0, r)
/// are skipped. ids may also be [i, 1 or h, 1 or z]. An axis with length h or z then has a list of ids for each index.
Tensor* set_rows(Graph& g, Tensor* cache, Tensor* rows, Tensor* ids, SelectParams params = {}, std::string name = {});

/// cache [...], x f32 with the lengths of the cache on all axes except `axis` -> a node that aliases the cache. Writes
/// x, converted to the cache's dtype, to the indices [begin, begin + n) of `axis`; n is the length of x on this axis.
/// The conditions for `cache` and x are the conditions of set_rows. On axis 0 of a quantised cache, begin and n must be
/// whole blocks.
Tensor* set_slice(Graph& g, Tensor* cache, Tensor* x, SetSliceParams params, std::string name = {});

/// a [k, m, C, D] (any float or quantised dtype), b [k, n, c, d] (f32, f16, bf16), C divides c, D divides d -> f32 [m,
/// n, c, d]. Batch (i, j) of the result is the product of a's batch (i / (c/C), j / (d/D)) and b's batch (i, j), summed
/// over k. If k is 0, the result is zeros.
Tensor* mul_mat(Graph& g, Tensor* a, Tensor* b, std::string name = {});
Tensor* mul_mat(Graph& g, Tensor* a, Tensor* b, ProductParams params, std::string name = {});

/// Start index of a range (SelectParams) whose rows or experts no id can select. This index is larger than any i32.
inline constexpr int64_t kNoId = int64_t{1} << 40;
/// experts [k, m, e], x f32 [k, u or 1, t], ids i32 [u, t] -> [m, u, t]: the product of expert ids[u, t] and x[:, u,
/// t].
Tensor* mul_mat_id(Graph& g, Tensor* experts, Tensor* x, Tensor* ids, SelectParams params = {}, std::string name = {});

/// Element-wise ops. The result has the dtype of `a`. This dtype is f32, f16 or bf16. add, sub and mul also support
/// i32. The result has the broadcast shape: on each axis, the two lengths are equal or one of them is 1.
Tensor* add(Graph& g, Tensor* a, Tensor* b, std::string name = {});
Tensor* sub(Graph& g, Tensor* a, Tensor* b, std::string name = {});
Tensor* mul(Graph& g, Tensor* a, Tensor* b, std::string name = {});
Tensor* div(Graph& g, Tensor* a, Tensor* b, std::string name = {});
/// a, b (two float tensors, or two i32 tensors) -> i32 with the broadcast shape: 1 if the comparison holds, else 0. A
/// comparison with NaN holds only for kNotEqual.
Tensor* compare(Graph& g, Tensor* a, Tensor* b, CompareKind kind, std::string name = {});
/// condition i32, a and b of one dtype (f32, f16, bf16 or i32) -> that dtype, with the broadcast shape of all three: a
/// if the condition is not 0, else b.
Tensor* where(Graph& g, Tensor* condition, Tensor* a, Tensor* b, std::string name = {});
/// x * scale + bias.
Tensor* scale(Graph& g, Tensor* x, ScaleParams params, std::string name = {});
Tensor* unary(Graph& g, Tensor* x, UnaryKind kind, std::string name = {});
Tensor* clamp(Graph& g, Tensor* x, ClampParams params, std::string name = {});
/// act(gate) * up. The sources are either two tensors of one shape, or one fused tensor: x [2m, ...] = gate [m, ...] |
/// up [m, ...] -> [m, ...].
Tensor* glu(Graph& g, Tensor* gate, Tensor* up, GluKind kind, std::string name = {});
Tensor* glu_fused(Graph& g, Tensor* gate_up, GluKind kind, std::string name = {});

/// x / sqrt(mean(x^2) + eps) over axis 0. If the norm has a weight, the caller multiplies the result by this weight.
Tensor* rms_norm(Graph& g, Tensor* x, NormParams params, std::string name = {});
/// (x - mean) / sqrt(var + eps) over axis 0.
Tensor* layer_norm(Graph& g, Tensor* x, NormParams params, std::string name = {});
/// Soft-max over axis 0 of x [s, t, h, z] * scale + mask? f32 or f16 [s, t, 1|h, 1|z]. sinks? f32 [h] adds one logit
/// per head to the sum of exponentials; this logit has no element in the result. A fully masked row gives zeros.
Tensor* soft_max(Graph& g, Tensor* x, Tensor* mask, Tensor* sinks, SoftMaxParams params, std::string name = {});
/// Rotates x [d, h, t, z] by positions i32 [t]. freq_factors? f32 [dims / 2].
Tensor* rope(Graph& g, Tensor* x, Tensor* positions, Tensor* freq_factors, RopeParams params, std::string name = {});
/// [a, ...] -> [1, ...]: sums over axis 0.
Tensor* sum_rows(Graph& g, Tensor* x, std::string name = {});
/// [a, ...] -> [a, ...]: element i is the sum of the elements 0 to i along axis 0. The sums of i32 are i32 and wrap.
Tensor* cumsum(Graph& g, Tensor* x, std::string name = {});
/// [a, ...] -> i32 [1, ...]: index of the largest element along axis 0. If several elements are equally large, the
/// result is the lowest of their indices.
Tensor* argmax(Graph& g, Tensor* x, std::string name = {});
/// [a, ...] -> i32 [k, ...]: indices of the k largest elements along axis 0. The index of the largest element is first;
/// among equal elements the lower index is first.
Tensor* top_k(Graph& g, Tensor* x, int64_t k, std::string name = {});

/// q f32 [d, t, h, z or 1]; k [d, s, h/g, z]; v [e, s, h/g, z] (k, v: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1,
/// iq4_nl); positions? i32 [t, z or 1]; mask? f32 or f16 [s, t, 1|h, 1|z], to add; sinks? f32 [h] -> [e, h, t, z].
/// The head axis follows axis 0, so the result can be reshaped to [e * h, t]. A query that sees no row gives zeros.
/// With params.parts > 0 the result is [e + 1, h, t, z]. The extra last element of a row is the row's lse: the
/// logarithm of the sum of e^score, including sinks. If the query sees no row, the lse is -inf.
Tensor* attention(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* positions, Tensor* mask, Tensor* sinks,
                  AttentionParams params, std::string name = {});
/// Attention of several sequences to the pages of a pool. k [d, s, h/g, z], v [e, s, h/g, z]: s rows are s /
/// params.page pages. table i32 [w, y]: the pages of y sequences. sequences i32 [t]: the sequence of each query. Row r
/// of sequence y is row r % page of page table[r / page, y]. positions i32 [t, z or 1] count the rows of a sequence. q,
/// sinks and the result have the shapes of attention(). A query sees only rows below w * page. A query whose sequence
/// is outside [0, y) sees no row. Pages of rows that a query sees must be in [0, s / page); rows of other pages are not
/// seen.
Tensor* paged_attention(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* positions, Tensor* sinks, Tensor* table,
                        Tensor* sequences, AttentionParams params, std::string name = {});
/// Merges attention results over parts of the rows (AttentionParams::parts) into the result over all rows.
/// parts f32 [e + 1, h, t, z], lse f32 [y, h, t] -> [e, h, t]. `lse` has the values of all y parts. `parts` has z <= y
/// of these parts. The result is the sum over `parts` of e^(part[e] - log(sum over y of e^lse)) * part[:e].
/// Parts with lse -inf may hold any values. If every lse is -inf, the result is zeros.
///   e = 1, parts (6, 0) and (2, log 3), lse (0, log 3): 6 * 1/4 + 2 * 3/4 = 3
Tensor* merge_attention(Graph& g, Tensor* parts, Tensor* lse, std::string name = {});

/// Images are [w, h, c, n]: width, height, channels, batches. Sums are f32.
///
/// w [kw, kh, i, o] (f32, f16 or bf16), x f32 [w, h, i * groups, n] -> [W, H, o, n] (ConvParams). The kernel is not
/// flipped, as in all neural networks: element (W, H) is the sum over (kw, kh, i) of w[kw, kh, i] times x at
/// W * stride - pad + kw * dilation. Group g of the input channels gives group g of the output channels.
Tensor* conv_2d(Graph& g, Tensor* w, Tensor* x, ConvParams params, std::string name = {});
/// w [kw, kh, o, i] (f32, f16 or bf16), x f32 [w, h, i, n] -> [W, H, o * groups, n] (ConvTransposeParams). Element
/// (w, h) of x times w[kw, kh] is added to the result at w * stride - pad + kw * dilation. This is the transposed map
/// of conv_2d.
Tensor* conv_transpose_2d(Graph& g, Tensor* w, Tensor* x, ConvTransposeParams params, std::string name = {});
/// w [k, i, o], x [t, i * groups, n] -> [T, o, n]: conv_2d of height 1. Only the values for axis 0 of the parameters
/// are used. w and x must be contiguous.
Tensor* conv_1d(Graph& g, Tensor* w, Tensor* x, ConvParams params, std::string name = {});
/// w [k, o, i], x [t, i, n] -> [T, o * groups, n]: conv_transpose_2d of height 1, with the conditions of conv_1d.
Tensor* conv_transpose_1d(Graph& g, Tensor* w, Tensor* x, ConvTransposeParams params, std::string name = {});
/// [w, h, c, n] (f32, f16, bf16) -> f32 [W, H, c, n] (PoolParams).
Tensor* pool_2d(Graph& g, Tensor* x, PoolParams params, std::string name = {});
/// Adds elements before and after each axis of x (f32, f16, bf16). The result has the dtype of x.
Tensor* pad(Graph& g, Tensor* x, PadParams params, std::string name = {});
/// [w, h, c, n] (f32, f16, bf16) -> [size[0], size[1], c, n] of the same dtype. The sizes may also be smaller.
Tensor* upsample(Graph& g, Tensor* x, UpsampleParams params, std::string name = {});
/// layer_norm over each group of c / groups channels of x [w, h, c, n] (Wu and He 2018, arXiv:1803.08494). x must be
/// contiguous.
Tensor* group_norm(Graph& g, Tensor* x, int64_t groups, NormParams params, std::string name = {});

/// Ops with a state process the tokens of a batch in order. positions i32 [t]: a token at position 0 starts a sequence,
/// so earlier tokens and the state do not affect this sequence. A token with a negative position is padding: its row of
/// the result is zeros, and the padding does not affect other tokens or the state. All sources except the i32 sources
/// are f32, and their rows (axis 0) are contiguous. The result holds one row for each token, then the new state.
///
/// A batch can contain tokens of y sequences, each with its own state: see StateSlots. The result then holds one row
/// for each token, then the new states of the y sequences, one after another. Without StateSlots, y = 1 and the state
/// has one slot. All tokens of a sequence are consecutive, apart from padding. The result of a token does not depend on
/// the tokens of other sequences.
struct StateSlots {
  Tensor* sequences = nullptr;  ///< i32 [t]: the sequence of each token, in [0, y); ignored for padding tokens
  Tensor* slots = nullptr;      ///< i32 [y]: the slot that holds the state of each sequence; outside the slots: zeros.
                                ///< The new state of a sequence without tokens is zeros.
};
/// A causal convolution of each channel. x [c, t], weight [k, c], k >= 1, state [c, (k - 1) * slots] ->
/// [c, t + (k - 1) * y]. A slot holds the k - 1 inputs before the batch, oldest first. Column i < t is the sum over j
/// of weight[j] times the input that is k - 1 - j positions before token i (zero before the sequence's start). The new
/// state of a sequence is its latest k - 1 inputs.
Tensor* causal_conv(Graph& g, Tensor* x, Tensor* weight, Tensor* state, Tensor* positions, std::string name = {},
                    StateSlots slots = {});
/// The gated delta rule (Yang et al. 2024, arXiv:2412.06464). q, k [d, g, t], v [d, h, t], g divides h. decay [h, t] is
/// the logarithm of the decay factor, at most 0. beta [h, t]. state [d, d * slots, h]: S of each slot and head, as [key
/// element, value element] -> [d, t + d * y, h]: one row for each token, then the new S of each sequence. For each
/// head:
///   S *= e^decay; e = beta (v - S^T k); S += k e^T; row = S^T q.
Tensor* gated_delta(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* decay, Tensor* beta, Tensor* state,
                    Tensor* positions, GatedDeltaParams params, std::string name = {}, StateSlots slots = {});

/// Converts x from any dtype to any other dtype (integers by value). The result is contiguous.
Tensor* cast(Graph& g, Tensor* x, DType dtype, std::string name = {});
/// Copies x into a contiguous tensor.
Tensor* contiguous(Graph& g, Tensor* x, std::string name = {});
/// Concatenates at least one source along `axis`. All sources have the same dtype, and equal lengths on the other axes.
Tensor* concat(Graph& g, std::vector<Tensor*> sources, int axis, std::string name = {});
/// Repeats x along its axes, so that the result has shape `shape`.
Tensor* repeat(Graph& g, Tensor* x, Shape shape, std::string name = {});
Tensor* fill(Graph& g, FillParams params, std::string name = {});

/// A node of the registered op `op` (graph/external_op.h). Sources that are not contiguous are copied first, unless the
/// kernels of the op read any strides.
Tensor* external(Graph& g, std::string op, std::vector<Tensor*> sources, std::string args = {}, std::string name = {});

/// The same elements in the same order with another shape. x must be contiguous. One entry of `shape` may be -1; its
/// length is computed.
Tensor* reshape(Graph& g, Tensor* x, Shape shape, std::string name = {});
/// Selects `length` indices of one axis: begin, begin + step, begin + 2 * step, ...
Tensor* slice(Graph& g, Tensor* x, SliceParams params, std::string name = {});
Tensor* permute(Graph& g, Tensor* x, std::array<int, 4> axes, std::string name = {});
/// The value of x. On a meta device, its layout is `layout` (ReshardParams), such as "axis 1" or "mirrored".
Tensor* reshard(Graph& g, Tensor* x, std::string layout, std::string name = {});
/// Swaps axes 0 and 1.
Tensor* transpose(Graph& g, Tensor* x, std::string name = {});

/// A collective of a local graph. x must be contiguous. If params.counts is given, the result is flat: [count].
/// Otherwise the result has the shape of x.
Tensor* collective(Graph& g, Collective kind, Tensor* x, CollectiveParams params, std::string name = {});

}  // namespace shoal
