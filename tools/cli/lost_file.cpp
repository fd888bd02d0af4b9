#include "tools/cli/lost_file.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

constexpr std::string_view kMessage =
    "shoal: error: a mapped file cannot be read any more: it became shorter, or its disk failed, while it was in use; "
    "do not write to a model file in use, or copy it into memory (--no-mmap)\n";

// Nothing but what may be called in a handler.
void on_bus_error(int number, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {
    std::signal(number, SIG_DFL);  // the access is tried again and kills the program
    return;
  }
  const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  (void)written;  // nothing is left to be done about it
  _exit(kFailed);
}

}  // namespace

void report_lost_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace shoal::tools
