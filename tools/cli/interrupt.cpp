#include "tools/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

std::atomic<int> caught{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not wait for a lock");

/// A later Ctrl-C does not replace a recorded SIGTERM.
void on_signal(int number) {
  int none = 0;
  if (number == SIGTERM) {
    caught = number;
  } else {
    caught.compare_exchange_strong(none, number);
  }
}

void catch_signal(int number) {
  struct sigaction before{};
  if (sigaction(number, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) return;
  struct sigaction action{};
  action.sa_handler = on_signal;
  // SA_RESETHAND: a second signal has its default action. SA_RESTART: the first signal does not interrupt a write.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(number, &action, nullptr);
}

constexpr std::string_view kMessage =
    "shoal: error: a mapped file can no longer be read: the file was truncated, or its disk failed; do not "
    "change a model file in use, or copy it into memory with --no-mmap\n";

// Calls only functions that are allowed in a signal handler.
void on_bus_error(int number, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {
    std::signal(number, SIG_DFL);  // after the return, the program repeats the access, and SIGBUS kills the program
    return;
  }
  const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  (void)written;  // a failed write has no remedy
  _exit(kFailed);
}

}  // namespace

void catch_interrupts() {
  catch_signal(SIGINT);
  catch_signal(SIGTERM);
}

void leave_interrupts_to_others() {
  std::signal(SIGINT, SIG_IGN);
  int expected = SIGINT;
  caught.compare_exchange_strong(expected, 0);
}

bool interrupted() {
  return caught != 0;
}

bool terminated() {
  return caught == SIGTERM;
}

void clear_interrupt() {
  int expected = SIGINT;
  if (caught.compare_exchange_strong(expected, 0)) catch_signal(SIGINT);
}

void stop_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

int interrupt_code() {
  return 128 + caught;
}

void report_truncated_mappings() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace shoal::tools
