// Communicators of meshes that are wholly in another process. Nothing is queued on them here, but what that process
// plans depends on what its communicator is like, and all processes make the same plans.
#pragma once

#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "processes/process_group.h"

namespace shoal::collectives {

/// Are all of them in one process, and is it another one?
bool are_absent(std::span<Device* const> members);

/// For members of which that is true: makes communicators that nothing can be queued on, and describes them as their
/// process has said (share_traits), or as `guess` does where it has not. Where several processes take part
/// (Options::processes) these members are as any others, and `guess` makes and describes.
CommunicatorFactory absent_factory(CommunicatorFactory guess);

/// Each process tells all others what the communicators of those of the meshes are like that are its own. The meshes
/// are the same in all processes. Collective. Throws CommError.
void share_traits(ProcessGroup& group, std::span<const std::vector<Device*>> meshes, const Options& options);

}  // namespace shoal::collectives
