// The sharding rules of ops as text, one row per op (grammar: meta/rules/rule.h). A rule has one operand for each
// source. If the source is absent, the operand is "-". If the source is broadcast along an axis, this axis is `1`. If a
// rule depends on the node, the row has a function that returns the text of the rule. The shapes of the node have been
// checked before the function is called. An op without a row runs on mirrored sources, and its result is mirrored.
//
// The planner has additional layouts for the following ops. Some of these ops also have a rule:
//
//   reshape, slice, permute, concat       computed from the runs         meta/layout/layout.h, meta/plan/strategies.cpp
//   fill                                  each rank fills its own shard
//   external                              the registered rule            graph/external_op.h
//   top_k, argmax; get_rows by their ids  each rank selects candidates   meta/plan/candidates.h
//   mul_mat_id and the ops that use it    each row is on one rank only   meta/plan/routed.h
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "graph/external_op.h"
#include "meta/rules/rule.h"

namespace shoal::meta {
namespace {

// --- functions that several rules use ----------------------------------------------------------------------------

/// Returns the operands of the node's sources as "a, -, b", with "-" for each absent source.
std::string sources(const Tensor& node, const std::vector<std::string>& operands) {
  std::string text;
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (i > 0) text += ", ";
    text += node.src[i] ? operands.at(i) : "-";
  }
  return text;
}

/// The letter, or "1" if the source is broadcast along this axis.
std::string broadcast(char letter, int64_t source_length, int64_t result_length) {
  return source_length == 1 && result_length != 1 ? "1" : std::string(1, letter);
}

/// The letter, or "1" if the axis has length 1.
std::string unless_one(char letter, int64_t length) {
  return length == 1 ? "1" : std::string(1, letter);
}

/// Returns the term of an axis whose elements are groups of the factor `letter`: "h" or "h/4". `groups` is the length
/// of the axis, and `length` is the length of the factor. If the length is 0, returns the whole factor "(spare)"
/// instead.
std::string grouped(char letter, char spare, int64_t length, int64_t groups) {
  if (length == groups) return std::string(1, letter);
  if (length == 0) return fmt::format("({})", spare);
  return fmt::format("{}/{}", letter, length / groups);
}

/// Returns a clause such as " | linear 0 2", with the given sources that have a float dtype or i32. The sources in the
/// clause may be Partial.
std::string linear(const Tensor& node, const std::vector<int>& sources) {
  std::string text;
  for (const int i : sources) {
    const DTypeTraits& type = traits(node.src[i]->dtype);
    if (type.is_float || type.dtype == DType::kI32) text += fmt::format(" {}", i);
  }
  return text.empty() ? "" : " | linear" + text;
}

// --- rules that depend on the node ------------------------------------------------------------------------------

/// A device that stores some rows of the table returns zeros for all other rows (vocabulary-parallel embedding).
std::string get_rows(const Tensor& node) {
  return "x [r] c d, i c d -> x i c d" + linear(node, {0});
}

/// A device writes the rows that it owns and skips all other rows. The result has the layout of the cache. The ids may
/// be the same for all heads and batches.
std::string set_rows(const Tensor& node) {
  const Shape& ids = node.src[2]->shape;
  return fmt::format("x [r] h z, x (i) h z, (i) {} {} -> x [r] h z", unless_one('h', ids[1]), unless_one('z', ids[2]));
}

/// Like set_rows, with the selected factor on the written axis.
std::string set_slice(const Tensor& node) {
  const int written = std::get<SetSliceParams>(node.params).axis;
  std::string cache, x;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const std::string letter(1, static_cast<char>('a' + axis));
    cache += axis == written ? "[" + letter + "] " : letter + " ";
    x += axis == written ? "(x) " : letter + " ";
  }
  return fmt::format("{0}, {1} -> {0}", cache, x);
}

/// The product sums over k. If the result is f16 or bf16, each addend of a split k is rounded, but no Partial source is
/// multiplied, because the sum of such a source can be rounded once. On axes 2 and 3, source 0 may have fewer batches
/// than source 1. If source 0 has only one batch, this batch is used for all batches of source 1.
std::string mul_mat(const Tensor& node) {
  const auto batches = [](char letter, char spare, int64_t a, int64_t b) {
    return a == 1 && b != 1 ? "1" : grouped(letter, spare, b, a);
  };
  const Shape& a = node.src[0]->shape;
  const Shape& b = node.src[1]->shape;
  return fmt::format("k m {} {}, k n c d -> m n c d | sum k", batches('c', 'e', a[2], b[2]),
                     batches('d', 'f', a[3], b[3])) +
         (node.dtype == DType::kF32 ? linear(node, {0, 1}) : "");
}

/// A device that stores some of the experts returns zeros for all other experts (expert parallelism). If axis 1 of x
/// has length 1, all experts of a token use the same row of x.
std::string mul_mat_id(const Tensor& node) {
  const std::string used = broadcast('u', node.src[1]->shape[1], node.src[2]->shape[0]);
  return fmt::format("k m [e], k {} t, u t -> m u t | sum k", used) + linear(node, {0, 1});
}

/// The operands of the node's sources as "a 1 c d, ...", with `1` for each axis along which a source is broadcast.
std::string broadcast_sources(const Tensor& node) {
  std::vector<std::string> operands;
  for (const Tensor* source : node.src) {
    std::string& text = operands.emplace_back();
    for (int axis = 0; axis < kMaxDims; ++axis) {
      text += broadcast(static_cast<char>('a' + axis), source->shape[axis], node.shape[axis]) + " ";
    }
  }
  return sources(node, operands);
}

/// The rule of add, sub, mul and div. A sum is linear in both sources jointly. If one source is Partial and the other
/// source is mirrored, only rank 0 adds the mirrored source.
std::string binary(const Tensor& node) {
  const std::string_view linear_in = node.op == Op::kMul ? "0 1" : node.op == Op::kDiv ? "0" : "0+1";
  return fmt::format("{} -> a b c d | linear {}", broadcast_sources(node), linear_in);
}

std::string compare(const Tensor& node) {
  return broadcast_sources(node) + " -> a b c d";
}

/// Like a sum, the op is linear in a and b jointly. The condition must be the same on all ranks.
std::string where(const Tensor& node) {
  return broadcast_sources(node) + " -> a b c d | linear 1+2";
}

/// The rule "a b c d -> a b c d". If `is_linear`, " | linear 0" is appended.
std::string element_wise(bool is_linear) {
  return std::string("a b c d -> a b c d") + (is_linear ? " | linear 0" : "");
}

/// The op is linear only if the bias is 0. Otherwise, every rank would add the bias.
std::string scale(const Tensor& node) {
  return element_wise(std::get<ScaleParams>(node.params).bias == 0.0f);
}

/// Negation is the only linear unary function.
std::string unary(const Tensor& node) {
  return element_wise(std::get<UnaryParams>(node.params).kind == UnaryKind::kNeg);
}

/// A cast is linear if it does not round. Before a cast to a smaller type, a Partial source is reduced. So the cast
/// rounds the sum and not each addend.
std::string cast(const Tensor& node) {
  const DType from = node.src[0]->dtype;
  return element_wise(traits(from).is_float && (node.dtype == DType::kF32 || node.dtype == from));
}

std::string contiguous(const Tensor& node) {
  return "a b c d -> a b c d" + linear(node, {0});
}

/// The rule of an op with one source. On an axis that is not `whole`, the source and the result have the same factor.
std::string whole_axes(const std::array<bool, kMaxDims>& whole) {
  std::string source, result;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const char letter = static_cast<char>('a' + axis), other = static_cast<char>('w' + axis);
    source += whole[axis] ? fmt::format("({}) ", letter) : fmt::format("{} ", letter);
    result += whole[axis] ? fmt::format(" ({})", other) : fmt::format(" {}", letter);
  }
  return source + "->" + result;
}

std::string pool_2d(const Tensor& node) {
  const auto& params = std::get<PoolParams>(node.params);
  const auto whole = [&](int axis) { return params.kernel[axis] != 1 || params.stride[axis] != 1; };
  const bool is_linear = params.kind == PoolKind::kAverage;
  return whole_axes({whole(0), whole(1)}) + (is_linear ? linear(node, {0}) : "");
}

/// New elements that are not zero would be added on every rank.
std::string pad(const Tensor& node) {
  const auto& params = std::get<PadParams>(node.params);
  std::array<bool, kMaxDims> whole{};
  for (int axis = 0; axis < kMaxDims; ++axis) whole[axis] = params.before[axis] + params.after[axis] > 0;
  const bool is_linear = params.mode != PadMode::kConstant || params.value == 0.0f || !std::ranges::count(whole, true);
  return whole_axes(whole) + (is_linear ? linear(node, {0}) : "");
}

std::string upsample(const Tensor& node) {
  return whole_axes({true, true}) + linear(node, {0});
}

std::string cumsum(const Tensor& node) {
  return "(a) b c d -> (a) b c d" + linear(node, {0});
}

/// act(gate) * up is linear in up. In the fused form, axis 0 contains first gate and then up. The segments gate and up
/// are split in the same way.
std::string glu(const Tensor& node) {
  if (node.src[1] == nullptr) return "2*a b c d, - -> a b c d";
  return "a b c d, a b c d -> a b c d | linear 1";
}

/// The op needs whole rows. The mask may be the same for all heads and batches.
std::string soft_max(const Tensor& node) {
  const Tensor* mask = node.src[1];
  const std::string axes = mask == nullptr ? "-"
                                           : fmt::format("(s) t {} {}", broadcast('h', mask->shape[2], node.shape[2]),
                                                         broadcast('z', mask->shape[3], node.shape[3]));
  return sources(node, {"(s) t h z", axes, "h"}) + " -> (s) t h z";
}

/// The op rotates pairs of elements. The angle depends on the position of the pair in its row, so the op needs whole
/// rows. A rotation is linear.
std::string rope(const Tensor& node) {
  return sources(node, {"(d) h t z", "t", "(f)"}) + " -> (d) h t z | linear 0";
}

/// Heads, queries and batches are independent. A group of heads shares a KV head. If several devices divide the group,
/// each of these devices has the KV head. The mask may be the same for all heads and batches. If the result contains no
/// lse (parts = 0), it is linear in v.
std::string attention(const Tensor& node) {
  const std::string heads = grouped('h', 'g', node.src[0]->shape[2], node.src[1]->shape[2]);
  const int64_t batches = node.shape[3];
  const std::string q = "(d) t h " + broadcast('z', node.src[0]->shape[3], batches);
  const bool by_batch = node.src[3] != nullptr && node.src[3]->shape[1] == batches && batches != 1;
  std::string mask = "(s) t";
  if (const Tensor* given = node.src[4]) {
    mask += " " + unless_one('h', given->shape[2]) + " " + unless_one('z', given->shape[3]);
  }
  const std::string operands = sources(node, {q, "(d) (s) " + heads + " z", "(e) (s) " + heads + " z",
                                              by_batch ? "t z" : "t", mask, "h", "(w) (y)", "t"});
  if (std::get<AttentionParams>(node.params).parts > 0) return operands + " -> (n) h t z";
  return operands + " -> (e) h t z" + linear(node, {2});
}

/// Channels are independent. A token depends on earlier tokens.
std::string causal_conv(const Tensor& node) {
  return sources(node, {"c (t)", "(k) c", "c (s)", "(t)", "(t)", "(y)"}) + " -> c (n)";
}

/// Heads are independent. Without `tiled`, heads that share a key head are adjacent. With `tiled`, head x uses key head
/// x % g for g key heads. So the list of key heads is repeated h / g times for h heads. All repetitions are split in
/// the same way.
std::string gated_delta(const Tensor& node) {
  const int64_t heads = node.src[2]->shape[1], key_heads = node.src[0]->shape[1];
  std::string of_keys = grouped('h', 'g', heads, key_heads), of_values = "h";
  if (std::get<GatedDeltaParams>(node.params).tiled && heads > key_heads) {
    of_keys = "h";
    of_values = fmt::format("{}*h", heads / key_heads);
  }
  const std::string k = "(d) " + of_keys + " (t)", v = "(d) " + of_values + " (t)", share = of_values + " (t)";
  return sources(node, {k, k, v, share, share, "(d) (e) " + of_values, "(t)", "(t)", "(y)"}) + " -> (d) (n) " +
         of_values;
}

/// The letter of axis 0 or 1 of x and of the result in conv_2d and conv_transpose_2d. If each result depends on one
/// input, both have the same factor. Otherwise, both are whole.
template <class Params>
std::array<std::string, 2> pixels(const Tensor& node, const Params& params, int axis) {
  const char x = axis == 0 ? 'x' : 'y', result = axis == 0 ? 'p' : 'q';
  const bool one_input = node.src[0]->shape[axis] == 1 && params.stride[axis] == 1 && params.pads[2 * axis] == 0 &&
                         node.shape[axis] == node.src[1]->shape[axis];
  if (one_input) return {std::string(1, x), std::string(1, x)};
  return {fmt::format("({})", x), fmt::format("({})", result)};
}

/// The rule of conv_2d and conv_transpose_2d with these terms for axes 2 and 3 of the weights, and for the channels of
/// x and of the result.
template <class Params>
std::string convolution(const Tensor& node, std::string_view weights, std::string_view inputs, std::string_view results,
                        std::string_view sum = "") {
  const auto& params = std::get<Params>(node.params);
  const auto [x0, y0] = pixels(node, params, 0);
  const auto [x1, y1] = pixels(node, params, 1);
  return fmt::format("(u) (v) {}, {} {} {} n -> {} {} {} n{}", weights, x0, x1, inputs, y0, y1, results, sum) +
         linear(node, {0, 1});
}

/// Without groups, the op sums over the input channels. In a depthwise convolution, m result channels have the same
/// input channel. The number of groups on a device is its number of input channels (local_params()). Other groups are
/// whole.
std::string conv_2d(const Tensor& node) {
  const int64_t groups = std::get<ConvParams>(node.params).groups;
  const Shape& w = node.src[0]->shape;
  if (groups == 1) return convolution<ConvParams>(node, "i o", "i", "o", " | sum i");
  if (w[2] == 1) return convolution<ConvParams>(node, "(i) o", grouped('o', 'g', w[3], groups), "o");
  return convolution<ConvParams>(node, "(i) (o)", "(c)", "(o)");
}

/// Like conv_2d. A depthwise convolution is divided only if each input channel has one result channel.
std::string conv_transpose_2d(const Tensor& node) {
  const int64_t groups = std::get<ConvTransposeParams>(node.params).groups;
  const Shape& w = node.src[0]->shape;
  if (groups == 1) return convolution<ConvTransposeParams>(node, "o i", "i", "o", " | sum i");
  if (w[2] == 1 && w[3] == groups) return convolution<ConvTransposeParams>(node, "(o) i", "i", "i");
  return convolution<ConvTransposeParams>(node, "(o) (i)", "(i)", "(c)");
}

/// Each axis of the result consists of n copies of the source's axis. All copies are split in the same way.
std::string repeat(const Tensor& node) {
  std::string source, result;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const char letter = static_cast<char>('a' + axis);
    const int64_t from = node.src[0]->shape[axis], to = node.shape[axis];
    // If the result has 0 copies, no element of the result depends on the factor. So the factor is not split.
    source += to == 0 && from != 0 ? fmt::format("({}) ", letter) : fmt::format("{} ", letter);
    if (from == to) {
      result += fmt::format("{} ", letter);
    } else if (to == 0) {
      result += fmt::format("({}) ", static_cast<char>('w' + axis));
    } else {
      result += fmt::format("{}*{} ", to / from, letter);
    }
  }
  return source + "-> " + result + linear(node, {0});
}

// --- the table --------------------------------------------------------------------------------------------------

struct Row {
  constexpr Row(Op op, const char* text) : op(op), text(text) {}
  constexpr Row(Op op, std::string (*make)(const Tensor& node)) : op(op), make(make) {}

  Op op;
  const char* text = nullptr;
  std::string (*make)(const Tensor& node) = nullptr;
};

constexpr Row kRules[] = {
    {Op::kGetRows, get_rows},
    {Op::kSetRows, set_rows},
    {Op::kSetSlice, set_slice},
    {Op::kMulMat, mul_mat},
    {Op::kMulMatId, mul_mat_id},
    {Op::kAdd, binary},
    {Op::kSub, binary},
    {Op::kMul, binary},
    {Op::kDiv, binary},
    {Op::kScale, scale},
    {Op::kUnary, unary},
    {Op::kClamp, "a b c d -> a b c d"},
    {Op::kGlu, glu},
    {Op::kCompare, compare},
    {Op::kWhere, where},
    // These ops need whole rows.
    {Op::kRmsNorm, "(a) b c d -> (a) b c d"},
    {Op::kLayerNorm, "(a) b c d -> (a) b c d"},
    {Op::kSoftMax, soft_max},
    {Op::kRope, rope},
    // In sum_rows, a device sums only its own elements of a row, and the result is Partial. In argmax, a device needs
    // the whole row.
    {Op::kSumRows, "a b c d -> 1 b c d | sum a | linear 0"},
    {Op::kCumsum, cumsum},
    {Op::kArgmax, "(a) b c d -> 1 b c d"},
    // The axis with the k results has a factor of its own.
    {Op::kTopK, "(a) b c d -> (k) b c d"},
    {Op::kAttention, attention},
    // Axis z of the first source contains partial attention results. Each device sums its own results, but needs the
    // lse of all results (the second source).
    {Op::kMergeAttention, "(n) h t z, (y) h t -> (e) h t | sum z"},
    // The axes along which elements are combined must be whole.
    {Op::kPool2d, pool_2d},
    {Op::kPad, pad},
    {Op::kUpsample, upsample},
    {Op::kCausalConv, causal_conv},
    {Op::kGatedDelta, gated_delta},
    {Op::kConv2d, conv_2d},
    {Op::kConvTranspose2d, conv_transpose_2d},
    {Op::kCast, cast},
    {Op::kContiguous, contiguous},
    {Op::kRepeat, repeat},
};

/// The row of each op; nullptr if the op has no row.
constexpr auto kRowOf = [] {
  std::array<const Row*, kOpCount> rows{};
  for (const Row& row : kRules) rows[static_cast<size_t>(row.op)] = &row;
  return rows;
}();

}  // namespace

std::optional<std::string> rule_text(const Tensor& node) {
  if (node.op == Op::kExternal) return external_rule(node);
  const Row* row = kRowOf[static_cast<size_t>(node.op)];
  if (row == nullptr) return std::nullopt;
  return row->make ? row->make(node) : row->text;
}

std::optional<Rule> rule_for(const Tensor& node) {
  const auto text = rule_text(node);
  return text ? std::optional(parse_rule(*text, node)) : std::nullopt;
}

bool has_rule(Op op) {
  return kRowOf[static_cast<size_t>(op)] != nullptr;
}

}  // namespace shoal::meta
