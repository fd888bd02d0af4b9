// The column form of gated_delta. It processes all tokens, one by one, for a few columns at a time. These columns
// remain in the L1 cache.
#include <cstring>

#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/states.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// Adds vector(c) * `with` to sums[c] for each column c.
template <int kColumns, class Vector>
inline void add_products(F32 (&sums)[kColumns], F32 with, Vector vector) {
  SHOAL_UNROLL
  for (int c = 0; c < kColumns; ++c) sums[c] = multiply_add(vector(c), with, sums[c]);
}

/// Processes one token: reads the state's columns at `from` and writes the new columns to `to`.
template <int kColumns>
inline void step(const DeltaToken& token, int64_t size, const float* from, int64_t from_stride, float* to,
                 int64_t first) {
  const int64_t whole = size / kLanes * kLanes, rest = size - whole;
  F32 sums[kColumns] = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    add_products<kColumns>(sums, load<F32>(token.k + i), [=](int c) { return load<F32>(from + c * from_stride + i); });
  }
  if (rest > 0) {
    add_products<kColumns>(sums, load_part(token.k + whole, rest),
                           [=](int c) { return load_part(from + c * from_stride + whole, rest); });
  }
  F32 errors[kColumns];
  SHOAL_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    errors[c] = splat(token.beta * (token.v[first + c] - token.factor * sum_lanes(sums[c])));
    sums[c] = F32{};
  }
  const F32 factor = splat(token.factor);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32 k = load<F32>(token.k + i);
    add_products<kColumns>(sums, load<F32>(token.q + i), [&](int c) {
      const F32 changed = multiply_add(k, errors[c], load<F32>(from + c * from_stride + i) * factor);
      store(to + c * size + i, changed);
      return changed;
    });
  }
  if (rest > 0) {
    const F32 k = load_part(token.k + whole, rest);
    add_products<kColumns>(sums, load_part(token.q + whole, rest), [&](int c) {
      const F32 changed = multiply_add(k, errors[c], load_part(from + c * from_stride + whole, rest) * factor);
      store_part(to + c * size + whole, changed, rest);
      return changed;
    });
  }
  SHOAL_UNROLL
  for (int c = 0; c < kColumns; ++c) token.out[first + c] = sum_lanes(sums[c]);
}

template <int kColumns>
void all_tokens(const DeltaColumns& args, int64_t first) {
  for (; first + kColumns <= args.columns; first += kColumns) {
    const float* from = args.from + first * args.from_stride;
    float* const to = args.to + first * args.size;
    int64_t stride = args.from_stride;
    for (int64_t t = 0; t < args.count; ++t) {
      const DeltaToken& token = args.tokens[t];
      if (token.begins) {
        std::memset(to, 0, kColumns * args.size * sizeof(float));
        from = to, stride = args.size;
      }
      step<kColumns>(token, args.size, from, stride, to, first);
      from = to, stride = args.size;
    }
  }
  if constexpr (kColumns > 1) all_tokens<kColumns / 2>(args, first);
}

}  // namespace

void delta_columns(const DeltaColumns& args) {
  all_tokens<kLanes == 16 ? 8 : 4>(args, 0);
}

}  // namespace shoal::cpu::SHOAL_ISA
