// What this machine can do at most with some threads, for benchmarks to compare with: measured at first use, on as many
// cores, with the instructions of the level that the CPU devices use (SHOAL_CPU_ISA), and kept for the process. Each
// figure is the best of several runs, because whatever else runs can only make it smaller. Thread-safe.
//
//   read_bandwidth(2) == 66e9: two threads together read 66 GB a second of memory that is in no cache
#pragma once

#include <cstddef>

namespace shoal::bench {

/// The threads that the figures for that many are measured with: no more than the cores that this process may use, which
/// more threads would only share.
int measured_threads(int threads);
/// Bytes per second that this many threads read together.
double read_bandwidth(int threads);
/// f32 operations per second: a multiplication and an addition are two.
double f32_peak(int threads);
/// Operations per second on integers of 16 bits whose products are summed up in 32 bits, counted alike.
double int16_peak(int threads);
/// The same on bytes.
double int8_peak(int threads);

/// Of the last-level cache of one core.
size_t cache_bytes();
/// Far more than the caches hold: what must be read before anything is read a second time.
size_t beyond_caches();

}  // namespace shoal::bench
