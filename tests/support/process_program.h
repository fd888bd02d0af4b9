// Helpers for programs that mpirun starts in several processes.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "processes/process_group.h"

namespace shoal::test {

/// Calls `work`, then leaves the group: with leave() on success, with leave_failed() otherwise.
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

/// Calls `work` and exits with 0. If `work` throws, prints the error in one line and exits with 1.
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
  std::_Exit(end);  // does not wait for threads of a failed transport
}

}  // namespace shoal::test
