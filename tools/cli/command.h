// A command of the program: it declares its flags on a CLI11 subcommand and returns what is to be done with them.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace shoal::tools {

/// Does the work of a parsed command; returns the exit code.
using CommandBody = std::function<int()>;

/// Where a command runs when the program is one of several processes.
enum class Spread : uint8_t {
  kEverywhere,  ///< all processes work together
  kLeader,      ///< it needs no devices: process 0 alone
  kNowhere,     ///< it is for one process
};

struct Command {
  const char* name;
  const char* help;
  CommandBody (*define)(CLI::App& app);
  Spread spread = Spread::kLeader;
};

/// Flags that make no sense together. While a command line is parsed any InvalidArgument is one; a body throws this.
class UsageError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Adds all commands with their flags, or `only` this one, and the flags of the program itself. `choose` receives the
/// body of a parsed command.
void define_program(CLI::App& app, const std::function<void(const CommandBody& body)>& choose,
                    std::string_view only = {});

CommandBody define_run(CLI::App& app);
CommandBody define_chat(CLI::App& app);
CommandBody define_tokenize(CLI::App& app);
CommandBody define_detokenize(CLI::App& app);
CommandBody define_devices(CLI::App& app);
CommandBody define_info(CLI::App& app);
CommandBody define_plan(CLI::App& app);
CommandBody define_compare(CLI::App& app);
CommandBody define_bench(CLI::App& app);
CommandBody define_bench_comm(CLI::App& app);
CommandBody define_probe(CLI::App& app);
CommandBody define_simulate(CLI::App& app);

}  // namespace shoal::tools
