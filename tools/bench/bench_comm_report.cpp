#include "tools/bench/bench_comm_report.h"

#include <fmt/format.h>

#include <numeric>

#include "processes/remote_device.h"
#include "tools/cli/output.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHeading =
    "#{:>72}{:>38}\n"
    "#{:>11}{:>13}{:>7}{:>8}{:>6}  {:>10}{:>10}{:>10}{:>8}  {:>10}{:>10}{:>10}{:>8}\n"
    "#{:>11}{:>13}{:>21}  {:>10}{:>10}{:>10}{:>8}  {:>10}{:>10}{:>10}\n";

std::string heading() {
  return fmt::format(kHeading, "out-of-place", "in-place", "size", "count", "type", "redop", "root", "time", "algbw",
                     "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "(us)", "(GB/s)",
                     "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
}

/// Two digits after the point where there is room for them.
std::string number(double value) {
  return value < 1e5 ? fmt::format("{:.{}f}", value, value < 1000 ? 2 : 1) : fmt::format("{:.0f}", value);
}

std::string to_cells(const std::optional<CommTiming>& timing) {
  if (!timing) return fmt::format("{:>10}{:>10}{:>10}{:>8}", "N/A", "N/A", "N/A", "N/A");
  return fmt::format("{:>10}{:>10}{:>10}{:>8}", number(timing->us), number(timing->algbw), number(timing->busbw),
                     timing->wrong ? fmt::format("{}", *timing->wrong) : "N/A");
}

Json to_json(const std::optional<CommTiming>& timing) {
  if (!timing) return nullptr;
  return {{"time_us", timing->us},
          {"algbw_gbps", timing->algbw},
          {"busbw_gbps", timing->busbw},
          {"wrong", timing->wrong ? Json(*timing->wrong) : Json()}};
}

const char* reduction(const CommCase& c) {
  return c.reduces() ? "sum" : "none";
}
int root(const CommCase& c) {
  return info(c.kind).has_root() ? c.root : -1;
}

std::string csv_of(const Json& result, bool heading) {
  std::vector<std::string> cells;
  for (const auto& [key, value] : result.items()) {
    if (key != "out_of_place" && key != "in_place") {
      cells.push_back(heading ? key : csv_cell(value));
      continue;
    }
    for (const char* part : {"time_us", "algbw_gbps", "busbw_gbps", "wrong"}) {
      cells.push_back(heading ? key + "_" + part : value.is_null() ? "" : csv_cell(value[part]));
    }
  }
  return csv_line(cells);
}

}  // namespace

nlohmann::ordered_json to_json(const CommResult& result) {
  const CommCase& c = result.which;
  return {{"comm", result.implementation},
          {"communicator", result.communicator},
          {"op", name_of(c.kind)},
          {"ranks", c.ranks},
          {"size", c.size()},
          {"count", c.part},
          {"type", name_of(c.dtype)},
          {"redop", reduction(c)},
          {"root", root(c)},
          {"out_of_place", to_json(std::optional<CommTiming>(result.out_of_place))},
          {"in_place", to_json(result.in_place)}};
}

std::string to_row(const CommResult& result) {
  const CommCase& c = result.which;
  return fmt::format("{:>12}{:>13}{:>7}{:>8}{:>6}  {}  {}\n", c.size(), c.part, name_of(c.dtype), reduction(c), root(c),
                     to_cells(result.out_of_place), to_cells(result.in_place));
}

CommReport::CommReport(CommFormat format, std::span<Device* const> devices, const CommBenchOptions& options,
                       const ProcessGroup* group)
    : format_(format), options_(options) {
  for (const Device* device : devices) {
    devices_.push_back(common_name(*device, group));
    descriptions_.push_back(device->description());
    if (group != nullptr) hosts_.push_back(group->host(process_of(*device, group->own())));
  }
}

void CommReport::begin() {
  if (format_ == CommFormat::kCsv) return write_out(csv_of(to_json(CommResult{}), true));
  if (format_ != CommFormat::kText) return;
  std::string text = fmt::format("# shoal {} ({}): {} ranks, {} iterations after {}, check {}\n", SHOAL_VERSION,
                                 build_commit(), devices_.size(), options_.iterations,
                                 options_.warmup, options_.check ? "on" : "off");
  for (size_t rank = 0; rank < devices_.size(); ++rank) {
    text += fmt::format("#  rank {:>2}  {}{}  {}\n", rank, devices_[rank],
                        hosts_.empty() ? "" : fmt::format("  {}", hosts_[rank]), escaped(descriptions_[rank]));
  }
  write_out(text);
}

void CommReport::add(const CommResult& result) {
  wrong_ += result.wrong();
  busbw_.push_back(result.out_of_place.busbw);
  if (result.in_place) busbw_.push_back(result.in_place->busbw);
  if (format_ == CommFormat::kJson) return results_.push_back(to_json(result));
  if (format_ == CommFormat::kCsv) return write_out(csv_of(to_json(result), false));
  const std::string section = fmt::format(
      "# {} by {}{}\n", name_of(result.which.kind), result.implementation,
      result.communicator == result.implementation ? "" : fmt::format(" (the {} communicator)", result.communicator));
  if (section != section_) write_out("#\n" + section + heading());
  section_ = section;
  write_out(to_row(result));
}

void CommReport::finish(const std::string& error) {
  if (format_ == CommFormat::kText && !busbw_.empty()) {
    const std::string verdict = options_.check ? fmt::format("{} {}", wrong_, wrong_ == 0 ? "OK" : "FAILED") : "N/A";
    write_out(fmt::format("#\n# Wrong elements    : {}\n# Avg bus bandwidth : {:.4f}\n", verdict, average_busbw()));
  }
  if (format_ != CommFormat::kJson) return;
  Json devices = Json::array();
  for (size_t rank = 0; rank < devices_.size(); ++rank) {
    devices.push_back({{"rank", rank}, {"name", devices_[rank]}, {"description", descriptions_[rank]}});
    if (!hosts_.empty()) devices.back()["host"] = hosts_[rank];
  }
  Json json{{"version", SHOAL_VERSION},
            {"build_commit", build_commit()},
            {"time", utc_time()},
            {"devices", std::move(devices)},
            {"iterations", options_.iterations},
            {"warmup", options_.warmup},
            {"check", options_.check},
            {"results", results_},
            {"wrong", options_.check ? Json(wrong_) : Json()},
            {"average_busbw_gbps", average_busbw()}};
  if (!error.empty()) json["error"] = error;
  write_out(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

double CommReport::average_busbw() const {
  if (busbw_.empty()) return 0.0;
  return std::accumulate(busbw_.begin(), busbw_.end(), 0.0) / static_cast<double>(busbw_.size());
}

}  // namespace shoal::tools
