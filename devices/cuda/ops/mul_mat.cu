// mul_mat, and its fused forms. Up to eight columns of a matrix: kernels that read every weight once (mul_mat_vec.h).
// More: tiles (mul_mat_tiles.h), or pieces of eight where those refuse.
#include <algorithm>

#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/mul_mat_tiles.h"
#include "devices/cuda/ops/mul_mat_vec.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// Columns that one matrix of a is multiplied by.
int64_t columns_per_matrix(const Tensor& node) {
  const Tensor& a = *node.src[0];
  const int64_t matrices = a.shape[2] * a.shape[3];
  return matrices > 0 ? node.rows() / matrices : 0;
}

bool uses_tiles(const Tensor& node) {
  return columns_per_matrix(node) > kVecColumns && mul_mat_tiles_supports(node);
}

/// The node's product by these columns; what is joined to it is set in `joined`.
void run_vec(const LaunchContext& context, const Tensor& node, const Tensor& out, PreparedColumns columns,
             const Product& joined, const Tensor* up) {
  const Tensor& a = *node.src[0];
  const VecKernel kernel = vec_kernel(a, up, a.shape[2] * a.shape[3], columns_per_matrix(node), context.gpu);
  Product product = product_of(a, out, columns);
  set_batches(product, a, *node.src[1], kernel.columns);
  if (up) {
    product.up = up->data;
    product.glu = joined.glu;
  }
  product.addend = joined.addend;
  std::copy_n(joined.addend_strides, 3, product.addend_strides);
  multiply(context, a, product, kernel);
}

void run_joined(const LaunchContext& context, const Tensor& node, const Tensor& out, const Product& joined,
                const Tensor* up = nullptr) {
  const PreparedColumns columns = prepare_columns(context, *node.src[0], *node.src[1], node.workspace);
  run_vec(context, node, out, columns, joined, up);
}

void run(const LaunchContext& context, Tensor& node) {
  if (uses_tiles(node)) {
    mul_mat_tiles_run(context, node);
  } else {
    run_joined(context, node, node, {});
  }
}

size_t workspace(const Tensor& node, const GpuTraits& gpu) {
  if (uses_tiles(node)) return mul_mat_tiles_workspace(node, gpu);
  return columns_bytes(*node.src[0], *node.src[1]);
}

/// A product that the kernels for few columns run.
bool is_decode(const Tensor& node) {
  return node.op == Op::kMulMat && supports_product(node) && columns_per_matrix(node) <= kVecColumns;
}
bool is_plain_result(const Tensor& out, const Tensor& product) {
  return out.dtype == DType::kF32 && out.is_row_contiguous() && same_shape(out, product);
}

}  // namespace

const OpKernel kMulMatKernel{run, supports_product, workspace};

bool mul_mat_glu_supports(const Tensor& gate, const Tensor& up, const Tensor& out) {
  if (!is_decode(gate) || !is_decode(up) || gate.src[1] != up.src[1]) return false;
  const Tensor& a = *gate.src[0];
  const Tensor& b = *up.src[0];
  return a.dtype == b.dtype && same_shape(a, b) && a.strides == b.strides && is_plain_result(out, gate);
}

void mul_mat_glu_run(const LaunchContext& context, const Tensor& gate, const Tensor& up, GluKind kind, Tensor& out) {
  Product joined;
  joined.glu = kind;
  run_joined(context, gate, out, joined, up.src[0]);
}

bool mul_mat_add_supports(const Tensor& product, const Tensor& addend, const Tensor& out) {
  const auto fits = [&](int axis) { return addend.shape[axis] == 1 || addend.shape[axis] == product.shape[axis]; };
  return is_decode(product) && is_plain_result(out, product) && addend.dtype == DType::kF32 &&
         addend.is_row_contiguous() && addend.shape[0] == product.shape[0] && fits(1) && fits(2) && fits(3);
}

void mul_mat_add_run(const LaunchContext& context, const Tensor& product, const Tensor& addend, Tensor& out) {
  Product joined;
  joined.addend = addend.data;
  for (int i = 0; i < 3; ++i) {
    joined.addend_strides[i] = addend.shape[1 + i] == 1 ? 0 : static_cast<int64_t>(addend.strides[1 + i]);
  }
  run_joined(context, product, out, joined);
}

bool mul_mat_many_supports(std::span<Tensor* const> products) {
  const Tensor& first = *products.front();
  return std::all_of(products.begin(), products.end(), [&](const Tensor* node) {
    return is_decode(*node) && node->src[1] == first.src[1] && same_columns(*first.src[0], *node->src[0]);
  });
}

void mul_mat_many_run(const LaunchContext& context, std::span<Tensor* const> products) {
  const Tensor& last = *products.back();
  const PreparedColumns columns = prepare_columns(context, *last.src[0], *last.src[1], last.workspace);
  for (const Tensor* node : products) run_vec(context, *node, *node, columns, {}, nullptr);
}

}  // namespace shoal::cuda
