// shoal simulate: what `shoal bench` would print on a machine that one does not have.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "base/text.h"
#include "tools/bench/bench_report.h"
#include "tools/bench/bench_sweep.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/prompt.h"
#include "tools/cli/text.h"
#include "tools/commands/simulated_machine.h"
#include "tools/report/simulated_trace.h"
#include "tools/report/trace_file.h"
#include "tools/startup/choice_text.h"
#include "tools/startup/machine_choice.h"
#include "tuning/choose/compare.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tools {
namespace {

struct SimulateFlags {
  std::string machine;
  int64_t hosts = 1;
  std::optional<machine::Network> network;
  BenchLists lists;
  std::vector<int64_t> device_counts;  ///< empty: powers of two, and all
  SplitFlags split;
  ContextFlags context;
  HostFlags host;
  BenchFormat format = BenchFormat::kMarkdown;
  TraceTarget trace;
};

/// 8 -> {1, 2, 4, 8}; 6 -> {1, 2, 4, 6}.
std::vector<int64_t> usual_counts(int64_t devices) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count < devices; count *= 2) counts.push_back(count);
  counts.push_back(devices);
  return counts;
}

/// The lists of devices that the counts mean, where no lists were given.
void choose_devices(SimulateFlags& flags, const SimulatedMachine& machine) {
  const auto most = static_cast<int64_t>(machine.devices_to_use());
  if (!flags.lists.devices.empty() && !flags.device_counts.empty()) {
    throw UsageError("--devices and --device-counts both say which devices are used; give one of them");
  }
  spell_out_devices(flags.lists, [&] { return machine.first(most); });
  for (std::string& list : flags.lists.devices) list = machine.spell_out_hosts(list);
  if (!flags.lists.devices.empty()) return;
  for (const int64_t count : flags.device_counts.empty() ? usual_counts(most) : flags.device_counts) {
    if (count > most) {
      throw UsageError(fmt::format("--device-counts {}: {} has {} device(s)", count, machine.model().name, most));
    }
    flags.lists.devices.push_back(machine.first(count));
  }
}

/// Profiles are of real devices; a machine that describes those can be simulated with them.
void take_profiles(SimulateFlags& flags, const SimulatedMachine& machine) {
  for (const SplitProfile& profile : profiles_of(flags.lists)) {
    for (const std::string& name : split_device_names(profile.device_list())) {
      if (machine.has(name)) continue;
      throw UsageError(fmt::format(
          "--tensor-split @{}: profiles are for real devices, and {} has no {}; give the shares themselves, "
          "such as -ts \"{}\"",
          profile.path, machine.model().name, escaped(name), profile.ratio()));
    }
  }
  if (!flags.split.mode_given) flags.split.mode = mode_of_profiles(flags.lists, flags.split.mode);
  if (!flags.device_counts.empty() || !flags.lists.devices.empty()) return;
  take_devices_of_profiles(flags.lists);
}

size_t widest(const std::vector<BenchSetup>& setups, const std::function<std::string(const BenchSetup&)>& text) {
  size_t width = 0;
  for (const BenchSetup& setup : setups) width = std::max(width, text(setup).size());
  return width;
}

BenchColumns columns_of(const SimulateFlags& flags, const SimulatedMachine& machine,
                        const std::vector<BenchSetup>& setups, const std::vector<BenchTest>& tests,
                        std::span<const std::unique_ptr<models::Model>> opened) {
  BenchColumns columns;
  for (const auto& model : opened) columns.model_width = std::max(columns.model_width, describe_model(*model).size());
  const BenchOptions usual;
  columns.batch = flags.lists.batches != BenchLists().batches;
  columns.ubatch = flags.lists.ubatches != BenchLists().ubatches;
  columns.cache_types = flags.context.dtype_k != usual.dtype_k || flags.context.dtype_v != usual.dtype_v;
  columns.split_mode = flags.split.mode != models::SplitMode::kTensor;
  columns.devices_width = widest(setups, [&](const BenchSetup& setup) { return machine.short_text(setup.devices); });
  columns.ratio_width = width_of_shares(setups);
  columns.test_width = width_of_tests(tests);
  columns.shares_follow =
      std::any_of(setups.begin(), setups.end(), [](const BenchSetup& setup) { return setup.ratio == kAutoRatio; });
  return columns;
}

/// What the time of a phase goes into, as parts of it, averaged over devices.
struct Parts {
  double compute = 0, communication = 0, waiting = 0;
};
Parts parts_of(const tuning::PhasePrediction& phase) {
  Parts parts;
  double total = 0;
  for (const tuning::RankTime& rank : phase.ranks) {
    parts.compute += rank.compute;
    parts.communication += rank.communication;
    parts.waiting += rank.waiting;
    total += rank.total();
  }
  if (total <= 0) return {};
  return {parts.compute / total, parts.communication / total, parts.waiting / total};
}

const models::DeviceUse& fullest(const tuning::Verdict& verdict) {
  return *std::min_element(verdict.memory.begin(), verdict.memory.end(), [](const auto& a, const auto& b) {
    return tuning::spare_bytes(a) < tuning::spare_bytes(b);
  });
}

nlohmann::ordered_json memory_json(const tuning::Verdict& verdict) {
  nlohmann::ordered_json memory = nlohmann::ordered_json::array();
  for (const models::DeviceUse& use : verdict.memory) {
    memory.push_back({{"device", use.device},
                      {"weights", use.use.weights},
                      {"kv", use.use.cache},
                      {"compute", use.use.compute},
                      {"communication", use.use.communication},
                      {"total", use.use.total()},
                      {"memory", use.memory.total}});
  }
  return memory;
}

/// Goes through the setups and tests of a command line, and prints them.
class Simulation {
 public:
  Simulation(const SimulateFlags& flags, const SimulatedMachine& machine, const std::vector<BenchSetup>& setups,
             const std::vector<BenchTest>& tests)
      : flags_(flags), machine_(machine), tests_(tests) {
    const BenchTest& deepest = *std::max_element(
        tests.begin(), tests.end(), [](const BenchTest& a, const BenchTest& b) { return a.context() < b.context(); });
    for (const std::string& path : flags.lists.models) {
      models_.push_back(models::open_model(path));
      const models::Hparams& hparams = models_.back()->hparams;
      flags.split.warn_of_ways(*models_.back(), most_together(setups, flags.split.mode));
      warn_of_context(hparams, models::session_size(hparams, session_of(deepest)).context);
    }
    report_ = std::make_unique<BenchReport>(flags.format, columns_of(flags, machine, setups, tests, models_));
  }

  /// Of all setups. What was simulated before a failure is printed.
  void run(const std::vector<BenchSetup>& setups, const std::vector<BenchTest>& tests) {
    try {
      for (const BenchSetup& setup : setups) {
        for (const BenchTest& test : tests) {
          if (interrupted()) throw Interrupted();
          run(setup, test);
        }
      }
    } catch (...) {
      report_->print_rows();
      throw;
    }
  }

  void run(const BenchSetup& setup, const BenchTest& test) {
    ProgressBar bar("choosing shares");
    const tuning::Watch watch{.poll = stop_if_interrupted, .progress = [&bar](int done, int most) {
                                bar.update(static_cast<size_t>(done), static_cast<size_t>(most),
                                           fmt::format("{} of at most {}", done, most));
                              }};
    tuning::Chooser chooser(model_of(setup), asked_of(setup, test), watch);
    const tuning::Asked& asked = chooser.asked();
    const tuning::Verdict verdict =
        asked.free.shares ? fastest_shares(chooser, asked.fixed).best : chooser.judge(asked.fixed);
    bar.clear();
    report_->add(result_of(setup, test, verdict));
    if (!verdict.fits) does_not_fit(setup, test, chooser, verdict);
    latest_shares_ = verdict.choice.shares;
  }

  /// The setup as it was simulated last: the prompt and the generation of the tests, one behind the other.
  void trace(const BenchSetup& setup, const std::vector<BenchTest>& tests) const {
    BenchTest all = tests.front();
    for (const BenchTest& test : tests) {
      all.prompt = std::max(all.prompt, test.prompt);
      all.generate = std::max(all.generate, test.generate);
    }
    tuning::Chooser chooser(model_of(setup), asked_of(setup, all), {.poll = stop_if_interrupted});
    tuning::Choice choice = chooser.asked().fixed;
    choice.shares = latest_shares_;
    write_trace(flags_.trace.path, simulated_trace(chooser, choice),
                {{"command", "shoal simulate"}, {"machine", machine_.model().name}, {"model", setup.model}});
  }

  void finish() {
    report_->finish();
    if (flags_.format != BenchFormat::kMarkdown) return;
    write_out(fmt::format("\nsimulated: {}, no measurement; what the figures rest on: docs/simulation.md\n{}",
                          escaped(machine_.model().name), remarks_));
  }

 private:
  tuning::Asked asked_of(const BenchSetup& setup, const BenchTest& test) const {
    tuning::Asked asked;
    asked.fixed = {.groups = machine_.groups(setup.devices),
                   .mode = flags_.split.mode,
                   .experts = flags_.split.experts,
                   .latent = flags_.split.latent};
    const size_t sharers = asked.fixed.sharers().size();
    asked.free.shares = setup.ratio == kAutoRatio && sharers > 1;
    if (!setup.ratio.empty() && setup.ratio != kAutoRatio) {
      asked.fixed.shares = models::parse_ratio(setup.ratio, static_cast<int>(sharers));
    }
    asked.load.use_mapping = false;
    asked.session = session_of(test);
    asked.work = {test.prompt, test.generate, test.depth};
    asked.objective = test.prompt > 0 ? tuning::Objective::kPrompt : tuning::Objective::kGeneration;
    const int64_t context = models::session_size(model_of(setup).hparams, asked.session).context;
    require<InvalidArgument>(asked.work == tuning::clipped(asked.work, context),
                             "{} tokens of prompt or {} generated after {} do not fit into a context of {}; ask for a "
                             "larger one (-c) or fewer tokens",
                             test.prompt, test.generate, test.depth, context);
    flags_.host.put_into(asked.placement);
    aim_at(tests_, asked);
    asked.placement.host = machine_.host_beside(asked.fixed.groups);
    asked.placement.machine = machine_.shared();
    return asked;
  }
  const models::Model& model_of(const BenchSetup& setup) const {
    const auto& paths = flags_.lists.models;
    return *models_[static_cast<size_t>(std::find(paths.begin(), paths.end(), setup.model) - paths.begin())];
  }
  BenchOptions options() const {
    BenchOptions options;
    options.repetitions = 1;
    options.dtype_k = flags_.context.dtype_k;
    options.dtype_v = flags_.context.dtype_v;
    return options;
  }
  models::SessionOptions session_of(const BenchTest& test) const {
    models::SessionOptions session = options().session(test);
    if (flags_.context.context > 0) session.context = flags_.context.context;
    return session;
  }

  BenchResult result_of(const BenchSetup& setup, const BenchTest& test, const tuning::Verdict& verdict) {
    const models::Model& model = model_of(setup);
    const tuning::PhasePrediction& phase = test.prompt > 0 ? *verdict.prompt : *verdict.generation;
    BenchResult result;
    result.setup = setup;
    result.setup.ratio = verdict.choice.ratio();
    result.test = test;
    result.samples.tokens = test.tokens();
    if (verdict.fits) result.samples.ns = {std::max<int64_t>(1, std::llround(phase.seconds * 1e9))};
    result.time = utc_time();
    result.model_type = describe_model(model);
    result.model_bytes = model.file.tensor_bytes();
    result.model_parameters = count_parameters(model.file);
    result.backends = "SIM";
    result.cpu_info = describe(machine_.devices(), true);
    result.gpu_info = describe(machine_.devices(), false);
    result.options = options();
    result.placement.mode = flags_.split.mode;
    result.mmap = false;
    result.repack = false;
    result.simulated = machine_.model().name;
    if (flags_.format == BenchFormat::kMarkdown) {
      result.setup.devices = {{machine_.short_text(setup.devices)}, {1}};
      if (result.setup.ratio.empty() && setup.devices.names.size() > 1) result.setup.ratio = "even";
    }
    add_more(result, setup, phase, verdict);
    return result;
  }

  /// Speed-ups are over the first setup of the model that fits.
  void add_more(BenchResult& result, const BenchSetup& setup, const tuning::PhasePrediction& phase,
                const tuning::Verdict& verdict) {
    const auto key =
        std::make_pair(setup.model, fmt::format("{} {} {}", result.test.name(), result.test.batch, result.test.ubatch));
    if (verdict.fits) slowest_.try_emplace(key, phase.seconds);
    const bool compared = verdict.fits && slowest_.contains(key);
    const double gain = compared ? slowest_.at(key) / phase.seconds : 0;
    const Parts parts = parts_of(phase);
    using Json = nlohmann::ordered_json;
    const auto percent = [&](double part) { return verdict.fits ? fmt::format("{:.1f} %", 100 * part) : "-"; };
    const auto part_json = [&](double part) { return verdict.fits ? Json(part) : Json(); };
    const models::DeviceUse& use = fullest(verdict);
    result.more_columns = {{"speed-up", compared ? fmt::format("{:.2f}", gain) : "-"},
                           {"collectives", percent(parts.communication)},
                           {"waiting", percent(parts.waiting)},
                           {"memory", format_bytes(use.use.total()), 10},
                           {"of", format_bytes(use.memory.total), 10}};
    result.more_fields = {
        {"fits", verdict.fits},
        {"context", verdict.choice.context},
        {"speed_up", compared ? Json(gain) : Json()},
        {"part_compute", part_json(parts.compute)},
        {"part_collectives", part_json(parts.communication)},
        {"part_waiting", part_json(parts.waiting)},
        {"part_host", part_json(std::max(0.0, 1 - parts.compute - parts.communication - parts.waiting))},
        {"collectives", phase.collective_count()},
        {"imbalance", phase.imbalance},
        {"copies_ns", std::llround(phase.copies * 1e9)},
        {"host_ns", std::llround(phase.host * 1e9)},
        {"memory_most", use.use.total()},
        {"memory", memory_json(verdict)}};
  }

  void does_not_fit(const BenchSetup& setup, const BenchTest& test, tuning::Chooser& chooser,
                    const tuning::Verdict& verdict) {
    const std::vector<tuning::Choice> ways{verdict.choice};
    tuning::Remedies remedies = tuning::remedies(chooser, verdict, ways);
    // The test needs its context: with less it is another test.
    std::string fewer;
    if (remedies.context && remedies.context->context < test.context()) {
      const std::string options = change_options(remedies.asked, *remedies.context);
      fewer = fmt::format("; {} tokens in all would fit (-p, -n, -d){}{}", remedies.context->context,
                          options.empty() ? "" : " with", options);
      remedies.context.reset();
    }
    if (remedies.context_q8_0 && remedies.context_q8_0->context < test.context()) remedies.context_q8_0.reset();
    remarks_ +=
        fmt::format("{} on {} does not fit: {}{}{}{}\n", test.name(), machine_.short_text(setup.devices),
                    remedies_text(remedies), fewer, shares_remedy(setup, verdict), host_remedy(chooser, verdict));
  }

  /// Flags that leave on the host what has no room, of the fastest way to do so.
  static std::string host_remedy(tuning::Chooser& chooser, const tuning::Verdict& verdict) {
    if (chooser.asked().placement.host == nullptr) return "";
    for (const tuning::Verdict& one : host_parts(chooser, verdict.choice, {})) {
      if (!one.fits || !one.has_time()) continue;
      const bool changes_shares = one.choice.ratio() != verdict.choice.ratio();
      const tuning::PhasePrediction& phase = one.generation ? *one.generation : *one.prompt;
      return fmt::format("; a part of it on the host would fit: {}{}, {:.2f} tokens/s", one.choice.host.flags(),
                         changes_shares ? " -ts " + one.choice.ratio() : "", phase.rate);
    }
    return "";
  }

  /// Where all devices together have the memory, others may take what one of them has no room for.
  static std::string shares_remedy(const BenchSetup& setup, const tuning::Verdict& verdict) {
    int64_t margin = 0;
    for (const models::DeviceUse& use : verdict.memory) margin += tuning::spare_bytes(use);
    const bool may_help = margin >= 0 && verdict.memory.size() > 1 && setup.ratio != kAutoRatio;
    return may_help ? "; other shares may fit (-ts auto)" : "";
  }

  const SimulateFlags& flags_;
  const SimulatedMachine& machine_;
  const std::vector<BenchTest>& tests_;
  std::vector<std::unique_ptr<models::Model>> models_;
  std::unique_ptr<BenchReport> report_;
  std::map<std::pair<std::string, std::string>, double> slowest_;  ///< seconds of the first setup that fits
  std::vector<double> latest_shares_;
  std::string remarks_;
};

int simulate(SimulateFlags flags) {
  const SimulatedMachine machine(simulated_machine(flags.machine, flags.hosts, flags.network));
  take_profiles(flags, machine);
  if (!flags.trace.path.empty()) require_writable(flags.trace.path);
  choose_devices(flags, machine);
  const std::vector<BenchSetup> setups = make_setups(flags.lists, flags.split.mode);
  const std::vector<BenchTest> tests = make_tests(flags.lists);
  catch_interrupts();
  Simulation simulation(flags, machine, setups, tests);
  simulation.run(setups, tests);
  simulation.finish();
  if (!flags.trace.path.empty()) simulation.trace(setups.back(), tests);
  return kSuccess;
}

void add_machine(CLI::App& app, SimulateFlags& flags) {
  app.add_option("-m,--model", flags.lists.models,
                 "GGUF file; may be repeated. One without weights will do: make_model.py --sparse")
      ->each([](const std::string& text) { check_file_name("--model", text); })
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->required();
  app.add_option("--machine", flags.machine,
                 "Such as H200x8-nvlink or RTX4090x2-pcie, or the path of a JSON file (docs/simulation.md)")
      ->type_name("NAME")
      ->required();
  add_integer(app, "--hosts", flags.hosts, 1, kMostHosts,
              "So many of the machine, with devices named as those of several processes: 1:H200.0");
  const auto read_network = [&flags](const std::string& flag, const std::string& text) {
    flags.network = parse_network(flag, text);
  };
  add_parsed(
      app, "--network", "RATE,DELAY", read_network,
      "Between hosts: what each sends while it receives as much, and what a short message takes from one to another, "
      "such as 100gbit,20us");
  add_counts(app, "--device-counts", flags.device_counts, 1, 64,
             "How many of the machine's devices act as one; several with commas")
      ->default_str("1,2,4,... and all");
  app.add_option("--devices", flags.lists.devices,
                 "Instead of counts: devices of the machine by name, such as H200.0,H200.1, or all, or @0,@1 for those "
                 "of each host as a group; several lists with semicolons, or repeated")
      ->type_name("NAMES")
      ->allow_extra_args(false);
  app.add_option("--tensor-split", flags.lists.ratios,
                 "Share of each device, such as 3,1; several with semicolons, or repeated: each is for the lists of as "
                 "many devices; auto: the fastest that is found; default even")
      ->type_name("SHARES")
      ->allow_extra_args(false);
}

}  // namespace

CommandBody define_simulate(CLI::App& app) {
  auto flags = std::make_shared<SimulateFlags>();
  flags->lists.devices.clear();
  add_machine(app, *flags);
  add_test_counts(app, flags->lists);
  flags->split.add_to(app, "H200.0+H200.1");
  flags->context.add_to(app);
  flags->host.add_to(app, false);
  flags->trace.add_to(app,
                      "Also write what the devices of the last row would do when, for ui.perfetto.dev: a batch of the "
                      "prompt and three tokens");
  const auto read_format = [flags = flags.get()](const std::string& flag, const std::string& text) {
    flags->format = parse_bench_format(flag, text);
  };
  add_parsed(app, "-o,--output", "FORMAT", read_format, "md, csv, json, jsonl or sql")->default_str("md");
  return [flags] { return simulate(*flags); };
}

}  // namespace shoal::tools
