// The text of --help: the flags of a command in groups, short forms beside long ones, lines no longer than a
// terminal's.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace shoal::tools {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

/// The names of a flag as users write them: {"-ts", "--tensor-split"}.
std::vector<std::string> names_of(const CLI::Option& option);

}  // namespace shoal::tools
