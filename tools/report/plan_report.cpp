#include "tools/report/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "tools/cli/output.h"
#include "tools/cli/text.h"
#include "tools/startup/choice_text.h"

namespace shoal::tools {
namespace {

using Json = nlohmann::json;

/// Formats a duration: "31.2 us", "4.10 ms", "2.31 s".
std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string rate_text(const std::optional<tuning::PhasePrediction>& phase) {
  return phase ? fmt::format("{:.1f}", phase->rate) : "-";
}

std::string collectives_text(const tuning::PhasePrediction& phase, const char* what) {
  if (phase.collectives.empty()) return {};
  std::vector<std::vector<std::string>> rows{{fmt::format("  of a {}", what), "size", "count", "each", "all"}};
  for (const tuning::CollectiveTime& one : phase.collectives) {
    rows.push_back({fmt::format("  {}", name_of(one.kind)), format_bytes(static_cast<size_t>(one.bytes)),
                    fmt::format("{}", one.count), time_text(one.seconds),
                    time_text(one.seconds * static_cast<double>(one.count))});
  }
  return format_table(rows);
}

std::string ranks_text(const tuning::PhasePrediction& phase, const char* what) {
  std::vector<std::vector<std::string>> rows{
      {fmt::format("  of a {}", what), "compute", "communication", "waiting", "host"}};
  for (size_t i = 0; i < phase.ranks.size(); ++i) {
    const tuning::RankTime& rank = phase.ranks[i];
    rows.push_back({"  " + phase.devices[i]});
    for (const double part : {rank.compute, rank.communication, rank.waiting, phase.host}) {
      rows.back().push_back(fmt::format("{:.2f} ms", part * 1e3));
    }
  }
  std::string text = format_table(rows);
  if (phase.ranks.size() > 1) text += fmt::format("  imbalance {:.1f} %\n", phase.imbalance * 100);
  if (phase.disk > 0) {
    text += fmt::format("  the compute time includes {} for reading weights from the disk\n", time_text(phase.disk));
  }
  if (phase.copies > 0)
    text += fmt::format("  the communication time includes {} for copies between devices\n", time_text(phase.copies));
  return text;
}

std::string after_text(int64_t depth) {
  return depth > 0 ? fmt::format(" after {}", depth) : "";
}

std::string requests_text(const tuning::Workload& work) {
  return work.sequences > 1 ? fmt::format(" for each of {} requests", work.sequences) : "";
}

Json to_json(const tuning::PhasePrediction& phase, int64_t tokens, int64_t depth) {
  Json json{{"tokens", tokens},
            {"depth", depth},
            {"seconds", phase.seconds},
            {"tokens_per_second", phase.rate},
            {"imbalance", phase.imbalance},
            {"communication_seconds", phase.communication()},
            {"copy_seconds", phase.copies},
            {"disk_seconds", phase.disk},
            {"host_seconds", phase.host},
            {"collectives", Json::array()},
            {"devices", Json::array()}};
  for (const tuning::CollectiveTime& one : phase.collectives) {
    json["collectives"].push_back(
        {{"kind", name_of(one.kind)}, {"bytes", one.bytes}, {"count", one.count}, {"seconds", one.seconds}});
  }
  for (size_t i = 0; i < phase.ranks.size(); ++i) {
    const tuning::RankTime& rank = phase.ranks[i];
    json["devices"].push_back({{"device", phase.devices[i]},
                               {"compute", rank.compute},
                               {"communication", rank.communication},
                               {"waiting", rank.waiting}});
  }
  return json;
}

Json to_json(const tuning::Remedies& remedies) {
  Json json{{"problem", problem_text(remedies.lacking)}};
  if (remedies.context) {
    json["context"] = remedies.context->context;
    json["context_options"] = context_options(remedies, *remedies.context);
  }
  if (remedies.context_q8_0) {
    json["context_q8_0"] = remedies.context_q8_0->context;
    json["context_q8_0_options"] = context_options(remedies, *remedies.context_q8_0);
  }
  if (remedies.bits_that_fit) {
    json["bits_per_weight"] = *remedies.bits_that_fit;
    json["bits_per_weight_of_file"] = remedies.bits;
    json["quantisations"] = remedies.quantisations;
  }
  if (remedies.more_devices) json["more_devices"] = {{"count", *remedies.more_devices}, {"like", remedies.device}};
  return json;
}

std::string reason_of(const tuning::Comparison& comparison) {
  if (!comparison.remedies) return comparison.reason;
  const std::string& reason = comparison.reason;
  return fmt::format("nothing fits: {}{}{}", remedies_text(*comparison.remedies), reason.empty() ? "" : "; ", reason);
}

/// Spare memory of a device, as a fraction of its free memory.
double spare_part(const models::DeviceUse& use) {
  const auto free = static_cast<double>(use.memory.free);
  return free == 0 ? 0 : static_cast<double>(tuning::spare_bytes(use)) / free;
}

}  // namespace

std::string margin_text(const models::DeviceUse& use) {
  const int64_t margin = tuning::spare_bytes(use);
  const std::string bytes = format_bytes(static_cast<size_t>(margin < 0 ? -margin : margin));
  return margin < 0 ? bytes + " short" : fmt::format("{} ({:.0f} %)", bytes, spare_part(use) * 100);
}

const models::DeviceUse& fullest(const tuning::Verdict& verdict) {
  return *std::min_element(verdict.memory.begin(), verdict.memory.end(), [](const auto& a, const auto& b) {
    return tuning::spare_bytes(a) < tuning::spare_bytes(b);
  });
}

std::string prediction_text(const tuning::Verdict& p, const std::string& origin) {
  std::string text = fmt::format("prediction for {} ({})\n", p.choice.name(), origin);
  if (p.generation) {
    const double tokens = static_cast<double>(p.work.generate);
    text += fmt::format("  generation of {} tokens{}{}: {:.2f} tokens/s, {} each\n", p.work.generate,
                        after_text(p.work.depth), requests_text(p.work), p.generation->rate,
                        time_text(p.generation->seconds / tokens));
  }
  if (p.prompt) {
    text += fmt::format("  prompt of {} tokens{}{}: {:.2f} tokens/s, {} in all\n", p.work.prompt,
                        after_text(p.work.depth), requests_text(p.work), p.prompt->rate, time_text(p.prompt->seconds));
  }
  if (p.generation) text += ranks_text(*p.generation, "token") + collectives_text(*p.generation, "token");
  if (p.prompt) text += ranks_text(*p.prompt, "prompt") + collectives_text(*p.prompt, "prompt");
  return text;
}

namespace {

constexpr ptrdiff_t kHostColumn = 4;  ///< index of the column "host" in a comparison, after the column of shares

}  // namespace

std::string comparison_text(const tuning::Comparison& comparison, tuning::Objective objective) {
  std::vector<std::vector<std::string>> rows{
      {"", "devices", "mode", "shares", "generation t/s", "prompt t/s", "imbalance", "least free"}};
  const models::SplitMode layer = models::SplitMode::kLayer;
  const bool uses_host = std::any_of(comparison.verdicts.begin(), comparison.verdicts.end(),
                                     [](const auto& one) { return !one.choice.host.empty(); });
  if (uses_host) rows[0].insert(rows[0].begin() + kHostColumn, "host");
  for (size_t i = 0; i < comparison.verdicts.size(); ++i) {
    const tuning::Verdict& one = comparison.verdicts[i];
    const std::optional<tuning::PhasePrediction>& phase =
        objective == tuning::Objective::kPrompt || !one.generation ? one.prompt : one.generation;
    const bool several = one.choice.device_count() > 1;
    rows.push_back({comparison.best == i ? "*"
                    : one.fits           ? ""
                                         : "-",
                    one.choice.devices_text(), several ? (one.choice.mode == layer ? "layer" : "tensor") : "alone",
                    several ? (one.choice.shares.empty() ? "even" : short_shares(one.choice.ratio())) : "",
                    rate_text(one.generation), rate_text(one.prompt),
                    phase ? fmt::format("{:.1f} %", phase->imbalance * 100) : "-", margin_text(fullest(one))});
    if (uses_host) rows.back().insert(rows.back().begin() + kHostColumn, one.choice.host.flags());
  }
  std::string text = fmt::format("candidates by speed of {} (* recommended, - does not fit)\n", name_of(objective));
  return text + format_table(rows) + reason_of(comparison) + "\n";
}

nlohmann::ordered_json memory_json(std::span<const models::DeviceUse> memory) {
  auto json = nlohmann::ordered_json::array();
  for (const models::DeviceUse& use : memory) {
    json.push_back({{"device", use.device},
                    {"weights", use.use.weights},
                    {"kv", use.use.cache},
                    {"compute", use.use.compute},
                    {"communication", use.use.communication},
                    {"total", use.use.total()},
                    {"mapped", use.mapped},
                    {"memory", use.memory.total},
                    {"free", use.memory.free},
                    {"margin", tuning::spare_bytes(use)},
                    {"margin_percent", spare_part(use) * 100}});
  }
  return json;
}

Json shares_json(const tuning::Choice& choice) {
  if (!choice.shares.empty()) return choice.shares;
  return std::vector<int>(choice.sharers().size(), 1);
}

Json prediction_json(const tuning::Verdict& p) {
  Json devices = Json::array();
  for (const auto& group : p.choice.groups) {
    for (const Device* device : group) devices.push_back(device->name());
  }
  Json json{{"name", p.choice.name()},
            {"devices", devices},
            {"device_list", p.choice.devices_text()},
            {"split_mode", p.choice.mode == models::SplitMode::kLayer ? "layer" : "tensor"},
            {"tensor_split", shares_json(p.choice)},
            {"host", p.choice.host.flags()},
            {"split_key", p.split_key},
            {"context", p.choice.context},
            {"parallel", p.work.sequences},
            {"fits", p.fits},
            {"from_disk", p.from_disk},
            {"memory", Json(memory_json(p.memory))}};
  if (p.prompt) json["prompt"] = to_json(*p.prompt, p.work.prompt, p.work.depth);
  if (p.generation) json["generation"] = to_json(*p.generation, p.work.generate, p.work.depth);
  return json;
}

void add_comparison(Json& json, const tuning::Comparison& comparison) {
  auto& candidates = json["candidates"] = Json::array();
  for (const tuning::Verdict& one : comparison.verdicts) candidates.push_back(prediction_json(one));
  json["recommended"] = nullptr;
  if (comparison.best) json["recommended"] = candidates[*comparison.best];
  json["reason"] = reason_of(comparison);
  if (comparison.remedies) json["remedies"] = to_json(*comparison.remedies);
}

namespace {

/// The split policy of the meta device that divides routed experts; nullptr if no meta device divides them.
const models::SplitPolicy* policy_of_experts(const models::Model& model, const models::Placement& placement) {
  for (size_t i = 0; i < model.specs.size(); ++i) {
    if (model.specs[i].role != models::TensorRole::kExperts) continue;
    const models::SplitPolicy* policy = placement.policy_of(placement.device_of(*model.weights.tensors()[i]));
    if (policy != nullptr && policy->devices() > 1) return policy;
  }
  return nullptr;
}

bool has_shared_latent_cache(const models::Model& model, const models::Placement& placement) {
  return models::has_latent_cache(model.hparams) && placement.acts_as_one();
}

std::string batch_text(int64_t tokens) {
  return tokens == 1 ? "a token" : fmt::format("{} tokens", tokens);
}

}  // namespace

std::string ways_text(const models::Model& model, const models::Placement& placement, const tuning::Ways& ways) {
  std::string text;
  if (const models::SplitPolicy* policy = policy_of_experts(model, placement)) {
    const bool inside = policy->experts() == models::ExpertSplit::kInside;
    text += fmt::format("routed experts {}", name_of(policy->experts()));
    if (ways.inside > 0) {
      text += fmt::format("; their products take {} for {} ({}: {})", time_text(inside ? ways.inside : ways.whole),
                          batch_text(ways.tokens), inside ? "whole" : "inside",
                          time_text(inside ? ways.whole : ways.inside));
    }
    text += "\n";
  }
  if (has_shared_latent_cache(model, placement)) {
    const bool rows = placement.latent_parts() > 1;
    text += rows ? fmt::format("latent cache by rows: {} parts", placement.latent_parts()) : "latent cache mirrored";
    if (ways.mirrored > 0) {
      text += fmt::format("; attention of {} to {} rows takes {}, or {} if the cache were {}", batch_text(ways.tokens),
                          ways.rows, time_text(rows ? ways.by_rows : ways.mirrored),
                          time_text(rows ? ways.mirrored : ways.by_rows), rows ? "mirrored" : "by rows");
    }
    text += "\n";
  }
  return text;
}

void add_ways(Json& json, const models::Model& model, const models::Placement& placement, const tuning::Ways& ways) {
  if (const models::SplitPolicy* policy = policy_of_experts(model, placement)) {
    Json& experts = json["experts"] = {{"split", name_of(policy->experts())}};
    if (ways.inside > 0) {
      experts.update({{"tokens", ways.tokens}, {"inside_seconds", ways.inside}, {"whole_seconds", ways.whole}});
    }
  }
  if (!has_shared_latent_cache(model, placement)) return;
  const auto split = placement.latent_parts() > 1 ? models::LatentSplit::kRows : models::LatentSplit::kMirrored;
  Json& latent = json["latent_cache"] = {{"split", name_of(split)}, {"parts", placement.latent_parts()}};
  if (ways.mirrored <= 0) return;
  latent.update({{"rows", ways.rows},
                 {"tokens", ways.tokens},
                 {"mirrored_seconds", ways.mirrored},
                 {"rows_seconds", ways.by_rows}});
}

/// Names of cut groups, indexed by CutGroup.
constexpr std::array kGroupNames{"none",    "query_heads",   "kv_heads",   "state_heads", "feed_forward",
                                 "experts", "shared_expert", "vocabulary", "cache_parts"};

Json units_json(const models::Model& model) {
  Json json = Json::object();
  for (const auto& [group, units] : models::split_units(model.hparams, model.split_tensors())) {
    json[kGroupNames.at(static_cast<size_t>(group))] = units;
  }
  return json;
}

}  // namespace shoal::tools
