// Atomics and fences on global and shared memory: real ones, because streams run on several OS threads. atomicAdd of
// floats is here too, but results of shoal must not depend on the order of sums.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cuda/emulator/weak_memory.h"

namespace shoal::cuda::emulator {

/// Replaces *address by function(old); returns old.
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

template <class T>
constexpr bool kAtomicInteger = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

}  // namespace shoal::cuda::emulator

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return shoal::cuda::emulator::atomic_update(address, [value](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  static_assert(shoal::cuda::emulator::kAtomicInteger<T>);
  shoal::cuda::emulator::deliver_stores();
  return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(shoal::cuda::emulator::kAtomicInteger<T>);
  return shoal::cuda::emulator::atomic_update(address, [value](T old) { return old < value ? value : old; });
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  static_assert(shoal::cuda::emulator::kAtomicInteger<T>);
  return shoal::cuda::emulator::atomic_update(address, [value](T old) { return value < old ? value : old; });
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  shoal::cuda::emulator::deliver_stores();
  T old;
  __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);
  return old;
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  shoal::cuda::emulator::deliver_stores();
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  static_assert(shoal::cuda::emulator::kAtomicInteger<T>);
  shoal::cuda::emulator::deliver_stores();
  return __atomic_fetch_and(address, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  static_assert(shoal::cuda::emulator::kAtomicInteger<T>);
  shoal::cuda::emulator::deliver_stores();
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicXor(T* address, std::type_identity_t<T> value) {
  static_assert(shoal::cuda::emulator::kAtomicInteger<T>);
  shoal::cuda::emulator::deliver_stores();
  return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED);
}
/// Counts up to `limit`, then starts from 0.
inline uint32_t atomicInc(uint32_t* address, uint32_t limit) {
  return shoal::cuda::emulator::atomic_update(address, [limit](uint32_t old) { return old >= limit ? 0 : old + 1; });
}

inline void __threadfence_block() {
  shoal::cuda::emulator::deliver_stores();  // the threads of a block see all else at once
}
inline void __threadfence() {
  shoal::cuda::emulator::fence();
}
inline void __threadfence_system() {
  shoal::cuda::emulator::fence();
}

// Loads and stores with a hint for caches.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldca(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldlu(const T* address) {
  return *address;
}
template <class T>
T __ldcv(const T* address) {
  return *const_cast<const volatile T*>(address);
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stwt(T* address, std::type_identity_t<T> value) {
  *address = value;
}
