// Communicators for meshes that another process owns entirely. This process queues no calls on these communicators, but
// needs their traits. Plans depend on the traits, and all processes must make the same plans.
#pragma once

#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "processes/process_group.h"

namespace shoal::collectives {

/// Whether one process owns all members of the mesh, and this process is not the owner.
bool are_absent(std::span<Device* const> members);

/// A factory of communicators for meshes whose members all belong to another process. These communicators refuse all
/// calls. The process that owns a mesh sends the traits of its communicator (share_traits). If this process has not
/// received these traits, the factory returns the traits that `guess` predicts. If Options::processes is set, all
/// processes take part in the communicator. In that case, `guess` makes and describes the communicator.
CommunicatorFactory absent_factory(CommunicatorFactory guess);

/// Each process broadcasts the communicator traits of the meshes that it owns. All processes must call this function
/// with the same `meshes`. Throws CommError.
void share_traits(ProcessGroup& group, std::span<const std::vector<Device*>> meshes, const Options& options);

}  // namespace shoal::collectives
