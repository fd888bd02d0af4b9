// Agreement of a communicator's processes before its ranks connect. The processes check that they have the same NCCL
// version and that no two ranks share a GPU. They also share the NCCL id with which the ranks connect.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_api.h"
#include "devices/device.h"
#include "processes/process_group.h"

namespace shoal::collectives::nccl {

/// Returns the id, which the process of rank 0 makes. Collective. Throws the same DeviceError in all processes if one
/// of them cannot use NCCL, and CommError if the processes have different NCCL versions.
UniqueId meet(std::span<Device* const> ranks, ProcessGroup& group);

/// The name of each rank: "CUDA0", or with several processes "1:CUDA0 on b". `group`: nullptr for one process.
std::vector<std::string> names_of(std::span<Device* const> ranks, const ProcessGroup* group);

}  // namespace shoal::collectives::nccl
