// Programs that mpirun starts in several processes.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "processes/process_group.h"

namespace shoal::test {

/// Calls `work`, then leaves the group in the way that suits what has become of it.
template <class F>
void run_in(ProcessGroup& group, F work) {
  try {
    work();
    if (!group.has_failed()) group.leave();
    group.leave_failed();
  } catch (...) {
    group.leave_failed();
    throw;
  }
}

/// Calls `work` and ends the process: with 1 and a line that says why where it threw, else with 0.
template <class F>
[[noreturn]] void end_with(F work) {
  int end = 0;
  try {
    work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    end = 1;
  }
  std::fflush(nullptr);
  std::_Exit(end);  // without the threads of a transport that has failed
}

}  // namespace shoal::test
