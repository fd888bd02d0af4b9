// Support for several processes. Under mpirun or srun, every process runs the same command line. Process 0 prints
// results and messages; the other processes print errors only. If one process fails, all processes print the reason and
// exit.
#pragma once

#include <functional>
#include <string_view>

#include "processes/process_group.h"

namespace shoal::tools {

/// The processes of this run; nullptr for a single process and after work_alone().
ProcessGroup* processes();
/// Makes processes() return nullptr from now on, for commands that process 0 runs alone.
void work_alone();
/// Whether this process prints results: true for process 0 and for a single process.
bool is_leader();

/// Runs the program, and joins the other processes if there are any. `body` returns the exit code. With several
/// processes, this process exits during the call if any process fails, and only process 0 handles Ctrl-C. With a single
/// process, an Interrupted that `body` throws propagates to the caller.
int run_among_processes(const std::function<int()>& body);

/// Reports a failure of this process by a call of `write` with the line for users. With several processes, first
/// reports the failure to all other processes. The line then names process and host, or an earlier failure of another
/// process. Each process writes only one line. If several threads fail, the first thread writes the line, and the other
/// threads wait briefly until the line is written.
void report_failure(std::string_view message, const std::function<void(std::string_view)>& write) noexcept;

}  // namespace shoal::tools
