// A command of the program. A command declares its flags on a CLI11 subcommand and returns a function that does the
// work.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace shoal::tools {

/// Runs a parsed command and returns the exit code.
using CommandBody = std::function<int()>;

/// The processes that run a command if the program was started with several processes.
enum class Spread : uint8_t {
  kEverywhere,     ///< all processes work together
  kLeader,         ///< process 0 runs the command alone, because it needs no devices
  kSingleProcess,  ///< the command is refused, because it supports only a single process
};

struct Command {
  const char* name;
  const char* help;
  CommandBody (*define)(CLI::App& app);
  Spread spread = Spread::kLeader;
};

/// An error for flags that contradict each other. While flags are parsed, every InvalidArgument is a usage error. After
/// parsing, a command body throws UsageError for such flags.
class UsageError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Adds the flags of the program itself, and all commands with their flags. If `only` is not empty, adds only the
/// command named `only`. `choose` receives the body of the parsed command. The body needs the app, because the body
/// begins with resolve_repositories().
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
CommandBody define_serve(CLI::App& app);
CommandBody define_pull(CLI::App& app);
CommandBody define_list(CLI::App& app);

}  // namespace shoal::tools
