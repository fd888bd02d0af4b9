// Flags of llama.cpp that shoal spells otherwise, follows anyway, or refuses with the reason: command lines that users
// paste. Flags that both have need no entry here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shoal::tools {

/// shoal's name for a flag of the same meaning: "--temperature" -> "--temp", "-kvo" -> "--no-kv-offload=0". "": none.
std::string_view own_name(std::string_view flag);

/// For a flag that `command` does not have. nullopt: the flag is unknown here, too. Otherwise shoal does what the flag
/// asks for anyway, and the result says whether `value` belongs to it: the text behind "=" or the next argument,
/// nullptr for none. Throws InvalidArgument with a hint for other values, and for flags that shoal cannot follow.
///
///   "-fa", "on"  -> true     "--jinja", "-p" -> false     "-fa", "off" -> throws     "--bogus", nullptr -> nullopt
std::optional<bool> passed_over(std::string_view command, std::string_view flag, const std::string* value);

/// ": shoal is not a server; ..." for a command of other programs, ": write shoal run FILE" for a model; "" for an
/// unknown one.
std::string hint_for_command(std::string_view command);

}  // namespace shoal::tools
