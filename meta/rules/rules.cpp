// The sharding rules of ops as text (grammar: meta/rules/rule.h): one row per op. A row writes one operand for each
// source, "-" where it is absent and `1` on broadcast axes; one that depends on the node is a function, which gets a
// node whose shapes are checked already. Without a row the op's sources are gathered and it runs mirrored.
//
// The planner lays out these ops by other means, some in addition to their rule:
//
//   reshape, slice, permute, concat   exact arithmetic on runs        meta/layout/layout.h, meta/plan/strategies.cpp
//   fill                              has no source: each rank fills its own part
//   top_k, argmax; get_rows of them   each rank selects candidates    meta/plan/candidates.h
//   mul_mat_id and its users          sums with rows on one rank      meta/plan/routed.h
#include <fmt/format.h>

#include <array>

#include "meta/rules/rule.h"

namespace shoal::meta {
namespace {

// --- pieces that rules share ------------------------------------------------------------------------------------

/// "a, -, b": the operands of the node's sources, "-" where a source is absent.
std::string sources(const Tensor& node, const std::vector<std::string>& operands) {
  std::string text;
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (i > 0) text += ", ";
    text += node.src[i] ? operands.at(i) : "-";
  }
  return text;
}

/// The letter, or "1" where the source has length 1 and the result more (or none) on this axis.
std::string broadcast(char letter, int64_t source_length, int64_t result_length) {
  return source_length == 1 && result_length != 1 ? "1" : std::string(1, letter);
}

/// An axis that `letter` (of `length`) has in groups: "h", "h/4". `spare` is a letter of its own, whole, for an axis
/// that has elements although there are no groups (length 0).
std::string grouped(char letter, char spare, int64_t length, int64_t groups) {
  if (length == groups) return std::string(1, letter);
  if (length == 0) return fmt::format("({})", spare);
  return fmt::format("{}/{}", letter, length / groups);
}

/// " | linear 0 2": those of the given sources that may be Partial, i.e. are of a type that can be summed.
std::string linear(const Tensor& node, const std::vector<int>& sources) {
  std::string text;
  for (const int i : sources) {
    const DTypeTraits& type = traits(node.src[i]->dtype);
    if (type.is_float || type.dtype == DType::kI32) text += fmt::format(" {}", i);
  }
  return text.empty() ? "" : " | linear" + text;
}

// --- rules that depend on the node ------------------------------------------------------------------------------

/// A device that has some rows of the table gives zeros for the others (vocabulary-parallel embedding).
std::string get_rows(const Tensor& node) {
  return "x [r] c d, i c d -> x i c d" + linear(node, {0});
}

/// k is contracted. Source 0 may have fewer batches on axes 2 and 3; a single one serves all of them.
std::string mul_mat(const Tensor& node) {
  const auto batches = [](char letter, char spare, int64_t a, int64_t b) {
    return a == 1 && b != 1 ? "1" : grouped(letter, spare, b, a);
  };
  const Shape& a = node.src[0]->shape;
  const Shape& b = node.src[1]->shape;
  return fmt::format("k m {} {}, k n c d -> m n c d | sum k", batches('c', 'e', a[2], b[2]),
                     batches('d', 'f', a[3], b[3])) +
         linear(node, {0, 1});
}

/// A device that has some of the experts gives zeros for tokens routed to others (expert parallelism). x may be the
/// same for all experts of a token (axis 1 of length 1).
std::string mul_mat_id(const Tensor& node) {
  const std::string used = broadcast('u', node.src[1]->shape[1], node.src[2]->shape[0]);
  return fmt::format("k m [e], k {} t, u t -> m u t | sum k", used) + linear(node, {0, 1});
}

/// add, sub, mul, div. A sum is linear in both sources together: of a Partial and a mirrored one, rank 0 alone adds
/// the mirrored one.
std::string binary(const Tensor& node) {
  const auto operand = [&](const Tensor& source) {
    std::string text;
    for (int axis = 0; axis < kMaxDims; ++axis) {
      text += broadcast(static_cast<char>('a' + axis), source.shape[axis], node.shape[axis]) + " ";
    }
    return text;
  };
  const std::string_view linear_in = node.op == Op::kMul ? "0 1" : node.op == Op::kDiv ? "0" : "0+1";
  return fmt::format("{}, {} -> a b c d | linear {}", operand(*node.src[0]), operand(*node.src[1]), linear_in);
}

/// "a b c d -> a b c d", linear or not.
std::string element_wise(bool is_linear) {
  return std::string("a b c d -> a b c d") + (is_linear ? " | linear 0" : "");
}

/// A bias would be added once for each addend.
std::string scale(const Tensor& node) {
  return element_wise(std::get<ScaleParams>(node.params).bias == 0.0f);
}

/// Of all functions of one element only the negation is linear.
std::string unary(const Tensor& node) {
  return element_wise(std::get<UnaryParams>(node.params).kind == UnaryKind::kNeg);
}

/// Linear where nothing is rounded. A Partial f32 value becomes mirrored before it is made smaller, so that one
/// rounding happens and not one for each addend.
std::string cast(const Tensor& node) {
  const DType from = node.src[0]->dtype;
  return element_wise(traits(from).is_float && (node.dtype == DType::kF32 || node.dtype == from));
}

std::string contiguous(const Tensor& node) {
  return "a b c d -> a b c d" + linear(node, {0});
}

/// act(gate) * up is linear in up. The fused form has gate and up one after the other on axis 0, each split alike, as
/// segments make it.
std::string glu(const Tensor& node) {
  if (node.src[1] == nullptr) return "2*a b c d, - -> a b c d";
  return "a b c d, a b c d -> a b c d | linear 1";
}

/// A row is needed whole; the mask may be the same for all heads and batches.
std::string soft_max(const Tensor& node) {
  const Tensor* mask = node.src[1];
  const std::string axes = mask == nullptr ? "-"
                                           : fmt::format("(s) t {} {}", broadcast('h', mask->shape[2], node.shape[2]),
                                                         broadcast('z', mask->shape[3], node.shape[3]));
  return sources(node, {"(s) t h z", axes, "h"}) + " -> (s) t h z";
}

/// Pairs of a row are rotated by angles that depend on their place in it, so the row is needed whole; a rotation is
/// linear.
std::string rope(const Tensor& node) {
  return sources(node, {"(d) h t z", "t", "(f)"}) + " -> (d) h t z | linear 0";
}

/// Heads, queries and batches are independent. Groups of heads share a KV head, which several devices have when a group
/// is divided among them. The result is linear in v, but for an lse.
std::string attention(const Tensor& node) {
  const std::string heads = grouped('h', 'g', node.src[0]->shape[2], node.src[1]->shape[2]);
  const int64_t batches = node.shape[3];
  const std::string q = "(d) t h " + broadcast('z', node.src[0]->shape[3], batches);
  const bool by_batch = node.src[3] != nullptr && node.src[3]->shape[1] == batches && batches != 1;
  const std::string operands =
      sources(node, {q, "(d) (s) " + heads + " z", "(e) (s) " + heads + " z", by_batch ? "t z" : "t", "(s) t", "h"});
  if (std::get<AttentionParams>(node.params).parts > 0) return operands + " -> (n) h t z";
  return operands + " -> (e) h t z" + linear(node, {2});
}

/// Heads are independent. Those that share a key head are neighbours or, tiled, lie the number of key heads apart: then
/// heads are copies of the key heads, each split alike.
std::string gated_delta(const Tensor& node) {
  const int64_t heads = node.src[2]->shape[1], key_heads = node.src[0]->shape[1];
  std::string of_keys = grouped('h', 'g', heads, key_heads), of_values = "h";
  if (std::get<GatedDeltaParams>(node.params).tiled && heads > key_heads) {
    of_keys = "h";
    of_values = fmt::format("{}*h", heads / key_heads);
  }
  return fmt::format("(d) {0} (t), (d) {0} (t), (d) {1} (t), {1} (t), {1} (t), (d) (e) {1}, (t) -> (d) (n) {1}",
                     of_keys, of_values);
}

/// An axis of the result is n copies of the source's, each split alike.
std::string repeat(const Tensor& node) {
  std::string source, result;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const char letter = static_cast<char>('a' + axis);
    const int64_t from = node.src[0]->shape[axis], to = node.shape[axis];
    // No copy at all: nothing of the source reaches the result.
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
    // A device writes the rows that it has and skips the others. The result lies as the cache does.
    {Op::kSetRows, "x [r] h z, x (i) h z, (i) -> x [r] h z"},
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
    // These need a row whole.
    {Op::kRmsNorm, "(a) b c d -> (a) b c d"},
    {Op::kLayerNorm, "(a) b c d -> (a) b c d"},
    {Op::kSoftMax, soft_max},
    {Op::kRope, rope},
    // A sum of parts is a part of the sum; the largest element needs the whole row.
    {Op::kSumRows, "a b c d -> 1 b c d | sum a | linear 0"},
    {Op::kArgmax, "(a) b c d -> 1 b c d"},
    // The k results are an axis of their own.
    {Op::kTopK, "(a) b c d -> (k) b c d"},
    {Op::kAttention, attention},
    // A device adds up the parts that it has; what all parts count has to be known.
    {Op::kMergeAttention, "(n) h t z, (y) h t -> (e) h t | sum z"},
    // Channels are independent; tokens need those before them.
    {Op::kCausalConv, "c (t), (k) c, c (s), (t) -> c (n)"},
    {Op::kGatedDelta, gated_delta},
    {Op::kCast, cast},
    {Op::kContiguous, contiguous},
    {Op::kRepeat, repeat},
};

/// The row of each op; nullptr where it has none.
constexpr auto kRowOf = [] {
  std::array<const Row*, kOpCount> rows{};
  for (const Row& row : kRules) rows[static_cast<size_t>(row.op)] = &row;
  return rows;
}();

}  // namespace

std::optional<std::string> rule_text(const Tensor& node) {
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
