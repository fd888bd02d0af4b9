// How a program becomes one process of several: under mpirun or srun it loads the plug-in that brings MPI.
#pragma once

#include <chrono>
#include <memory>

#include "processes/process_group.h"

namespace shoal {

/// Was this process started as one of several, by mpirun (Open MPI, MPICH) or `srun --mpi=...`? By the environment
/// alone.
bool is_one_of_several();
/// How many of this program `srun` has started that cannot find each other, because it was not told to (--mpi); 0 where
/// that is not so. By the environment alone.
int unconnected_tasks();

/// The group of all processes; nullptr where this is not one of several. Once in a process. `silence`: as in
/// ProcessGroup. Throws DeviceError, naming the plug-in and the remedy, where that is missing or does not fit, and
/// CommError.
std::unique_ptr<ProcessGroup> join_processes(std::chrono::milliseconds silence);

}  // namespace shoal
