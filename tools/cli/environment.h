// The environment variables of the project. A SHOAL_... variable that no program reads is probably misspelt.
#pragma once

#include <string>
#include <vector>

namespace shoal::tools {

/// Names of the variables that users set.
std::vector<std::string> known_variables();
/// Whether the program, its libraries, a plug-in, a script or a test reads the variable.
bool is_known_variable(const std::string& name);

/// Warns of each unknown SHOAL_... variable in the environment of this process.
void warn_of_unknown_variables();

}  // namespace shoal::tools
