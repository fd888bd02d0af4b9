// The command line as users of this field write it, made fit for CLI11: short flags of several letters, "-ts 3,1", and
// empty values, "--prompt=". One walk over the arguments; what is a value is never looked into.
#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

/// The arguments of a command, without its name.
///
///   -ts 3,1    --tensor-split 3,1       -ts=3,1   --tensor-split 3,1
///   -p -ts     -p -ts                   --prompt= --prompt ""
///   -nkvo 0    --no-kv-offload=0        x.gguf    --model x.gguf, if that is the only such argument
///
/// Some spellings of llama.cpp are translated or left out. A number may be attached to a flag of one
/// letter: -c64. Throws InvalidArgument for a flag that the command does not have, with the one that may be meant; -ngl
/// is one flag, never -n with the value "gl".
std::vector<std::string> spell_out(const CLI::App& command, const std::vector<std::string>& args);

/// "-ts" for "--tensor-split"; "" for a flag without a short form of several letters.
std::string short_form(const std::string& flag);

/// " (did you mean --temp?)", or nothing. Names the only one that begins so; or else the one with the fewest characters
/// put in, left out, replaced, or swapped with their neighbour: at most one in 3 to 5 characters, or two in more.
/// Dashes in front do not count.
std::string did_you_mean(std::string_view text, std::span<const std::string> known);

}  // namespace shoal::tools
