// Connects this process to the other processes of the run: under mpirun or srun, loads the plug-in with the MPI
// transport.
#pragma once

#include <chrono>
#include <memory>

#include "processes/process_group.h"

namespace shoal {

/// Whether mpirun (Open MPI, MPICH) or `srun --mpi=...` started this process as one of several. Reads only the
/// environment.
bool is_one_of_several();
/// Number of tasks that `srun` started without a --mpi, so that they cannot find each other; otherwise 0. Reads only
/// the environment.
int unconnected_tasks();

/// The group of all processes; nullptr if this process is the only one. Call it once per process. `silence`: as in
/// ProcessGroup. Throws CommError. If the plug-in is missing or incompatible, throws a DeviceError that names the
/// plug-in and the remedy.
std::unique_ptr<ProcessGroup> join_processes(std::chrono::milliseconds silence);

}  // namespace shoal
