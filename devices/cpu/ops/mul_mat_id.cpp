// The op mul_mat_id. Each token has several slots, and the ids contain one expert for each (slot, token) pair. The op
// sorts these pairs by expert, so that the weights of every expert are read once. If the expert of a pair is on another
// device, the result of the pair is zeros.
#include <cstring>

#include "devices/cpu/ops/mul_mat_product.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "graph/ops/select.h"

namespace shoal::cpu {
namespace {

ProductShape shape_of(const Tensor& node) {
  return {node, node.src[0]->shape[2], node.shape[1] * node.shape[2]};
}

/// Calls f(slot, token, local index of the expert) for all pairs: token by token, and slot by slot within a token. If
/// the expert is on another device, the index is -1.
template <class F>
void for_pairs(const Tensor& node, F&& f) {
  const Tensor& experts = *node.src[0];
  const Tensor& ids = *node.src[2];
  const auto& params = std::get<SelectParams>(node.params);
  for (int64_t token = 0; token < node.shape[2]; ++token) {
    for (int64_t slot = 0; slot < node.shape[1]; ++slot) {
      f(slot, token, local_index(params, experts.shape[2], index_at(ids, slot, token)));
    }
  }
}

/// Uses a counting sort to list the columns of each expert. The columns of expert e get the indices
/// [first[e], first[e + 1]).
void list_columns(const ProductShape& shape, const ProductMemory& memory, const Tensor& node) {
  const Tensor& x = *node.src[1];
  std::memset(memory.first, 0, (shape.matrices + 1) * sizeof(int64_t));
  for_pairs(node, [&](int64_t, int64_t, int64_t expert) {
    if (expert >= 0) ++memory.first[expert + 1];
  });
  for (int64_t e = 0; e < shape.matrices; ++e) memory.first[e + 1] += memory.first[e];
  for_pairs(node, [&](int64_t slot, int64_t token, int64_t expert) {
    if (expert < 0) return;
    const int64_t row = token * x.shape[1] + (x.shape[1] == 1 ? 0 : slot);
    const int64_t at = memory.first[expert]++;
    memory.b[at] = column_at(x, row, shape, memory);
    memory.c[at] = reinterpret_cast<float*>(row_at(node, {slot, token, 0}));
  });
  // The loop has moved first[e] to the start of expert e + 1.
  for (int64_t e = shape.matrices; e > 0; --e) memory.first[e] = memory.first[e - 1];
  memory.first[0] = 0;
}

/// Writes zeros for this part's pairs whose expert is on another device.
void clear_unselected(const TeamContext& ctx, const Tensor& node) {
  const auto& params = std::get<SelectParams>(node.params);
  for_rows(ctx, node.shape, [&](RowIndex row) {
    const int64_t expert = index_at(*node.src[2], row.i1, row.i2);
    if (local_index(params, node.src[0]->shape[2], expert) < 0) {
      std::memset(row_at(node, row), 0, static_cast<size_t>(node.shape[0]) * sizeof(float));
    }
  });
}

void prepare(const TeamContext& ctx, Tensor& node) {
  const ProductShape shape = shape_of(node);
  if (shape.k == 0) return;
  const ProductMemory memory(shape, node.src[1]->rows(), ctx.parts, ctx.workspace);
  convert_columns(*node.src[1], share(ctx, node.src[1]->rows()), ctx.part, shape, memory);
  clear_unselected(ctx, node);
  if (ctx.part == 0) list_columns(shape, memory, node);
}

bool prepares(const Tensor&, int) {
  return true;
}

void run(const TeamContext& ctx, Tensor& node) {
  const ProductShape shape = shape_of(node);
  if (shape.k == 0) {
    for_rows(ctx, node.shape, [&](RowIndex row) { std::memset(row_at(node, row), 0, shape.m * sizeof(float)); });
    return;
  }
  multiply(ctx, *node.src[0], shape, ProductMemory(shape, node.src[1]->rows(), ctx.parts, ctx.workspace));
}

bool supports(const Tensor& node) {
  return supports_product(node) && node.src[2]->dtype == DType::kI32;
}

size_t workspace(const Tensor& node, int parts) {
  return ProductMemory(shape_of(node), node.src[1]->rows(), parts, nullptr).bytes;
}

int64_t work(const Tensor& node) {
  return node.elements() * node.src[0]->shape[0];
}

}  // namespace

const OpKernel kMulMatIdKernel{run, supports, workspace, work, nullptr, prepare, prepares};

}  // namespace shoal::cpu
