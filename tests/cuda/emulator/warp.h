// Barriers of a block, and operations of the lanes of a warp. In such an operation, each lane waits until every other
// lane of the mask has arrived or ended. All lanes that arrive must be at the same source line. A lane is missing if it
// has ended or if the block has no such thread. On a GPU, the value of a missing lane is undefined. The emulator aborts
// when a kernel reads this value.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "tests/cuda/emulator/block.h"

#define SHOAL_HERE const std::source_location& where = std::source_location::current()

inline void __syncthreads(SHOAL_HERE) {
  shoal::cuda::emulator::g_runner->meet_block(false, "__syncthreads", where);
}
inline int __syncthreads_or(int predicate, SHOAL_HERE) {
  return shoal::cuda::emulator::g_runner->meet_block(predicate != 0, "__syncthreads_or", where) != 0 ? 1 : 0;
}
inline void __syncwarp(uint32_t mask = 0xffffffff, SHOAL_HERE) {
  shoal::cuda::emulator::g_runner->meet_lanes(mask, nullptr, nullptr, "__syncwarp", where);
}

namespace shoal::cuda::emulator {

inline int lane() {
  return static_cast<int>(g_thread->lane);
}

/// Aborts because `lane` reads a value from the missing lane `source`.
[[noreturn]] void missing_lane(unsigned lane, unsigned source);

/// Calls function(lane, argument of the lane) for all present lanes.
template <class Argument, class Function>
void for_lanes(const std::array<void*, 32>& arguments, uint32_t present, Function function) {
  for (uint32_t lanes = present; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(lanes));
    function(lane, *static_cast<Argument*>(arguments[lane]));
  }
}

template <class T>
struct Exchange {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8),
                "CUDA shuffles values of 2, 4 and 8 bytes");
  T in;
  T out;
  unsigned source;

  static void compute(const std::array<void*, 32>& arguments, uint32_t present) {
    for_lanes<Exchange>(arguments, present, [&](unsigned lane, Exchange& own) {
      if ((present >> own.source & 1) == 0) missing_lane(lane, own.source);
      own.out = static_cast<const Exchange*>(arguments[own.source])->in;
    });
  }
};

template <class T>
T shuffle(uint32_t mask, T value, int source, const char* name, const std::source_location& where) {
  Exchange<T> exchange{value, value, static_cast<unsigned>(source)};
  g_runner->meet_lanes(mask, &exchange, &Exchange<T>::compute, name, where);
  return exchange.out;
}

/// Combines the values of all lanes and gives the result to every lane.
template <uint32_t (*kCombine)(uint32_t, uint32_t)>
uint32_t combine_lanes(uint32_t mask, uint32_t value, const char* name, const std::source_location& where) {
  const auto compute = [](const std::array<void*, 32>& arguments, uint32_t present) {
    uint32_t all = *static_cast<uint32_t*>(arguments[static_cast<unsigned>(std::countr_zero(present))]);
    for_lanes<uint32_t>(arguments, present, [&](unsigned, uint32_t& one) { all = kCombine(all, one); });
    for_lanes<uint32_t>(arguments, present, [&](unsigned, uint32_t& one) { one = all; });
  };
  g_runner->meet_lanes(mask, &value, compute, name, where);
  return value;
}
inline uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}
inline uint32_t most(uint32_t a, uint32_t b) {
  return a < b ? b : a;
}
inline uint32_t united(uint32_t a, uint32_t b) {
  return a | b;
}

}  // namespace shoal::cuda::emulator

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, SHOAL_HERE) {
  const int lane = shoal::cuda::emulator::lane();
  return shoal::cuda::emulator::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), "__shfl_sync",
                                        where);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned lanes, int width = 32, SHOAL_HERE) {
  const int lane = shoal::cuda::emulator::lane();
  const int source = lane - static_cast<int>(lanes);
  return shoal::cuda::emulator::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, "__shfl_up_sync",
                                        where);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, SHOAL_HERE) {
  const int lane = shoal::cuda::emulator::lane();
  const int source = lane ^ bits;
  return shoal::cuda::emulator::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, "__shfl_xor_sync",
                                        where);
}

inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value, SHOAL_HERE) {
  using namespace shoal::cuda::emulator;
  return combine_lanes<least>(mask, value, "__reduce_min_sync", where);
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value, SHOAL_HERE) {
  using namespace shoal::cuda::emulator;
  return combine_lanes<most>(mask, value, "__reduce_max_sync", where);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, SHOAL_HERE) {
  using namespace shoal::cuda::emulator;
  return combine_lanes<united>(mask, predicate != 0 ? 1u << lane() : 0, "__ballot_sync", where);
}
inline int __all_sync(uint32_t mask, int predicate, SHOAL_HERE) {
  using namespace shoal::cuda::emulator;
  return static_cast<int>(combine_lanes<least>(mask, predicate != 0 ? 1 : 0, "__all_sync", where));
}
#undef SHOAL_HERE
