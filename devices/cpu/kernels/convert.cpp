// Converts rows of f32 to other types, and sums several arrays.
#include "devices/cpu/kernels/narrow.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/rows.h"
#include "graph/quants/blocks.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Rows>
void narrow(const float* src, void* dst, int64_t n) {
  auto* to = static_cast<typename Rows::Element*>(dst);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_as(to + i, load<F32>(src + i), Rows{});
  if (i < n) store_first_as<Rows>(to + i, load_first<RowsF32>(src + i, n - i), n - i);
}

using quants::BlockQ8_0;
constexpr int kVectors = quants::kBlock / kLanes;

/// Returns the largest magnitude of a block, or NaN if an element is NaN.
float largest_magnitude(const F32 (&x)[kVectors]) {
  const int32_t bits = max_lanes(largest_magnitude_bits(x));
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof largest);
  return largest == largest ? largest : __builtin_nanf("");
}

void quantize_block(const float* src, BlockQ8_0& block) {
  F32 x[kVectors];
  for (int i = 0; i < kVectors; ++i) x[i] = load<F32>(src + i * kLanes);
  block.scale = halves_of(splat(largest_magnitude(x) / 127))[0];
  const float scale = half_to_float(block.scale);
  const F32 factor = splat(scale == 0.0f ? 0.0f : 1.0f / scale);
  I32 values[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    const F32 scaled = x[i] * factor;
    const F32 above = scaled > splat(-127.0f) ? scaled : splat(-127.0f);  // this comparison also replaces NaN by -127
    const F32 limited = above < splat(127.0f) ? above : splat(127.0f);
    values[i] = rounded(limited);
  }
  store(block.values, bytes_of(values));
}

/// Returns the sum of one vector of each source. The sources are added in order.
template <class Rows, class Load>
inline F32 sum_at(const SumArgs& args, int64_t i, Load load_at) {
  using Element = typename Rows::Element;
  const auto at = [&](int64_t source) {
    return load_at(reinterpret_cast<const Element*>(args.sources[source]) + args.first + i);
  };
  F32 sum = at(0);
  for (int64_t source = 1; source < args.source_count; ++source) sum += at(source);
  return sum;
}

}  // namespace

void to_f16(const float* src, void* dst, int64_t n) {
  narrow<RowsF16>(src, dst, n);
}
void to_bf16(const float* src, void* dst, int64_t n) {
  narrow<RowsBF16>(src, dst, n);
}
void to_q8_0(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ8_0*>(dst);
  for (int64_t i = 0; i < n / quants::kBlock; ++i) quantize_block(src + i * quants::kBlock, blocks[i]);
}

template <class Rows>
void sum_arrays(const SumArgs& args) {
  using Element = typename Rows::Element;
  const auto out = [&](int64_t target, int64_t i) {
    return reinterpret_cast<Element*>(args.outs[target]) + args.out_first + i;
  };
  int64_t i = 0;
  for (; i + kLanes <= args.n; i += kLanes) {
    const F32 sum = sum_at<Rows>(args, i, [](const Element* from) { return Rows::load(from); });
    for (int64_t target = 0; target < args.out_count; ++target) store_as(out(target, i), sum, Rows{});
  }
  if (i == args.n) return;
  const int64_t rest = args.n - i;
  const F32 sum = sum_at<Rows>(args, i, [=](const Element* from) { return load_first<Rows>(from, rest); });
  for (int64_t target = 0; target < args.out_count; ++target) store_first_as<Rows>(out(target, i), sum, rest);
}

template void sum_arrays<RowsF32>(const SumArgs&);
template void sum_arrays<RowsF16>(const SumArgs&);
template void sum_arrays<RowsBF16>(const SumArgs&);

}  // namespace shoal::cpu::SHOAL_ISA
