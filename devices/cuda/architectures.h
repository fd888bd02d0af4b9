// Which GPUs the plug-in has kernels for. It has machine code only (cmake/cuda_architectures.cmake), so that a GPU runs
// code of its own generation or nothing: the driver compiles nothing at the first start.
#pragma once

#include <span>
#include <string>

namespace shoal::cuda {

/// The compute capabilities that kernels were compiled for: 80, 90.
std::span<const int> built_architectures();

/// Embedded GPUs (Jetson, DRIVE, Thor), whose code no other GPU runs, and which run no other code.
constexpr bool is_embedded(int compute_capability) {
  return compute_capability == 87 || compute_capability == 88 || compute_capability == 101 || compute_capability == 110;
}

/// Machine code runs on GPUs of its own generation, from its own revision on: that for 8.0 also on 8.6 and 8.9.
constexpr bool runs_on(int architecture, int compute_capability) {
  if (is_embedded(architecture) || is_embedded(compute_capability)) return architecture == compute_capability;
  return architecture / 10 == compute_capability / 10 && architecture <= compute_capability;
}

/// Why kernels compiled for `built` cannot run on a GPU, and the remedy; "" if they can.
std::string lack_of_code(std::span<const int> built, int compute_capability);

}  // namespace shoal::cuda
