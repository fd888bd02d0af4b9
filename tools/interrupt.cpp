#include "tools/interrupt.h"

#include <csignal>

namespace shoal::tools {
namespace {

volatile std::sig_atomic_t flag = 0;

void on_interrupt(int) {
  flag = 1;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second one finds the default again
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() {
  return flag != 0;
}

}  // namespace shoal::tools
