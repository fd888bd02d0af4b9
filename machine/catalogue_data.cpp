#include "machine/catalogue_data.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <cctype>

#include "machine/json_value.h"

namespace shoal::machine {
namespace {

constexpr int kNewest = 99;  ///< of generations and of GPUs joined: more is a typing error

/// A name that no row before has, in whatever letters: names are looked up in small ones.
template <class Row>
std::string new_name(const JsonValue& value, const std::vector<Row>& rows) {
  const JsonValue name = value.at("name");
  std::string text = name.text();
  for (const Row& row : rows) {
    if (strcasecmp(row.name.c_str(), text.c_str()) == 0) name.refuse("a name of its own", text + " again");
  }
  return text;
}

std::vector<Generation> read_generations(const JsonValue& value) {
  std::vector<Generation> rows;
  for (const JsonValue& row : value.list("a list of generations")) {
    row.object({"name", "bandwidth_of_peak", "quantized_of_int8", "plain_of_half"});
    rows.push_back({new_name(row, rows), row.at("bandwidth_of_peak").part(), row.at("quantized_of_int8").part(),
                    row.at("plain_of_half").part()});
  }
  return rows;
}

const Generation& generation_of(const JsonValue& value, const std::vector<Generation>& generations) {
  const std::string name = value.text();
  std::string known;
  for (const Generation& generation : generations) {
    if (generation.name == name) return generation;
    known += (known.empty() ? "" : ", ") + generation.name;
  }
  value.refuse("one of the generations " + known);
}

CommonFigures read_common(const JsonValue& value) {
  value.object(
      {"context_mib", "decoded_per_clock", "op_seconds", "run_seconds", "attention_of_half", "attention_of_bandwidth"});
  return {value.at("context_mib").not_negative(), value.at("decoded_per_clock").positive(),
          value.at("op_seconds").not_negative(),  value.at("run_seconds").not_negative(),
          value.at("attention_of_half").part(),   value.at("attention_of_bandwidth").part()};
}

Gpu read_gpu(const JsonValue& row, std::string name, const std::vector<Generation>& generations) {
  row.object({"name", "generation", "memory_mib", "bandwidth_gb_s", "half_tflop_s", "int8_top_s", "processors",
              "clock_ghz", "nvlink_generation", "nvlink_joined", "pcie_generation", "pcie_peers"});
  const auto count = [&](std::string_view key, int least, int most) {
    return static_cast<int>(row.at(key).whole(least, most));
  };
  return {.name = std::move(name),
          .generation = generation_of(row.at("generation"), generations),
          .memory_mib = row.at("memory_mib").positive(),
          .bandwidth_gb_s = row.at("bandwidth_gb_s").positive(),
          .half_tflop_s = row.at("half_tflop_s").positive(),
          .int8_top_s = row.at("int8_top_s").positive(),
          .processors = count("processors", 1, 1 << 20),
          .clock_ghz = row.at("clock_ghz").positive(),
          .nvlink_generation = count("nvlink_generation", 0, kNewest),
          .nvlink_joined = count("nvlink_joined", 1, kNewest),
          .pcie_generation = count("pcie_generation", 1, kNewest),
          .pcie_peers = row.at("pcie_peers").truth()};
}

HostFigures read_host_common(const JsonValue& value) {
  value.object({"bandwidth_of_peak", "quantized_per_clock", "plain_per_clock", "attention_per_clock", "op_seconds",
                "run_seconds"});
  return {value.at("bandwidth_of_peak").part(),   value.at("quantized_per_clock").positive(),
          value.at("plain_per_clock").positive(), value.at("attention_per_clock").positive(),
          value.at("op_seconds").not_negative(),  value.at("run_seconds").not_negative()};
}

Host read_host(const JsonValue& row, std::string name) {
  row.object({"name", "memory_gib", "bandwidth_gb_s", "cores", "clock_ghz"});
  return {std::move(name), row.at("memory_gib").positive(), row.at("bandwidth_gb_s").positive(),
          static_cast<int>(row.at("cores").whole(1, 1 << 20)), row.at("clock_ghz").positive()};
}

LinkStep read_step(const JsonValue& value) {
  value.object({"latency_us", "per_rank_us", "bandwidth_gb_s"});
  return {value.at("latency_us").not_negative(), value.at("per_rank_us").not_negative(),
          value.at("bandwidth_gb_s").positive()};
}

Link read_link(const JsonValue& row, std::string name) {
  row.object({"name", "copy_bandwidth_gb_s", "one_shot", "two_shot", "nccl_small", "nccl_ring"});
  Link link{.name = std::move(name),
            .copy_bandwidth_gb_s = row.at("copy_bandwidth_gb_s").positive(),
            .one_shot = std::nullopt,
            .two_shot = std::nullopt,
            .nccl_small = read_step(row.at("nccl_small")),
            .nccl_ring = read_step(row.at("nccl_ring"))};
  if (row.has("one_shot") || row.has("two_shot")) {
    link.one_shot = read_step(row.at("one_shot"));
    link.two_shot = read_step(row.at("two_shot"));
  }
  return link;
}

}  // namespace

Catalogue parse_catalogue(std::string_view gpus, std::string_view hosts, std::string_view links) {
  Catalogue out;
  constexpr std::string_view kGpusFile = "data/machines/gpus.json", kLinksFile = "data/machines/links.json",
                             kHostsFile = "data/machines/hosts.json";
  const auto gpus_json = parse_named_json(gpus, kGpusFile), links_json = parse_named_json(links, kLinksFile);
  const JsonValue devices(gpus_json, kGpusFile), ways(links_json, kLinksFile);
  devices.object({"source", "common", "generations", "gpus"});
  out.common = read_common(devices.at("common"));
  const std::vector<Generation> generations = read_generations(devices.at("generations"));
  for (const JsonValue& row : devices.at("gpus").list("a list of GPUs")) {
    row.at("name").device_name();
    out.gpus.push_back(read_gpu(row, new_name(row, out.gpus), generations));
    if (out.gpus.back().memory_mib <= out.common.context_mib) row.at("memory_mib").refuse("more than context_mib");
  }
  const auto hosts_json = parse_named_json(hosts, kHostsFile);
  const JsonValue cpus(hosts_json, kHostsFile);
  cpus.object({"source", "common", "hosts"});
  out.host_common = read_host_common(cpus.at("common"));
  for (const JsonValue& row : cpus.at("hosts").list("a list of hosts")) {
    row.at("name").device_name();
    out.hosts.push_back(read_host(row, new_name(row, out.hosts)));
  }
  ways.object({"source", "copy_latency_seconds", "links"});
  out.copy_latency_seconds = ways.at("copy_latency_seconds").not_negative();
  for (const JsonValue& row : ways.at("links").list("a list of links")) {
    out.links.push_back(read_link(row, new_name(row, out.links)));
    const std::string& name = out.links.back().name;
    if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return std::isupper(c); })) {
      row.at("name").refuse("a name in small letters");
    }
  }
  return out;
}

const Catalogue& catalogue() {
  static const Catalogue kTables = parse_catalogue(kGpusJson, kHostsJson, kLinksJson);
  return kTables;
}

}  // namespace shoal::machine
