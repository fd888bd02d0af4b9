// A catalogue of GPUs, hosts and links. The catalogue describes hardware that is not available for measurements.
// make_machine() makes a machine model from a name. docs/simulation.md explains the values of the catalogue and their
// sources. All functions are pure, except find_machine(), which may read a file.
//
//   H200x8-nvlink        eight H200 with NVLink and NVSwitch; the devices are H200.0 ... H200.7
//   RTX4090x2-pcie       two RTX 4090 on PCIe; the driver has no peer access, so data goes through the host
//   RTX4090x2-pcie-p2p   two RTX 4090 on PCIe with a driver that has peer access
//   RTX4090+RTX3090x2    different GPUs: RTX4090.0, RTX3090.0, RTX3090.1
//   L40S                 one GPU
//   RTX4090x4+EPYC9654   four GPUs; the last device is a host for weights that do not fit on the GPUs
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.h"

namespace shoal::machine {

/// Makes a machine from its name: GPU[xN][+GPU[xN]...][+HOST][-LINK], in upper or lower case. The default link is the
/// fastest link that all GPUs support. Throws InvalidArgument for an unknown name. The message lists the known GPUs,
/// hosts or links.
MachineModel make_machine(std::string_view name);

/// Makes a machine of the catalogue, or reads a machine from a file. If the name ends in .json or contains a slash, the
/// name is the path of a file for parse_machine(). A pipe is read to its end. While the function waits for data of the
/// pipe, it calls `poll`, which may throw. Throws InvalidArgument for an unknown name, an invalid description or an
/// unreadable file.
MachineModel find_machine(std::string_view name, const std::function<void()>& poll = {});

/// Names of GPUs, hosts and links for help and messages.
std::vector<std::string> catalogue_gpus();
std::vector<std::string> catalogue_hosts();
std::vector<std::string> catalogue_links();

}  // namespace shoal::machine
