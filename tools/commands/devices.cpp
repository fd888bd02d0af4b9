// shoal devices: lists the devices with type, description, memory and capabilities. Also lists the build features of
// each family. For each plug-in that cannot be used, prints the reason.
#include <fmt/format.h>

#include <memory>

#include "base/text.h"
#include "devices/functions.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/flags.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

std::vector<std::string> cap_names(const DeviceCaps& caps) {
  std::vector<std::string> names;
  auto add = [&](bool has, const char* name) {
    if (has) names.emplace_back(name);
  };
  add(caps.async, "async");
  add(caps.host_buffer, "host_buffer");
  add(caps.buffer_from_host_ptr, "buffer_from_host_ptr");
  add(caps.events, "events");
  return names;
}

nlohmann::json to_json(const DeviceProps& props) {
  return {{"name", props.name},
          {"type", name_of(props.type)},
          {"description", props.description},
          {"memory", {{"free", props.memory.free}, {"total", props.memory.total}}},
          {"device_id", props.device_id},
          {"caps", cap_names(props.caps)},
          {"peers", props.caps.peers}};
}

std::vector<std::string> to_row(const DeviceProps& props) {
  std::string caps;
  for (const std::string& name : cap_names(props.caps)) caps += (caps.empty() ? "" : ",") + name;
  return {
      props.name, std::string(name_of(props.type)), format_bytes(props.memory.free), format_bytes(props.memory.total),
      caps,       printable(props.description)};
}

/// The features that a family reports. Most families report none.
std::vector<functions::Feature> features_of(const BackendReg& family) {
  const auto features = find_function(family, functions::kFeatures);
  if (features == nullptr) return {};
  std::vector<functions::Feature> found = features();
  for (functions::Feature& feature : found) {
    if (feature.name == "no_devices") feature.value = lack_of_devices(family);
  }
  return found;
}

/// All families except test families.
std::vector<const BackendReg*> listed_families() {
  std::vector<const BackendReg*> listed;
  for (const BackendReg* family : Registry::instance().families()) {
    if (family->is_listed()) listed.push_back(family);
  }
  return listed;
}

nlohmann::json to_json(const BackendReg& family) {
  nlohmann::json features = nlohmann::json::object();
  for (const functions::Feature& feature : features_of(family)) features[feature.name] = feature.value;
  return {{"name", family.name()},
          {"plugin", Registry::instance().file_of(family).string()},
          {"features", std::move(features)}};
}

/// One line about a family: "CPU: isa=avx2 cores=8" or "GIZMO: plug-in /usr/lib/shoal/libshoal-gizmo.so"; "" if there
/// is no information.
std::string to_line(const BackendReg& family) {
  std::string text;
  const std::string file = Registry::instance().file_of(family).string();
  if (!file.empty()) text = "plug-in " + escaped(file);
  for (const functions::Feature& feature : features_of(family)) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", feature.name, printable(feature.value));
  }
  return text.empty() ? "" : fmt::format("{}: {}\n", family.name(), text);
}

void list_as_json(const PluginReport& plugins) {
  nlohmann::json json{{"devices", nlohmann::json::array()},
                      {"families", nlohmann::json::array()},
                      {"skipped_plugins", nlohmann::json::array()}};
  for (const Device* device : Registry::instance().devices()) json["devices"].push_back(to_json(device->props()));
  for (const BackendReg* family : listed_families()) json["families"].push_back(to_json(*family));
  for (const PluginReport::Skipped& plugin : plugins.skipped) {
    json["skipped_plugins"].push_back({{"file", plugin.file}, {"reason", plugin.reason}});
  }
  print_json(json);
}

void list_as_text(const PluginReport& plugins) {
  std::vector<std::vector<std::string>> rows{{"name", "type", "free", "total", "caps", "description"}};
  for (const Device* device : Registry::instance().devices()) rows.push_back(to_row(device->props()));
  std::string text = format_table(rows), lines;
  for (const BackendReg* family : listed_families()) lines += to_line(*family);
  if (Registry::instance().find_family("CUDA") == nullptr) lines += fmt::format("CUDA: {}\n", escaped(cuda_text()));
  for (const PluginReport::Skipped& plugin : plugins.skipped) {
    lines += fmt::format("skipped plug-in {}: {}\n", escaped(plugin.file), printable(plugin.reason));
  }
  write_out(lines.empty() ? text : text + "\n" + lines);
}

}  // namespace

CommandBody define_devices(CLI::App& app) {
  auto output = std::make_shared<OutputFlag>();
  auto plugins = std::make_shared<PluginFlags>();
  output->add_to(app);
  plugins->add_to(app);
  return [output, plugins] {
    const PluginReport report = plugins->load();
    output->json() ? list_as_json(report) : list_as_text(report);
    return kSuccess;
  };
}

}  // namespace shoal::tools
