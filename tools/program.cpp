#include "tools/program.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "meta/meta_family.h"
#include "tools/command.h"

namespace shoal::tools {
namespace {

constexpr std::array<Command, 6> kCommands{{
    {"run", "Generate text", define_run},
    {"tokenize", "Turn text into token ids", define_tokenize},
    {"detokenize", "Turn token ids into text", define_detokenize},
    {"devices", "List the devices of this machine", define_devices},
    {"plan", "Show where a model's tensors would lie and what would run, without loading it", define_plan},
    {"compare", "Run a model on several devices and on one, and compare them node by node", define_compare},
}};

/// Short flags of the field that have several letters, which CLI11 would read as several flags.
struct ShortFlag {
  std::string_view brief;
  std::string_view full;
};
constexpr std::array<ShortFlag, 5> kShortFlags{{
    {"-dev", "--devices"},
    {"-ts", "--tensor-split"},
    {"-ub", "--ubatch-size"},
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
}};

/// "-ts 3,1" -> "--tensor-split 3,1", "-ts=3,1" -> "--tensor-split=3,1".
std::string spell_out(const std::string& arg) {
  for (const ShortFlag& flag : kShortFlags) {
    if (arg == flag.brief) return std::string(flag.full);
    bool with_value = arg.starts_with(flag.brief) && arg.size() > flag.brief.size() && arg[flag.brief.size()] == '=';
    if (with_value) return std::string(flag.full) + arg.substr(flag.brief.size());
  }
  return arg;
}

/// Says what is wrong with the command's name; nothing when it is fine or a flag comes first.
std::optional<std::string> command_problem(const std::vector<std::string>& args) {
  std::string known;
  for (const Command& command : kCommands) {
    if (!args.empty() && args.front() == command.name) return std::nullopt;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", command.name);
  }
  if (args.empty()) return fmt::format("no command; name one of {}", known);
  if (args.front().starts_with("-")) return std::nullopt;
  return fmt::format("there is no command '{}'; there are {}", args.front(), known);
}

}  // namespace

int report(std::string_view message, int code) {
  std::string line(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  fmt::print(stderr, "shoal: error: {}\n", line);
  return code;
}

int run_program(std::vector<std::string> args) {
  if (auto problem = command_problem(args)) return report(*problem, kUsage);
  meta::family();
  CLI::App app("Runs language models on several devices that act as one.", "shoal");
  app.set_version_flag("--version", "shoal " SHOAL_VERSION);
  app.require_subcommand(1);
  CommandBody chosen;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.help);
    sub->callback([body = command.define(*sub), &chosen] { chosen = body; });
  }
  for (std::string& arg : args) arg = spell_out(arg);
  std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
  try {
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    auto given = app.get_subcommands();
    std::string command = given.empty() ? "shoal" : "shoal " + given.front()->get_name();
    return report(fmt::format("{}; see {} --help", error.what(), command), kUsage);
  }
  return chosen();
}

}  // namespace shoal::tools
