// Divides the product of a DotArgs into tiles of a few rows and a few columns. The accumulators of a tile stay in
// registers.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

/// Prefetches `bytes` bytes that begin `ahead` bytes after `from`. A tile reads several rows of weights concurrently,
/// each row once. These rows are more streams than the hardware prefetcher can follow.
inline void prefetch(const void* from, size_t bytes, size_t ahead) {
  const auto at = reinterpret_cast<uintptr_t>(from) + ahead;
  SHOAL_UNROLL
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + i));
}

/// Prevents the compiler from moving memory accesses or prefetches across this call.
inline void keep_order() {
  asm volatile("" ::: "memory");
}

/// Forces the compiler to keep `object` in memory and to read `object` from memory.
template <class T>
inline void in_memory(const T& object) {
  asm volatile("" : : "r"(&object) : "memory");
}

/// Tile::run<R, C>(args, row, column) computes the results of R rows and C columns. The operations on an element of the
/// result are the same for all R and C.
template <class Tile>
void dot_tiles(const DotArgs& args) {
  int64_t row = 0;
  for (; row + 4 <= args.rows; row += 4) {
    int64_t column = 0;
    for (; column + 2 <= args.columns; column += 2) {
      Tile::template run<2, 2>(args, row, column);
      Tile::template run<2, 2>(args, row + 2, column);
    }
    if (column < args.columns) Tile::template run<4, 1>(args, row, column);
  }
  for (; row < args.rows; ++row) {
    for (int64_t column = 0; column < args.columns; ++column) Tile::template run<1, 1>(args, row, column);
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
