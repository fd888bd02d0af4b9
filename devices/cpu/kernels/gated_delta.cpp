// The kernel of gated_delta. It processes all tokens, one by one, for a few columns at a time. These columns remain in
// the L1 cache. If another token follows, a token reads and writes each column only once.
#include <cstring>

#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/states.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// Vectors consist of segments of kLength lanes. In each segment, adds the upper half of the lanes to the lower half.
/// The lower half of each segment of the result has the sums of `a`, and the upper half has the sums of `b`.
template <int kLength>
inline F32 add_halves(F32 a, F32 b) {
  const auto lower = [](int i) { return i % kLength < kLength / 2 ? i : i - kLength / 2 + kLanes; };
  const auto upper = [](int i) { return i % kLength < kLength / 2 ? i + kLength / 2 : i + kLanes; };
  return shuffle(a, b, lower) + shuffle(a, b, upper);
}

/// Sums the lanes of each vector in the order of sum_lanes(). Lane c * kLanes / kCount of the result is the sum of
/// vector c.
template <int kCount, int kLength = kLanes>
inline F32 sums_of_lanes(F32 (&vectors)[kCount]) {
  constexpr int kHalf = kCount > 1 ? kCount / 2 : 1;
  F32 sums[kHalf];
  SHOAL_UNROLL
  for (int c = 0; c < kHalf; ++c) sums[c] = add_halves<kLength>(vectors[c], vectors[c + kCount / 2]);
  if constexpr (kLength > 2) {
    return sums_of_lanes<kHalf, kLength / 2>(sums);
  } else {
    return sums[0];
  }
}

/// Sums over key elements for kCount columns.
template <int kCount>
struct Sums {
  F32 lanes[kCount] = {};

  inline void add(int c, F32 column, F32 with) { lanes[c] = multiply_add(column, with, lanes[c]); }
  inline void store_to(float* to) {
    const F32 sums = sums_of_lanes(lanes);
    SHOAL_UNROLL
    for (int c = 0; c < kCount; ++c) to[c] = sums[c * (kLanes / kCount)];
  }
};

/// Calls f(i, loads, stores) for each vector of key elements. `i` is the first element.
template <class F>
inline void for_vectors(int64_t size, F f) {
  const int64_t whole = size / kLanes * kLanes, rest = size - whole;
  SHOAL_NO_UNROLL
  for (int64_t i = 0; i < whole; i += kLanes) {
    f(
        i, [](const float* from) { return load<F32>(from); }, [](float* to, F32 v) { store(to, v); });
  }
  if (rest > 0) {
    f(
        whole, [=](const float* from) { return load_part(from, rest); },
        [=](float* to, F32 v) { store_part(to, v, rest); });
  }
}

/// Adjacent columns of S in memory.
struct Columns {
  const float* data;
  int64_t stride;
};

/// Computes S^T k for kCount columns.
template <int kCount>
inline void multiply(const float* k, int64_t size, Columns s, float* to) {
  Sums<kCount> sums;
  for_vectors(size, [&](int64_t i, auto load_at, auto) {
    const F32 key = load_at(k + i);
    SHOAL_UNROLL
    for (int c = 0; c < kCount; ++c) sums.add(c, load_at(s.data + c * s.stride + i), key);
  });
  sums.store_to(to);
}

/// Changes kCount columns of S to f S + k e^T, and computes S^T q for these columns. `products` is S^T k. With kNext,
/// `products` becomes S^T k of the next token. `first` is the first of the columns in `v` and `out`.
template <int kCount, bool kNext>
inline void step(const DeltaToken& token, const float* next_k, int64_t size, int64_t first, Columns old, float* to,
                 float* products) {
  // Stores to S may change `token` as far as the compiler knows, so the loop uses copies.
  const float *const k = token.k, *const q = token.q;
  F32 errors[kCount];
  SHOAL_UNROLL
  for (int c = 0; c < kCount; ++c) {
    errors[c] = splat(token.beta * (token.v[first + c] - token.factor * products[c]));
  }
  const F32 factor = splat(token.factor);
  Sums<kCount> results, next;
  for_vectors(size, [&](int64_t i, auto load_at, auto store_at) {
    const F32 key = load_at(k + i);
    F32 changed[kCount];
    SHOAL_UNROLL
    for (int c = 0; c < kCount; ++c) {
      changed[c] = multiply_add(key, errors[c], load_at(old.data + c * old.stride + i) * factor);
      store_at(to + c * size + i, changed[c]);
    }
    const F32 query = load_at(q + i);
    SHOAL_UNROLL
    for (int c = 0; c < kCount; ++c) results.add(c, changed[c], query);
    if constexpr (kNext) {
      const F32 next_key = load_at(next_k + i);
      SHOAL_UNROLL
      for (int c = 0; c < kCount; ++c) next.add(c, changed[c], next_key);
    }
  });
  if constexpr (kNext) next.store_to(products);
  results.store_to(token.out + first);
}

/// Processes kGroups groups of kCount columns at a time. While the sums of a group are completed, the next group can
/// start.
template <int kCount, int kGroups>
void all_tokens(const DeltaArgs& args, int64_t first) {
  for (; first + kCount * kGroups <= args.columns; first += kCount * kGroups) {
    Columns old{args.from + first * args.from_stride, args.from_stride};
    float* const to = args.to + first * args.size;
    float products[kGroups][kCount];
    bool known = false;  // whether the products are known
    for (int64_t t = 0; t < args.count; ++t) {
      const DeltaToken& token = args.tokens[t];
      if (token.begins) {
        std::memset(to, 0, static_cast<size_t>(kGroups * kCount * args.size) * sizeof(float));
        old = {to, args.size};
      }
      const bool knows_next = t + 1 < args.count && !args.tokens[t + 1].begins;
      for (int g = 0; g < kGroups; ++g) {
        const int64_t column = g * kCount;
        const Columns of_group{old.data + column * old.stride, old.stride};
        if (!known) multiply<kCount>(token.k, args.size, of_group, products[g]);
        if (knows_next) {
          step<kCount, true>(token, args.tokens[t + 1].k, args.size, first + column, of_group, to + column * args.size,
                             products[g]);
        } else {
          step<kCount, false>(token, nullptr, args.size, first + column, of_group, to + column * args.size,
                              products[g]);
        }
      }
      known = knows_next;
      old = {to, args.size};
    }
  }
  if constexpr (kGroups > 1) {
    all_tokens<kCount, kGroups / 2>(args, first);
  } else if constexpr (kCount > 1) {
    all_tokens<kCount / 2, 1>(args, first);
  }
}

}  // namespace

void gated_delta(const DeltaArgs& args) {
  all_tokens<kLanes == 16 ? 8 : 4, 2>(args, 0);
}

}  // namespace shoal::cpu::SHOAL_ISA
