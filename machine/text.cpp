// What parse_machine() reads, written.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "machine/machine.h"

namespace shoal::machine {
namespace {

using Json = nlohmann::ordered_json;

bool is_scalar(const Json& json) {
  return !json.is_structured() || json.empty();
}
/// A list of numbers or names, or of pairs of them, which reads best in one line.
bool is_line(const Json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& item) {
           return is_scalar(item) || (item.is_array() && std::all_of(item.begin(), item.end(), is_scalar));
         });
}

void write(std::string& out, const Json& json, size_t indent) {
  if (is_scalar(json) || is_line(json)) {
    out += json.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  const std::string margin(indent + 2, ' ');
  out += json.is_object() ? "{" : "[";
  const char* separator = "\n";
  for (const auto& [key, value] : json.items()) {
    out += separator + margin;
    if (json.is_object()) out += Json(key).dump() + ": ";
    write(out, value, indent + 2);
    separator = ",\n";
  }
  out += '\n' + std::string(indent, ' ') + (json.is_object() ? '}' : ']');
}

Json product_points(const std::vector<ProductPoint>& points) {
  Json list = Json::array();
  for (const ProductPoint& point : points) list.push_back({point.columns, point.seconds});
  return list;
}

Json products(const DeviceModel& device) {
  Json all = Json::object();
  for (const auto& [dtype, model] : device.products) {
    Json& product = all[dtype] = {{"streamed", product_points(model.streamed)}};
    if (!model.cached.empty()) product["cached"] = product_points(model.cached);
    if (model.conversion > 0) product["conversion"] = model.conversion;
  }
  return all;
}

Json device_json(const DeviceModel& device, const std::vector<Domain>& domains) {
  Json json{{"name", device.name},
            {"identity", device.identity},
            {"type", name_of(device.type)},
            {"domain", domains.at(static_cast<size_t>(device.domain)).name},
            {"memory", device.memory},
            {"cores", device.cores},
            {"bandwidth", device.bandwidth},
            {"cache_bytes", device.cache_bytes},
            {"activation_bandwidth", device.activation_bandwidth},
            {"attention_rate", device.attention_rate},
            {"attention_bandwidth", device.attention_bandwidth},
            {"op_seconds", device.op_seconds},
            {"step_seconds", device.step_seconds},
            {"run_seconds", device.run_seconds},
            {"products", products(device)}};
  if (device.host != 0) json["host"] = device.host;
  return json;
}

Json table_json(const CollectiveTable& table) {
  Json points = Json::array();
  for (const CollectiveTable::Point& point : table.points) points.push_back({point.bytes, point.seconds});
  return {{"members", table.members}, {"kind", name_of(table.kind)}, {"points", points}};
}

}  // namespace

std::string to_json(const MachineModel& machine) {
  Json json = {{"version", 1}, {"name", machine.name}};
  if (!machine.disturbance.empty()) json["disturbance"] = machine.disturbance;
  for (const Domain& domain : machine.domains) {
    json["domains"].push_back({{"name", domain.name}, {"bandwidth", domain.bandwidth}, {"cores", domain.cores}});
  }
  for (const DeviceModel& device : machine.devices) json["devices"].push_back(device_json(device, machine.domains));
  for (const RunCost& run : machine.runs) json["runs"].push_back({{"members", run.members}, {"seconds", run.seconds}});
  for (const CollectiveTable& table : machine.collectives) json["collectives"].push_back(table_json(table));
  for (const CollectiveAlgorithm& algorithm : machine.algorithms) {
    json["algorithms"].push_back({{"name", algorithm.name},
                                  {"one_shot", algorithm.one_shot},
                                  {"latency", algorithm.latency},
                                  {"latency_per_rank", algorithm.latency_per_rank},
                                  {"bandwidth", algorithm.bandwidth}});
  }
  json["copy_latency"] = machine.copy_latency;
  json["copy_bandwidth"] = machine.copy_bandwidth;
  json["disk_bandwidth"] = machine.disk_bandwidth;
  if (machine.network) {
    json["network"] = {{"latency", machine.network->latency}, {"bandwidth", machine.network->bandwidth}};
  }
  for (const HostLink& link : machine.links) {
    json["links"].push_back({{"from", link.from},
                             {"to", link.to},
                             {"latency", link.speed.latency},
                             {"bandwidth", link.speed.bandwidth}});
  }
  std::string out;
  write(out, json, 0);
  return out + '\n';
}

}  // namespace shoal::machine
