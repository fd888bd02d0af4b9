// Upper limits of this machine for a number of threads, for comparison in benchmarks. A limit is measured at first use,
// on as many cores as threads, with the instruction-set level of the CPU devices (SHOAL_CPU_ISA). It is then cached for
// the process. Each limit is the best of several runs, because other load can only lower it. Thread-safe.
//
//   read_bandwidth(2) == 66e9: two threads together read 66 GB/s of memory that is in no cache
#pragma once

#include <cstddef>

namespace shoal::bench {

/// Number of threads with which the limits for `threads` threads are measured: at most the usable cores.
int measured_threads(int threads);
/// Bytes per second that all threads together read.
double read_bandwidth(int threads);
/// f32 operations per second. A multiplication and an addition count as two.
double f32_peak(int threads);
/// Operations per second on 16-bit integers with 32-bit sums, counted in the same way.
double int16_peak(int threads);
/// Operations per second on bytes with 32-bit sums.
double int8_peak(int threads);

/// Bytes of the last-level cache of one core.
size_t cache_bytes();
/// Bytes of a working set that is far larger than the caches, so that data is evicted before it is read again.
size_t beyond_caches();

}  // namespace shoal::bench
