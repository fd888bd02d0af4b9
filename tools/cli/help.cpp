#include "tools/cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "tools/cli/arguments.h"

namespace shoal::tools {
namespace {

constexpr size_t kColumn = 34;  // column in which descriptions begin

/// Maximum line length in columns.
size_t width() {
  constexpr size_t kWidest = 110;  // for documentation, pipes and wide terminals
  winsize size{};
  const bool is_terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_terminal ? std::clamp(size_t{size.ws_col} - 1, size_t{60}, kWidest) : kWidest;
}

struct FlagGroup {
  std::string_view title;
  std::vector<std::string_view> flags;  ///< one long name of each flag, in the order of the help
};

const std::vector<FlagGroup>& groups() {
  static const std::vector<FlagGroup> all{
      {"Model and prompt",
       {"model", "hf-repo", "prompt", "file", "prompt-tokens", "ids", "chat", "system", "template", "template-var"}},
      {"Generation", {"predict", "draft", "ignore-eos", "stop", "top-logits"}},
      {"Sampling",
       {"temp", "top-k", "top-p", "min-p", "seed", "repeat-penalty", "presence-penalty", "frequency-penalty",
        "penalty-last-n", "logit-bias", "sample-on-host"}},
      {"Work to measure or predict",
       {"n-prompt",  "n-gen",     "n-depth",     "parallel", "repetitions",  "no-warmup", "op",        "dtype",
        "min-bytes", "max-bytes", "step-factor", "iters",    "warmup-iters", "check",     "calibrate", "dtypes",
        "quick",     "recommend", "objective",   "schedule", "rank",         "threshold"}},
      {"Server",
       {"host", "port", "api-key-file", "insecure-no-key", "alias", "cors-origin", "allowed-host", "max-queue",
        "max-body", "max-tokens", "max-context", "request-timeout", "ssl-certfile", "ssl-keyfile"}},
      {"Context and batches",
       {"ctx-size", "fit", "fit-ctx", "fit-target", "batch-size", "ubatch-size", "cache-type-k", "cache-type-v",
        "ctx-checkpoints"}},
      {"Devices", {"devices", "device-counts", "machine", "hosts", "network", "threads", "comm", "plugin"}},
      {"Placement",
       {"tensor-split", "split-mode", "expert-split", "latent-split", "gpu-layers", "no-kv-offload", "cpu-moe",
        "n-cpu-moe", "override-tensor", "offload-batch", "no-op-offload", "repack", "mmap"}},
      {"Output and help", {"output", "show-timings", "trace", "force", "help", "version"}}};
  return all;
}

/// Appends the words of `sentence`. The last line of `text` already uses `used` columns. Continuation lines are
/// indented by `indent` columns.
void append_words(std::string& text, size_t used, size_t indent, const std::string& sentence) {
  std::istringstream words(sentence);
  bool is_first = true;
  for (std::string word; words >> word; is_first = false) {
    if (!is_first && used + 1 + word.size() > width()) {
      text += "\n" + std::string(indent, ' ');
      used = indent;
    } else if (!is_first) {
      text += ' ';
      ++used;
    }
    text += word;
    used += word.size();
  }
}

/// One wrapped entry of the help: "  -ts, --tensor-split SHARES   Share of the model for each device ...".
std::string lines_of(const std::string& left, const std::string& description) {
  std::string text = "  ";
  append_words(text, 2, 4, left);
  if (left.size() + 4 > kColumn) {
    text += "\n" + std::string(kColumn, ' ');
  } else {
    text.resize(kColumn, ' ');
  }
  append_words(text, kColumn, kColumn, description);
  return text + "\n";
}

std::string line_of(const CLI::Option& option) {
  std::string left = fmt::format("{}", fmt::join(names_of(option), ", "));
  std::string description = option.get_description();
  if (option.get_type_size() != 0) {
    if (!option.get_type_name().empty()) left += " " + option.get_type_name();
    if (!option.get_default_str().empty()) description += fmt::format(" (default: {})", option.get_default_str());
    if (option.get_required()) description += " (required)";
  }
  return lines_of(left, description);
}

std::string options_text(const CLI::App& app) {
  std::vector<std::pair<std::string_view, std::vector<const CLI::Option*>>> listed;
  const auto has_name = [](const CLI::Option* option, std::string_view flag) {
    const auto& names = option->get_lnames();
    return std::find(names.begin(), names.end(), flag) != names.end();
  };
  std::vector<const CLI::Option*> rest = app.get_options();
  for (const FlagGroup& group : groups()) {
    listed.emplace_back(group.title, std::vector<const CLI::Option*>());
    for (const std::string_view flag : group.flags) {
      const auto found =
          std::find_if(rest.begin(), rest.end(), [&](const CLI::Option* option) { return has_name(option, flag); });
      if (found == rest.end()) continue;
      listed.back().second.push_back(*found);
      rest.erase(found);
    }
  }
  listed.emplace_back("Other", rest);
  std::string text;
  for (const auto& [title, options] : listed) {
    if (!options.empty()) text += fmt::format("\n{}:\n", title);
    for (const CLI::Option* option : options) text += line_of(*option);
  }
  return text;
}

}  // namespace

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    if (const std::string brief = short_form("--" + name); !brief.empty()) names.insert(names.begin(), brief);
  }
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const {
  std::string text;
  append_words(text, 0, 0, app->get_description());
  text += "\n\nUsage: " + name;
  const auto commands = app->get_subcommands({});
  text += commands.empty() ? " [flags]\n" : " command [flags]\n";
  if (!commands.empty()) text += "\nCommands:\n";
  for (const CLI::App* command : commands) text += lines_of(command->get_name(), command->get_description());
  text += options_text(*app);
  if (commands.empty()) return text;
  text += '\n';
  append_words(text, 0, 0, "For the flags of a command: shoal COMMAND --help");
  return text + "\n";
}

}  // namespace shoal::tools
