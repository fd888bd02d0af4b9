// Prints the results of `shoal bench` in the columns and fields of llama-bench. The formats md and jsonl are printed
// row by row. The format json is printed at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/bench.h"

namespace shoal::tools {

enum class BenchFormat : uint8_t { kMarkdown, kJson, kJsonLines };

/// Parses "md", "json" or "jsonl". On an error, throws InvalidArgument with `flag` in the message.
BenchFormat parse_bench_format(std::string_view flag, std::string_view text);

/// An additional column of the Markdown table, after the usual columns.
struct BenchColumn {
  std::string name;
  std::string cell;
  size_t width = 9;
};

/// The result of one test, with its setup.
struct BenchResult {
  BenchSetup setup;
  BenchTest test;
  BenchSamples samples;
  std::string time;  ///< start time of the test
  std::string model_type;
  size_t model_bytes = 0;
  int64_t model_parameters = 0;
  std::string backends, cpu_info, gpu_info;
  models::SessionOptions session;
  models::PlacementOptions placement;
  bool mmap = true, repack = true;
  /// Name of the simulated machine; empty for a measurement.
  std::string simulated = {};
  std::vector<BenchColumn> more_columns = {};
  nlohmann::ordered_json more_fields = nlohmann::ordered_json::object();  ///< additional fields of the JSON formats
};

/// Flags for the optional columns of the table, and column widths that fit all rows.
struct BenchColumns {
  bool threads = false, batch = false, ubatch = false, cache_types = false, split_mode = false, layers = false;
  size_t model_width = 0, devices_width = 0, ratio_width = 0, test_width = 0;
  bool shares_follow = false;  ///< true: rows are printed only after the shares of all setups are known, so that the
                               ///< columns align
};

/// Width of the longest printed list of shares.
size_t width_of_shares(std::span<const BenchSetup> setups);

class BenchReport {
 public:
  BenchReport(BenchFormat format, const BenchColumns& columns) : format_(format), columns_(columns) {}
  void add(const BenchResult& result);
  /// Prints the stored rows of the Markdown table.
  void print_rows();
  void finish();

 private:
  void print_row(const BenchResult& result);

  const BenchFormat format_;
  BenchColumns columns_;
  bool has_heading_ = false;
  std::vector<BenchResult> rows_;  ///< Markdown rows that are not printed yet
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

nlohmann::ordered_json to_json(const BenchResult& result);

}  // namespace shoal::tools
