// What the processes of a communicator agree in before its ranks connect: whether all have NCCL, the same one, that no
// GPU is there twice, and the id under which the ranks meet.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_api.h"
#include "devices/device.h"
#include "processes/process_group.h"

namespace shoal::collectives::nccl {

/// The id, which the process of rank 0 makes. Collective. Throws the same DeviceError in all processes where one of
/// them cannot use NCCL; CommError where they have different versions of it.
UniqueId meet(std::span<Device* const> ranks, ProcessGroup& group);

/// "CUDA0", or over several processes "1:CUDA0 on b", of each rank. `group`: nullptr for one process.
std::vector<std::string> names_of(std::span<Device* const> ranks, const ProcessGroup* group);

}  // namespace shoal::collectives::nccl
