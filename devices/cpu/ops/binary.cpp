// add, sub, mul, div with broadcasting. A piece of a row is one of three plain loops (row with row, row with
// scalar, scalar with row); half types go through f32, i32 stays i32.
#include <cstring>

#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <class T>
  static T apply(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <class T>
  static T apply(T a, T b) {
    return a / b;
  }
};

/// to[i] = a[i] op b[i]; step 0 means the same element for all i. `to` may be a or b.
template <class F, class T>
void combine(const T* a, bool a_steps, const T* b, bool b_steps, T* to, int64_t n) {
  if (a_steps && b_steps) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = F::apply(a[i], b[i]);
  } else if (a_steps) {
    const T right = b[0];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = F::apply(a[i], right);
  } else {
    const T left = a[0];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = F::apply(left, b_steps ? b[i] : b[0]);
  }
}

/// A source's piece of a row, in the type of the computation.
const float* piece(const Tensor& source, const std::byte* row, int64_t begin, int64_t n, float* scratch) {
  return load(source, row, begin, n, scratch);
}
const uint32_t* piece(const Tensor& source, const std::byte* row, int64_t begin, int64_t n, uint32_t* scratch) {
  copy_elements(source, row, begin, n, reinterpret_cast<std::byte*>(scratch));
  return scratch;
}

template <class F, class T>
void run_as(const TeamContext& ctx, Tensor& node) {
  const Tensor& a = *node.src[0];
  const Tensor& b = *node.src[1];
  const bool alike = same_shape(a, b);
  const Shape walk = alike ? flat_shape(node, a, b) : node.shape;
  const bool a_steps = alike || a.shape[0] == node.shape[0];
  const bool b_steps = alike || b.shape[0] == node.shape[0];
  for_pieces(ctx, walk, [&](RowIndex row, int64_t begin, int64_t n) {
    T left[kChunk], right[kChunk], scratch[kChunk];
    std::byte* out = row_at(node, row);
    const T* x = piece(a, broadcast_row_at(a, row), a_steps ? begin : 0, a_steps ? n : 1, left);
    const T* y = piece(b, broadcast_row_at(b, row), b_steps ? begin : 0, b_steps ? n : 1, right);
    T* to = sizeof(T) == traits(node.dtype).block_bytes ? reinterpret_cast<T*>(out) + begin : scratch;
    combine<F>(x, a_steps, y, b_steps, to, n);
    if constexpr (std::is_same_v<T, float>) store(node, out, begin, n, to);
  });
}

template <class F>
void run(const TeamContext& ctx, Tensor& node) {
  // Unsigned: integers wrap around instead of being undefined.
  node.dtype == DType::kI32 ? run_as<F, uint32_t>(ctx, node) : run_as<F, float>(ctx, node);
}

bool supports_float(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]) && is_float(node.src[1]);
}

bool supports_float_or_int(const Tensor& node) {
  const bool integers =
      node.dtype == DType::kI32 && node.src[0]->dtype == DType::kI32 && node.src[1]->dtype == DType::kI32;
  return supports_float(node) || (integers && node.is_contiguous());
}

}  // namespace

const OpKernel kAddKernel{run<Add>, supports_float_or_int, nullptr, nullptr};
const OpKernel kSubKernel{run<Sub>, supports_float_or_int, nullptr, nullptr};
const OpKernel kMulKernel{run<Mul>, supports_float_or_int, nullptr, nullptr};
const OpKernel kDivKernel{run<Div>, supports_float, nullptr, nullptr};

}  // namespace shoal::cpu
