// Runs `shoal bench` with the small model, and splits its tables, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/child.h"

namespace shoal::tools {

inline std::vector<std::string> bench_args(const std::string& args) {
  std::vector<std::string> all = words(args);
  all.insert(all.begin(), {"bench", "-m", kModel});
  return all;
}

/// The output of a call that succeeds without messages.
inline std::string output(const std::string& args) {
  const Finished finished = run(bench_args(args));
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  return finished.out;
}

/// The cells of a table row: "| a | b |" -> {"a", "b"}.
inline std::vector<std::string> cells(const std::string& row) {
  std::vector<std::string> out;
  for (size_t at = row.find('|'); at != std::string::npos && at + 1 < row.size();) {
    const size_t end = row.find('|', at + 1);
    const std::string cell = row.substr(at + 1, end - at - 1);
    const size_t first = cell.find_first_not_of(' ');
    out.push_back(first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
    at = end;
  }
  return out;
}

}  // namespace shoal::tools
