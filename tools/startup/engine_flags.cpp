#include "tools/startup/engine_flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tools/cli/arguments.h"
#include "tools/cli/options.h"

namespace shoal::tools {
namespace {

/// The arguments that give a switch the value `result`, which is "true" or "false". A switch may have names that mean
/// "false", such as --no-repack.
std::string switch_with(const CLI::Option& option, const std::string& result) {
  for (const std::string& name : option.get_lnames()) {
    if (!option.check_fname(name)) return fmt::format("--{}={}", name, result);
  }
  return fmt::format("--{}={}", option.get_lnames().front(), result == "false" ? "true" : "false");
}

}  // namespace

void EngineFlags::add_to(CLI::App& app) {
  const std::vector<const CLI::Option*> before = std::as_const(app).get_options();
  choice.add_to(app);
  choice.context.add_checkpoints_to(app);
  add_integer(app, "--parallel", parallel, 1, kMostTokens,
              "Maximum number of requests that run at the same time; all share -c");
  add_integer(app, "--draft", draft, 0, 64, "Maximum number of guessed tokens per step");
  options_.clear();
  for (const CLI::Option* option : std::as_const(app).get_options()) {
    if (std::find(before.begin(), before.end(), option) == before.end()) options_.push_back(option);
  }
}

std::vector<std::string> EngineFlags::given() const {
  std::vector<std::string> arguments;
  for (const CLI::Option* option : options_) {
    if (option->count() == 0) continue;
    const bool is_switch = option->get_items_expected_min() == 0;
    for (const std::string& result : option->reduced_results()) {
      if (!is_switch) arguments.push_back("--" + option->get_lnames().front());
      arguments.push_back(is_switch ? switch_with(*option, result) : result);
    }
  }
  return arguments;
}

void EngineFlags::parse(const std::vector<std::string>& arguments) {
  CLI::App app;
  app.set_help_flag("");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_to(app);
  std::vector<std::string> spelled = spell_out(app, arguments);
  std::reverse(spelled.begin(), spelled.end());
  try {
    app.parse(spelled);
  } catch (const CLI::ParseError& error) {
    fail<InvalidArgument>("{}", error.what());
  }
  options_.clear();
}

}  // namespace shoal::tools
