// Cuts a DotArgs into tiles of a few rows by a few columns, whose accumulators stay in registers.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

/// Asks for the bytes that lie `ahead` behind `from`. Rows of weights are read once, several side by side: more streams
/// than the processor follows by itself.
inline void prefetch(const void* from, size_t bytes, size_t ahead) {
  const auto at = reinterpret_cast<uintptr_t>(from) + ahead;
  SHOAL_UNROLL
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + i));
}

/// The compiler moves no access to memory, and no prefetch, from one side to the other.
inline void keep_order() {
  asm volatile("" ::: "memory");
}

/// The compiler reads what is in `object` from memory.
template <class T>
inline void in_memory(const T& object) {
  asm volatile("" : : "r"(&object) : "memory");
}

/// Tile::run<R, C>(args, row, column) makes R rows times C columns, each element in the same way for all R and C.
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
