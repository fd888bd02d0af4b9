// The loops that benchmarks/machine.h times. Each loop only computes or only reads, with the instructions of one
// instruction-set level. The loops are compiled once per level of devices/cpu/isa.h, with the compiler flags of the
// kernels of that level. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::bench {

struct Loops {
  /// Multiplies and adds in registers. f32_ops is the number of operations per round. A multiply-add counts as two
  /// operations.
  void (*f32)(int64_t rounds);
  double f32_ops;
  /// Multiplies 16-bit words and adds the products to 32-bit sums. Uses the shortest instruction sequence of its
  /// instruction-set level.
  void (*int16)(int64_t rounds);
  double int16_ops;
  /// Multiplies bytes and adds the products to 32-bit sums. Uses the shortest instruction sequence of its
  /// instruction-set level.
  void (*int8)(int64_t rounds);
  double int8_ops;
  /// Reads `streams` ranges of equal size, kReadStep bytes of each range in turn. `bytes` is the total size and a
  /// multiple of streams * kReadStep.
  uint64_t (*read)(const std::byte* data, size_t bytes, int streams);
};
inline constexpr size_t kReadStep = 256;

}  // namespace shoal::bench
