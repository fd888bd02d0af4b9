// The ops compare and where with broadcasting. compare converts half-precision elements to f32. where copies the bits
// of elements. If an operand has one element for a whole row, a buffer on the stack repeats this element.
#include <type_traits>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// A piece of a row of the result. In a flat piece, all operands are treated as one long row.
struct Piece {
  RowIndex row;
  int64_t begin, n;
  bool flat;
};

/// Returns the elements of an operand for a piece, without gaps. T is float, or an integer with the size of an element.
template <class T>
const T* operand(const Tensor& node, const Tensor& source, const Piece& piece, T* scratch) {
  const std::byte* row = broadcast_row_at(source, piece.row);
  const bool steps = piece.flat || source.shape[0] == node.shape[0];
  const int64_t begin = steps ? piece.begin : 0, n = steps ? piece.n : 1;
  const T* values = scratch;
  if constexpr (std::is_same_v<T, float>) {
    values = load(source, row, begin, n, scratch);
  } else if (source.strides[0] == sizeof(T)) {
    values = reinterpret_cast<const T*>(row) + begin;
  } else {
    copy_elements(source, row, begin, n, reinterpret_cast<std::byte*>(scratch));
  }
  if (steps) return values;
  const T one = values[0];
  std::fill_n(scratch, piece.n, one);
  return scratch;
}

/// Calls f(Piece, to) for each piece of this part. `to` is the first element of the piece in the result.
template <class F>
void for_operands(const TeamContext& ctx, Tensor& node, F&& f) {
  bool flat = true;
  for (const Tensor* source : node.src) flat = flat && same_shape(*source, node) && is_dense(*source);
  const size_t bytes = traits(node.dtype).block_bytes;
  for_pieces(ctx, flat ? Shape{node.elements(), 1, 1, 1} : node.shape, [&](RowIndex row, int64_t begin, int64_t n) {
    f(Piece{row, begin, n, flat}, row_at(node, row) + begin * bytes);
  });
}

template <class T>
void run_compare(const TeamContext& ctx, Tensor& node) {
  const auto kind = static_cast<size_t>(std::get<CompareParams>(node.params).kind);
  const CompareKernel compare = kernels().rows.compare[std::is_same_v<T, float> ? 0 : 1][kind];
  for_operands(ctx, node, [&](const Piece& piece, std::byte* to) {
    T left[kChunk], right[kChunk];
    const T* a = operand(node, *node.src[0], piece, left);
    compare(a, operand(node, *node.src[1], piece, right), to, piece.n);
  });
}

void run_any_compare(const TeamContext& ctx, Tensor& node) {
  node.src[0]->dtype == DType::kI32 ? run_compare<int32_t>(ctx, node) : run_compare<float>(ctx, node);
}

template <class T, class Select>
void run_select(const TeamContext& ctx, Tensor& node, Select select) {
  for_operands(ctx, node, [&](const Piece& piece, std::byte* to) {
    int32_t conditions[kChunk];
    T left[kChunk], right[kChunk];
    const int32_t* condition = operand(node, *node.src[0], piece, conditions);
    const T* a = operand(node, *node.src[1], piece, left);
    select(condition, a, operand(node, *node.src[2], piece, right), reinterpret_cast<T*>(to), piece.n);
  });
}

void run_where(const TeamContext& ctx, Tensor& node) {
  const RowKernels& rows = kernels().rows;
  const bool words = traits(node.dtype).block_bytes == sizeof(uint32_t);
  words ? run_select<uint32_t>(ctx, node, rows.select_words) : run_select<uint16_t>(ctx, node, rows.select_halves);
}

bool supports_compare(const Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const bool integers = a.dtype == DType::kI32 && b.dtype == DType::kI32;
  return node.dtype == DType::kI32 && node.is_contiguous() && (integers || (is_float(&a) && is_float(&b)));
}

bool supports_where(const Tensor& node) {
  return node.is_contiguous() && node.src[0]->dtype == DType::kI32 && node.src[1]->dtype == node.dtype &&
         node.src[2]->dtype == node.dtype && (node.dtype == DType::kI32 || is_float(&node));
}

}  // namespace

const OpKernel kCompareKernel{run_any_compare, supports_compare, nullptr, nullptr};
const OpKernel kWhereKernel{run_where, supports_where, nullptr, nullptr};

}  // namespace shoal::cpu
