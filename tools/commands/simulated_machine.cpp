#include "tools/commands/simulated_machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "machine/catalogue.h"
#include "tools/cli/command.h"
#include "tools/cli/options.h"
#include "tools/startup/machine_choice.h"

namespace shoal::tools {
namespace {

/// "H200.0-7" for H200.0,H200.1,...,H200.7; other names as they are.
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

}  // namespace

SimulatedMachine::SimulatedMachine(machine::MachineModel model)
    : model_(std::make_shared<machine::MachineModel>(std::move(model))) {
  for (const machine::DeviceModel& device : model_->devices) devices_.push_back(&simulated_device(device));
}

bool SimulatedMachine::has(const std::string& name) const {
  return std::any_of(model_->devices.begin(), model_->devices.end(),
                     [&](const machine::DeviceModel& device) { return device.name == name; });
}

size_t SimulatedMachine::devices_to_use() const {
  return tools::devices_to_use(*model_).size();
}

std::string SimulatedMachine::first(int64_t count) const {
  std::vector<std::string> names;
  const auto used = tools::devices_to_use(*model_);
  for (int64_t i = 0; i < count; ++i) names.push_back(used[static_cast<size_t>(i)]->name);
  return fmt::format("{}", fmt::join(names, ","));
}

models::DeviceGroups SimulatedMachine::groups(const DeviceList& list) const {
  models::DeviceGroups groups;
  auto name = list.names.begin();
  for (const int size : list.group_sizes) {
    groups.emplace_back();
    for (int i = 0; i < size; ++i) groups.back().push_back(devices_[static_cast<size_t>(model_->index(*name++))]);
  }
  return groups;
}

Device* SimulatedMachine::host_beside(const models::DeviceGroups& groups) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const auto uses = [&](const auto& group) {
      return std::find(group.begin(), group.end(), devices_[i]) != group.end();
    };
    const bool is_cpu = model_->devices[i].type == DeviceType::kCpu;
    if (is_cpu && std::none_of(groups.begin(), groups.end(), uses)) return devices_[i];
  }
  return nullptr;
}

std::string SimulatedMachine::of_host(int64_t host) const {
  std::vector<std::string> names;
  for (const machine::DeviceModel* device : tools::devices_to_use(*model_)) {
    if (device->host == host) names.push_back(device->name);
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

std::string SimulatedMachine::spell_out_hosts(const std::string& list) const {
  std::vector<std::string> parts;
  for (const std::string& part : split_list(list)) {
    parts.push_back(part);
    if (!part.starts_with("@")) continue;
    const int64_t host = parse_integer("--devices", part.substr(1), 0, kMostHosts);
    parts.back() = of_host(host);
    if (!parts.back().empty()) continue;
    throw UsageError(
        fmt::format("--devices {}: {} has no host {}; --hosts says how many there are", part, model_->name, host));
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

std::string SimulatedMachine::short_text(const DeviceList& list) const {
  if (list.group_sizes.size() == list.names.size()) return short_names(list.names);
  std::string text, hosts;
  for (size_t host = 0; host < list.group_sizes.size(); ++host) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", of_host(static_cast<int64_t>(host)));
    hosts += fmt::format("{}@{}", hosts.empty() ? "" : ",", host);
  }
  return model_->network && text == list.text() ? hosts : list.text();
}

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

machine::MachineModel simulated_machine(const std::string& name, int64_t hosts,
                                        const std::optional<machine::Network>& network) {
  machine::MachineModel one = machine::find_machine(name);
  if (hosts == 1) {
    if (network) throw UsageError("--network is between hosts; say how many there are with --hosts");
    return one;
  }
  if (!network) throw UsageError("--hosts needs the --network between them, such as 100gbit,20us");
  if (one.network) {
    throw UsageError(fmt::format("--hosts: {} is a machine of several hosts already; leave it out", name));
  }
  machine::MachineModel all = several_hosts(one, static_cast<int>(hosts), *network);
  all.name =
      fmt::format("{} x {} ({:g} Gbit/s, {:g} us)", hosts, one.name, 8e-9 * network->bandwidth, 1e6 * network->latency);
  return all;
}

}  // namespace shoal::tools
