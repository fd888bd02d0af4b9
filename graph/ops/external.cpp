// The op external: a node of a registered op (graph/external_op.h).
#include <algorithm>
#include <array>

#include "graph/external_op.h"
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

Tensor* external(Graph& g, std::string op, std::vector<Tensor*> sources, std::string args, std::string name) {
  const ExternalOp* found = find_op(op);
  for (Tensor*& source : sources) {
    const bool is_moved = found != nullptr && found->functions.strided == 0 && source && !source->is_contiguous();
    if (is_moved) source = contiguous(g, source);
  }
  return g.add_node(Op::kExternal, ExternalParams{std::move(op), std::move(args)}, std::move(sources), std::move(name));
}

void infer::external(Tensor& node) {
  const Expect expect(node, "x");
  const ExternalParams& params = params_of<ExternalParams>(node);
  const ExternalOp* op = find_op(params.op);
  expect(op != nullptr,
         "a registered op, got '{}' (registered: {}): call register_op(), or load the op's plug-in, first", params.op,
         fmt::join(registered_ops(), ", "));
  const shoal_op& functions = op->functions;
  const int count = static_cast<int>(node.src.size());
  expect(count >= functions.min_sources && count <= functions.max_sources, "{} for op '{}', got {}",
         source_counts(functions.min_sources, functions.max_sources), op->name, count);
  for (int i = 0; i < count && functions.strided == 0; ++i) {
    expect(node.src[i]->is_contiguous(), "contiguous sources for op '{}': add a node `contiguous` before source {}",
           op->name, i);
  }
  shoal_op_tensor result{};
  std::fill_n(result.shape, kMaxDims, int64_t{1});
  std::array<char, 512> error{};
  const int32_t status = functions.infer(ExternalCall(node, false).node(), &result, error.data(), error.size());
  error.back() = '\0';
  expect(status == 0, "{} (op '{}')", error.data(), op->name);
  const auto dtype = dtype_from_gguf(static_cast<uint32_t>(result.dtype));
  expect(dtype && !traits(*dtype).is_quantized, "a plain result dtype from op '{}', got number {}", op->name,
         result.dtype);
  node.dtype = *dtype;
  std::copy_n(result.shape, kMaxDims, node.shape.begin());
}

}  // namespace shoal
