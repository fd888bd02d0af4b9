// Barriers of a block and what the lanes of a warp do together. Lanes meet: none goes on before all of the mask that
// have not ended are there, at the same line. A value of a lane that takes no part (it has ended, or the block has no
// such thread) is undefined on a GPU and aborts here.
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
inline int __syncthreads_count(int predicate, SHOAL_HERE) {
  return shoal::cuda::emulator::g_runner->meet_block(predicate != 0, "__syncthreads_count", where);
}
inline int __syncthreads_or(int predicate, SHOAL_HERE) {
  return shoal::cuda::emulator::g_runner->meet_block(predicate != 0, "__syncthreads_or", where) != 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate, SHOAL_HERE) {
  return shoal::cuda::emulator::g_runner->meet_block(predicate == 0, "__syncthreads_and", where) == 0 ? 1 : 0;
}
inline void __syncwarp(uint32_t mask = 0xffffffff, SHOAL_HERE) {
  shoal::cuda::emulator::g_runner->meet_lanes(mask, nullptr, nullptr, "__syncwarp", where);
}
inline uint32_t __activemask() {
  return shoal::cuda::emulator::g_thread->warp->live;
}

namespace shoal::cuda::emulator {

inline int lane() {
  return static_cast<int>(g_thread->lane);
}

/// Aborts: `lane` reads what `source` does not give.
[[noreturn]] void missing_lane(unsigned lane, unsigned source);

/// Calls function(lane, argument of the lane) for all that are present.
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

/// Computes one value for all lanes from one of each.
template <class T>
T combine(uint32_t mask, T value, void (*compute)(const std::array<void*, 32>&, uint32_t), const char* name,
          const std::source_location& where) {
  g_runner->meet_lanes(mask, &value, compute, name, where);
  return value;
}

/// A reduction, as combine() takes it.
template <class T, class Operation>
void reduce_lanes(const std::array<void*, 32>& arguments, uint32_t present) {
  T result = *static_cast<T*>(arguments[std::countr_zero(present)]);
  for_lanes<T>(arguments, present & (present - 1), [&](unsigned, T& value) { result = Operation{}(result, value); });
  for_lanes<T>(arguments, present, [&](unsigned, T& value) { value = result; });
}

inline void ballot(const std::array<void*, 32>& arguments, uint32_t present) {
  uint32_t set = 0;
  for_lanes<uint32_t>(arguments, present,
                      [&](unsigned lane, uint32_t& value) { set |= (value != 0 ? 1u : 0u) << lane; });
  for_lanes<uint32_t>(arguments, present, [&](unsigned, uint32_t& value) { value = set; });
}
inline void vote_all(const std::array<void*, 32>& arguments, uint32_t present) {
  uint32_t all = 1;
  for_lanes<uint32_t>(arguments, present, [&](unsigned, uint32_t& value) { all &= value != 0 ? 1u : 0u; });
  for_lanes<uint32_t>(arguments, present, [&](unsigned, uint32_t& value) { value = all; });
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
};
struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};

}  // namespace shoal::cuda::emulator

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, SHOAL_HERE) {
  const int lane = shoal::cuda::emulator::lane();
  return shoal::cuda::emulator::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), "__shfl_sync",
                                        where);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, SHOAL_HERE) {
  const int lane = shoal::cuda::emulator::lane();
  const int source = lane ^ bits;
  return shoal::cuda::emulator::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, "__shfl_xor_sync",
                                        where);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32, SHOAL_HERE) {
  const int lane = shoal::cuda::emulator::lane();
  const int source = lane + static_cast<int>(delta);
  return shoal::cuda::emulator::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, "__shfl_down_sync",
                                        where);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32, SHOAL_HERE) {
  const int lane = shoal::cuda::emulator::lane();
  const int source = lane - static_cast<int>(delta);
  return shoal::cuda::emulator::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, "__shfl_up_sync",
                                        where);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, SHOAL_HERE) {
  return shoal::cuda::emulator::combine<uint32_t>(mask, predicate != 0 ? 1 : 0, &shoal::cuda::emulator::ballot,
                                                  "__ballot_sync", where);
}
inline int __any_sync(uint32_t mask, int predicate, SHOAL_HERE) {
  return shoal::cuda::emulator::combine<uint32_t>(mask, predicate != 0 ? 1 : 0, &shoal::cuda::emulator::ballot,
                                                  "__any_sync", where) != 0
             ? 1
             : 0;
}
inline int __all_sync(uint32_t mask, int predicate, SHOAL_HERE) {
  return static_cast<int>(shoal::cuda::emulator::combine<uint32_t>(
      mask, predicate != 0 ? 1 : 0, &shoal::cuda::emulator::vote_all, "__all_sync", where));
}

#define SHOAL_REDUCE_SYNC(name, type, operation)                                                                  \
  inline type name(uint32_t mask, type value, SHOAL_HERE) {                                                       \
    return shoal::cuda::emulator::combine<type>(                                                                  \
        mask, value, &shoal::cuda::emulator::reduce_lanes<type, shoal::cuda::emulator::operation>, #name, where); \
  }
SHOAL_REDUCE_SYNC(__reduce_add_sync, int, Sum)
SHOAL_REDUCE_SYNC(__reduce_add_sync, unsigned, Sum)
SHOAL_REDUCE_SYNC(__reduce_min_sync, int, Minimum)
SHOAL_REDUCE_SYNC(__reduce_min_sync, unsigned, Minimum)
SHOAL_REDUCE_SYNC(__reduce_max_sync, int, Maximum)
SHOAL_REDUCE_SYNC(__reduce_max_sync, unsigned, Maximum)
SHOAL_REDUCE_SYNC(__reduce_and_sync, unsigned, And)
SHOAL_REDUCE_SYNC(__reduce_or_sync, unsigned, Or)
SHOAL_REDUCE_SYNC(__reduce_xor_sync, unsigned, Xor)
#undef SHOAL_REDUCE_SYNC
#undef SHOAL_HERE
