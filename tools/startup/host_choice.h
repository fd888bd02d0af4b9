// `--fit`, of weights: what stays on the host where the devices have no room for all of a model (tuning/host_part.h).
#pragma once

#include "tools/startup/auto_split.h"

namespace shoal::tools {

/// Where not even the smallest context fits that `--fit` may choose, and there is a host beside the devices: leaves as
/// little as has to be there, of the ways to do that the one that is predicted to be fastest (without figures of the
/// devices: experts before layers), and says in a line on stderr what that is and which flags would do the same.
/// True: the placement is another one.
bool choose_host_part(Request& request);

/// Does a model need a host beside its devices, and is there one? As far as weights alone tell.
bool needs_host(const Request& request);

}  // namespace shoal::tools
