// Prints what `shoal bench-comm` measures: a table in the layout of nccl-tests, row by row, or JSON at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/bench_comm.h"

namespace shoal::tools {

class CommReport {
 public:
  /// `group`: the processes that the devices belong to; nullptr: only this one.
  CommReport(bool is_json, std::span<Device* const> devices, const CommBenchOptions& options,
             const ProcessGroup* group = nullptr);

  void begin();
  void add(const CommResult& result);
  /// `error`: what ended it before its time.
  void finish(const std::string& error = {});

  /// Elements that were wrong, of all results.
  int64_t wrong() const { return wrong_; }

 private:
  const bool is_json_;
  const CommBenchOptions options_;
  std::vector<std::string> devices_, descriptions_;
  std::vector<std::string> hosts_;  ///< of each device, where there are several processes
  std::string section_;             ///< of the table: collective and communicator
  int64_t wrong_ = 0;
  std::vector<double> busbw_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

}  // namespace shoal::tools
