// Reads and writes a MachineModel as JSON. A JsonValue reads each value and knows the path of the value.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "machine/json_value.h"
#include "machine/machine.h"

namespace shoal::machine {
namespace {

constexpr int kVersion = 1;
constexpr int kMostDevices = 4096;

// --- products ---

DType dtype_of(const std::string& name, const JsonValue& value) {
  const auto dtype = dtype_from_name(name);
  if (!dtype || !(traits(*dtype).is_float || traits(*dtype).is_quantized)) {
    value.refuse("the name of a dtype of weights, e.g. q4_0", name);
  }
  return *dtype;
}

std::pair<JsonValue, JsonValue> pair_of(const JsonValue& value, std::string_view expected) {
  const std::vector<JsonValue> two = value.list(expected);
  if (two.size() != 2) value.refuse(expected);
  return {two[0], two[1]};
}

std::vector<ProductPoint> product_points(const JsonValue& value) {
  std::vector<ProductPoint> points;
  for (const JsonValue& item : value.list("a list of [columns, seconds]")) {
    const auto [columns, seconds] = pair_of(item, "[columns, seconds]");
    const ProductPoint point{columns.whole(1, 1 << 30), seconds.positive()};
    if (!points.empty() && points.back().columns >= point.columns) {
      columns.refuse(fmt::format("more columns than {} (previous point)", points.back().columns));
    }
    points.push_back(point);
  }
  return points;
}

void read_products(const JsonValue& value, DeviceModel& device) {
  for (const auto& [name, item] : value.members()) {
    const std::string dtype(name_of(dtype_of(name, item)));
    item.object({"streamed", "cached"});
    ProductModel model;
    model.streamed = product_points(item.at("streamed"));
    if (const auto cached = item.find("cached")) model.cached = product_points(*cached);
    if (!device.products.emplace(dtype, std::move(model)).second) item.refuse("each dtype once", name + " again");
  }
}

void read_rates(const JsonValue& value, double bytes_per_second, DeviceModel& device) {
  std::set<DType> seen;
  std::optional<double> others;
  for (const auto& [name, item] : value.members()) {
    const double rate = item.positive();
    if (name == "default") {
      others = rate;
      continue;
    }
    const DType dtype = dtype_of(name, item);
    if (!seen.insert(dtype).second) item.refuse("each dtype once", name + " again");
    device.products.try_emplace(std::string(name_of(dtype)), product_at_rate(rate, bytes_per_second, dtype));
  }
  if (others) add_products(device, *others, bytes_per_second);
}

/// Returns the rate (operations/s) of products with f16 weights at the largest measured number of columns. Without a
/// product model for f16, returns the rate of the fastest dtype.
double best_rate(const DeviceModel& device) {
  const auto rate = [](const ProductModel& model) {
    return 2 * static_cast<double>(model.streamed.back().columns) / model.streamed.back().seconds;
  };
  if (const auto found = device.products.find("f16"); found != device.products.end()) return rate(found->second);
  double best = 0;
  for (const auto& [name, model] : device.products) best = std::max(best, rate(model));
  return best;
}

// --- devices ---

struct NamedType {
  std::string_view name;
  DeviceType type;
};
constexpr NamedType kTypes[] = {{"CPU", DeviceType::kCpu},
                                {"GPU", DeviceType::kGpu},
                                {"integrated GPU", DeviceType::kIntegratedGpu},
                                {"accelerator", DeviceType::kAccelerator}};

DeviceType device_type(const JsonValue& value) {
  const std::string name = value.text();
  for (const NamedType& known : kTypes) {
    if (known.name == name) return known.type;
  }
  value.refuse("CPU, GPU, integrated GPU or accelerator");
}

double positive_or(const JsonValue& value, std::string_view key, double otherwise) {
  return value.has(key) ? value.at(key).positive() : otherwise;
}
double not_negative_or(const JsonValue& value, std::string_view key, double otherwise) {
  return value.has(key) ? value.at(key).not_negative() : otherwise;
}

DeviceModel read_device(const JsonValue& value) {
  value.object({"name", "count", "identity", "type", "domain", "host", "memory", "cores", "bandwidth", "efficiency",
                "cache_bytes", "activation_bandwidth", "attention_rate", "attention_bandwidth", "op_seconds",
                "step_seconds", "run_seconds", "products", "rates"});
  DeviceModel device;
  device.name = value.at("name").device_name();
  if (const auto identity = value.find("identity")) device.identity = identity->text();
  if (const auto type = value.find("type")) device.type = device_type(*type);
  if (const auto host = value.find("host")) device.host = static_cast<int>(host->whole(0, kMostDevices));
  device.memory = static_cast<size_t>(value.at("memory").whole(1, int64_t{1} << 60));
  device.cores = positive_or(value, "cores", 1);
  device.bandwidth = value.at("bandwidth").positive();
  device.cache_bytes = not_negative_or(value, "cache_bytes", 0);
  const double efficiency = value.has("efficiency") ? value.at("efficiency").part() : 0.8;
  if (const auto products = value.find("products")) read_products(*products, device);
  if (const auto rates = value.find("rates")) read_rates(*rates, efficiency * device.bandwidth, device);
  if (device.products.empty()) value.refuse("\"products\" or \"rates\" of at least one dtype", "none");
  device.activation_bandwidth = positive_or(value, "activation_bandwidth", device.bandwidth);
  device.attention_bandwidth = positive_or(value, "attention_bandwidth", efficiency * device.bandwidth);
  device.attention_rate = positive_or(value, "attention_rate", best_rate(device));
  device.op_seconds = not_negative_or(value, "op_seconds", device.type == DeviceType::kCpu ? 1e-6 : 2e-6);
  device.step_seconds = not_negative_or(value, "step_seconds", 0);
  device.run_seconds = not_negative_or(value, "run_seconds", 20e-6);
  return device;
}

// --- the machine ---

std::vector<Domain> read_domains(const JsonValue& value) {
  std::vector<Domain> domains;
  for (const JsonValue& item : value.list("a list of domains")) {
    item.object({"name", "bandwidth", "cores"});
    const Domain domain{item.at("name").device_name(), not_negative_or(item, "bandwidth", 0),
                        not_negative_or(item, "cores", 0)};
    for (const Domain& other : domains) {
      if (other.name == domain.name) item.at("name").refuse("a unique name", domain.name + " again");
    }
    domains.push_back(domain);
  }
  return domains;
}

/// Returns the index of the domain that the device's key "domain" names. Without this key, adds a domain for this
/// device alone.
int domain_of(const JsonValue& value, const std::string& device, size_t declared, MachineModel& machine) {
  const auto named = value.find("domain");
  const std::string name = named ? named->text() : device;
  std::string known;
  for (size_t i = 0; i < declared; ++i) {
    if (named && machine.domains[i].name == name) return static_cast<int>(i);
    if (!named && machine.domains[i].name == name)
      value.refuse("a \"domain\", because a domain has the name of this device", "none");
    known += (known.empty() ? "" : ", ") + machine.domains[i].name;
  }
  if (named) named->refuse(known.empty() ? "no domain, because the machine lists no domains" : "one of " + known);
  machine.domains.push_back({name, 0, 0});
  return static_cast<int>(machine.domains.size()) - 1;
}

void read_devices(const JsonValue& value, MachineModel& machine) {
  const size_t declared = machine.domains.size();
  std::set<std::string> names;
  for (const JsonValue& item : value.list("a list of devices")) {
    const DeviceModel model = read_device(item);
    const int64_t count = item.has("count") ? item.at("count").whole(1, kMostDevices) : 0;
    for (int64_t i = 0; i < std::max(count, int64_t{1}); ++i) {
      DeviceModel device = model;
      if (count > 0) device.name += fmt::format(".{}", i);
      if (!names.insert(device.name).second) item.at("name").refuse("a unique name", device.name + " again");
      device.domain = domain_of(item, device.name, declared, machine);
      machine.devices.push_back(std::move(device));
    }
    if (names.size() > kMostDevices) value.refuse(fmt::format("at most {} devices", kMostDevices), "more");
  }
}

/// Reads a list of at least two device names.
std::vector<std::string> read_members(const JsonValue& value, const MachineModel& machine) {
  std::vector<std::string> members;
  for (const JsonValue& member : value.list("a list of devices")) {
    const std::string name = member.text();
    const bool known = std::any_of(machine.devices.begin(), machine.devices.end(),
                                   [&](const DeviceModel& device) { return device.name == name; });
    if (!known) member.refuse("the name of a device");
    if (std::count(members.begin(), members.end(), name) > 0) member.refuse("each device once");
    members.push_back(name);
  }
  if (members.size() < 2) value.refuse("two devices or more");
  return members;
}

CollectiveTable read_table(const JsonValue& value, const MachineModel& machine) {
  value.object({"members", "kind", "points"});
  CollectiveTable table;
  table.members = read_members(value.at("members"), machine);
  const auto kind = collective_from_name(value.at("kind").text());
  if (!kind || info(*kind).node == Op::kNone) value.at("kind").refuse("a collective, e.g. all_reduce");
  table.kind = *kind;
  for (const JsonValue& item : value.at("points").list("a list of [bytes, seconds]")) {
    const auto [bytes, seconds] = pair_of(item, "[bytes, seconds]");
    const CollectiveTable::Point point{bytes.not_negative(), seconds.not_negative()};
    if (!table.points.empty() && table.points.back().bytes >= point.bytes) {
      bytes.refuse(fmt::format("more bytes than {} (previous point)", table.points.back().bytes));
    }
    table.points.push_back(point);
  }
  return table;
}

void read_collectives(const JsonValue& value, MachineModel& machine) {
  for (const JsonValue& item : value.list("a list of measured collectives")) {
    CollectiveTable table = read_table(item, machine);
    for (const CollectiveTable& other : machine.collectives) {
      if (other.kind == table.kind && other.members == table.members) {
        item.at("members").refuse("each collective once per device set", fmt::format("{} again", name_of(table.kind)));
      }
    }
    machine.collectives.push_back(std::move(table));
  }
}

CollectiveAlgorithm read_algorithm(const JsonValue& value) {
  value.object({"name", "one_shot", "latency", "latency_per_rank", "bandwidth"});
  return {value.at("name").text(), value.has("one_shot") && value.at("one_shot").truth(),
          not_negative_or(value, "latency", 0), not_negative_or(value, "latency_per_rank", 0),
          value.at("bandwidth").positive()};
}

HostLink read_link(const JsonValue& value) {
  value.object({"from", "to", "latency", "bandwidth"});
  return {value.at("from").text(),
          value.at("to").text(),
          {value.at("latency").not_negative(), value.at("bandwidth").positive()}};
}

}  // namespace

MachineModel parse_machine(std::string_view json, std::string_view origin) {
  const nlohmann::ordered_json text = parse_named_json(json, origin);
  const JsonValue value(text, origin);
  value.object({"version", "name", "disturbance", "domains", "devices", "collectives", "algorithms", "copy_latency",
                "copy_bandwidth", "disk_bandwidth", "network", "links"});
  if (const JsonValue version = value.at("version"); !version.is(kVersion)) {
    version.refuse(fmt::format("{}, the only supported version", kVersion));
  }
  MachineModel machine;
  machine.name = value.has("name") ? value.at("name").text() : std::string(origin);
  if (const auto disturbance = value.find("disturbance")) machine.disturbance = disturbance->text();
  if (const auto domains = value.find("domains")) machine.domains = read_domains(*domains);
  read_devices(value.at("devices"), machine);
  if (const auto tables = value.find("collectives")) read_collectives(*tables, machine);
  if (const auto algorithms = value.find("algorithms")) {
    for (const JsonValue& item : algorithms->list("a list of algorithms")) {
      machine.algorithms.push_back(read_algorithm(item));
    }
  }
  machine.copy_latency = not_negative_or(value, "copy_latency", machine.copy_latency);
  machine.copy_bandwidth = positive_or(value, "copy_bandwidth", machine.copy_bandwidth);
  machine.disk_bandwidth = positive_or(value, "disk_bandwidth", machine.disk_bandwidth);
  if (const auto network = value.find("network")) {
    network->object({"latency", "bandwidth"});
    machine.network = Network{network->at("latency").not_negative(), network->at("bandwidth").positive()};
  }
  if (const auto links = value.find("links")) {
    for (const JsonValue& item : links->list("a list of links")) machine.links.push_back(read_link(item));
  }
  const bool are_apart = std::any_of(machine.devices.begin(), machine.devices.end(), [&](const DeviceModel& device) {
    return device.host != machine.devices.front().host;
  });
  if (are_apart && !machine.network) value.refuse("a \"network\", because devices are on several hosts", "none");
  return machine;
}

// --- writing ---

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Domain, name, bandwidth, cores)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Network, latency, bandwidth)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveAlgorithm, name, one_shot, latency, latency_per_rank, bandwidth)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceModel, name, identity, host, memory, cores, bandwidth, cache_bytes,
                                   activation_bandwidth, attention_rate, attention_bandwidth, op_seconds, step_seconds,
                                   run_seconds)

namespace {

using Json = nlohmann::json;

Json device_json(const DeviceModel& device, const std::vector<Domain>& domains) {
  Json json = device;
  json["type"] = name_of(device.type);
  json["domain"] = domains.at(static_cast<size_t>(device.domain)).name;
  for (const auto& [dtype, model] : device.products) {
    for (const ProductPoint& p : model.streamed) json["products"][dtype]["streamed"].push_back({p.columns, p.seconds});
    for (const ProductPoint& p : model.cached) json["products"][dtype]["cached"].push_back({p.columns, p.seconds});
  }
  return json;
}

}  // namespace

std::string to_json(const MachineModel& machine) {
  Json json{{"version", kVersion},
            {"name", machine.name},
            {"copy_latency", machine.copy_latency},
            {"copy_bandwidth", machine.copy_bandwidth},
            {"disk_bandwidth", machine.disk_bandwidth}};
  if (!machine.disturbance.empty()) json["disturbance"] = machine.disturbance;
  if (!machine.domains.empty()) json["domains"] = machine.domains;
  for (const DeviceModel& device : machine.devices) json["devices"].push_back(device_json(device, machine.domains));
  for (const CollectiveTable& table : machine.collectives) {
    Json& written = json["collectives"].emplace_back(Json{{"members", table.members}, {"kind", name_of(table.kind)}});
    for (const CollectiveTable::Point& p : table.points) written["points"].push_back({p.bytes, p.seconds});
  }
  if (!machine.algorithms.empty()) json["algorithms"] = machine.algorithms;
  if (machine.network) json["network"] = *machine.network;
  for (const HostLink& link : machine.links) {
    Json& written = json["links"].emplace_back(link.speed);
    written["from"] = link.from;
    written["to"] = link.to;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace shoal::machine
