#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "tools/cli/interrupt.h"
#include "tools/cli/program.h"

namespace {

/// Opens /dev/null in place of each closed standard stream. Otherwise the next opened file, such as a model, would
/// become a standard stream. With these open modes, reads of stdin and writes to stdout or stderr fail.
void hold_standard_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  // A write to a pipe without a reader, or beyond the file size limit (ulimit -f), is an ordinary error.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // Disables hwloc's plug-ins (OpenCL, X11, PCI, libxml). The plug-ins provide nothing that devices need, and loading
  // them takes 5 % of the start-up time.
  setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 0);
  shoal::tools::report_truncated_mappings();
  return shoal::tools::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
