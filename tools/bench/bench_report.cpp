#include "tools/bench/bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "tools/cli/model_text.h"
#include "tools/cli/output.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string ratio_text(const BenchSetup& setup) {
  if (!setup.ratio.empty()) return short_shares(setup.ratio);
  return setup.devices.names.size() > 1 ? "even" : "-";
}

struct Column {
  std::string name;
  size_t width;
  std::string cell;
  bool is_number;
};

/// A simulated result has no standard deviation. If the model does not fit, the result has no rate.
Column rate_column(const BenchResult& r) {
  const BenchSamples& s = r.samples;
  if (r.simulated.empty()) return {"t/s", 20, fmt::format("{:.2f} ± {:.2f}", s.avg_rate(), s.stddev_rate()), true};
  return {"t/s (simulated)", 15, s.ns.empty() ? "does not fit" : fmt::format("{:.2f}", s.avg_rate()), true};
}

/// The columns of a test with requests, with the names of llama-batched-bench: S_PP and S_TG are the rates of the
/// prompt phase and of the generation phase, and S is the rate of all tokens. simulate predicts only these rates.
std::vector<Column> request_columns(const BenchResult& r) {
  const BenchSamples& samples = r.samples;
  const RequestTimes& times = samples.requests;
  const auto number = [](const std::vector<double>& rates) {
    return mean(rates) > 0 ? fmt::format("{:.2f}", mean(rates)) : "-";
  };
  const auto ms = [&](const std::vector<int64_t>& ns, double share) {
    return ns.empty() ? "-" : fmt::format("{:.1f}", static_cast<double>(percentile(ns, share)) / 1e6);
  };
  const Column all = rate_column(r);
  std::vector<Column> columns{{"S_PP t/s", 9, number(times.prompt_rates), true},
                              {"S_TG t/s", 9, number(times.generation_rates), true},
                              {"S " + all.name, 18, all.cell, true}};
  if (!r.simulated.empty()) return columns;
  columns.insert(columns.end(), {{"TTFT p50 ms", 11, ms(times.first_ns, 0.5), true},
                                 {"p99", 9, ms(times.first_ns, 0.99), true},
                                 {"ITL p50 ms", 10, ms(times.between_ns, 0.5), true},
                                 {"p99", 9, ms(times.between_ns, 0.99), true}});
  return columns;
}

/// The JSON fields of a test with requests. t_pp to speed are the fields of llama-batched-bench, in seconds and tokens
/// per second. Unknown times are null.
Json request_fields(const BenchSamples& samples) {
  const RequestTimes& times = samples.requests;
  const auto average = [](const auto& values, double unit) {
    return values.empty() ? Json() : Json(mean(values) / unit);
  };
  Json fields{{"t_pp", average(times.prompt_ns, 1e9)},
              {"speed_pp", average(times.prompt_rates, 1)},
              {"t_tg", average(times.generation_ns, 1e9)},
              {"speed_tg", average(times.generation_rates, 1)},
              {"t", average(samples.ns, 1e9)},
              {"speed", average(samples.rates(), 1)}};
  for (const auto& [name, ns] : {std::pair{"ttft", &times.first_ns}, std::pair{"itl", &times.between_ns}}) {
    fields[fmt::format("{}_p50_ns", name)] = ns->empty() ? Json() : Json(percentile(*ns, 0.5));
    fields[fmt::format("{}_p99_ns", name)] = ns->empty() ? Json() : Json(percentile(*ns, 0.99));
  }
  fields["samples_pp_ts"] = times.prompt_rates;
  fields["samples_tg_ts"] = times.generation_rates;
  fields["preemptions"] = times.preemptions;
  return fields;
}

std::vector<Column> markdown_columns(const BenchResult& r, const BenchColumns& shown) {
  const auto number = [](int64_t value) { return fmt::format("{}", value); };
  std::vector<Column> columns{{"model", shown.model_width, r.model_type, false},
                              {"size", 10, format_bytes(r.model_bytes), true},
                              {"params", 8, short_count(r.model_parameters, 2, " "), true},
                              {"devices", shown.devices_width, r.setup.devices.shown(), false}};
  const auto add_if = [&](bool is_shown, Column column) {
    if (is_shown) columns.push_back(std::move(column));
  };
  add_if(shown.split_mode, {"sm", 6, r.placement.mode == models::SplitMode::kLayer ? "layer" : "tensor", false});
  add_if(shown.layers, {"ngl", 4, number(r.placement.device_layers), true});
  add_if(shown.threads, {"threads", 7, number(r.setup.threads), true});
  add_if(shown.batch, {"n_batch", 7, number(r.test.batch), true});
  add_if(shown.ubatch, {"n_ubatch", 8, number(r.test.ubatch), true});
  add_if(shown.cache_types, {"type_k", 6, std::string(name_of(r.session.dtype_k)), false});
  add_if(shown.cache_types, {"type_v", 6, std::string(name_of(r.session.dtype_v)), false});
  columns.push_back({"ts", shown.ratio_width, ratio_text(r.setup), false});
  columns.push_back({"test", std::max<size_t>(15, shown.test_width), r.test.name(), true});
  if (r.test.parallel > 0) {
    for (Column& column : request_columns(r)) columns.push_back(std::move(column));
  } else {
    columns.push_back(rate_column(r));
  }
  for (const BenchColumn& more : r.more_columns) columns.push_back({more.name, more.width, more.cell, true});
  for (Column& column : columns) column.width = std::max(column.width, column.name.size());
  return columns;
}

/// Pads the text to `width` columns. The two bytes of "±" count as one column.
std::string padded(const std::string& text, size_t width, bool right) {
  const auto wide = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  const std::string gap(width - std::min(width, static_cast<size_t>(wide)), ' ');
  return right ? gap + text : text + gap;
}

}  // namespace

size_t width_of_shares(std::span<const BenchSetup> setups) {
  size_t width = std::string_view("even").size();
  for (const BenchSetup& setup : setups) width = std::max(width, ratio_text(setup).size());
  return width;
}

BenchFormat parse_bench_format(std::string_view flag, std::string_view text) {
  constexpr std::pair<std::string_view, BenchFormat> kFormats[] = {
      {"md", BenchFormat::kMarkdown}, {"json", BenchFormat::kJson}, {"jsonl", BenchFormat::kJsonLines}};
  for (const auto& [name, format] : kFormats) {
    if (text == name) return format;
  }
  fail<InvalidArgument>("{} must be md, json or jsonl, got '{}'", flag, text);
}

nlohmann::ordered_json to_json(const BenchResult& r) {
  const BenchSamples& s = r.samples;
  nlohmann::ordered_json json{{"build_commit", build_commit()},
                              {"build_version", SHOAL_VERSION},
                              {"cpu_info", r.cpu_info},
                              {"gpu_info", r.gpu_info},
                              {"backends", r.backends},
                              {"model_filename", r.setup.model},
                              {"model_type", r.model_type},
                              {"model_size", r.model_bytes},
                              {"model_n_params", r.model_parameters},
                              {"devices", r.setup.devices.text()},
                              {"tensor_split", r.setup.ratio},
                              {"split_mode", r.placement.mode == models::SplitMode::kLayer ? "layer" : "tensor"},
                              {"n_gpu_layers", r.placement.device_layers},
                              {"no_kv_offload", r.placement.cache_on_host},
                              {"n_threads", r.setup.threads},
                              {"n_batch", r.test.batch},
                              {"n_ubatch", r.test.ubatch},
                              {"type_k", name_of(r.session.dtype_k)},
                              {"type_v", name_of(r.session.dtype_v)},
                              {"candidates", r.session.candidates},
                              {"use_mmap", r.mmap},
                              {"repack", r.repack},
                              {"n_prompt", r.test.prompt},
                              {"n_gen", r.test.generate},
                              {"n_depth", r.test.depth},
                              {"n_parallel", r.test.parallel},
                              {"test", r.test.name()},
                              {"test_time", r.time},
                              {"avg_ns", s.avg_ns()},
                              {"stddev_ns", s.stddev_ns()},
                              {"avg_ts", s.avg_rate()},
                              {"stddev_ts", s.stddev_rate()},
                              {"samples_ns", s.ns},
                              {"samples_ts", s.rates()}};
  if (r.test.parallel > 0) json.update(request_fields(s));
  if (r.simulated.empty()) return json;
  json["simulated"] = r.simulated;
  json.update(r.more_fields);
  if (s.ns.empty()) json["avg_ns"] = json["stddev_ns"] = json["avg_ts"] = json["stddev_ts"] = nullptr;
  return json;
}

void BenchReport::add(const BenchResult& result) {
  if (format_ == BenchFormat::kMarkdown) {
    rows_.push_back(result);
    return columns_.shares_follow ? void() : print_rows();
  }
  Json json = to_json(result);
  if (format_ == BenchFormat::kJson) return results_.push_back(std::move(json));
  write_out(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void BenchReport::print_rows() {
  for (const BenchResult& row : rows_) {
    columns_.ratio_width = std::max(columns_.ratio_width, ratio_text(row.setup).size());
  }
  for (const BenchResult& row : rows_) print_row(row);
  rows_.clear();
}

void BenchReport::print_row(const BenchResult& result) {
  std::string heading = "|", rule = "|", row = "|";
  for (const Column& column : markdown_columns(result, columns_)) {
    heading += " " + padded(column.name, column.width, column.is_number) + " |";
    rule += " " + std::string(column.width - 1, '-') + (column.is_number ? ":" : "-") + " |";
    row += " " + padded(column.cell, column.width, column.is_number) + " |";
  }
  write_out((has_heading_ ? "" : heading + "\n" + rule + "\n") + row + "\n");
  has_heading_ = true;
}

void BenchReport::finish() {
  print_rows();
  if (format_ == BenchFormat::kJson) write_out(results_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace shoal::tools
