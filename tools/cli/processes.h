// The program as one process of several: under mpirun or srun every process runs the same command line. Process 0
// prints; the others are quiet, but for their errors. When one fails, all say why and end.
#pragma once

#include <functional>
#include <string_view>

#include "processes/process_group.h"

namespace shoal::tools {

/// nullptr: this is the only one, or works as if it were.
ProcessGroup* processes();
/// From now on processes() has nothing to say: for commands that process 0 does alone.
void work_alone();
/// Is it for this process to print? Of the only one, too.
bool is_leader();

/// Runs the program's commands among the other processes, if there are any: `body` returns the exit code. Where it
/// fails in one of several, or they do, the process ends here. Throws Interrupted where this is the only one and `body`
/// does; of several, Ctrl-C is for process 0, and the others pass over it.
int run_among_processes(const std::function<int()>& body);

/// Gives `write` the message for users of a failure here. In one of several processes: with process and host, after all
/// others have been told it, or that of another process where that failed before; and once, whichever of its threads
/// end it: the others wait for that, though not for one that is stuck.
void report_failure(std::string_view message, const std::function<void(std::string_view)>& write) noexcept;

}  // namespace shoal::tools
