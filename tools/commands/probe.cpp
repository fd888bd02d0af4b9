// shoal probe: measures devices and saves the results for predictions (tuning/probe/file.h), or prints saved results.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>

#include "base/text.h"
#include "devices/cpu/cpu_device.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/threads.h"
#include "tools/startup/machine_choice.h"
#include "tuning/probe/file.h"
#include "tuning/probe/probe.h"

namespace shoal::tools {
namespace {

using machine::DeviceModel;
using machine::MachineModel;
using machine::ProductPoint;

struct ProbeFlags {
  PluginFlags plugins;
  SingleDevicesFlag devices;
  probe::ProbeOptions options;
  bool force = false;
  OutputFlag output;
};

constexpr const char* kRemedy = "`shoal probe --force`";

using Rows = std::vector<std::vector<std::string>>;

std::string giga(double value) {
  return value > 0 ? fmt::format("{:.1f}", value / 1e9) : "-";
}
std::string micro(double seconds) {
  return fmt::format("{:.2f}", seconds * 1e6);
}

std::string devices_text(const MachineModel& machine) {
  Rows rows{{"device", "domain", "cores", "memory", "reads GB/s", "caches", "activations GB/s", "attention GFLOP/s",
             "KV GB/s", "op us", "step us", "run us"}};
  for (const DeviceModel& d : machine.devices) {
    rows.push_back({d.name, machine.domains[static_cast<size_t>(d.domain)].name, fmt::format("{:g}", d.cores),
                    format_bytes(d.memory), giga(d.bandwidth), format_bytes(static_cast<size_t>(d.cache_bytes)),
                    giga(d.activation_bandwidth), giga(d.attention_rate), giga(d.attention_bandwidth),
                    micro(d.op_seconds), micro(d.step_seconds), micro(d.run_seconds)});
  }
  return format_table(rows);
}

const ProductPoint& point_at(const std::vector<ProductPoint>& points, int64_t columns) {
  const auto at = std::find_if(points.begin(), points.end(), [&](const auto& p) { return p.columns >= columns; });
  return at == points.end() ? points.back() : *at;
}

/// Rates of matrix products. Memory bandwidth limits products with few columns; arithmetic limits products with many
/// columns.
std::string products_text(const MachineModel& machine) {
  Rows rows{{"device", "weights", "1 column GB/s", "in caches GB/s", "32 columns GFLOP/s", "512 columns GFLOP/s"}};
  for (const DeviceModel& device : machine.devices) {
    for (const auto& [name, product] : device.products) {
      const DTypeTraits& t = traits(*dtype_from_name(name));
      const double bytes = static_cast<double>(t.block_bytes) / static_cast<double>(t.block_elems);
      const auto rate = [&points = product.streamed](int64_t columns) {
        const ProductPoint& point = point_at(points, columns);
        return giga(2 * static_cast<double>(point.columns) / point.seconds);
      };
      rows.push_back({device.name, name, giga(bytes / product.streamed.front().seconds),
                      product.cached.empty() ? "-" : giga(bytes / product.cached.front().seconds), rate(32),
                      rate(512)});
    }
  }
  return format_table(rows);
}

std::string collectives_text(const MachineModel& machine) {
  if (machine.collectives.empty()) return "";
  Rows rows{{"members", "collective"}};
  for (const auto& point : machine.collectives.front().points) {
    rows[0].push_back(format_bytes(static_cast<size_t>(point.bytes)) + " us");
  }
  for (const machine::CollectiveTable& table : machine.collectives) {
    std::vector<std::string> row{fmt::format("{}", fmt::join(table.members, ",")), std::string(name_of(table.kind))};
    for (const auto& point : table.points) row.push_back(fmt::format("{:.1f}", point.seconds * 1e6));
    row.resize(rows[0].size(), "-");
    rows.push_back(std::move(row));
  }
  return "\n" + format_table(rows);
}

std::string links_text(const MachineModel& machine) {
  if (machine.links.empty()) return "";
  Rows rows{{"from", "to", "latency us", "GB/s"}};
  for (const machine::HostLink& link : machine.links) {
    rows.push_back({link.from, link.to, micro(link.speed.latency), fmt::format("{:.2f}", link.speed.bandwidth / 1e9)});
  }
  return "\n" + format_table(rows);
}

void show(const probe::MeasuredMachine& found, bool kept, double seconds, const ProbeFlags& flags) {
  const std::string file = probe::machine_file().string();
  if (flags.output.json()) {
    nlohmann::json json{{"file", file},
                        {"measured", found.measured},  // empty: not saved
                        {"cached", kept},
                        {"machine", nlohmann::json::parse(machine::to_json(found.machine))}};
    if (!kept) json["seconds"] = seconds;
    print_json(json);
    return;
  }
  std::string text = devices_text(found.machine) + "\n" + products_text(found.machine) +
                     collectives_text(found.machine) + links_text(found.machine) + "\n";
  if (kept) {
    text += fmt::format("measured {}, saved in {}; --force measures again\n", found.measured, escaped(file));
  } else {
    const std::string where = found.measured.empty() ? "not saved" : "saved in " + escaped(file);
    text += fmt::format("measured in {:.1f} s, {}\n", seconds, where);
  }
  write_out(text);
}

/// Names of all devices except meta devices.
std::string all_names() {
  std::string names;
  for (const Device* device : Registry::instance().devices()) {
    if (device->type() != DeviceType::kMeta) names += (names.empty() ? "" : ",") + device->name();
  }
  return names;
}

/// The weight types to measure. If one of these types is missing in the saved results, the devices are measured again.
std::vector<DType> wanted_dtypes(const ProbeFlags& flags, std::span<Device* const> devices) {
  if (!flags.options.dtypes.empty()) return flags.options.dtypes;
  std::vector<DType> wanted = machine::weight_dtypes();
  for (const Device* device : devices) wanted = probe::supported_dtypes(*device, wanted);
  return wanted;
}

MachineModel measure(const ProbeFlags& flags, std::span<Device* const> devices) {
  ProgressBar bar("probing");
  probe::ProbeOptions options = flags.options;
  options.poll = [] {
    if (interrupted()) throw Interrupted();
  };
  options.progress = [&](int done, int total, const std::string& what) {
    options.poll();
    bar.update(static_cast<size_t>(done), static_cast<size_t>(total), what);
  };
  return probe_devices(devices, options);
}

/// Saves and prints the results. Prints them even if saving fails.
void save_and_show(const MachineModel& machine, double seconds, const ProbeFlags& flags) {
  std::string measured;
  std::exception_ptr failure;
  try {
    measured = probe::save_machine(machine);
  } catch (const Error&) {
    failure = std::current_exception();
  }
  show({machine, measured}, false, seconds, flags);
  if (failure) std::rethrow_exception(failure);
}

int probe(const ProbeFlags& flags) {
  catch_interrupts();
  flags.plugins.load();
  const std::vector<Device*> devices = flags.devices.find(all_names);
  const int threads = flags.options.threads;
  if (!flags.force) {
    auto found = is_leader() ? probe::find_measured(devices, threads, wanted_dtypes(flags, devices)) : std::nullopt;
    const bool is_known =
        processes() != nullptr && processes()->broadcast(found ? "yes" : "no", "measurements of the devices") == "yes";
    if (is_known && !is_leader()) return kSuccess;
    if (found) {
      show(*found, true, 0, flags);
      warn_of_disturbance(found->machine, kRemedy);
      return kSuccess;
    }
  }
  require_threads(threads_needed(devices, threads));
  probe::check_machine_file();
  const auto begin = std::chrono::steady_clock::now();
  const MachineModel machine = measure(flags, devices);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  if (!is_leader()) return kSuccess;
  save_and_show(machine, time.count(), flags);
  warn_of_disturbance(machine, kRemedy);
  return kSuccess;
}

std::vector<DType> parse_dtypes(const std::string& flag, const std::string& text) {
  std::string known;
  for (const DType dtype : machine::weight_dtypes()) known += (known.empty() ? "" : ", ") + std::string(name_of(dtype));
  std::vector<DType> found;
  for (const std::string& part : split_list(text)) {
    const auto dtype = dtype_from_name(part);
    const bool fits = dtype && (traits(*dtype).is_float || traits(*dtype).is_quantized);
    require<InvalidArgument>(fits, "{} must be one or more of {}; got '{}'", flag, known, part);
    if (std::find(found.begin(), found.end(), *dtype) == found.end()) found.push_back(*dtype);
  }
  return found;
}

}  // namespace

CommandBody define_probe(CLI::App& app) {
  auto flags = std::make_shared<ProbeFlags>();
  flags->devices.add_to(app, "Devices to measure, such as CPU0,CPU1")->default_str("all");
  add_integer(app, "-t,--threads", flags->options.threads, 0, cpu::kMaxThreads,
              "Number of threads of each CPU device; 0: one per core");
  const auto read_dtypes = [flags = flags.get()](const std::string& flag, const std::string& text) {
    flags->options.dtypes = parse_dtypes(flag, text);
  };
  add_list(app, "--dtypes", "TYPES", read_dtypes, "Weight types to measure, such as q4_0,q6_K")->default_str("all");
  app.add_flag("--quick", flags->options.quick, "Measure fewer sizes with fewer repetitions");
  app.add_flag("--force", flags->force, "Measure again even if results are saved already");
  flags->output.add_to(app);
  flags->plugins.add_to(app);
  return [flags] { return probe(*flags); };
}

}  // namespace shoal::tools
