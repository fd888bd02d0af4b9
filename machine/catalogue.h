// Machines that one need not have: a catalogue of GPUs and of ways to connect them, from which a name makes a machine
// model. What the figures are and where they come from: docs/simulation.md. Pure functions.
//
//   H200x8-nvlink        eight H200 with NVLink and NVSwitch: H200.0 ... H200.7
//   RTX4090x2-pcie       two RTX 4090 on PCIe; their driver has no peer access, so that data goes through the host
//   RTX4090x2-pcie-p2p   the same with a driver that has
//   RTX4090+RTX3090x2    different GPUs: RTX4090.0, RTX3090.0, RTX3090.1
//   L40S                 one
//   RTX4090x4+EPYC9654   four, and a host whose CPU and memory can have what does not fit on them: the last device
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.h"

namespace shoal::machine {

/// A machine of the catalogue: GPU[xN][+GPU[xN]...][+HOST][-LINK], in any case. Without a link it is the fastest
/// that all of the GPUs have. Throws InvalidArgument that says which GPUs or links there are.
MachineModel make_machine(std::string_view name);

/// The catalogue, or where the name ends in .json or has a slash, the file: a description as
/// parse_machine() reads it. A pipe is read to its end, and `poll` called meanwhile, which may throw. Throws
/// InvalidArgument, also for a file that cannot be read.
MachineModel find_machine(std::string_view name, const std::function<void()>& poll = {});

/// Names of GPUs, hosts and links, for help and messages.
std::vector<std::string> catalogue_gpus();
std::vector<std::string> catalogue_hosts();
std::vector<std::string> catalogue_links();

}  // namespace shoal::machine
