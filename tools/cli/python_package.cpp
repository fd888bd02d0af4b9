#include "tools/cli/python_package.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "tools/cli/child_process.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"

namespace shoal::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLongestImport{120};
/// Prints "" if the package can be imported, otherwise the reason. A folder named shoal is importable, but has no file.
constexpr const char* kImport = R"(
try:
    import shoal
    print("" if shoal.__file__ else f"{list(shoal.__path__)[0]} is not the package")
except BaseException as error:
    print(f"{type(error).__name__}: {error}")
)";

bool is_program(const fs::path& path) {
  return access(path.c_str(), X_OK) == 0 && !fs::is_directory(path);
}

std::string python() {
  const char* const named = std::getenv("SHOAL_PYTHON");
  if (named != nullptr && *named != '\0') return named;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  if (is_program(folder / "python3")) return folder / "python3";
  for (fs::path above = folder; above.has_relative_path(); above = above.parent_path()) {
    const fs::path own = above / ".venv/bin/python";
    if (fs::exists(above / "python/pyproject.toml") && is_program(own)) return own;
  }
  return "python3";
}

/// Returns the reason why the interpreter cannot import the package; "" if there is none.
std::string why_not(const std::string& python) {
  const ChildAnswer answer = ask_child({python, "-P", "-c", kImport}, "", kLongestImport);
  if (answer.end == ChildEnd::kTookTooLong) return fmt::format("it did not answer within {} s", kLongestImport.count());
  if (answer.end == ChildEnd::kKilled) return fmt::format("signal {} killed it", answer.code);
  if (answer.code != 0) return fmt::format("it exited with code {}; the package needs Python 3.11", answer.code);
  return answer.out.substr(0, answer.out.find('\n'));
}

std::vector<std::string> command_line(const std::string& python, const std::string& module,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> line{python, "-P", "-m", module};
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

}  // namespace

std::string package_python() {
  const std::string interpreter = python();
  const std::string reason = why_not(interpreter);
  require<DeviceError>(reason.empty(),
                       "{} cannot import the Python package of shoal ({}); install the package in a checkout with "
                       "`{} -m pip install ./python` or `scripts/quickstart --serve`, or set SHOAL_PYTHON to a Python "
                       "that has it",
                       interpreter, printable(reason), interpreter);
  return interpreter;
}

void become_python(const std::string& module, const std::vector<std::string>& arguments) {
  const std::string interpreter = package_python();
  std::vector<std::string> line = command_line(interpreter, module, arguments);
  std::vector<char*> argv;
  for (std::string& argument : line) argv.push_back(argument.data());
  argv.push_back(nullptr);
  finish_out();
  execvp(interpreter.c_str(), argv.data());
  fail<DeviceError>("{} cannot be started: {}; check SHOAL_PYTHON", interpreter,
                    std::generic_category().message(errno));
}

nlohmann::json ask_python(const std::string& module, const std::vector<std::string>& arguments) {
  const std::string interpreter = package_python();
  const ChildAnswer answer = ask_long(command_line(interpreter, module, arguments));
  const nlohmann::json json = parse_json_or_nothing(answer.out);
  require<DeviceError>(json.is_object(), "{} -m {} gave no answer: {} {}; install the package again", interpreter,
                       module, answer.end == ChildEnd::kKilled ? "it was killed by signal" : "it exited with code",
                       answer.code);
  if (json.contains("error")) fail<DeviceError>("{}", json.value("error", "unknown error"));
  return json;
}

std::string find_model_file(const std::string& name) {
  std::vector<std::string> arguments{"pull", name, "--output", "json"};
  if (!is_leader()) arguments.emplace_back("--no-progress");
  const nlohmann::json answer = ask_python("shoal.hub", arguments);
  const auto path = answer.find("path");
  require<DeviceError>(path != answer.end() && path->is_string(),
                       "{}: shoal.hub named no file; install the package again", name);
  return *path;
}

}  // namespace shoal::tools
