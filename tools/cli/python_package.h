// The Python package of shoal (python/) serves models and downloads them. The program runs modules of the package with
// the first of these interpreters:
//
//   1. $SHOAL_PYTHON
//   2. python3 in the folder of the program
//   3. .venv/bin/python of the checkout that contains the program
//   4. python3 in PATH
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shoal::tools {

/// Path of the interpreter, or its name in PATH. Imports the package in a child process as a check. Throws DeviceError
/// if the interpreter cannot import the package. The message names the interpreter, the reason and the command that
/// installs the package.
std::string package_python();

/// Replaces this process by `PYTHON -P -m MODULE ARGUMENTS`. Throws the errors of package_python(), and DeviceError if
/// the interpreter cannot be started.
[[noreturn]] void become_python(const std::string& module, const std::vector<std::string>& arguments);

/// Runs `PYTHON -P -m MODULE ARGUMENTS` and returns the JSON object that the module prints. The module may show its
/// progress on stderr. Throws DeviceError with the text of a member "error". Throws Interrupted after SIGINT or
/// SIGTERM.
nlohmann::json ask_python(const std::string& module, const std::vector<std::string>& arguments);

/// Path of the model file with this name on a hub (hub_flags.h). Downloads the file if the cache does not contain it.
/// With several processes, each process calls this function, because their hosts may have different caches. In a shared
/// cache, one process downloads, and the other processes wait. Only process 0 shows the progress.
std::string find_model_file(const std::string& name);

}  // namespace shoal::tools
