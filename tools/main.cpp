#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "tools/cli/interrupt.h"
#include "tools/cli/program.h"

namespace {

/// A standard stream that was closed must not become the next file opened, a model for instance: it is held by
/// something that can be neither read nor written to any effect, so that writing fails.
void hold_standard_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  // Writing to a pipe without a reader, and beyond the largest file allowed (ulimit -f), are errors like others.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // hwloc's plug-ins (OpenCL, X11, PCI, libxml) describe nothing that devices ask, and loading them is 5 % of a start.
  setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 0);
  shoal::tools::report_lost_files();
  return shoal::tools::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
