// Prefetches weights, which kernels read only once.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

/// Prefetches `bytes` bytes that begin `ahead` bytes after `from`. Kernels that read several rows of weights
/// concurrently read more streams than the hardware prefetcher can follow.
inline void prefetch(const void* from, size_t bytes, size_t ahead) {
  const auto at = reinterpret_cast<uintptr_t>(from) + ahead;
  SHOAL_UNROLL
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + i));
}

/// Prevents the compiler from moving memory accesses or prefetches across this call.
inline void keep_order() {
  asm volatile("" ::: "memory");
}

}  // namespace shoal::cpu::SHOAL_ISA
