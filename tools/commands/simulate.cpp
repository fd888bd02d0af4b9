// shoal simulate: predicts the output of `shoal bench` for a machine that the user does not have.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "machine/catalogue.h"
#include "tools/bench/bench_sweep.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/text.h"
#include "tools/report/plan_report.h"
#include "tools/startup/choice_text.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {
namespace {

constexpr int64_t kMostHosts = 64;

struct SimulateFlags : BenchFlags {
  std::string machine;
  int64_t hosts = 1;
  std::optional<machine::Network> network;
  std::vector<int64_t> device_counts;  ///< empty: powers of two, and the number of all devices
};

machine::Network parse_network(const std::string& flag, const std::string& text) {
  const auto value_of = [&](const std::string& word, std::initializer_list<std::pair<const char*, double>> units) {
    for (const auto& [unit, factor] : units) {
      if (!word.ends_with(unit)) continue;
      return factor * parse_number(flag, word.substr(0, word.size() - std::string_view(unit).size()), 1e-6, 1e12);
    }
    fail<InvalidArgument>("{} must be the rate and the delay between hosts, such as 100gbit,20us, got '{}'", flag,
                          text);
  };
  const std::vector<std::string> words = split_list(text);
  require<InvalidArgument>(words.size() == 2,
                           "{} must be the rate and the delay between hosts, such as 100gbit,20us, "
                           "got '{}'",
                           flag, text);
  const double bits = value_of(words[0], {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}});
  return {value_of(words[1], {{"us", 1e-6}, {"ms", 1e-3}}), bits / 8};
}

machine::MachineModel machine_of(const SimulateFlags& flags) {
  machine::MachineModel one = machine::find_machine(flags.machine);
  const auto& network = flags.network;
  if (flags.hosts == 1) {
    if (network) throw UsageError("--network needs several hosts; give their number with --hosts");
    return one;
  }
  if (!network) throw UsageError("--hosts needs --network, such as --network 100gbit,20us");
  if (one.network) {
    throw UsageError(fmt::format("--hosts: machine {} already has several hosts; omit --hosts", flags.machine));
  }
  machine::MachineModel all = several_hosts(one, static_cast<int>(flags.hosts), *network);
  all.name = fmt::format("{} x {} ({:g} Gbit/s, {:g} us)", flags.hosts, one.name, 8e-9 * network->bandwidth,
                         1e6 * network->latency);
  return all;
}

/// The devices of a host as one group: "H200.0+H200.1"; "" if there is no such host.
std::string of_host(const machine::MachineModel& machine, int64_t host) {
  std::vector<std::string> names;
  for (const machine::DeviceModel* device : devices_to_use(machine)) {
    if (device->host == host) names.push_back(device->name);
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

/// Replaces each host with the group of its devices: "@0,@1" -> "H200.0+H200.1,1:H200.0+1:H200.1". Other lists are
/// unchanged. Throws UsageError for an unknown host.
std::string spell_out_hosts(const machine::MachineModel& machine, const std::string& list) {
  std::vector<std::string> parts;
  for (const std::string& part : split_list(list)) {
    parts.push_back(part);
    if (!part.starts_with("@")) continue;
    const int64_t host = parse_integer("--devices", part.substr(1), 0, kMostHosts);
    parts.back() = of_host(machine, host);
    if (!parts.back().empty()) continue;
    throw UsageError(fmt::format("--devices {}: machine {} has no host {}; set the number of hosts with --hosts", part,
                                 machine.name, host));
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

/// Shortens consecutive names: "H200.0-7" for H200.0,H200.1,...,H200.7. Other names are unchanged.
std::string short_names(std::span<const std::string> names) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < names.size(); begin = end) {
    const std::string name = names[begin].substr(0, names[begin].rfind('.'));
    while (end < names.size() && names[end] == fmt::format("{}.{}", name, end - begin)) ++end;
    if (!text.empty()) text += ",";
    text += names[begin];
    if (end - begin > 2) text += fmt::format("-{}", end - begin - 1);
    if (end - begin <= 2) end = begin + 1;
  }
  return text;
}

/// Shortens a device list: "H200.0-3,1:H200.0-3", or "@0,@1" if each group contains all devices of a host.
std::string short_text(const machine::MachineModel& machine, const DeviceList& list) {
  if (list.group_sizes.size() == list.names.size()) return short_names(list.names);
  std::string text, hosts;
  for (size_t host = 0; host < list.group_sizes.size(); ++host) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", of_host(machine, static_cast<int64_t>(host)));
    hosts += fmt::format("{}@{}", hosts.empty() ? "" : ",", host);
  }
  return machine.network && text == list.text() ? hosts : list.text();
}

/// Powers of two, and the number of all devices: 8 -> {1, 2, 4, 8}; 6 -> {1, 2, 4, 6}.
std::vector<int64_t> usual_counts(int64_t devices) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count < devices; count *= 2) counts.push_back(count);
  counts.push_back(devices);
  return counts;
}

/// Sets the device lists from the device names or from the device counts in the flags.
void choose_devices(SimulateFlags& flags, const machine::MachineModel& machine) {
  if (!flags.lists.devices.empty() && !flags.device_counts.empty()) {
    throw UsageError("--devices and --device-counts both select devices; give only one of them");
  }
  if (!flags.device_counts.empty()) flags.lists.devices.clear();
  std::vector<std::string> names;
  for (const machine::DeviceModel* device : devices_to_use(machine)) names.push_back(device->name);
  const auto first = [&](size_t count) {
    return fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(count), ","));
  };
  spell_out_devices(flags.lists, [&] { return first(names.size()); });
  for (std::string& list : flags.lists.devices) list = spell_out_hosts(machine, list);
  if (!flags.lists.devices.empty()) return;
  const auto most = static_cast<int64_t>(names.size());
  for (const int64_t count : flags.device_counts.empty() ? usual_counts(most) : flags.device_counts) {
    if (count > most) {
      throw UsageError(fmt::format("--device-counts {}: machine {} has only {} device(s)", count, machine.name, most));
    }
    flags.lists.devices.push_back(first(static_cast<size_t>(count)));
  }
}

/// Fractions of the time of a phase, averaged over devices.
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
    total += rank.compute + rank.communication + rank.waiting + phase.host;
  }
  if (total <= 0) return {};
  return {parts.compute / total, parts.communication / total, parts.waiting / total};
}

/// Combines the phases of a test with requests. The figures of the devices are sums over all prompts and tokens.
tuning::PhasePrediction together(const tuning::Verdict& verdict, const BenchTest& test) {
  const tuning::PhasePrediction &prompt = *verdict.prompt, &token = *verdict.generation;
  const auto prompts = static_cast<double>(test.parallel), tokens = static_cast<double>(test.generate);
  const auto sum = [&](double one, double other) { return prompts * one + tokens * other; };
  tuning::PhasePrediction both = prompt;
  for (size_t i = 0; i < both.ranks.size(); ++i) {
    tuning::RankTime& rank = both.ranks[i];
    const tuning::RankTime& other = token.ranks[i];
    rank.compute = sum(rank.compute, other.compute);
    rank.communication = sum(rank.communication, other.communication);
    rank.waiting = sum(rank.waiting, other.waiting);
  }
  for (tuning::CollectiveTime& one : both.collectives) one.count *= test.parallel;
  for (tuning::CollectiveTime one : token.collectives) {
    one.count *= test.generate;
    both.collectives.push_back(std::move(one));
  }
  both.seconds += token.seconds;
  both.imbalance = (prompt.imbalance * prompt.seconds + token.imbalance * token.seconds) / both.seconds;
  both.copies = sum(prompt.copies, token.copies);
  both.host = sum(prompt.host, token.host);
  return both;
}

int64_t ns_of(double seconds) {
  return std::max<int64_t>(1, std::llround(seconds * 1e9));
}

RequestTimes times_of(const tuning::Verdict& verdict) {
  return {.prompt_ns = {ns_of(verdict.prompt->seconds)},
          .generation_ns = {ns_of(verdict.generation->seconds)},
          .prompt_rates = {verdict.prompt->rate},
          .generation_rates = {verdict.generation->rate}};
}

/// Predicts the results of all tests for all setups.
class Simulation {
 public:
  Simulation(const SimulateFlags& flags, std::shared_ptr<const machine::MachineModel> machine,
             const std::vector<BenchTest>& tests)
      : flags_(flags), machine_(std::move(machine)), tests_(tests) {
    for (const machine::DeviceModel& device : machine_->devices) devices_.push_back(&simulated_device(device));
  }

  void run(const BenchSetup& setup, BenchReport& report) {
    for (const BenchTest& test : tests_) {
      if (interrupted()) throw Interrupted();
      ProgressBar bar("choosing shares");
      tuning::Chooser chooser(model_of(setup), asked_of(setup, test), watch_of(bar));
      const tuning::Chosen chosen = chooser.choose();
      const tuning::Verdict verdict = chooser.judge(chosen.choice, *chosen.placement, *chosen.plan);
      bar.clear();
      report.add(result_of(setup, test, chooser.asked(), verdict));
      if (verdict.fits) continue;
      remarks_ +=
          fmt::format("{} on {} does not fit: {}; see `shoal plan --recommend --machine {}` for placements that fit\n",
                      test.name(), setup.devices.shown(), problem_text(verdict.memory), escaped(flags_.machine));
    }
  }

  /// Text to print below the table.
  std::string remarks() const {
    return fmt::format("\nsimulated: {}, not measured; docs/simulation.md explains the prediction\n{}",
                       escaped(machine_->name), remarks_);
  }

 private:
  tuning::Asked asked_of(const BenchSetup& setup, const BenchTest& test) const {
    std::vector<Device*> used;
    for (const std::string& name : setup.devices.names) {
      used.push_back(devices_[static_cast<size_t>(machine_->index(name))]);
    }
    tuning::Asked asked = flags_.asked(setup, flags_.devices_of(setup).grouped(used), tests_);
    asked.load = {.use_mapping = false, .repack = false};
    const models::Hparams& hparams = model_of(setup).hparams;
    asked.session = flags_.session(test, hparams, used.size());
    asked.work = {test.prompt, test.generate, test.depth, std::max<int64_t>(test.parallel, 1)};
    asked.objective = test.parallel > 0 ? tuning::Objective::kMix
                      : test.prompt > 0 ? tuning::Objective::kPrompt
                                        : tuning::Objective::kGeneration;
    const int64_t context = models::session_size(hparams, asked.session).context;
    require<InvalidArgument>(test.length() <= context / asked.work.sequences,
                             "{}: a sequence has {} tokens, but the context of {} tokens has only {} tokens for each "
                             "sequence; use a larger context (-c), fewer tokens or fewer requests (-np)",
                             test.name(), test.length(), context, context / asked.work.sequences);
    const auto host = std::find_if(devices_.begin(), devices_.end(), [&](const Device* device) {
      return device->type() == DeviceType::kCpu && std::find(used.begin(), used.end(), device) == used.end();
    });
    asked.placement.host = host == devices_.end() ? nullptr : *host;
    if (asked.placement.host == nullptr)
      asked.most_prompts = 1;  // plans only the largest batch, which needs the most memory
    asked.placement.machine = machine_;
    return asked;
  }
  const models::Model& model_of(const BenchSetup& setup) const {
    auto& model = models_[setup.model];
    if (model == nullptr) model = models::open_model(setup.model);
    return *model;
  }

  BenchResult result_of(const BenchSetup& setup, const BenchTest& test, const tuning::Asked& asked,
                        const tuning::Verdict& verdict) {
    const tuning::PhasePrediction phase = test.parallel > 0 ? together(verdict, test)
                                          : test.prompt > 0 ? *verdict.prompt
                                                            : *verdict.generation;
    BenchResult result = tools::result_of(flags_, setup, model_of(setup), asked, devices_);
    result.setup.ratio = verdict.choice.ratio();
    result.test = test;
    result.samples.tokens = test.tokens();
    if (verdict.fits) {
      result.samples.ns = {ns_of(phase.seconds)};
      if (test.parallel > 0) result.samples.requests = times_of(verdict);
    }
    result.time = utc_time();
    result.backends = "SIM";
    result.simulated = machine_->name;
    add_more(result, setup, phase, verdict);
    return result;
  }

  /// Adds the columns and fields that only simulate prints. Speed-ups are relative to the model's first setup that
  /// fits.
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
        {"memory", memory_json(verdict.memory)}};
  }

  const SimulateFlags& flags_;
  const std::shared_ptr<const machine::MachineModel> machine_;
  const std::vector<BenchTest>& tests_;
  std::vector<Device*> devices_;  ///< the simulated devices of the machine
  mutable std::map<std::string, std::unique_ptr<models::Model>> models_;
  std::map<std::pair<std::string, std::string>, double> slowest_;  ///< seconds of the first setup that fits, for each
                                                                   ///< model and test
  std::string remarks_;
};

int simulate(SimulateFlags flags) {
  const auto machine = std::make_shared<const machine::MachineModel>(machine_of(flags));
  choose_devices(flags, *machine);
  std::vector<BenchSetup> setups = make_setups(flags.lists, flags.devices.split.mode);
  for (BenchSetup& setup : setups) setup.devices.label = short_text(*machine, setup.devices);
  const std::vector<BenchTest> tests = make_tests(flags.lists);
  catch_interrupts();
  Simulation simulation(flags, machine, tests);
  BenchReport report(flags.format, flags.columns(setups, tests));
  const auto run_all = [&] {
    for (const BenchSetup& setup : setups) simulation.run(setup, report);
  };
  const int code = finish_after(run_all, [&report](const std::string&) { report.finish(); });
  if (code != kSuccess) return code;
  if (flags.format == BenchFormat::kMarkdown) write_out(simulation.remarks());
  return kSuccess;
}

}  // namespace

CommandBody define_simulate(CLI::App& app) {
  auto flags = std::make_shared<SimulateFlags>();
  flags->add_to(app,
                "Devices of the machine, such as H200.0,H200.1, instead of --device-counts; all: all devices; @0,@1: "
                "the devices of each host as one group. Separate several lists by semicolons, or repeat the flag");
  app.add_option(
         "--machine", flags->machine,
         "Machine to simulate: a name such as H200x8-nvlink or RTX4090x2-pcie, or a JSON file (docs/simulation.md)")
      ->type_name("NAME")
      ->required();
  add_integer(app, "--hosts", flags->hosts, 1, kMostHosts,
              "Number of hosts, each with all devices of --machine; the devices of host 1 are named 1:H200.0, 1:H200.1 "
              "and so on");
  const auto read_network = [flags = flags.get()](const std::string& flag, const std::string& text) {
    flags->network = parse_network(flag, text);
  };
  add_parsed(
      app, "--network", "RATE,DELAY", read_network,
      "Bandwidth of each host in each direction, and latency of a short message between hosts, such as 100gbit,20us");
  add_counts(app, "--device-counts", flags->device_counts, 1, 64,
             "Numbers of devices to split the model over, such as 1,2,4; each number is simulated")
      ->default_str("1,2,4,... and all devices");
  flags->context.add_to(app);
  return [flags] { return simulate(*flags); };
}

}  // namespace shoal::tools
