// Prints the results of `shoal bench-comm`: a table in the layout of nccl-tests, row by row, or JSON at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/bench_comm.h"

namespace shoal::tools {

class CommReport {
 public:
  /// `group`: the processes that own the devices; nullptr: only this process.
  CommReport(bool is_json, std::span<Device* const> devices, const CommBenchOptions& options,
             const ProcessGroup* group = nullptr);

  void begin();
  void add(const CommResult& result);
  /// `error`: message of a failure that stopped the run; "" if there is none.
  void finish(const std::string& error = {});

  /// Number of wrong elements in all results.
  int64_t wrong() const { return wrong_; }

 private:
  const bool is_json_;
  const CommBenchOptions options_;
  std::vector<std::string> devices_, descriptions_;
  std::vector<std::string> hosts_;  ///< host of each device; empty for a single process
  std::string section_;             ///< heading of the current table: collective and communicator
  int64_t wrong_ = 0;
  std::vector<double> busbw_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

}  // namespace shoal::tools
