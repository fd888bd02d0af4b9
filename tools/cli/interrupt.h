// Handles signals. The first Ctrl-C or SIGTERM asks the program to end. A second signal of the same kind kills the
// program.
#pragma once

#include <exception>

namespace shoal::tools {

/// After this call, the first SIGINT and the first SIGTERM only set a flag. A write that waits for a slow reader
/// continues. A signal that was ignored when the program started, as in background jobs of scripts, stays ignored.
void catch_interrupts();
/// Ignores SIGINT in this process from now on, and discards an earlier SIGINT. Another process handles SIGINT.
void leave_interrupts_to_others();
/// Whether SIGINT or SIGTERM has arrived. May be called from any thread.
bool interrupted();
/// Whether SIGTERM has arrived. May be called from any thread.
bool terminated();
/// Discards a recorded SIGINT, so that the next SIGINT counts as the first. A SIGTERM stays recorded.
void clear_interrupt();
/// The exit code that shells report for the recorded signal: 130 for Ctrl-C, 143 for SIGTERM.
int interrupt_code();

/// Thrown to stop the current work after a signal.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};
/// Throws Interrupted if a signal has arrived.
void stop_if_interrupted();

/// Installs a handler for SIGBUS. The handler acts when any thread reads mapped bytes that the file no longer contains,
/// for example after a model file was truncated. The program then exits with one line on stderr and exit code kFailed.
/// Other causes of SIGBUS, such as broken memory, still kill the program.
void report_truncated_mappings();

}  // namespace shoal::tools
