#include "tools/cli/device_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "devices/cpu/cpu_device.h"
#include "devices/functions.h"
#include "processes/remote_device.h"
#include "tools/cli/options.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

/// Names of all devices of one type: the first type in `types` that any device of `listed` has.
std::string names_of_first(std::span<Device* const> listed, std::initializer_list<DeviceType> types) {
  for (const DeviceType type : types) {
    std::string names;
    for (const Device* device : listed) {
      if (device->type() == type) names += (names.empty() ? "" : ",") + device->name();
    }
    if (!names.empty()) return names;
  }
  return {};
}

bool has_gpus() {
  return !names_of_first(Registry::instance().devices(), {DeviceType::kGpu, DeviceType::kIntegratedGpu}).empty();
}

/// Number of a CPU device: 3 for "CPU3" and "cpu3". Returns nullopt for any other name, such as "CPU03" or "CPU-1".
std::optional<int> cpu_number(std::string_view name) {
  std::string text = upper(name);
  if (!text.starts_with("CPU")) return std::nullopt;
  int number = -1;
  auto [end, error] = std::from_chars(text.data() + 3, text.data() + text.size(), number);
  bool possible = error == std::errc() && end == text.data() + text.size() && number < cpu::kMaxDevices;
  // The formatted number must equal the text, so signs and leading zeros are refused.
  return possible && text == fmt::format("CPU{}", number) && number >= 0 ? std::optional(number) : std::nullopt;
}

/// Number of CPU devices that must exist for these names.
int cpus_needed(const std::vector<std::string>& names) {
  int needed = 0;
  for (const std::string& name : names) needed = std::max(needed, cpu_number(name).value_or(-1) + 1);
  return needed;
}

/// Finds a device that `shoal devices` lists. Test devices, which are not meant for users, are not found.
Device* find_listed(std::string_view name) {
  std::vector<Device*> devices = Registry::instance().devices();
  auto found = std::find_if(devices.begin(), devices.end(),
                            [&](const Device* device) { return upper(device->name()) == upper(name); });
  return found == devices.end() ? nullptr : *found;
}

/// Creates `needed` CPU devices if the machine has as many cores. Creates no devices if the environment sets the number
/// of CPU devices.
void provide_cpus(int needed) {
  if (cpu::devices_from_environment() > 0 || needed < 2) return;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  bool exists = find_listed(fmt::format("CPU{}", needed - 1)) != nullptr;
  if (needed <= cores && !exists) cpu::configure(fmt::format("devices={}", needed));
}

/// Returns the reason why the plug-in of a device with this name is not loaded: "; plug-in FILE: REASON".
std::string why_no_plugin(const std::string& name) {
  std::string text;
  for (const PluginReport::Skipped& skipped : Registry::instance().load_all().skipped) {
    const std::string file = std::filesystem::path(skipped.file).stem().string();
    constexpr std::string_view kPrefix = "libshoal-";
    const std::string kind = file.starts_with(kPrefix)
                                 ? upper(file.substr(kPrefix.size(), file.find('-', kPrefix.size()) - kPrefix.size()))
                                 : "";
    if (!kind.empty() && upper(name).starts_with(kind))
      text += fmt::format("; plug-in {}: {}", skipped.file, printable(skipped.reason));
  }
  return text;
}

[[noreturn]] void fail_unknown(const std::string& name, int needed) {
  std::string known;
  for (const Device* device : Registry::instance().devices()) {
    known += (known.empty() ? "" : ", ") + device->name();
  }
  std::string remedy =
      cpu_number(name) ? fmt::format("; set SHOAL_CPU_DEVICES={} to get that many CPU devices", needed) : "";
  for (const BackendReg* family : Registry::instance().families()) {
    if (!family->is_listed() || !upper(name).starts_with(family->name())) continue;
    const std::string lack = lack_of_devices(*family);
    const bool has_unusable = !feature_of(*family, "unusable_gpus").empty();
    if (!lack.empty())
      remedy +=
          fmt::format("; {} {}: {}", family->name(), has_unusable ? "cannot use these GPUs" : "has no devices", lack);
  }
  remedy += why_no_plugin(name);
  fail<InvalidArgument>("there is no device '{}'; there are: {}{}", name, known, remedy);
}

}  // namespace

std::vector<std::string> split_device_names(std::string_view text) {
  std::string flat(text);
  std::replace(flat.begin(), flat.end(), '+', ',');
  std::vector<std::string> names = split_list(flat);
  for (auto name = names.begin(); name != names.end(); ++name) {
    require<InvalidArgument>(!name->empty(), "an empty device name in '{}'; give names such as CPU0,CPU1", text);
    bool again =
        std::any_of(names.begin(), name, [&](const std::string& other) { return upper(other) == upper(*name); });
    require<InvalidArgument>(!again, "device {} is named twice in '{}'; name each device once", *name, text);
  }
  return names;
}

std::vector<int> device_group_sizes(std::string_view text) {
  std::vector<int> sizes;
  for (const std::string& group : split_list(text)) {
    sizes.push_back(1 + static_cast<int>(std::count(group.begin(), group.end(), '+')));
  }
  return sizes;
}

bool names_all(std::string_view text) {
  return upper(text) == "ALL";
}

std::string all_of(std::span<Device* const> listed) {
  return names_of_first(listed, {DeviceType::kGpu, DeviceType::kIntegratedGpu, DeviceType::kCpu});
}

std::string default_of(std::span<Device* const> listed) {
  const std::string gpus = names_of_first(listed, {DeviceType::kGpu, DeviceType::kIntegratedGpu});
  return gpus.empty() ? "CPU0" : gpus;
}

std::string all_devices(const PluginReport& plugins) {
  warn_of_missing_gpus(plugins);
  return all_of(Registry::instance().devices());
}

std::string default_devices(const PluginReport& plugins) {
  warn_of_missing_gpus(plugins);
  return default_of(Registry::instance().devices());
}

void warn_of_broken_plugins(const PluginReport& plugins) {
  static bool said = false;
  if (std::exchange(said, true)) return;
  const auto& skipped = plugins.skipped;
  const auto broken =
      std::find_if(skipped.begin(), skipped.end(), [](const PluginReport::Skipped& one) { return one.is_broken; });
  if (broken != skipped.end() && !has_gpus()) {
    warn(
        fmt::format("the devices of plug-in {} are not used, because this plug-in cannot be loaded: {}; name devices "
                    "with --devices, or see `shoal devices`",
                    broken->file, broken->reason));
  }
}

void warn_of_missing_gpus(const PluginReport& plugins) {
  warn_of_broken_plugins(plugins);
  static bool said = false;
  if (std::exchange(said, true)) return;
  for (const BackendReg* family : Registry::instance().families()) {
    const std::string unusable = feature_of(*family, "unusable_gpus");
    if (unusable.empty()) continue;
    warn(fmt::format("{}: {}", has_gpus() ? "some GPUs are not used" : "no GPU is usable, so CPUs are used", unusable));
  }
}

std::string feature_of(const BackendReg& family, std::string_view name) {
  const auto features = find_function(family, functions::kFeatures);
  if (features == nullptr) return {};
  for (const functions::Feature& feature : features()) {
    if (feature.name == name) return feature.value;
  }
  return {};
}

std::string lack_of_devices(const BackendReg& family) {
  const std::string unusable = feature_of(family, "unusable_gpus");
  if (!unusable.empty()) return unusable;
  const std::string lack = feature_of(family, "no_devices");
  if (lack.empty() || feature_of(family, "cuda_driver") != "none") return lack;
  return "no NVIDIA driver is installed";
}

namespace {

/// "CPU0+CPU1" -> "1:CPU0+1:CPU1"; names in process 0 stay unchanged.
std::string in_process(int process, const std::string& names) {
  std::string text;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find_first_of(",+", begin), names.size());
    text += name_in_process(process, std::string_view(names).substr(begin, end - begin)) + names.substr(end, 1);
    begin = end + 1;
  }
  return text;
}

/// The two parts of a name such as "1:CPU0". A name without a process belongs to process 0.
struct RankName {
  int process = 0;
  std::string device;
};

RankName parse_rank(const std::string& name, int processes) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return {0, name};
  RankName rank{-1, name.substr(colon + 1)};
  const auto [end, error] = std::from_chars(name.data(), name.data() + colon, rank.process);
  const bool is_number = error == std::errc() && end == name.data() + colon;
  require<InvalidArgument>(is_number && rank.process >= 0 && rank.process < processes,
                           "'{}' names an unknown process; processes are 0 to {}, as in CPU0,CPU1,1:CPU0", name,
                           processes - 1);
  require<InvalidArgument>(!rank.device.empty() && rank.device.find(':') == std::string::npos,
                           "'{}' is not PROCESS:DEVICE; write names as in CPU0,CPU1,1:CPU0", name);
  return rank;
}

/// Drops the prefix of process 0: "0:CPU0,CPU1,1:CPU0" -> "CPU0,CPU1,1:CPU0".
std::string normalized_ranks(const std::string& list, int processes) {
  std::string text;
  int last = 0;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find_first_of(",+", begin), list.size());
    const RankName rank = parse_rank(list.substr(begin, end - begin), processes);
    require<InvalidArgument>(rank.process >= last,
                             "process {} comes after process {} in '{}'; name processes in ascending order",
                             rank.process, last, list);
    last = rank.process;
    text += name_in_process(last, rank.device) + list.substr(end, 1);
    begin = end + 1;
  }
  return text;
}

/// Replaces each host in a group with the devices of the host: "@0+@1" -> "CPU0+1:CPU0". `lists`: the devices of each
/// process.
std::string of_hosts(const std::string& asked, const std::vector<std::string>& lists) {
  std::string group;
  for (const std::string& name : split_device_names(asked)) {
    require<InvalidArgument>(name.starts_with("@"), "'{}' is not a host; name hosts @0, @1 and so on", name);
    const int nodes = processes()->nodes();
    const auto node = static_cast<int>(parse_integer("--devices", name.substr(1), 0, nodes - 1));
    for (const int process : processes()->processes_of(node)) {
      std::string names = in_process(process, lists[static_cast<size_t>(process)]);
      std::replace(names.begin(), names.end(), ',', '+');
      group += (group.empty() ? "" : "+") + names;
    }
  }
  return group;
}

}  // namespace

std::string of_every_process(const std::string& own) {
  if (processes() == nullptr) return own;
  std::vector<std::string> lists = processes()->gather(own, "devices");
  for (size_t process = 0; process < lists.size(); ++process) {
    lists[process] = in_process(static_cast<int>(process), lists[process]);
  }
  return fmt::format("{}", fmt::join(lists, ","));
}

std::string of_all_processes(const std::string& list, const std::function<std::string()>& own_devices) {
  ProcessGroup* const group = processes();
  if (group == nullptr) return list;
  std::vector<std::string> parts;
  if (list.starts_with("@")) {
    const std::vector<std::string> lists = group->gather(own_devices(), "devices");
    for (const std::string& asked : split_list(list)) parts.push_back(of_hosts(asked, lists));
  } else if (list.find(':') == std::string::npos) {
    for (int process = 0; process < group->size(); ++process) parts.push_back(in_process(process, list));
  } else {
    return normalized_ranks(list, group->size());
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

namespace {

/// Finds devices of all processes by names that are the same in every process, such as "1:CPU0".
std::vector<Device*> find_everywhere(ProcessGroup& group, const std::vector<std::string>& names) {
  static std::map<std::string, Device*> known;
  const bool is_new =
      std::any_of(names.begin(), names.end(), [](const auto& name) { return !known.contains(upper(name)); });
  if (is_new) {
    std::vector<std::string> own;
    for (const std::string& name : names) {
      const RankName rank = parse_rank(name, group.size());
      if (rank.process == group.own()) own.push_back(rank.device);
    }
    std::vector<Device*> found = find_known_devices(own);
    for (size_t i = 0; i < own.size(); ++i) {
      if (found[i] == nullptr) fail_unknown(own[i], cpus_needed(own));
    }
    for (Device* device : gather_devices(group, found)) known.emplace(upper(common_name(*device, &group)), device);
  }
  std::vector<Device*> devices;
  for (const std::string& name : names) {
    const RankName rank = parse_rank(name, group.size());
    devices.push_back(known.at(upper(name_in_process(rank.process, rank.device))));
  }
  return devices;
}

}  // namespace

std::vector<Device*> find_devices(const std::vector<std::string>& names) {
  if (ProcessGroup* group = processes()) return find_everywhere(*group, names);
  const std::vector<Device*> devices = find_known_devices(names);
  for (size_t i = 0; i < names.size(); ++i) {
    if (devices[i] == nullptr) fail_unknown(names[i], cpus_needed(names));
  }
  return devices;
}

std::vector<Device*> find_known_devices(const std::vector<std::string>& names) {
  provide_cpus(cpus_needed(names));
  std::vector<Device*> devices;
  for (const std::string& name : names) devices.push_back(find_listed(name));
  return devices;
}

}  // namespace shoal::tools
