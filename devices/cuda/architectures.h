// GPUs for which the plug-in has kernels. The plug-in contains only machine code (cmake/cuda_architectures.cmake), so
// the driver never compiles kernels at program start. A GPU without suitable machine code is unsupported.
#pragma once

#include <span>
#include <string>

namespace shoal::cuda {

/// Compute capabilities that the kernels were compiled for, for example 80 and 90.
std::span<const int> built_architectures();

/// Whether GPUs of this capability are embedded GPUs (Jetson, DRIVE, Thor). An embedded GPU runs only code compiled for
/// exactly its capability. Other GPUs cannot run this code.
constexpr bool is_embedded(int compute_capability) {
  return compute_capability == 87 || compute_capability == 88 || compute_capability == 101 || compute_capability == 110;
}

/// Whether machine code for `architecture` runs on a GPU. Code for capability X.y runs on GPUs of capability X.y or
/// of a later X.z. Example: code for 8.0 also runs on 8.6 and 8.9. Exception: if the code or the GPU is for an embedded
/// capability, the two capabilities must be equal.
constexpr bool runs_on(int architecture, int compute_capability) {
  if (is_embedded(architecture) || is_embedded(compute_capability)) return architecture == compute_capability;
  return architecture / 10 == compute_capability / 10 && architecture <= compute_capability;
}

/// Returns the reason why a GPU cannot run kernels compiled for `built`, and the remedy. Returns "" if the GPU can run
/// these kernels.
std::string lack_of_code(std::span<const int> built, int compute_capability);

}  // namespace shoal::cuda
