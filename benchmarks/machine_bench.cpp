// Prints the limits that benchmarks/machine.h measures, for comparison in benchmarks and scripts.
//
//   machine_bench --threads 2
//   machine_bench --threads 2 --bandwidth | tail -1      only the read bandwidth in GB/s
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "benchmarks/machine.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/topology.h"

int main(int argc, char** argv) {
  namespace bench = shoal::bench;
  namespace cpu = shoal::cpu;
  CLI::App app("Measures the upper limits of this machine");
  int threads = cpu::usable_cores();
  bool bandwidth_only = false;
  app.add_option("-t,--threads", threads, "Number of threads, each on its own core")->check(CLI::Range(1, 4096));
  app.add_flag("--bandwidth", bandwidth_only, "Measure only the read bandwidth; the last line is the result in GB/s");
  CLI11_PARSE(app, argc, argv);
  try {
    if (const int most = bench::measured_threads(threads); most < threads) {
      fmt::print(stderr, "machine_bench: {} threads are more than the {} usable cores; measuring {} threads\n", threads,
                 most, most);
      threads = most;
    }
    if (bandwidth_only) {
      fmt::print("{:.2f}\n", bench::read_bandwidth(threads) / 1e9);
      return 0;
    }
    fmt::print("{}, {} (measured with {})\n", cpu::cpu_model(), cpu::level_in_use(),
               shoal::format_bytes(bench::beyond_caches()));
    fmt::print("{:>8} {:>12} {:>14} {:>14} {:>14}\n", "threads", "read GB/s", "f32 GFLOP/s", "int16 GOP/s",
               "int8 GOP/s");
    for (const int count : {1, threads}) {
      fmt::print("{:>8} {:>12.1f} {:>14.1f} {:>14.1f} {:>14.1f}\n", count, bench::read_bandwidth(count) / 1e9,
                 bench::f32_peak(count) / 1e9, bench::int16_peak(count) / 1e9, bench::int8_peak(count) / 1e9);
      if (threads == 1) break;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "machine_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
