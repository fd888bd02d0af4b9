// Signals. Ctrl-C and SIGTERM: the first one asks the program to end, a second one of the same kind kills it.
#pragma once

#include <exception>

namespace shoal::tools {

/// From now on the first SIGINT and the first SIGTERM only leave a note. Writes that wait for a slow reader go on. A
/// signal that the program was started to ignore, as scripts do for jobs in the background, stays ignored.
void catch_interrupts();
/// From now on a SIGINT does nothing here, nor one that came before: another process acts on it.
void leave_interrupts_to_others();
/// Has one of them come? Any thread.
bool interrupted();
/// Was it SIGTERM? Any thread.
bool terminated();
/// Forgets the Ctrl-C that came, so that the next one is the first again. A SIGTERM stays.
void forget_interrupt();
/// The exit code that shells report for the one that came: 130 for Ctrl-C, 143 for SIGTERM.
int interrupt_code();

/// Ends what was going on after interrupted() said so.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};
/// Throws Interrupted once one has come.
void stop_if_interrupted();

/// From now on reading mapped bytes that their file has no more, such as a model file that is cut off, ends the program
/// with one line on stderr and exit code kFailed instead of SIGBUS. For the whole process, any thread. Other causes of
/// SIGBUS, such as broken memory, kill it as ever.
void report_lost_files();

}  // namespace shoal::tools
