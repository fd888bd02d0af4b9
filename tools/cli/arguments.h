// Translates a command line with spellings of llama.cpp into a command line for CLI11. Such spellings are short flags
// of several letters ("-ts 3,1") and empty values ("--prompt="). Makes one pass over the arguments and never interprets
// values.
#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

/// Translates the arguments that follow the name of the command:
///
///   -ts 3,1    --tensor-split 3,1       -ts=3,1   --tensor-split 3,1
///   -p -ts     -p -ts                   --prompt= --prompt ""
///   -nkvo 0    --no-kv-offload=0        x.gguf    --model x.gguf, if all other arguments belong to flags
///
/// Other flag names of llama.cpp are also translated, and flags without effect are omitted. A number may be attached to
/// a one-letter flag: -c64. -ngl is one flag, never -n with the value "gl". Throws InvalidArgument for an unknown flag
/// and suggests a similar flag.
std::vector<std::string> spell_out(const CLI::App& command, const std::vector<std::string>& args);

/// Returns "-ts" for "--tensor-split". Returns "" if the flag has no short form of several letters.
std::string short_form(const std::string& flag);

/// Returns " (did you mean --temp?)", or "" if no name is similar. If exactly one name begins with the text, returns
/// this name. If several names begin with the text, returns "". Otherwise returns the name with the fewest edits
/// (insertions, deletions, replacements, swapped neighbours). Texts of 3 to 5 characters allow one edit, and longer
/// texts allow two edits. Leading dashes do not count.
std::string did_you_mean(std::string_view text, std::span<const std::string> known);

}  // namespace shoal::tools
