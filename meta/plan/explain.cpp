// Plans as text and as JSON, with the same content.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "graph/text.h"
#include "meta/plan/plan.h"
#include "meta/rules/rule.h"

namespace shoal::meta {
namespace {

std::string range_text(const NodeRange& range) {
  if (range.begin == range.end) return "-";
  return range.end - range.begin == 1 ? fmt::format("{}", range.begin)
                                      : fmt::format("{}-{}", range.begin, range.end - 1);
}

int64_t elements_of(const Step& step) {
  const DTypeTraits& t = traits(step.dtype);
  return step.bytes / static_cast<int64_t>(t.block_bytes) * t.block_elems;
}

/// Ops of the nodes that are joined with a collective; the same on all ranks.
std::vector<std::string_view> joined_ops(const Plan& plan, const Step& step) {
  std::vector<std::string_view> ops;
  for (int i = step.ranges[0].begin; i < step.ranges[0].end; ++i) {
    const Tensor& node = *plan.ranks[0].graph->nodes()[static_cast<size_t>(i)];
    if (!is_view(node.op) && !is_collective(node.op)) ops.push_back(name_of(node.op));
  }
  return ops;
}

std::string step_text(const Plan& plan, const Step& step) {
  if (step.kind == StepKind::kCollective) {
    const auto joined = joined_ops(plan, step);
    return fmt::format("{:<15} {}  {} x {}  {} bytes{}", name_of(step.collective), step.tensor, name_of(step.dtype),
                       elements_of(step), step.bytes,
                       joined.empty() ? "" : fmt::format("  with {}", fmt::join(joined, ", ")));
  }
  std::string text = fmt::format("{:<15}", "compute");
  for (size_t rank = 0; rank < step.ranges.size(); ++rank) {
    text += fmt::format(" {}: {}", plan.devices[rank], range_text(step.ranges[rank]));
    if (rank + 1 < step.ranges.size()) text += ",";
  }
  return text;
}

std::string_view kind_of(const ConstrainedTensor& one) {
  if (one.tensor->op == Op::kReshard) return "reshard";
  return one.constraint.required ? "requirement" : "hint";
}

constexpr std::string_view kRepeated =
    "  depends only on weights, but is repeated in each run: split the weight differently, or mirror the weight";

nlohmann::json step_json(const Plan& plan, const Step& step) {
  nlohmann::json json;
  auto& ranges = json["nodes"] = nlohmann::json::array();
  for (const NodeRange& range : step.ranges) ranges.push_back({range.begin, range.end});
  if (step.kind == StepKind::kCompute) {
    json["kind"] = "compute";
    return json;
  }
  json["kind"] = name_of(step.collective);
  json["tensor"] = step.tensor;
  json["dtype"] = name_of(step.dtype);
  json["bytes"] = step.bytes;
  if (const auto joined = joined_ops(plan, step); !joined.empty()) json["with"] = joined;
  return json;
}

}  // namespace

std::string layouts_text(const Plan& plan) {
  std::string text = "layouts\n";
  for (const auto& [tensor, layout] : plan.layouts) {
    text += fmt::format("  {:<28} {:<5} {:<20} {}\n", tensor->name, name_of(tensor->dtype),
                        shoal::to_string(tensor->shape), layout.to_string());
  }
  return text;
}

std::string constraints_text(const Plan& plan) {
  if (plan.constraints.empty()) return "";
  constexpr std::string_view kRow = "  {:<28} {:<12} {:<32} {:>11} {:>12} {:>12}\n";
  std::string text = "constraints, and the conversions that they cause\n";
  text += fmt::format(kRow, "tensor", "kind", "layout", "conversions", "bytes", "microseconds");
  for (const ConstrainedTensor& one : plan.constraints) {
    const std::string layout = one.constraint.layout.to_string();
    text += one.followed ? fmt::format(kRow, one.tensor->name, kind_of(one), layout, one.conversions, one.bytes,
                                       fmt::format("{:.1f}", one.seconds * 1e6))
                         : fmt::format("  {:<28} {:<12} {:<32} not followed\n", one.tensor->name, kind_of(one), layout);
  }
  return text;
}

std::string steps_text(const Plan& plan) {
  std::string text = "steps (nodes of the local graphs)\n";
  const std::vector<int> repeated = plan.repeated();
  for (size_t segment = 0; segment < plan.segments.size(); ++segment) {
    const bool last = segment + 1 == plan.segments.size();
    const int end = last ? static_cast<int>(plan.steps.size()) : plan.segments[segment + 1];
    if (plan.segments.size() > 1) text += fmt::format("  segment {}\n", segment);
    for (int i = plan.segments[segment]; i < end; ++i) {
      const bool again = std::binary_search(repeated.begin(), repeated.end(), i);
      text += fmt::format("  {:>4}  {}{}\n", i, step_text(plan, plan.steps[i]), again ? kRepeated : "");
    }
  }
  return text;
}

std::string local_text(const Plan& plan, int rank) {
  require<InvalidArgument>(rank >= 0 && rank < static_cast<int>(plan.ranks.size()),
                           "the plan of {} has no rank {}; give a rank from 0 to {}", plan.graph_name, rank,
                           static_cast<int>(plan.ranks.size()) - 1);
  std::string text = fmt::format("local graph of {}\n", plan.devices[rank]);
  const auto nodes = plan.ranks[rank].graph->nodes();
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const std::string_view kind = step.kind == StepKind::kCompute ? "compute" : name_of(step.collective);
    text += fmt::format("  step {} {}\n", i, kind);
    for (int n = step.ranges[rank].begin; n < step.ranges[rank].end; ++n) {
      text += fmt::format("  {:>4}  {}\n", n, shoal::to_string(*nodes[n]));
    }
  }
  return text;
}

std::string to_string(const Plan& plan) {
  std::string text = fmt::format("plan of {} on {} devices\n", plan.graph_name, plan.devices.size());
  text += layouts_text(plan) + constraints_text(plan) + steps_text(plan);
  text += fmt::format("memory in bytes\n  {:<8} {:>14} {:>14} {:>14} {:>14} {:>14}\n", "device", "weights", "cache",
                      "compute", "communication", "total");
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const MemoryUse& use = plan.ranks[rank].memory;
    text += fmt::format("  {:<8} {:>14} {:>14} {:>14} {:>14} {:>14}\n", plan.devices[rank], use.weights, use.cache,
                        use.compute, use.communication, use.total());
  }
  return text;
}

std::string to_json(const Plan& plan) {
  nlohmann::json json;
  json["graph"] = plan.graph_name;
  json["devices"] = plan.devices;
  auto& tensors = json["tensors"] = nlohmann::json::array();
  for (const auto& [tensor, layout] : plan.layouts) {
    tensors.push_back({{"name", tensor->name},
                       {"dtype", name_of(tensor->dtype)},
                       {"shape", tensor->shape},
                       {"layout", layout.to_string()}});
  }
  for (const ConstrainedTensor& one : plan.constraints) {
    json["constraints"].push_back({{"tensor", one.tensor->name},
                                   {"kind", kind_of(one)},
                                   {"layout", one.constraint.layout.to_string()},
                                   {"followed", one.followed},
                                   {"conversions", one.conversions},
                                   {"bytes", one.bytes},
                                   {"seconds", one.seconds}});
  }
  auto& steps = json["steps"] = nlohmann::json::array();
  for (const Step& step : plan.steps) steps.push_back(step_json(plan, step));
  for (const int i : plan.repeated()) steps[static_cast<size_t>(i)]["repeated"] = true;
  if (plan.segments.size() > 1) json["segments"] = plan.segments;
  auto& memory = json["memory"] = nlohmann::json::array();
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const MemoryUse& use = plan.ranks[rank].memory;
    memory.push_back({{"device", plan.devices[rank]},
                      {"weights", use.weights},
                      {"cache", use.cache},
                      {"compute", use.compute},
                      {"communication", use.communication},
                      {"total", use.total()}});
  }
  return json.dump(2);
}

}  // namespace shoal::meta
