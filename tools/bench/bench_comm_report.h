// Prints what `shoal bench-comm` measures: a table in the layout of nccl-tests, CSV, or JSON. Rows of text and CSV go
// out as they come, JSON at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/bench_comm.h"

namespace shoal::tools {

enum class CommFormat : uint8_t { kText, kCsv, kJson };

class CommReport {
 public:
  /// `group`: the processes that the devices belong to; nullptr: only this one.
  CommReport(CommFormat format, std::span<Device* const> devices, const CommBenchOptions& options,
             const ProcessGroup* group = nullptr);

  void begin();
  void add(const CommResult& result);
  /// `error`: what ended it before its time.
  void finish(const std::string& error = {});

  /// Elements that were wrong, of all results.
  int64_t wrong() const { return wrong_; }

 private:
  double average_busbw() const;

  const CommFormat format_;
  const CommBenchOptions options_;
  std::vector<std::string> devices_, descriptions_;
  std::vector<std::string> hosts_;  ///< of each device, where there are several processes
  std::string section_;             ///< of the table: collective and communicator
  int64_t wrong_ = 0;
  std::vector<double> busbw_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

/// One result: "op", "size", ..., "out_of_place" and "in_place" (null where there is none) with "time_us",
/// "algbw_gbps", "busbw_gbps" and "wrong" (null: not checked).
nlohmann::ordered_json to_json(const CommResult& result);
/// The same as a row of the table.
std::string to_row(const CommResult& result);

}  // namespace shoal::tools
