// Communicators for meshes that another process owns entirely. This process queues no calls on these communicators, but
// needs their traits: plans depend on the traits, and all processes must make the same plans.
#pragma once

#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "processes/process_group.h"

namespace shoal::collectives {

/// Whether one process, other than this one, owns all members.
bool are_absent(std::span<Device* const> members);

/// A factory for meshes of absent members. Its communicators refuse all calls. The owner sends their traits
/// (share_traits); if no traits have arrived, `guess` describes them. If Options::processes is set, all processes take
/// part, so `guess` makes and describes the communicator.
CommunicatorFactory absent_factory(CommunicatorFactory guess);

/// Each process broadcasts the communicator traits of its own meshes. `meshes` is the same in all processes.
/// Collective. Throws CommError.
void share_traits(ProcessGroup& group, std::span<const std::vector<Device*>> meshes, const Options& options);

}  // namespace shoal::collectives
