// shoal pull: downloads a model and prints the path of its file. The Python package does the work
// (python/shoal/hub.py).
#include <memory>

#include "tools/cli/command.h"
#include "tools/cli/hub_flags.h"
#include "tools/cli/python_package.h"

namespace shoal::tools {

CommandBody define_pull(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  const auto read = [name = name.get()](const std::string&, const std::string& text) { *name = text; };
  add_repository(app, read,
                 "Repository on huggingface.co, OWNER/REPO or OWNER/REPO:QUANT; `shoal pull NAME` needs no flag")
      ->required();
  return [name]() -> int { become_python("shoal.hub", {"pull", *name}); };
}

}  // namespace shoal::tools
