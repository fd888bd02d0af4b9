// Prints graphs as text, and parses graphs from text. The text form is for users, golden tests and minimized failures:
//
//   input  %x f32 [256, 4]
//   weight %w q8_0 [256, 768]
//   cache  %kc f16 [32, 512, 4]
//   %h = mul_mat(%w, %x)                          # f32 [768, 4]
//   %r = rope(%h, %pos, _) {dims=32, mode=halves}  # `_` is an absent source
//   output %r
//
// Each statement is on its own line; `#` starts a comment. Parameters equal to the op's defaults are not printed. Names
// match [A-Za-z0-9_.-]+. If the text of a graph is parsed, the new graph prints the same text.
#pragma once

#include <string>
#include <string_view>

#include "graph/graph.h"

namespace shoal {

std::string to_string(const Graph& graph);
/// Prints one node as a line of the text form, without the line end. Also used in error messages.
std::string to_string(const Tensor& node);
/// Returns a text such as "{dims=32, mode=halves}", or "" if all parameters have their defaults.
std::string params_to_string(Op op, const OpParams& params);
/// Inverse of params_to_string(). The braces may be missing: "dims=32, mode=halves". Throws InvalidArgument for an
/// unknown parameter or a bad value.
OpParams params_from_string(Op op, std::string_view text);

/// Fills `graph`. Adds each persistent leaf to `weights` if `weights` has no leaf with the same name, dtype and shape.
/// Throws InvalidArgument for invalid text. The message starts with the line number, such as "line 3: ...".
void parse_graph(std::string_view text, Graph& graph, TensorContext& weights);

}  // namespace shoal
