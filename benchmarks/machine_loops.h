// The loops that benchmarks/machine.h times: pure arithmetic or reading, with the instructions of one level. Compiled
// once per level of devices/cpu/isa.h, with the compiler flags of that level's kernels. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::bench {

struct Loops {
  /// Multiplies and adds in registers. f32_ops is the number of operations per round; a multiplication and an addition
  /// count as two.
  void (*f32)(int64_t rounds);
  double f32_ops;
  /// Multiplies 16-bit words with 32-bit sums, by the shortest instruction sequence of the level.
  void (*int16)(int64_t rounds);
  double int16_ops;
  /// Multiplies bytes with 32-bit sums, in the same way.
  void (*int8)(int64_t rounds);
  double int8_ops;
  /// Reads memory in `streams` concurrent streams. `bytes` is a multiple of streams * kReadStep.
  uint64_t (*read)(const std::byte* data, size_t bytes, int streams);
};
inline constexpr size_t kReadStep = 256;

}  // namespace shoal::bench
