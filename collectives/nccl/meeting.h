// The processes of a communicator exchange reports before its ranks connect. The processes check that they all have the
// same NCCL version and that no two ranks share a GPU. The process of rank 0 also sends the NCCL id to all other
// processes; the ranks need the id to connect.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_api.h"
#include "devices/device.h"
#include "processes/process_group.h"

namespace shoal::collectives::nccl {

/// Returns the NCCL id that the process of rank 0 makes. All processes must call this function. If a process cannot use
/// NCCL or if two ranks share a GPU, the function throws the same DeviceError in all processes. If the processes have
/// different NCCL versions, the function throws CommError.
UniqueId meet(std::span<Device* const> ranks, ProcessGroup& group);

/// The name of each rank. Examples: "CUDA0" with one process, "1:CUDA0 on b" with several processes. `group`: nullptr
/// for one process.
std::vector<std::string> names_of(std::span<Device* const> ranks, const ProcessGroup* group);

}  // namespace shoal::collectives::nccl
