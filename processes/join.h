// Connects this process to the other processes of a run under mpirun or srun. The MPI transport, a plug-in, makes the
// connection.
#pragma once

#include <chrono>
#include <memory>

#include "processes/process_group.h"

namespace shoal {

/// Whether mpirun (Open MPI, MPICH) or `srun --mpi=...` started this process as one of several processes. This function
/// reads only the environment.
bool is_one_of_several();
/// Returns the number of tasks if `srun` started several tasks without --mpi, else 0. Such tasks cannot find each
/// other. This function reads only the environment.
int unconnected_tasks();

/// Returns the group of all processes, or nullptr if the run has only this process. Call this function once per
/// process. `silence` is passed to the constructor of ProcessGroup. Throws CommError. If the plug-in is missing or
/// incompatible, throws a DeviceError that names the plug-in and the remedy.
std::unique_ptr<ProcessGroup> join_processes(std::chrono::milliseconds silence);

}  // namespace shoal
