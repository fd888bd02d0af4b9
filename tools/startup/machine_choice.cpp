#include "tools/startup/machine_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "machine/catalogue.h"
#include "tools/cli/device_names.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/threads.h"
#include "tuning/probe/file.h"
#include "tuning/probe/probe.h"
#include "tuning/probe/probe_processes.h"
#include "tuning/sim_device.h"

namespace shoal::tools {
namespace {

/// Types of the weights in the model's matrix products. A machine without rates for these types gives no prediction.
std::vector<DType> dtypes_of(const models::Model& model) {
  std::vector<DType> dtypes;
  const std::vector<DType> known = machine::weight_dtypes();
  // A lookup is not a matrix product. So the type of the embedding counts only if the embedding is also the output
  // head.
  for (const models::TensorSpec& spec : model.specs) {
    using models::TensorRole;
    if (spec.role == TensorRole::kLookup || (spec.role == TensorRole::kEmbedding && !model.is_tied())) continue;
    const DType dtype = model.weights.find(spec.name)->dtype;
    const bool is_product = !spec.elementwise && std::find(known.begin(), known.end(), dtype) != known.end();
    if (is_product && std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) dtypes.push_back(dtype);
  }
  return dtypes;
}

/// The machine that --machine names. The machine is read only once, because a pipe cannot be read again.
std::shared_ptr<const machine::MachineModel> named_machine(const std::string& name) {
  static std::map<std::string, std::shared_ptr<const machine::MachineModel>> known;
  auto& machine = known[name];
  if (machine == nullptr)
    machine = std::make_shared<machine::MachineModel>(machine::find_machine(name, stop_if_interrupted));
  return machine;
}

std::string names_of(std::span<Device* const> devices) {
  std::string names;
  for (const Device* device : devices) names += (names.empty() ? "" : ",") + device->name();
  return names;
}

}  // namespace

std::string lack_of(const KnownMachine& machine, const MachineQuery& question) {
  for (const Device* device : question.devices) {
    const auto& known = machine.model->devices;
    const bool is_known =
        std::any_of(known.begin(), known.end(), [&](const auto& model) { return model.name == device->name(); });
    if (is_known) continue;
    return fmt::format(
        "machine {} has no device '{}', on which -ngl, -nkvo, -ot, -ncmoe or -cmoe place a part of the model; add the "
        "device to a JSON file for --machine (docs/simulation.md), append a host of the catalogue to the machine name "
        "(RTX4090x4+EPYC9654), or omit these flags",
        machine.origin, device->name());
  }
  return {};
}

std::optional<KnownMachine> find_machine(const MachineQuery& question) {
  if (!question.machine.empty()) return KnownMachine{named_machine(question.machine), question.machine};
  auto found = probe::find_measured(question.devices, question.threads, dtypes_of(question.model), question.comm);
  if (!found) return std::nullopt;
  warn_of_disturbance(found->machine, probe_command(question, "--force "));
  return KnownMachine{std::make_shared<machine::MachineModel>(std::move(found->machine)),
                      "measured " + found->measured};
}

machine::MachineModel probe_devices(std::span<Device* const> devices, const probe::ProbeOptions& options) {
  try {
    if (ProcessGroup* const group = processes()) return probe::probe_everywhere(*group, devices, options);
    return probe::probe(devices, options);
  } catch (const OutOfMemory& error) {
    fail<OutOfMemory>("{} (--devices)", error.what());
  }
}

namespace {

machine::MachineModel measure_quickly(const MachineQuery& question) {
  write_err(fmt::format("shoal: measuring {} device(s) quickly; {} measures more precisely\n", question.devices.size(),
                        probe_command(question)));
  ProgressBar bar("probing");
  probe::ProbeOptions options;
  options.threads = question.threads;
  options.dtypes = dtypes_of(question.model);
  options.comm = question.comm;
  options.quick = true;
  options.poll = stop_if_interrupted;
  options.progress = [&bar](int done, int total, const std::string& what) {
    stop_if_interrupted();
    bar.update(static_cast<size_t>(done), static_cast<size_t>(total), what);
  };
  machine::MachineModel machine = probe_devices(question.devices, options);
  bar.clear();
  return machine;
}

}  // namespace

void measure_for_processes(const MachineQuery& question) {
  ProcessGroup* const group = processes();
  if (group == nullptr || !question.machine.empty()) return;
  const std::string is_known = is_leader() && find_machine(question) ? "yes" : "no";
  if (group->broadcast(is_known, "measurements of the devices") == "yes") return;
  const machine::MachineModel machine = measure_quickly(question);
  if (is_leader()) probe::save_machine(machine, question.comm);
}

KnownMachine require_machine(const MachineQuery& question) {
  if (auto known = find_machine(question)) {
    const std::string lack = lack_of(*known, question);
    require<InvalidArgument>(lack.empty(), "{}", lack);
    return *std::move(known);
  }
  check(processes() == nullptr, "measurements of the devices of several processes are missing");
  require_threads(threads_needed(question.devices, question.threads));
  try {
    probe::check_machine_file();
  } catch (const DeviceError&) {
    // The call of save_machine() below reports this failure after the measurement.
  }
  machine::MachineModel machine = measure_quickly(question);
  try {
    probe::save_machine(machine, question.comm);
  } catch (const DeviceError& error) {
    warn(fmt::format("{}; the measurement is used for this command only", error.what()));
  }
  warn_of_disturbance(machine, probe_command(question, "--force "));
  return {std::make_shared<machine::MachineModel>(std::move(machine)), "measured just now"};
}

Device& simulated_device(const machine::DeviceModel& described) {
  // If the devices "OLD.0" and "OLD.1" have an empty identity, the description of each device is "simulated OLD".
  const std::string& name = described.name;
  const size_t dot = name.rfind('.');
  const bool is_numbered =
      dot != std::string::npos && name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
  const std::string kind = "simulated " + (is_numbered ? name.substr(0, dot) : name);
  const std::string text =
      fmt::format("{}, {}", described.identity.empty() ? kind : described.identity, format_bytes(described.memory));
  return sim::family().provide({name, text, described.type, described.memory});
}

void take_devices_of(const std::string& machine, DeviceFlags& flags) {
  if (machine.empty() || !(flags.list.empty() || names_all(flags.list))) return;
  flags.names.clear();
  for (const machine::DeviceModel* device : devices_to_use(*named_machine(machine))) {
    flags.names.push_back(device->name);
  }
  flags.group_sizes.assign(flags.names.size(), 1);
  if (!flags.list.empty()) flags.list = fmt::format("{}", fmt::join(flags.names, ","));
}

std::vector<const machine::DeviceModel*> devices_to_use(const machine::MachineModel& machine) {
  std::vector<const machine::DeviceModel*> all, others;
  for (const machine::DeviceModel& device : machine.devices) {
    all.push_back(&device);
    if (device.type != DeviceType::kCpu) others.push_back(&device);
  }
  return others.empty() ? all : others;
}

Device* host_on(const std::string& name, const models::DeviceGroups& groups) {
  if (name.empty()) return nullptr;
  const machine::MachineModel& machine = *named_machine(name);
  for (const machine::DeviceModel& device : machine.devices) {
    const auto is_used = [&](const std::vector<Device*>& group) {
      return std::any_of(group.begin(), group.end(), [&](const Device* one) { return one->name() == device.name; });
    };
    if (device.type != DeviceType::kCpu || std::any_of(groups.begin(), groups.end(), is_used)) continue;
    Device* const here = find_known_devices({device.name}).front();
    return here != nullptr && here->name() == device.name ? here : &simulated_device(device);
  }
  return nullptr;
}

models::DeviceGroups find_groups_on(const std::string& machine, const DeviceFlags& flags) {
  if (machine.empty()) return flags.find_groups();
  const machine::MachineModel& model = *named_machine(machine);
  flags.plugins.load();
  // Finds all devices in one call, because adding a CPU device changes the existing CPU devices.
  std::vector<Device*> devices = find_known_devices(flags.names);
  for (size_t i = 0; i < devices.size(); ++i) {
    const machine::DeviceModel& described = model.devices[static_cast<size_t>(model.index(flags.names[i]))];
    // Lookups of this machine's devices are case-insensitive. Names in a machine description are case-sensitive: "cpu0"
    // is not CPU0.
    if (devices[i] != nullptr && devices[i]->name() == described.name) continue;
    devices[i] = &simulated_device(described);
  }
  return flags.grouped(devices);
}

std::string probe_command(const MachineQuery& question, const char* force) {
  return fmt::format("`shoal probe {}--devices {}{}`", force, names_of(question.devices),
                     question.threads > 0 ? fmt::format(" -t {}", question.threads) : "");
}

void warn_of_disturbance(const machine::MachineModel& machine, const std::string& remedy) {
  static std::string said;
  if (machine.disturbance.empty() || machine.disturbance == said) return;
  said = machine.disturbance;
  warn(fmt::format("device measurements may be wrong, because {} during the measurement; run {} on an idle machine",
                   said, remedy));
}

}  // namespace shoal::tools
