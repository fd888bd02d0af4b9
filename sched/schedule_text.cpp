#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "sched/schedule.h"

namespace shoal::sched {
namespace {

std::string source_text(const Schedule& schedule, const Copy& copy) {
  if (copy.from_split >= 0) return fmt::format("from split {}", copy.from_split);
  if (!copy.tensor->is_persistent()) return "from the caller";
  const std::string backend = schedule.backends[static_cast<size_t>(copy.from_backend)];
  return copy.ids == nullptr ? "from " + backend : fmt::format("from {}, only experts in {}", backend, copy.ids->name);
}

/// Pads each column to the width of its widest cell. Lines have no trailing blanks.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}}", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string header(const Schedule& s) {
  return fmt::format("schedule of {}: {} splits on {} backends, {} copies, {}\n", s.graph_name, s.splits.size(),
                     s.backends.size(), s.copies(), format_bytes(static_cast<size_t>(s.copied_bytes())));
}

std::string split_header(const Schedule& schedule, size_t index) {
  const Split& split = schedule.splits[index];
  return fmt::format("split {}  {}\n", index, schedule.backends[static_cast<size_t>(split.backend)]);
}

std::vector<std::vector<std::string>> copy_rows(const Schedule& schedule, const Split& split) {
  std::vector<std::vector<std::string>> rows;
  for (const Copy& copy : split.copies) {
    const Tensor& tensor = *copy.tensor;
    rows.push_back({"copy", tensor.name, fmt::format("{} {}", name_of(tensor.dtype), shoal::to_string(tensor.shape)),
                    source_text(schedule, copy)});
  }
  return rows;
}

}  // namespace

std::string to_string(const Schedule& schedule) {
  std::string text = header(schedule);
  for (size_t i = 0; i < schedule.splits.size(); ++i) {
    const Split& split = schedule.splits[i];
    auto rows = copy_rows(schedule, split);
    for (const int index : split.nodes) {
      const Tensor& node = *schedule.graph->nodes()[static_cast<size_t>(index)];
      rows.push_back({"node", node.name, std::string(name_of(node.op)),
                      std::string(name_of(schedule.nodes[static_cast<size_t>(index)].reason))});
    }
    text += split_header(schedule, i) + aligned(rows);
  }
  return text;
}

std::string to_json(const Schedule& schedule) {
  nlohmann::json splits = nlohmann::json::array();
  for (const Split& split : schedule.splits) {
    nlohmann::json copies = nlohmann::json::array(), nodes = nlohmann::json::array();
    for (const Copy& copy : split.copies) {
      nlohmann::json entry{{"tensor", copy.tensor->name},
                           {"dtype", std::string(shoal::name_of(copy.tensor->dtype))},
                           {"shape", copy.tensor->shape},
                           {"bytes", copy.bytes}};
      entry["from"] = source_text(schedule, copy);
      copies.push_back(std::move(entry));
    }
    for (const int index : split.nodes) {
      const Tensor& node = *schedule.graph->nodes()[static_cast<size_t>(index)];
      const Reason reason = schedule.nodes[static_cast<size_t>(index)].reason;
      nodes.push_back({{"name", node.name},
                       {"op", std::string(shoal::name_of(node.op))},
                       {"reason", std::string(name_of(reason))}});
    }
    splits.push_back({{"backend", schedule.backends[static_cast<size_t>(split.backend)]},
                      {"copies", std::move(copies)},
                      {"nodes", std::move(nodes)}});
  }
  nlohmann::json json{{"graph", schedule.graph_name}, {"splits", std::move(splits)}};
  json["copies"] = schedule.copies();
  json["bytes"] = schedule.copied_bytes();
  return json.dump();
}

}  // namespace shoal::sched
