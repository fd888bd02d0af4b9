#include "tools/bench/bench_comm_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "processes/remote_device.h"
#include "tools/cli/output.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string row_of(const std::array<std::string, 7>& cells) {
  return fmt::format("{:>12}{:>13}{:>7}  {:>10}{:>10}{:>10}{:>8}", cells[0], cells[1], cells[2], cells[3], cells[4],
                     cells[5], cells[6]);
}

std::string heading() {
  const std::string names = row_of({"size", "count", "type", "time", "algbw", "busbw", "#wrong"});
  const std::string units = row_of({"(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", ""});
  return fmt::format("#{}\n#{}\n", names.substr(1), units.substr(1, units.find_last_of(')')));
}

/// Formats a number with two decimals, or with fewer decimals if the number is large.
std::string number(double value) {
  return value < 1e5 ? fmt::format("{:.{}f}", value, value < 1000 ? 2 : 1) : fmt::format("{:.0f}", value);
}

std::string to_row(const CommResult& result) {
  const CommCase& c = result.which;
  return row_of({fmt::format("{}", c.size()), fmt::format("{}", c.part), std::string(name_of(c.dtype)),
                 number(result.us), number(result.algbw()), number(result.busbw()),
                 result.wrong ? fmt::format("{}", *result.wrong) : "N/A"}) +
         "\n";
}

Json to_json(const CommResult& result) {
  const CommCase& c = result.which;
  return {{"comm", result.implementation},
          {"communicator", result.communicator},
          {"op", name_of(c.kind)},
          {"ranks", c.ranks},
          {"size", c.size()},
          {"count", c.part},
          {"type", name_of(c.dtype)},
          {"time_us", result.us},
          {"algbw_gbps", result.algbw()},
          {"busbw_gbps", result.busbw()},
          {"wrong", result.wrong ? Json(*result.wrong) : Json()}};
}

}  // namespace

CommReport::CommReport(bool is_json, std::span<Device* const> devices, const CommBenchOptions& options,
                       const ProcessGroup* group)
    : is_json_(is_json), options_(options) {
  for (const Device* device : devices) {
    devices_.push_back(common_name(*device, group));
    descriptions_.push_back(device->description());
    if (group != nullptr) hosts_.push_back(group->host(process_of(*device, group->own())));
  }
}

void CommReport::begin() {
  if (is_json_) return;
  std::string text =
      fmt::format("# shoal {} ({}): {} ranks, {} iterations after {} warm-up iterations, check {}\n", SHOAL_VERSION,
                  build_commit(), devices_.size(), options_.iterations, options_.warmup, options_.check ? "on" : "off");
  for (size_t rank = 0; rank < devices_.size(); ++rank) {
    text += fmt::format("#  rank {:>2}  {}{}  {}\n", rank, devices_[rank],
                        hosts_.empty() ? "" : fmt::format("  {}", hosts_[rank]), escaped(descriptions_[rank]));
  }
  write_out(text);
}

void CommReport::add(const CommResult& result) {
  wrong_ += result.wrong.value_or(0);
  busbw_.push_back(result.busbw());
  if (is_json_) return results_.push_back(to_json(result));
  const std::string section = fmt::format(
      "# {} by {}{}\n", name_of(result.which.kind), result.implementation,
      result.communicator == result.implementation ? "" : fmt::format(" (the {} communicator)", result.communicator));
  if (section != section_) write_out("#\n" + section + heading());
  section_ = section;
  write_out(to_row(result));
}

void CommReport::finish(const std::string& error) {
  const double average =
      std::accumulate(busbw_.begin(), busbw_.end(), 0.0) / static_cast<double>(std::max<size_t>(1, busbw_.size()));
  if (!is_json_ && !busbw_.empty()) {
    const std::string verdict = options_.check ? fmt::format("{} {}", wrong_, wrong_ == 0 ? "OK" : "FAILED") : "N/A";
    write_out(fmt::format("#\n# Wrong elements    : {}\n# Avg bus bandwidth : {:.4f}\n", verdict, average));
  }
  if (!is_json_) return;
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
            {"average_busbw_gbps", average}};
  if (!error.empty()) json["error"] = error;
  write_out(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace shoal::tools
