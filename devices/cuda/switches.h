// Features of CUDA devices that SHOAL_CUDA_OFF switches off, to find the one that makes results wrong (docs/cuda.md).
#pragma once

#include <string>
#include <string_view>

namespace shoal::cuda {

/// true: the feature is off.
struct SwitchedOff {
  bool early = false;   ///< launch_early() launches like launch()
  bool wgmma = false;   ///< tiles use mma.sync on compute capability 9.0, too
  bool stream = false;  ///< products with one column do not stream (mul_mat_stream.h)
  bool fuse = false;    ///< every node is a step of its own (fusion.h), and no all_reduce includes the norm behind it
  bool p2p_product = false;  ///< no all_reduce includes the product in front of it
  bool graphs = false;       ///< kernels are launched one by one

  bool operator==(const SwitchedOff&) const = default;
};

/// Parses "early,wgmma". Throws InvalidArgument for an unknown name.
SwitchedOff parse_switched_off(std::string_view names);
/// "early,wgmma"; "": nothing is off.
std::string to_string(const SwitchedOff& off);

}  // namespace shoal::cuda
