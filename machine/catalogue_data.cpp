#include "machine/catalogue_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace shoal::machine {

using Json = nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Generation, name, bandwidth_of_peak, quantized_of_int8, plain_of_half)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Gpu, name, generation, memory_mib, bandwidth_gb_s, half_tflop_s, int8_top_s,
                                   processors, clock_ghz, nvlink_generation, nvlink_joined, pcie_generation, pcie_peers)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommonFigures, context_mib, decoded_per_clock, op_seconds, run_seconds,
                                   attention_of_half, attention_of_bandwidth)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Host, name, memory_gib, bandwidth_gb_s, cores, clock_ghz)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostFigures, bandwidth_of_peak, quantized_per_clock, plain_per_clock,
                                   attention_per_clock, op_seconds, run_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkStep, latency_us, per_rank_us, bandwidth_gb_s)

namespace {

void from_json(const Json& json, Link& link) {
  json.at("name").get_to(link.name);
  json.at("copy_bandwidth_gb_s").get_to(link.copy_bandwidth_gb_s);
  if (json.contains("one_shot")) {
    link.one_shot = json.at("one_shot").get<LinkStep>();
    link.two_shot = json.at("two_shot").get<LinkStep>();
  }
  json.at("nccl_small").get_to(link.nccl_small);
  json.at("nccl_ring").get_to(link.nccl_ring);
}

Catalogue parse() {
  Json gpus = Json::parse(kGpusJson);
  const Json hosts = Json::parse(kHostsJson), links = Json::parse(kLinksJson);
  const Json& generations = gpus.at("generations");
  for (Json& gpu : gpus.at("gpus")) {
    const auto found = std::find_if(generations.begin(), generations.end(),
                                    [&](const Json& one) { return one.at("name") == gpu.at("generation"); });
    check(found != generations.end(), "the catalogue has no GPU generation {}", gpu.at("generation").dump());
    gpu["generation"] = *found;
  }
  std::vector<Link> ways;
  for (const Json& link : links.at("links")) from_json(link, ways.emplace_back());
  return {gpus.at("common"), gpus.at("gpus"), hosts.at("common"), hosts.at("hosts"), links.at("copy_latency_seconds"),
          std::move(ways)};
}

}  // namespace

const Catalogue& catalogue() {
  static const Catalogue kTables = [] {
    try {
      return parse();
    } catch (const Json::exception& error) {
      fail<InternalError>("data/machines: {}", error.what());
    }
  }();
  return kTables;
}

}  // namespace shoal::machine
