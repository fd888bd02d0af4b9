// Elements in memory, on the wire and in sums. T is the type of an element in memory. W is the type of an element on
// the wire. W equals T, or T is f32 and W is bf16. A sum uses the wire values of all addends, including the rank's own
// addend, so that all ranks add the same numbers. Floating-point elements are added in f32; i32 sums wrap around. This
// header contains device code.
#pragma once

#include <type_traits>

#include "collectives/p2p/slots.h"
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/memory.h"

namespace shoal::collectives::p2p {

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, int32_t>, uint32_t, float>;

template <class T>
__device__ inline Sum<T> widen(T x) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return static_cast<uint32_t>(x);
  } else {
    return cuda::to_float(x);
  }
}
template <class T>
__device__ inline T narrow(Sum<T> x) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return static_cast<T>(x);
  } else {
    return cuda::from_float<T>(x);
  }
}

/// A pack: kCount adjacent elements. add() adds two packs element by element.
template <class T, int kCount>
struct Pack {
  Sum<T> x[kCount];

  __device__ void add(const Pack& other) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] += other.x[i];
  }
};

/// Number of elements that fit into kBytes bytes on the wire.
template <class W, int kBytes>
inline constexpr int kElements = kBytes / static_cast<int>(sizeof(W));

/// Encodes a pack for the wire.
template <class W, class T, int kCount>
__device__ inline void encode(const Pack<T, kCount>& pack, uint32_t (&words)[kCount * sizeof(W) / 4]) {
  W values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = narrow<W>(pack.x[i]);
  memcpy(words, values, sizeof words);
}
template <class T, class W, int kCount>
__device__ inline Pack<T, kCount> decode(const uint32_t (&words)[kCount * sizeof(W) / 4]) {
  W values[kCount];
  memcpy(values, words, sizeof values);
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.x[i] = widen(values[i]);
  return pack;
}
template <class W, class T, int kCount>
__device__ inline void round_to_wire(Pack<T, kCount>& pack) {
  if constexpr (!std::is_same_v<W, T>) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.x[i] = widen(narrow<W>(pack.x[i]));
  }
}

/// The vector type for reading and writing kBytes bytes.
template <int kBytes>
using Vector = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
template <int kBytes>
__device__ inline void load_words(const void* from, uint32_t (&words)[kBytes / 4]) {
  using V = Vector<kBytes>;
  static_assert(kBytes % sizeof(V) == 0);
#pragma unroll
  for (int i = 0; i < kBytes / static_cast<int>(sizeof(V)); ++i) {
    const V vector = cuda::load_as<V>(static_cast<const V*>(from) + i);
    memcpy(words + i * sizeof(V) / 4, &vector, sizeof(V));
  }
}
template <int kBytes>
__device__ inline void store_words(void* to, const uint32_t (&words)[kBytes / 4]) {
  using V = Vector<kBytes>;
  static_assert(kBytes % sizeof(V) == 0);
#pragma unroll
  for (int i = 0; i < kBytes / static_cast<int>(sizeof(V)); ++i) {
    V vector;
    memcpy(&vector, words + i * sizeof(V) / 4, sizeof(V));
    cuda::store_as(static_cast<V*>(to) + i, vector);
  }
}

/// An array in memory that is read and written in packs. If the array is aligned to 16 bytes, whole packs use wide
/// accesses. kWhole: the array is known to be aligned, and no pack extends past the end of the array.
template <class T, bool kWhole = false>
struct Array {
  T* data;
  bool aligned;

  __device__ explicit Array(T* elements) : data(elements), aligned(reinterpret_cast<uintptr_t>(elements) % 16 == 0) {}

  /// Loads the elements [first, first + kCount). Elements at or after `end` are 0.
  template <int kCount>
  __device__ Pack<std::remove_const_t<T>, kCount> load(int64_t first, int64_t end) const {
    using Element = std::remove_const_t<T>;
    if (is_whole<kCount>(first, end)) {
      uint32_t words[kCount * sizeof(T) / 4];
      load_words<kCount * sizeof(T)>(data + first, words);
      return decode<Element, Element, kCount>(words);
    }
    Pack<Element, kCount> pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.x[i] = !kWhole && first + i < end ? widen(data[first + i]) : Sum<Element>{0};
    return pack;
  }
  template <int kCount>
  __device__ void store(int64_t first, int64_t end, const Pack<T, kCount>& pack) const {
    if (is_whole<kCount>(first, end)) {
      uint32_t words[kCount * sizeof(T) / 4];
      encode<T>(pack, words);
      store_words<kCount * sizeof(T)>(data + first, words);
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!kWhole && first + i < end) data[first + i] = narrow<T>(pack.x[i]);
    }
  }

 private:
  template <int kCount>
  __device__ bool is_whole(int64_t first, int64_t end) const {
    return kWhole ? first < end : aligned && first + kCount <= end;
  }
};

}  // namespace shoal::collectives::p2p
