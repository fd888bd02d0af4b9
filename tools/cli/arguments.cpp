#include "tools/cli/arguments.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "tools/cli/help.h"
#include "tools/cli/suggest.h"

namespace shoal::tools {
namespace {

/// Short flags of the field that have several letters, which CLI11 would read as several flags.
struct ShortFlag {
  std::string_view brief;
  std::string_view full;
};
constexpr std::array<ShortFlag, 15> kShortFlags{{
    {"-dev", "--devices"},
    {"-ts", "--tensor-split"},
    {"-ub", "--ubatch-size"},
    {"-sm", "--split-mode"},
    {"-ngl", "--n-gpu-layers"},
    {"-nkvo", "--no-kv-offload"},
    {"-ot", "--override-tensor"},
    {"-cmoe", "--cpu-moe"},
    {"-ncmoe", "--n-cpu-moe"},
    {"-fit", "--fit"},
    {"-fitc", "--fit-ctx"},
    {"-fitt", "--fit-target"},
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
}};

bool takes_value(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
    {"-pg", "--pg"},
  return option != nullptr && option->get_items_expected_min() > 0;
}

/// "-c64" and "-n-1", but not "-ngl".
bool is_number_attached(std::string_view arg) {
  return arg.find_first_not_of("0123456789+-.", 2) == std::string_view::npos;
}

/// All names of the command's flags, those of kShortFlags included.
std::vector<std::string> all_names(const CLI::App& command) {
  std::vector<std::string> all;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string> names = names_of(*option);
    all.insert(all.end(), names.begin(), names.end());
  }
  return all;
}

/// The name that CLI11 knows for an argument in the place of a flag, "=value" cut off.
std::string full_name(const CLI::App& command, const std::string& flag, bool has_value) {
  for (const ShortFlag& known : kShortFlags) {
    if (flag == known.brief && command.get_option_no_throw(std::string(known.full))) return std::string(known.full);
  }
  bool attached = flag.size() > 2 && !flag.starts_with("--") && !has_value && is_number_attached(flag);
  std::string name = attached ? flag.substr(0, 2) : flag;
  if (command.get_option_no_throw(name) != nullptr) return flag;
  fail<InvalidArgument>("there is no flag {}{}", flag, did_you_mean(flag, all_names(command)));
}

}  // namespace

std::string short_form(const std::string& flag) {
  for (const ShortFlag& known : kShortFlags) {
    if (flag == known.full) return std::string(known.brief);
  }
  return {};
}

std::vector<std::string> spell_out(const CLI::App& command, const std::vector<std::string>& args) {
  std::vector<std::string> out;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      out.insert(out.end(), args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
      break;
    }
    if (!args[i].starts_with('-')) {
      out.push_back(args[i]);  // CLI11 says that it was not expected
      continue;
    }
    size_t equals = args[i].find('=');
    bool has_value = equals != std::string::npos;
    std::string name = full_name(command, args[i].substr(0, equals), has_value);
    if (!takes_value(command, name)) {
      out.push_back(has_value ? args[i] : name);
      continue;
    }
    out.push_back(name);
    if (has_value) {
      out.push_back(args[i].substr(equals + 1));
    } else if (i + 1 < args.size()) {
      out.push_back(args[++i]);
    }
  }
  return out;
}

}  // namespace shoal::tools
