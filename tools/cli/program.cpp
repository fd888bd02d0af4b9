#include "tools/cli/program.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <new>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/user_file.h"
#include "devices/timeouts.h"
#include "meta/device/meta_family.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/environment.h"
#include "tools/cli/help.h"
#include "tools/cli/hub_flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

constexpr std::array kCommands = std::to_array<Command>({
    {"run", "Generate text", define_run, Spread::kEverywhere},
    {"chat", "Chat with a model", define_chat, Spread::kEverywhere},
    {"tokenize", "Turn text into token ids", define_tokenize},
    {"detokenize", "Turn token ids into text", define_detokenize},
    {"info", "Describe a model file, and list the devices that the model fits on", define_info},
    {"devices", "List the devices of this machine", define_devices},
    {"plan", "Show how a model would be placed and run on the devices, without loading its weights", define_plan,
     Spread::kEverywhere},
    {"compare", "Run a model on one device and on several devices, and compare the results node by node",
     define_compare, Spread::kSingleProcess},
    {"serve", "Serve a model over HTTP, with the APIs of OpenAI and Anthropic", define_serve, Spread::kSingleProcess},
    {"pull", "Download a model from huggingface.co, and print the path of its file", define_pull,
     Spread::kSingleProcess},
    {"list", "List the downloaded models", define_list, Spread::kSingleProcess},
    {"bench", "Measure the speed of prompt processing and generation", define_bench, Spread::kEverywhere},
    {"probe", "Measure the speed of the devices, and save it for predictions", define_probe, Spread::kEverywhere},
    {"simulate", "Predict the results of bench on a machine that you do not have", define_simulate},
    {"bench-comm", "Measure the speed of collectives between devices, and check their results", define_bench_comm,
     Spread::kEverywhere},
});

/// Maximum length of a message in characters. Untrusted text in messages is already shortened, so this limit is only a
/// safeguard.
constexpr size_t kLongestMessage = 2000;

const std::vector<std::string> kOwnFlags{"-h", "--help", "--version"};

bool is_own_flag(const std::string& arg) {
  return std::find(kOwnFlags.begin(), kOwnFlags.end(), arg) != kOwnFlags.end();
}

/// Throws UsageError if the first argument is neither a command nor a flag of the program itself.
void check_command(const std::vector<std::string>& args) {
  std::string known;
  for (const Command& command : kCommands) {
    if (!args.empty() && args.front() == command.name) return;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", command.name);
  }
  if (args.empty()) throw UsageError(fmt::format("no command; the commands are {}", known));
  if (is_own_flag(args.front())) return;
  if (args.front().starts_with("-")) {
    throw UsageError(fmt::format("{} comes before the command{}; begin with a command: {}", args.front(),
                                 did_you_mean(args.front(), kOwnFlags), known));
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  throw UsageError(fmt::format("there is no command '{}'{}; the commands are {}", args.front(),
                               did_you_mean(args.front(), names), known));
}

/// The command line as CLI11 expects it: translated and in reverse order.
std::vector<std::string> prepare(const CLI::App& app, const std::vector<std::string>& args) {
  std::vector<std::string> out = args;
  if (!is_own_flag(args.front())) {
    out = spell_out(*app.get_subcommand(args.front()), {args.begin() + 1, args.end()});
    out.insert(out.begin(), args.front());
  }
  std::reverse(out.begin(), out.end());
  return out;
}

/// Turns the command "help" into a flag: "help run" becomes "run --help", and "help help" becomes "--help".
std::vector<std::string> with_help_as_a_flag(std::vector<std::string> args) {
  if (args.empty() || args.front() != "help") return args;
  args.erase(args.begin(), std::find_if(args.begin(), args.end(), [](const auto& arg) { return arg != "help"; }));
  args.insert(args.begin() + (args.empty() ? 0 : 1), "--help");
  return args;
}

int run_command(const std::vector<std::string>& given) {
  const std::vector<std::string> args = with_help_as_a_flag(given);
  check_command(args);
  meta::family();
  const auto named = std::find_if(kCommands.begin(), kCommands.end(),
                                  [&args](const Command& command) { return args.front() == command.name; });
  const Spread spread = named == kCommands.end() ? Spread::kEverywhere : named->spread;
  if (spread == Spread::kLeader) work_alone();
  CLI::App app("Runs language models on several devices that act as one.", "shoal");
  CommandBody chosen;
  // Only the named command is defined, to save time.
  const std::string_view only = named == kCommands.end() ? "" : named->name;
  define_program(
      app, [&chosen](const CommandBody& body) { chosen = body; }, only);
  std::string help = is_own_flag(args.front()) ? "shoal --help" : fmt::format("shoal {} --help", args.front());
  try {
    app.parse(prepare(app, args));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw UsageError(fmt::format("{}; see {}", error.what(), help));
    std::ostringstream text;  // text of --help or --version
    app.exit(error, text);
    write_out(text.str());
    return kSuccess;
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("{}; see {}", error.what(), help));
  }
  warn_of_unknown_variables();
  if (processes() != nullptr && spread == Spread::kSingleProcess) {
    throw UsageError(fmt::format("shoal {} runs in a single process; start it without mpirun or srun", args.front()));
  }
  return is_leader() || spread == Spread::kEverywhere ? chosen() : kSuccess;
}

}  // namespace

void define_program(CLI::App& app, const std::function<void(const CommandBody& body)>& choose, std::string_view only) {
  app.formatter(std::make_shared<HelpFormatter>());
  // If a flag is repeated, its last value counts. A list keeps all values.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", version_text,
                       "Print version, commit, compiler, CPU instruction sets and CUDA support");
  app.set_help_flag("-h,--help", "Print this help");
  app.require_subcommand(1);
  for (const Command& command : kCommands) {
    if (!only.empty() && only != command.name) continue;
    CLI::App* sub = app.add_subcommand(command.name, command.help);
    const auto run = [body = command.define(*sub), sub] {
      resolve_repositories(*sub);
      return body();
    };
    sub->callback([run, choose] { choose(run); });
  }
}

int report(std::string_view message, int code) noexcept {
  report_failure(message, [](std::string_view text) {
    write_line(fmt::format("shoal: error: {}\n", printable(text, kLongestMessage)));
  });
  return code;
}

void warn(std::string_view message) noexcept {
  try {
    write_err(fmt::format("shoal: warning: {}\n", printable(message, kLongestMessage)));
  } catch (const std::exception&) {
    // A warning that cannot be printed is ignored.
  }
}

std::string describe_current() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory; use a smaller context (-c) or batch (-ub), or a smaller model";
  } catch (const std::system_error& error) {
    bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    return fmt::format("{}{}", error.what(),
                       no_thread ? ": cannot start a thread; use fewer devices or threads (-t), or raise the limit of "
                                   "processes (ulimit -u)"
                                 : "");
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown error occurred (an exception without a message)";
  }
}

int report_current(int code) noexcept {
  try {
    return report(describe_current(), code);
  } catch (...) {
    return report("out of memory", code);
  }
}

int finish_after(const std::function<void()>& body, const std::function<void(const std::string& error)>& finish) {
  std::string error;
  bool stopped = false;
  try {
    body();
  } catch (const OutputError&) {
    throw;
  } catch (const Interrupted& interrupt) {
    stopped = true;
    error = interrupt.what();
  } catch (...) {
    error = describe_current();
  }
  finish(error);
  if (stopped) throw Interrupted();
  return error.empty() ? kSuccess : report(error, kFailed);
}

namespace {

/// After a collective times out, the other devices stop, and the error is reported as usual. If a time-out is still
/// open after a second (a rank may still be in the collective), the thread that waits for the devices is stuck forever.
/// The program then reports the error and exits without waiting for this thread.
void end_if_stuck(const std::string& error) {
  std::this_thread::sleep_for(std::chrono::seconds(1));
  if (open_timeouts() == 0) return;
  report(error, kFailed);
  _exit(kFailed);
}

void on_time_out(std::string_view message) {
  try {
    std::thread(end_if_stuck, std::string(message)).detach();
  } catch (const std::exception&) {
    // If no thread can be started for end_if_stuck(), the error is reported when the thread that waits for the devices
    // returns.
  }
}

/// Runs a command line in this process and returns the exit code. Throws only Interrupted.
int run_alone(const std::vector<std::string>& args) {
  try {
    if (!is_leader()) be_quiet();
    set_timeout_callback(on_time_out);
    int code = run_command(args);
    finish_out();
    return code;
  } catch (const UsageError&) {
    return report_current(kUsage);
  } catch (const OutputRefused&) {
    return report_current(kUsage);
  } catch (const Interrupted&) {
    throw;
  } catch (const OutputClosed&) {
    return kOutputClosed;
  } catch (...) {
    return report_current(kFailed);
  }
}

}  // namespace

int run_program(const std::vector<std::string>& args) noexcept {
  try {
    return run_among_processes([&args] { return run_alone(args); });
  } catch (const Interrupted&) {
    return interrupt_code();
  } catch (...) {
    return report_current(kFailed);
  }
}

}  // namespace shoal::tools
