// Writing results to stdout.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shoal::tools {

/// Indented, with a line end. Bytes that are no valid UTF-8 become U+FFFD.
void print_json(const nlohmann::json& json);

/// Columns as wide as their widest cell, two spaces apart; numbers to the right. The first row is the heading.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace shoal::tools
