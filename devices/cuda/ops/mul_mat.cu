// mul_mat and its fused forms. Up to eight columns per matrix are computed with the kernels of mul_mat_vec.h, which
// read every weight once. More columns are computed with tiles (mul_mat_tiles.h). If tiles do not support the operands,
// the kernels of mul_mat_vec.h compute groups of eight columns.
#include <algorithm>

#include "devices/cuda/ops/conversion.h"
#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/mul_mat_stream.h"
#include "devices/cuda/ops/mul_mat_tiles.h"
#include "devices/cuda/ops/mul_mat_vec.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// Number of columns by which each matrix of `a` is multiplied.
int64_t columns_per_matrix(const Tensor& node) {
  const Tensor& a = *node.src[0];
  const int64_t matrices = a.shape[2] * a.shape[3];
  return matrices > 0 ? node.rows() / matrices : 0;
}

bool uses_tiles(const Tensor& node) {
  return columns_per_matrix(node) > kVecColumns && mul_mat_tiles_supports(node);
}

/// Runs a product with the kernels for few columns. `columns` contains the prepared columns.
void run_vec(const LaunchContext& context, const JoinedProduct& product, const Tensor& b, PreparedColumns columns,
             GluKind glu) {
  const Tensor &a = *product.a, &out = *product.out;
  const int64_t matrices = a.shape[2] * a.shape[3];
  const VecKernel kernel = vec_kernel(a, product.up, matrices > 0 ? b.rows() / matrices : 0);
  Product p = product_of(a, out, columns);
  set_batches(p, a, b, kernel.columns);
  if (product.up) {
    p.up = product.up->data;
    p.glu = glu;
  }
  if (const Tensor* addend = product.addend) {
    p.addend = addend->data;
    for (int i = 0; i < 3; ++i) {
      p.addend_strides[i] = addend->shape[1 + i] == 1 ? 0 : static_cast<int64_t>(addend->strides[1 + i]);
    }
  }
  multiply(context, a, p, kernel);
}

/// Runs products with few columns. All products have the same b. If b must be prepared, `workspace` holds the prepared
/// columns.
void run_few_columns(const LaunchContext& context, std::span<const JoinedProduct> products, const Tensor& b,
                     std::byte* workspace, GluKind glu = {}) {
  if (stream_supports(products, b, context.gpu)) return stream_run(context, products, b, glu);
  const PreparedColumns columns = prepare_columns(context, *products[0].a, b, workspace);
  for (const JoinedProduct& product : products) run_vec(context, product, b, columns, glu);
}

void run_one(const LaunchContext& context, const JoinedProduct& product, GluKind glu = {}) {
  const Tensor& node = *product.node;
  if (uses_tiles(node)) return mul_mat_tiles_run_joined(context, {&product, 1}, glu);
  run_few_columns(context, {&product, 1}, *node.src[1], node.workspace, glu);
}

void run_f32(const LaunchContext& context, Tensor& node) {
  if (uses_tiles(node)) return mul_mat_tiles_run(context, node);
  run_one(context, {.a = node.src[0], .out = &node, .node = &node});
}

size_t f32_workspace(const Tensor& node, const GpuTraits& gpu) {
  if (uses_tiles(node)) return mul_mat_tiles_workspace(node, gpu);
  return columns_bytes(*node.src[0], *node.src[1]);
}

size_t f32_bytes(const Tensor& node) {
  return (static_cast<size_t>(node.elements()) * sizeof(float) + 255) / 256 * 256;
}
/// Returns the f32 product of a node whose result is f16 or bf16. The product is stored at the beginning of the node's
/// workspace. The workspace of the f32 product follows.
Tensor f32_product(const Tensor& node) {
  Tensor product = node;
  product.dtype = DType::kF32;
  product.strides = contiguous_strides(DType::kF32, node.shape);
  product.data = node.workspace;
  if (node.workspace != nullptr) product.workspace = node.workspace + f32_bytes(node);
  return product;
}

void run(const LaunchContext& context, Tensor& node) {
  if (node.dtype == DType::kF32) return run_f32(context, node);
  Tensor product = f32_product(node);
  run_f32(context, product);
  convert_elements(context, node.shape, operand_of(node), node.dtype, operand_of(product), DType::kF32);
}

size_t workspace(const Tensor& node, const GpuTraits& gpu) {
  if (node.dtype == DType::kF32) return f32_workspace(node, gpu);
  return f32_bytes(node) + f32_workspace(f32_product(node), gpu);
}

bool supports(const Tensor& node) {
  if (node.dtype == DType::kF32) return supports_product(node);
  return is_float(&node) && node.is_contiguous() && supports_product(f32_product(node));
}

/// Whether the kernels for few columns compute the node.
bool is_decode(const Tensor& node) {
  return node.op == Op::kMulMat && supports_product(node) && columns_per_matrix(node) <= kVecColumns;
}
/// Whether the kernels of mul_mat_tiles.h compute the node and can also compute its joined nodes (mul_mat_fused.h).
bool is_prompt(const Tensor& node) {
  return node.op == Op::kMulMat && supports_product(node) && uses_tiles(node) && mul_mat_tiles_can_join(node);
}
bool can_join(const Tensor& node) {
  return is_decode(node) || is_prompt(node);
}
bool is_plain_result(const Tensor& out, const Tensor& product) {
  return out.dtype == DType::kF32 && out.is_row_contiguous() && same_shape(out, product);
}

}  // namespace

const OpKernel kMulMatKernel{run, supports, workspace};

bool mul_mat_glu_supports(const Tensor& gate, const Tensor& up, const Tensor& out) {
  if (!can_join(gate) || !can_join(up) || gate.src[1] != up.src[1]) return false;
  const Tensor& a = *gate.src[0];
  const Tensor& b = *up.src[0];
  return a.dtype == b.dtype && same_shape(a, b) && a.strides == b.strides && is_plain_result(out, gate);
}

void mul_mat_glu_run(const LaunchContext& context, const Tensor& gate, const Tensor& up, GluKind kind, Tensor& out) {
  run_one(context, {.a = gate.src[0], .up = up.src[0], .out = &out, .node = &gate}, kind);
}

bool mul_mat_add_supports(const Tensor& product, const Tensor& addend, const Tensor& out) {
  const auto fits = [&](int axis) { return addend.shape[axis] == 1 || addend.shape[axis] == product.shape[axis]; };
  return can_join(product) && is_plain_result(out, product) && addend.dtype == DType::kF32 &&
         addend.is_row_contiguous() && addend.shape[0] == product.shape[0] && fits(1) && fits(2) && fits(3);
}

void mul_mat_add_run(const LaunchContext& context, const Tensor& product, const Tensor& addend, Tensor& out) {
  run_one(context, {.a = product.src[0], .addend = &addend, .out = &out, .node = &product});
}

ColumnForms mul_mat_forms(std::span<Tensor* const> nodes, const GpuTraits& gpu) {
  const Tensor& first = *nodes.front();
  const bool gated = nodes.back()->op == Op::kGlu;
  const JoinedProduct one{.a = first.src[0], .up = gated ? nodes[1]->src[0] : nullptr, .out = nodes.back()};
  if (first.dtype != DType::kF32) return {};
  if (first.op == Op::kMulMatId) {
    return stream_experts_supports(one, *first.src[1], first.shape[1], gpu) ? stream_form(one.a->dtype) : ColumnForms{};
  }
  const std::vector<JoinedProduct> products = gated ? std::vector{one} : joined_products(nodes);
  ColumnForms forms;
  if (!stream_supports(products, *first.src[1], gpu)) return forms;
  for (const JoinedProduct& product : products) forms |= stream_form(product.a->dtype);
  return forms;
}

std::vector<JoinedProduct> joined_products(std::span<Tensor* const> nodes) {
  std::vector<JoinedProduct> products;
  for (const Tensor* node : nodes) {
    if (node->op == Op::kMulMat) {
      products.push_back({.a = node->src[0], .out = node, .node = node});
    } else {
      JoinedProduct& last = products.back();
      last.addend = node->src[node->src[0] == last.out];
      last.out = node;
    }
  }
  return products;
}

bool mul_mat_many_supports(std::span<Tensor* const> nodes, const GpuTraits& gpu) {
  const Tensor& first = *nodes.front();
  const auto are_products = [&](auto is_fitting) {
    return std::all_of(nodes.begin(), nodes.end(), [&](const Tensor* node) {
      return node->op != Op::kMulMat || (node->src[1] == first.src[1] && is_fitting(*node));
    });
  };
  if (is_prompt(first)) {
    return are_products([&](const Tensor& node) { return is_prompt(node) && mul_mat_tiles_same_columns(node, first); });
  }
  if (!are_products(is_decode)) return false;
  return are_products([&](const Tensor& node) { return same_columns(*first.src[0], *node.src[0]); }) ||
         stream_supports(joined_products(nodes), *first.src[1], gpu);
}

void mul_mat_many_run(const LaunchContext& context, std::span<Tensor* const> nodes) {
  const std::vector<JoinedProduct> products = joined_products(nodes);
  if (uses_tiles(*nodes.front())) return mul_mat_tiles_run_joined(context, products);
  run_few_columns(context, products, *nodes.front()->src[1], products.back().node->workspace);
}

}  // namespace shoal::cuda
