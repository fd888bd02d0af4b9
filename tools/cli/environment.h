// The environment variables of the project: those that nothing reads are most likely misspelt.
#pragma once

#include <string>
#include <vector>

namespace shoal::tools {

/// What users set, by name.
std::vector<std::string> known_variables();
/// Is the variable read by the program, its libraries and plug-ins, or by scripts and tests?
bool is_known_variable(const std::string& name);

/// Warns of each SHOAL_... in this process's environment that is not known.
void warn_of_unknown_variables();

}  // namespace shoal::tools
