// shoal bench: how fast models process prompts and generate, over lists of devices, ratios, threads and sizes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "devices/cpu/cpu_device.h"
#include "processes/remote_device.h"
#include "tools/bench/bench_report.h"
#include "tools/bench/bench_sweep.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/prompt.h"
#include "tools/cli/text.h"
#include "tools/report/trace_file.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {
namespace {

struct BenchFlags {
  BenchLists lists;
  bool devices_given = false;
  DeviceFlags devices;  ///< what is the same for all setups
  ContextFlags context;
  LoadFlags load;
  SamplingFlags sampling;
  BenchOptions options;
  BenchFormat format = BenchFormat::kMarkdown;
  TraceFlag trace;
};

DeviceFlags flags_of(const BenchFlags& flags, const BenchSetup& setup) {
  DeviceFlags one = flags.devices;
  one.names = setup.devices.names;
  one.group_sizes = setup.devices.group_sizes;
  one.ratio = setup.ratio;
  one.threads = setup.threads;
  return one;
}

/// All at once: how many CPU devices there are must not change between two setups.
void find_all(const std::vector<BenchSetup>& setups) {
  std::vector<std::string> names;
  for (const BenchSetup& setup : setups)
    names.insert(names.end(), setup.devices.names.begin(), setup.devices.names.end());
  find_devices(names);
}

size_t widest(const std::vector<BenchSetup>& setups, const std::function<std::string(const BenchSetup&)>& text) {
  size_t width = 0;
  for (const BenchSetup& setup : setups) width = std::max(width, text(setup).size());
  return width;
}

/// Opens every model, so that what is wrong with the last one is said before the first is measured.
BenchColumns columns_of(const BenchFlags& flags, const std::vector<BenchSetup>& setups,
                        const std::vector<BenchTest>& tests) {
  BenchColumns columns;
  const std::vector<SplitProfile> profiles = profiles_of(flags.lists);
  for (const std::string& path : flags.lists.models) {
    const auto model = models::open_model(path);
    for (const SplitProfile& profile : profiles) warn_of_profile(profile, *model);
    columns.model_width = std::max(columns.model_width, describe_model(*model).size());
    const auto deepest = std::max_element(
        tests.begin(), tests.end(), [](const BenchTest& a, const BenchTest& b) { return a.context() < b.context(); });
    flags.devices.split.warn_of_ways(*model, most_together(setups, flags.devices.split.mode));
    warn_of_context(model->hparams, models::session_size(model->hparams, flags.options.session(*deepest)).context);
  }
  const BenchOptions usual;
  columns.threads = flags.lists.threads != std::vector<int64_t>{0};
  columns.batch = flags.lists.batches != BenchLists().batches;
  columns.ubatch = flags.lists.ubatches != BenchLists().ubatches;
  columns.cache_types = flags.options.dtype_k != usual.dtype_k || flags.options.dtype_v != usual.dtype_v;
  columns.split_mode = flags.devices.split.mode != models::SplitMode::kTensor;
  columns.layers = flags.devices.host.device_layers >= 0;
  columns.devices_width = widest(setups, [](const BenchSetup& setup) { return setup.devices.text(); });
  columns.ratio_width = width_of_shares(setups);
  columns.test_width = width_of_tests(tests);
  return columns;
}

/// Memory for the largest context and batch of the tests.
models::SessionOptions largest_session(const BenchFlags& flags, const std::vector<BenchTest>& tests) {
  models::SessionOptions largest = flags.options.session(tests.front());
  for (const BenchTest& test : tests) {
    const models::SessionOptions one = flags.options.session(test);
    largest.context = std::max(largest.context, one.context);
    largest.batch = std::max(largest.batch, one.batch);
  }
  return largest;
}

Request request_of(const BenchFlags& flags, const BenchSetup& setup, const std::vector<BenchTest>& tests) {
  const DeviceFlags devices = flags_of(flags, setup);
  Request request{models::open_model(setup.model), devices.asked(devices.find_groups())};
  tuning::Asked& asked = request.asked;
  asked.work = most_of(tests);
  asked.objective = asked.work.generate > 0 ? tuning::Objective::kGeneration : tuning::Objective::kPrompt;
  asked.work = tuning::work_of(asked.work, asked.objective);
  aim_at(tests, asked);
  asked.session = largest_session(flags, tests);
  asked.load = flags.load.load(flags.options.op_offload);
  return request;
}

/// Shares in place of "auto", for the work that most of the tests do.
void choose_ratio(const BenchFlags& flags, BenchSetup& setup, const std::vector<BenchTest>& tests) {
  if (setup.ratio != kAutoRatio) return;
  Request request = request_of(flags, setup, tests);
  setup.ratio = choose_shares(request).ratio();
}

/// Families, each once: "CPU", "CUDA,CPU".
std::string backends_of(std::span<Device* const> devices) {
  std::vector<std::string> names;
  for (const Device* device : devices) {
    const std::string name = family_name(*device);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

/// Threads of each CPU device: those asked for, or what the first one takes by itself; 0 where there is none.
int threads_of(std::span<Device* const> devices, int threads) {
  for (const Device* device : devices) {
    if (device->type() == DeviceType::kCpu && !is_remote(*device))
      return threads > 0 ? threads : cpu::default_threads(*device);
  }
  return 0;
}

void measure_setup(const BenchFlags& flags, const BenchSetup& setup, const std::vector<BenchTest>& tests,
                   BenchReport& report) {
  Deployment deployment = resolve(request_of(flags, setup, tests));
  load(deployment);
  BenchRunner runner(std::move(deployment), flags.options);
  const models::Model& model = *runner.deployment().model;
  const auto members = runner.deployment().placement->members();
  const std::vector<Device*> everything = Registry::instance().devices();
  BenchResult result;
  result.setup = setup;
  result.setup.threads = threads_of(members, setup.threads);
  result.model_type = describe_model(model);
  result.model_bytes = model.file.tensor_bytes();
  result.model_parameters = count_parameters(model.file);
  result.backends = backends_of(members);
  result.cpu_info = describe(everything, true);
  result.gpu_info = describe(everything, false);
  result.options = flags.options;
  const tuning::Asked& asked = runner.deployment().asked;
  result.placement = tuning::placement_options(asked.fixed, asked.placement);
  result.mmap = asked.load.use_mapping;
  result.repack = asked.load.repack;
  for (const BenchTest& test : tests) {
    if (interrupted()) throw Interrupted();
    result.test = test;
    result.time = utc_time();
    result.samples = runner.measure(test, interrupted);
    report.add(result);
  }
}

/// Problems that families have noticed, and features that are switched off.
void warn_of_problems() {
  for (const BackendReg* family : Registry::instance().families()) {
    if (const std::string problems = feature_of(*family, "problems"); !problems.empty()) warn(problems);
    if (const std::string off = feature_of(*family, "off"); !off.empty()) {
      warn(fmt::format("{} devices were measured without {} (SHOAL_CUDA_OFF)", family->name(), off));
    }
  }
}

/// Prints what was measured before a failure is reported.
int bench(BenchFlags flags, Tracer* tracer) {
  const PluginReport plugins = flags.devices.plugins.load();
  if (!flags.devices_given) {
    flags.lists.devices.clear();
    take_devices_of_profiles(flags.lists);
    if (flags.lists.devices.empty()) flags.lists.devices = {of_every_process(default_devices(plugins))};
  }
  spell_out_devices(
      flags.lists, [&plugins] { return of_every_process(all_devices(plugins)); },
      [&plugins] { return default_devices(plugins); });
  if (!flags.devices.split.mode_given)
    flags.devices.split.mode = mode_of_profiles(flags.lists, flags.devices.split.mode);
  std::vector<BenchSetup> setups = make_setups(flags.lists, flags.devices.split.mode);
  const models::SplitMode mode = flags.devices.split.mode;
  check_comm(flags.devices.comm, mode, most_together(setups, mode));
  const std::vector<BenchTest> tests = make_tests(flags.lists);
  flags.options.dtype_k = flags.context.dtype_k;
  flags.options.dtype_v = flags.context.dtype_v;
  flags.options.candidates = flags.sampling.candidates();
  flags.options.tracer = tracer;
  find_all(setups);
  for (BenchSetup& setup : setups) choose_ratio(flags, setup, tests);
  BenchReport report(flags.format, columns_of(flags, setups, tests));
  std::string error;
  bool stopped = false;
  try {
    for (const BenchSetup& setup : setups) measure_setup(flags, setup, tests, report);
  } catch (const OutputError&) {
    throw;
  } catch (const Interrupted&) {
    stopped = true;
  } catch (...) {
    error = describe_current();
  }
  report.finish();
  warn_of_problems();
  if (stopped) throw Interrupted();
  return error.empty() ? kSuccess : tools::report(error, kFailed);
}

void add_lists(CLI::App& app, BenchFlags& flags) {
  app.add_option("-m,--model", flags.lists.models, "GGUF file; may be repeated")
      ->each([](const std::string& text) { check_file_name("--model", text); })
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->required();
  app.add_option("--devices", flags.lists.devices,
                 "Devices that act as one, such as CPU0,CPU1, or all: every GPU, without one every CPU device; several "
                 "lists with semicolons, or repeated")
      ->type_name("NAMES")
      ->allow_extra_args(false)
      ->each([&flags](const std::string&) { flags.devices_given = true; })
      ->default_str("all GPUs, or CPU0");
  app.add_option(
         "--tensor-split", flags.lists.ratios,
         "Share of each device, such as 3,1; several with semicolons, or repeated: each for the lists with as "
         "many devices; auto: those predicted to be fastest; @FILE: a profile of scripts/tune_split.py; default "
         "even")
      ->type_name("SHARES")
      ->allow_extra_args(false);
  flags.devices.plugins.add_to(app);
}

}  // namespace

CommandBody define_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  add_lists(app, *flags);
  add_test_counts(app, flags->lists);
  add_tests_of_both(app, flags->lists);
  add_counts(app, "-t,--threads", flags->lists.threads, 0, cpu::kMaxThreads,
             "Threads of each CPU device; 0: one per core");
  add_integer(app, "-r,--repetitions", flags->options.repetitions, 1, 1'000'000, "Runs of each test");
  app.add_flag("!--no-warmup", flags->options.warmup, "Leave out the run before the clock starts");
  app.add_flag("!--no-op-offload", flags->options.op_offload,
               "Do not send weights from the host to a device for large batches");
  flags->devices.add_layers_to(app);
  flags->context.add_types_to(app);
  flags->sampling.add_candidates_to(app);
  flags->load.add_to(app);
  const auto read_format = [flags = flags.get()](const std::string& flag, const std::string& text) {
    flags->format = parse_bench_format(flag, text);
  };
  add_parsed(app, "-o,--output", "FORMAT", read_format, "md, csv, json, jsonl or sql")->default_str("md");
  flags->trace.add_to(app);
  return [flags] {
    catch_interrupts();
    return flags->trace.run(
        {{"command", "shoal bench"}, {"models", fmt::format("{}", fmt::join(flags->lists.models, ", "))}},
        [&flags](Tracer* tracer) { return bench(*flags, tracer); });
  };
}

}  // namespace shoal::tools
