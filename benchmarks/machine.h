// Measures upper limits of this machine for a number of threads. Benchmarks compare their results with these limits. A
// limit is measured at its first use, and the process then caches it. The measurement uses one core per thread, and the
// instruction-set level of the CPU devices (SHOAL_CPU_ISA). Each limit is the highest result of several runs, because
// other programs can only reduce a result. Thread-safe.
//
//   read_bandwidth(2) == 66e9: two threads together read 66 GB/s from memory, without cache hits
#pragma once

#include <cstddef>

namespace shoal::bench {

/// Number of threads that measure the limits for `threads` threads: `threads`, but at most the number of usable cores.
int measured_threads(int threads);
/// Number of bytes per second that all threads together read.
double read_bandwidth(int threads);
/// Number of f32 operations per second. A multiply-add counts as two operations.
double f32_peak(int threads);
/// Number of operations per second on 16-bit integers with 32-bit sums. A multiply-add counts as two operations.
double int16_peak(int threads);
/// Number of operations per second on 8-bit integers with 32-bit sums. A multiply-add counts as two operations.
double int8_peak(int threads);

/// Size of the last-level cache of one core, in bytes.
size_t cache_bytes();
/// Size of a working set that is far larger than the caches, in bytes. The caches evict the data of such a set before
/// the next read.
size_t beyond_caches();

}  // namespace shoal::bench
