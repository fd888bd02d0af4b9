// shoal bench-comm: measures the time of collectives between devices and checks the results of the collectives. The
// table has the layout of nccl-tests.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/text.h"
#include "tools/bench/bench_comm_report.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/threads.h"

namespace shoal::tools {
namespace {

struct BenchCommFlags {
  PluginFlags plugins;
  SingleDevicesFlag devices;
  size_t min_bytes = 1 << 10, max_bytes = 64 << 20;
  double factor = 2.0;
  std::vector<Collective> ops{Collective::kAllReduce};
  std::vector<DType> dtypes{DType::kF32};
  std::vector<std::string> comms;  ///< empty: the implementation that SHOAL_COMM names
  CommBenchOptions options;
  OutputFlag output;
  bool calibrate = false;

  void check() const {
    if (min_bytes > max_bytes) {
      throw UsageError(fmt::format("--min-bytes {} is more than --max-bytes {}", min_bytes, max_bytes));
    }
    if (calibrate && processes() != nullptr) {
      throw UsageError("--calibrate is for devices of one process; start shoal without mpirun or srun");
    }
  }
};

/// Parses a comma-separated list of names from `known`, or "all".
template <class T, class Known, class NameOf>
std::vector<T> parse_choices(const std::string& flag, const std::string& text, const Known& known,
                             const NameOf& name_of_one) {
  if (text == "all") return {known.begin(), known.end()};
  std::vector<T> chosen;
  for (const std::string& part : split_list(text)) {
    std::string names = "all";
    bool found = false;
    for (const T& one : known) {
      names += fmt::format(", {}", name_of_one(one));
      if (name_of_one(one) != part) continue;
      chosen.push_back(one);
      found = true;
    }
    require<InvalidArgument>(found, "{} must be one or more of {}; got '{}'", flag, names, part);
  }
  return chosen;
}

size_t parse_size(const std::string& flag, const std::string& text) {
  try {
    const size_t size = parse_bytes(text);
    if (size > 0 && size <= static_cast<size_t>(std::numeric_limits<int64_t>::max())) return size;
  } catch (const InvalidArgument&) {
    // The error is reported below, with the name of the flag.
  }
  fail<InvalidArgument>("{} must be a number of bytes above 0, such as 8, 64K, 16M or 1G, got '{}'", flag, text);
}

/// Message sizes in ascending order, from --min-bytes to at most --max-bytes.
std::vector<size_t> sizes_of(const BenchCommFlags& flags) {
  std::vector<size_t> sizes;
  for (size_t size = flags.min_bytes; size <= flags.max_bytes;) {
    sizes.push_back(size);
    const double next = static_cast<double>(size) * flags.factor;
    if (next > static_cast<double>(flags.max_bytes)) break;
    size = std::max(size + 1, static_cast<size_t>(next));
  }
  return sizes;
}

/// The requested implementations. "all" stands for every implementation that works here.
std::vector<CommImplementation> chosen_implementations(CommBench& bench, const BenchCommFlags& flags) {
  if (flags.comms.size() == known_implementations().size()) return bench.implementations();
  if (flags.comms.empty()) return {bench.implementation(collectives::default_implementation())};
  std::vector<CommImplementation> chosen;
  for (const std::string& name : flags.comms) chosen.push_back(bench.implementation(name));
  return chosen;
}

void measure_sizes(CommBench& bench, const CommImplementation& implementation, CommCase c, const BenchCommFlags& flags,
                   CommReport& report) {
  int64_t latest = 0;
  for (const size_t size : sizes_of(flags)) {
    if (interrupted()) throw Interrupted();
    c = case_of_size(c.kind, c.dtype, c.ranks, size);
    if (c.part == latest) continue;  // consecutive sizes may be rounded to the same message size
    latest = c.part;
    report.add(bench.measure(implementation, c, flags.options, interrupted));
  }
}

void measure_all(CommBench& bench, const std::vector<CommImplementation>& implementations, const BenchCommFlags& flags,
                 CommReport& report) {
  report.begin();
  for (const Collective op : flags.ops) {
    for (const CommImplementation& implementation : implementations) {
      for (const DType dtype : flags.dtypes) {
        measure_sizes(bench, implementation, {op, dtype, bench.ranks(), 1, 0}, flags, report);
      }
    }
  }
}

std::string use_of_nccl(CommBench& bench, const collectives::Thresholds& found) {
  if (found.nccl_from_bytes) return fmt::format("nccl from {} on", format_bytes(*found.nccl_from_bytes));
  try {
    bench.implementation("nccl");
    return "nccl is slower at all sizes";
  } catch (const InvalidArgument&) {
    return "nccl does not work here";
  }
}

int calibrate(CommBench& bench, const BenchCommFlags& flags) {
  collectives::check_thresholds_file();
  const collectives::Thresholds found = bench.calibrate(flags.options, flags.max_bytes, interrupted);
  const std::string nccl = use_of_nccl(bench, found);
  write_out(fmt::format("all_reduce: one-shot p2p up to {}, two-shot p2p above this size; {}; saved in {}\n",
                        format_bytes(*found.one_shot_to_bytes), nccl, collectives::thresholds_file().string()));
  return kSuccess;
}

/// Runs all measurements. If a collective fails, prints the results so far before the error.
int bench_comm(const BenchCommFlags& flags) {
  flags.check();
  catch_interrupts();
  const PluginReport plugins = flags.plugins.load();
  const std::vector<Device*> devices = flags.devices.find([&plugins] { return all_devices(plugins); });
  require_threads(threads_needed(devices, 0));
  CommBench bench(devices, processes());
  if (flags.calibrate) return calibrate(bench, flags);
  CommReport report(flags.output.json(), devices, flags.options, processes());
  const std::vector<CommImplementation> implementations = chosen_implementations(bench, flags);
  const int code = finish_after([&] { measure_all(bench, implementations, flags, report); },
                                [&](const std::string& error) { report.finish(error); });
  if (code != kSuccess) return code;
  if (report.wrong() == 0) return kSuccess;
  return tools::report(
      fmt::format("{} elements are wrong; do not use this communicator on these devices", report.wrong()), kFailed);
}

void add_choices(CLI::App& app, BenchCommFlags& flags) {
  const auto read_ops = [&flags](const std::string& flag, const std::string& text) {
    flags.ops = parse_choices<Collective>(flag, text, kCollectives, [](Collective op) { return name_of(op); });
  };
  std::string names;
  for (const Collective op : kCollectives) names += fmt::format("{}, ", name_of(op));
  add_list(app, "--op", "NAMES", read_ops, fmt::format("Collectives to measure, separated by commas: {}or all", names))
      ->default_str("all_reduce");
  const auto read_dtypes = [&flags](const std::string& flag, const std::string& text) {
    flags.dtypes = parse_choices<DType>(flag, text, kSummable, [](DType dtype) { return name_of(dtype); });
  };
  add_list(app, "--dtype", "TYPES", read_dtypes, "Element types, separated by commas: f32, f16, bf16, i32, or all")
      ->default_str("f32");
  const auto read_comms = [&flags](const std::string& flag, const std::string& text) {
    flags.comms =
        parse_choices<std::string>(flag, text, known_implementations(), [](const std::string& s) { return s; });
  };
  add_list(app, "--comm", "NAMES", read_comms,
           "Implementations of the collectives, separated by commas: auto (the default of run), host, mpi, p2p, nccl, "
           "staged, or all (every implementation that works on these devices)")
      ->default_str("auto");
  flags.output.add_to(app);
}

void add_sizes(CLI::App& app, BenchCommFlags& flags) {
  const auto size = [](size_t& value) {
    return [&value](const std::string& flag, const std::string& text) { value = parse_size(flag, text); };
  };
  add_parsed(app, "-b,--min-bytes", "BYTES", size(flags.min_bytes), "Smallest message size, such as 8, 64K or 16M")
      ->default_str("1K");
  add_parsed(app, "-e,--max-bytes", "BYTES", size(flags.max_bytes), "Largest message size, such as 64K or 16M")
      ->default_str("64M");
  add_number(app, "-f,--step-factor", flags.factor, 1.1, 1e9, "Factor between consecutive message sizes");
}

}  // namespace

CommandBody define_bench_comm(CLI::App& app) {
  auto flags = std::make_shared<BenchCommFlags>();
  flags->devices
      .add_to(app,
              "Devices to measure, one per rank, such as CPU0,CPU1; all: every GPU, or every CPU device if there is no "
              "GPU. Under mpirun, the list has the same meaning as in run")
      ->required();
  add_sizes(app, *flags);
  add_choices(app, *flags);
  constexpr int64_t kMostRuns = 1'000'000;
  add_integer(app, "-n,--iters", flags->options.iterations, 1, kMostRuns,
              "Number of collectives that are timed together");
  add_integer(app, "-w,--warmup-iters", flags->options.warmup, 0, kMostRuns,
              "Number of warm-up collectives before the timed collectives");
  add_integer(app, "-c,--check", flags->options.check, 0, 1,
              "1: count wrong elements in one extra collective; 0: do not check the results")
      ->default_str("1");
  app.add_flag("--calibrate", flags->calibrate,
               "Instead of printing a table, save two message sizes for these devices: the largest size at which "
               "one-shot p2p is faster than two-shot p2p, and the smallest size at which NCCL is faster than p2p");
  flags->plugins.add_to(app);
  return [flags] { return bench_comm(*flags); };
}

}  // namespace shoal::tools
