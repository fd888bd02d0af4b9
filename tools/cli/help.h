// The text of --help. Flags are listed in groups. Each entry names the short forms of a flag before its long forms.
// Lines fit the terminal's width.
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
