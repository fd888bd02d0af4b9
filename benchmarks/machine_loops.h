// The loops that benchmarks/machine.h times: what the processor can do at most with the instructions of one level, and
// nothing else. Compiled once per level of devices/cpu/isa.h, with the flags of its kernels. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::bench {

struct Loops {
  /// Products and sums, in registers. The operations of one round: a multiplication and an addition are two.
  void (*f32)(int64_t rounds);
  double f32_ops;
  /// Products of words of 16 bits, summed up in 32 bits, by the shortest sequence that the level has for it.
  void (*int16)(int64_t rounds);
  double int16_ops;
  /// The same of bytes.
  void (*int8)(int64_t rounds);
  double int8_ops;
  /// Reads memory at `streams` places at a time. `bytes` is a multiple of streams * kReadStep.
  uint64_t (*read)(const std::byte* data, size_t bytes, int streams);
};
inline constexpr size_t kReadStep = 256;

}  // namespace shoal::bench
