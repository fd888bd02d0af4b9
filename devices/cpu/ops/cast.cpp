// The op cast. It converts any dtype to any other dtype through f32. Conversions between i32 and i64 are direct and
// exact. If both dtypes are equal, the elements are copied.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

bool is_integer(DType dtype) {
  return dtype == DType::kI32 || dtype == DType::kI64;
}

template <class From, class To>
void convert_each(const std::byte* packed, int64_t n, std::byte* to) {
  const auto* from = reinterpret_cast<const From*>(packed);
  for (int64_t i = 0; i < n; ++i) reinterpret_cast<To*>(to)[i] = static_cast<To>(from[i]);
}

void convert_integers(const Tensor& x, const std::byte* row, int64_t begin, int64_t n, const Tensor& node,
                      std::byte* to) {
  alignas(64) std::byte packed[kChunk * sizeof(int64_t)];
  copy_elements(x, row, begin, n, packed);
  if (node.dtype == DType::kI64) {
    convert_each<int32_t, int64_t>(packed, n, to);
  } else {
    convert_each<int64_t, int32_t>(packed, n, to);
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const DTypeTraits& type = traits(node.dtype);
  const bool integers = is_integer(x.dtype) && is_integer(node.dtype);
  for_pieces(ctx, flat_shape(node, x), [&](RowIndex row, int64_t begin, int64_t n) {
    std::byte* to = row_at(node, row) + begin / type.block_elems * type.block_bytes;
    const std::byte* from = row_at(x, row);
    if (x.dtype == node.dtype) {
      copy_elements(x, from, begin, n, to);
    } else if (integers) {
      convert_integers(x, from, begin, n, node, to);
    } else {
      float scratch[kChunk];
      convert(node.dtype, load(x, from, begin, n, scratch), to, n);
    }
  });
}

bool supports(const Tensor& node) {
  return is_readable(node.src[0]) && node.is_contiguous() && traits(node.dtype).from_f32;
}

int64_t work(const Tensor& node) {
  return node.elements() * 2;
}

}  // namespace

const OpKernel kCastKernel{run, supports, nullptr, work};

}  // namespace shoal::cpu
