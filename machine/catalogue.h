// A catalogue of GPUs, hosts and links. It describes machines that are not available for measurements: a name from the
// catalogue gives a machine model. docs/simulation.md explains the figures and their sources. Pure functions.
//
//   H200x8-nvlink        eight H200 with NVLink and NVSwitch: H200.0 ... H200.7
//   RTX4090x2-pcie       two RTX 4090 on PCIe; without peer access in the driver, data goes through the host
//   RTX4090x2-pcie-p2p   the same with a driver that has peer access
//   RTX4090+RTX3090x2    different GPUs: RTX4090.0, RTX3090.0, RTX3090.1
//   L40S                 one GPU
//   RTX4090x4+EPYC9654   four GPUs, and a host (the last device) for weights that do not fit on them
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.h"

namespace shoal::machine {

/// Makes a machine from its name: GPU[xN][+GPU[xN]...][+HOST][-LINK], in upper or lower case. The default link is the
/// fastest link that all GPUs support. Throws InvalidArgument, whose message lists the known GPUs, hosts or links.
MachineModel make_machine(std::string_view name);

/// Makes a machine of the catalogue. If the name ends in .json or contains a slash, it is the path of a description
/// that parse_machine() reads. A pipe is read to its end. While the function waits for data of the pipe, it calls
/// `poll`, which may throw. Throws InvalidArgument, also for an unreadable file.
MachineModel find_machine(std::string_view name, const std::function<void()>& poll = {});

/// Names of GPUs, hosts and links for help and messages.
std::vector<std::string> catalogue_gpus();
std::vector<std::string> catalogue_hosts();
std::vector<std::string> catalogue_links();

}  // namespace shoal::machine
