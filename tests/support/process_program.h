// Helpers for programs that mpirun starts in several processes.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "processes/process_group.h"

namespace shoal::test {

/// Calls `work`, leave() and leave_failed(). Omits leave() if `work` throws or if the group has failed.
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

/// Calls `work` and exits with status 0. If `work` throws, prints the error in one line and exits with status 1.
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
  std::_Exit(end);  // exits without waiting for the threads of a failed transport
}

}  // namespace shoal::test
