// shoal bench: measures prompt and generation speed for lists of devices, ratios, thread counts and token counts.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "devices/cpu/cpu_device.h"
#include "processes/remote_device.h"
#include "tools/bench/bench_sweep.h"
#include "tools/bench/parallel_bench.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/text.h"
#include "tools/report/trace_file.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {
namespace {

struct MeasureFlags : BenchFlags {
  LoadFlags load;
  SamplingFlags sampling;
  BenchOptions options;
  TraceFlag trace;
};

bool measures_requests(const std::vector<BenchTest>& tests) {
  return tests.front().parallel > 0;  // -np applies to all tests
}

/// Throws UsageError if the context of -c is too small for a test.
void check_tests(const MeasureFlags& flags, const std::vector<BenchTest>& tests) {
  const int64_t context = flags.context.context;
  if (context == 0) return;
  for (const BenchTest& test : tests) {
    if (test.length() > context) {
      throw UsageError(
          fmt::format("{}: a sequence has {} tokens, but the context of -c has {}; use a larger -c or fewer "
                      "tokens (-p, -n, -d)",
                      test.name(), test.length(), context));
    }
    if (test.parallel > context) {
      throw UsageError(
          fmt::format("{}: the context of -c has only {} tokens for {} requests; use a larger -c or a smaller -np",
                      test.name(), context, test.parallel));
    }
  }
}

/// Finds the devices of all setups in one call, because the number of CPU devices must not change between two setups.
void find_all(const std::vector<BenchSetup>& setups) {
  std::vector<std::string> names;
  for (const BenchSetup& setup : setups)
    names.insert(names.end(), setup.devices.names.begin(), setup.devices.names.end());
  find_devices(names);
}

/// Options of a session or an engine with memory for the largest context and the largest batch of all tests.
models::SessionOptions largest_session(const MeasureFlags& flags, const BenchSetup& setup, const models::Model& model,
                                       const std::vector<BenchTest>& tests) {
  const auto options_of = [&](const BenchTest& test) {
    return flags.session(test, model.hparams, setup.devices.names.size());
  };
  models::SessionOptions largest = options_of(tests.front());
  for (const BenchTest& test : tests) {
    const models::SessionOptions one = options_of(test);
    largest.context = std::max(largest.context, one.context);
    largest.batch = std::max(largest.batch, one.batch);
    largest.sequences = std::max(largest.sequences, one.sequences);
  }
  return measures_requests(tests) ? models::engine_options(largest) : largest;
}

Request request_of(const MeasureFlags& flags, const BenchSetup& setup, const std::vector<BenchTest>& tests,
                   Tracer* tracer) {
  Request request{models::open_model(setup.model), flags.asked(setup, flags.devices_of(setup).find_groups(), tests)};
  tuning::Asked& asked = request.asked;
  asked.session = largest_session(flags, setup, *request.model, tests);
  asked.work = most_of(tests);
  if (measures_requests(tests)) {
    // The cache of -c may be smaller than the requests together.
    const int64_t context = models::session_size(request.model->hparams, asked.session).context;
    asked.work.sequences = std::min(asked.work.sequences, context);
    asked.work = tuning::clipped(asked.work, context);
  }
  asked.objective = asked.work.generate > 0 ? tuning::Objective::kGeneration : tuning::Objective::kPrompt;
  asked.work = tuning::work_of(asked.work, asked.objective);
  asked.session.tracer = tracer;
  asked.load = flags.load.load(asked.session.op_offload);
  return request;
}

/// The device families without duplicates: "CPU", "CUDA,CPU".
std::string backends_of(std::span<Device* const> devices) {
  std::vector<std::string> names;
  for (const Device* device : devices) {
    const std::string name = family_name(*device);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

/// Number of threads of each CPU device of this process: `threads`, or the default of the first such device if
/// `threads` is 0. Returns 0 if this process has no CPU device.
int threads_of(std::span<Device* const> devices, int threads) {
  for (const Device* device : devices) {
    if (device->type() == DeviceType::kCpu && !is_remote(*device))
      return threads > 0 ? threads : cpu::default_threads(*device);
  }
  return 0;
}

void measure_setup(const MeasureFlags& flags, const BenchSetup& setup, const std::vector<BenchTest>& tests,
                   BenchReport& report, Tracer* tracer) {
  Deployment deployment = resolve(request_of(flags, setup, tests, tracer));
  load(deployment);
  BenchResult result = result_of(flags, setup, *deployment.model, deployment.asked, Registry::instance().devices());
  if (setup.ratio == kAutoRatio) result.setup.ratio = deployment.asked.fixed.ratio();
  const auto members = deployment.placement->members();
  result.backends = backends_of(members);
  result.setup.threads = threads_of(members, setup.threads);
  std::optional<ParallelBench> parallel;
  for (const BenchTest& test : tests) {
    if (interrupted()) throw Interrupted();
    result.test = test;
    result.time = utc_time();
    models::SessionOptions session = flags.session(test);
    session.tracer = tracer;
    if (test.parallel == 0) {
      result.samples = measure(deployment, test, session, flags.options, interrupted);
    } else {
      if (parallel && parallel->batch() != session.batch) parallel.reset();  // frees the cache
      if (!parallel) parallel.emplace(deployment, session.batch);
      result.samples = parallel->measure(test, flags.options, interrupted);
      result.session = deployment.asked.session;
    }
    report.add(result);
  }
}

/// Warns of problems that device families report, and of features that are switched off.
void warn_of_problems() {
  for (const BackendReg* family : Registry::instance().families()) {
    if (const std::string problems = feature_of(*family, "problems"); !problems.empty()) warn(problems);
    if (const std::string off = feature_of(*family, "off"); !off.empty()) {
      warn(fmt::format("{} devices were measured without {} (SHOAL_CUDA_OFF)", family->name(), off));
    }
  }
}

/// Runs all tests. If a test fails, prints the results so far before the error.
int bench(MeasureFlags flags, Tracer* tracer) {
  const PluginReport plugins = flags.devices.plugins.load();
  warn_of_missing_gpus(plugins);
  if (flags.lists.devices.empty()) flags.lists.devices = {of_every_process(default_devices(plugins))};
  spell_out_devices(
      flags.lists, [&plugins] { return of_every_process(all_devices(plugins)); },
      [&plugins] { return default_devices(plugins); });
  const models::SplitMode mode = flags.devices.split.mode;
  const std::vector<BenchSetup> setups = make_setups(flags.lists, mode);
  check_comm(flags.devices.comm, mode, most_together(setups, mode));
  const std::vector<BenchTest> tests = make_tests(flags.lists);
  check_tests(flags, tests);
  flags.candidates = flags.sampling.candidates();
  flags.options.sampling = flags.sampling.sampler;
  find_all(setups);
  BenchColumns columns = flags.columns(setups, tests);
  columns.shares_follow = false;  // each row is printed after its measurement, which may take minutes
  BenchReport report(flags.format, columns);
  const auto measure_all = [&] {
    for (const BenchSetup& setup : setups) measure_setup(flags, setup, tests, report, tracer);
  };
  return finish_after(measure_all, [&report](const std::string&) {
    report.finish();
    warn_of_problems();
  });
}

}  // namespace

CommandBody define_bench(CLI::App& app) {
  auto flags = std::make_shared<MeasureFlags>();
  flags->add_to(app,
                "Devices to split the model over, such as CPU0,CPU1; all: every GPU, or every CPU device if there is "
                "no GPU. Separate several lists by semicolons, or repeat the flag");
  app.get_option("--devices")->default_str("all GPUs, or CPU0");
  flags->devices.add_comm_to(app);
  flags->devices.plugins.add_to(app);
  add_counts(app, "-t,--threads", flags->lists.threads, 0, cpu::kMaxThreads,
             "Number of threads of each CPU device; 0: one per core");
  add_integer(app, "-r,--repetitions", flags->options.repetitions, 1, 1'000'000, "Number of timed runs of each test");
  app.add_flag("!--no-warmup", flags->options.warmup, "Skip the warm-up run before the timed runs");
  app.add_flag("!--no-op-offload", flags->context.op_offload,
               "Do not copy weights from the host to devices for large batches; compute on the host instead");
  flags->context.add_to(app);
  flags->sampling.add_candidates_to(app);
  flags->load.add_to(app);
  flags->trace.add_to(app);
  return [flags] {
    catch_interrupts();
    return flags->trace.run(
        {{"command", "shoal bench"}, {"models", fmt::format("{}", fmt::join(flags->lists.models, ", "))}},
        [&flags](Tracer* tracer) { return bench(*flags, tracer); });
  };
}

}  // namespace shoal::tools
