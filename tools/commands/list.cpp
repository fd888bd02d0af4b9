// shoal list: lists the downloaded models. The Python package does the work (python/shoal/hub.py).
#include <memory>

#include "tools/cli/command.h"
#include "tools/cli/flags.h"
#include "tools/cli/python_package.h"

namespace shoal::tools {

CommandBody define_list(CLI::App& app) {
  auto output = std::make_shared<OutputFlag>();
  output->add_to(app);
  return [output]() -> int { become_python("shoal.hub", {"list", "--output", output->format}); };
}

}  // namespace shoal::tools
