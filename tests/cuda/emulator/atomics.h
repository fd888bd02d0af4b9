// Atomics and fences on global and shared memory. The functions use real atomics, because streams run on several OS
// threads. atomicAdd also exists for floats, but results of shoal must not depend on the order of additions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cuda/emulator/weak_memory.h"

namespace shoal::cuda::emulator {

/// Replaces *address by function(old) and returns old.
template <class T, class Function>
T atomic_update(T* address, Function function) {
  deliver_stores();
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  for (;;) {
    T desired = function(old);
    if (__atomic_compare_exchange(address, &old, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

}  // namespace shoal::cuda::emulator

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return shoal::cuda::emulator::atomic_update(address, [value](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  shoal::cuda::emulator::deliver_stores();
  T old;
  __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);
  return old;
}
/// Sets *address to 0 if the old value is at least `limit`, otherwise increments *address. Returns the old value.
inline uint32_t atomicInc(uint32_t* address, uint32_t limit) {
  return shoal::cuda::emulator::atomic_update(address, [limit](uint32_t old) { return old >= limit ? 0 : old + 1; });
}

inline void __threadfence() {
  shoal::cuda::emulator::fence();
}
inline void __threadfence_system() {
  shoal::cuda::emulator::fence();
}

// Loads with cache hints, which the emulator ignores.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
