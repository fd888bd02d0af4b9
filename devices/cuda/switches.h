// Features of CUDA devices that SHOAL_CUDA_OFF can switch off, to find the feature that makes results wrong
// (docs/cuda.md).
#pragma once

#include <string>
#include <string_view>

namespace shoal::cuda {

/// Switches of the features; true means that the feature is off.
struct SwitchedOff {
  bool early = false;   ///< launch_early() works like launch()
  bool wgmma = false;   ///< tiles use mma.sync even on compute capability 9.0
  bool stream = false;  ///< products with one column do not use the kernels of mul_mat_stream.h
  bool fuse = false;    ///< every node is a separate step (fusion.h), and no all_reduce includes the following norm
  bool p2p_product = false;  ///< no all_reduce includes the preceding product
  bool graphs = false;       ///< kernels are launched one by one

  bool operator==(const SwitchedOff&) const = default;
};

/// Parses a list of features such as "early,wgmma". Throws InvalidArgument for an unknown name.
SwitchedOff parse_switched_off(std::string_view names);
/// Returns a list of features such as "early,wgmma", or "" if no feature is off.
std::string to_string(const SwitchedOff& off);

}  // namespace shoal::cuda
