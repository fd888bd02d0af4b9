// A script in place of the Python interpreter that has the package of shoal.
#pragma once

#include <fmt/format.h>
#include <sys/stat.h>

#include <string>
#include <utility>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {

/// Answers the import check with `import`, and otherwise runs the shell command `body`. Without a body, prints one line
/// for each argument.
class FakePython : public test::TemporaryFile {
 public:
  explicit FakePython(const std::string& body = "for a; do echo \"$a\"; done", const std::string& import = "")
      : TemporaryFile("python",
                      fmt::format("#!/bin/sh\nif [ \"$2\" = -c ]; then echo '{}'; exit 0; fi\n{}\n", import, body)) {
    chmod(path.c_str(), 0700);
  }
  /// The environment of a child that uses this interpreter.
  ChildOptions around(std::map<std::string, std::string> variables = {}) const {
    variables["SHOAL_PYTHON"] = path;
    return {.variables = std::move(variables)};
  }
};

}  // namespace shoal::tools
