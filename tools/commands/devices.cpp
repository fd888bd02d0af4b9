// shoal devices: every device with type, description, memory and capabilities.
#include <memory>

#include "devices/device.h"
#include "devices/params.h"
#include "tools/command.h"
#include "tools/flags.h"
#include "tools/output.h"
#include "tools/program.h"

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
      caps,       escaped(props.description)};
}

int list_devices(const OutputFlag& output) {
  nlohmann::json json = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"name", "type", "free", "total", "caps", "description"}};
  for (const Device* device : Registry::instance().devices()) {
    json.push_back(to_json(device->props()));
    rows.push_back(to_row(device->props()));
  }
  if (output.json()) {
    print_json(json);
  } else {
    write_out(format_table(rows));
  }
  return kSuccess;
}

}  // namespace

CommandBody define_devices(CLI::App& app) {
  auto output = std::make_shared<OutputFlag>();
  output->add_to(app);
  return [output] { return list_devices(*output); };
}

}  // namespace shoal::tools
