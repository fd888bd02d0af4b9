#include "devices/cuda/architectures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shoal::cuda {

#ifndef SHOAL_CUDA_EMULATED
std::span<const int> built_architectures() {
  static constexpr int kBuilt[] = {SHOAL_CUDA_BUILT};
  return kBuilt;
}
#endif

std::string lack_of_code(std::span<const int> built, int compute_capability) {
  if (compute_capability < 80) return "shoal needs compute capability 8.0 or later";
  const auto runs = [&](int architecture) { return runs_on(architecture, compute_capability); };
  if (std::any_of(built.begin(), built.end(), runs)) return {};
  return fmt::format(
      "the plug-in has no code for this GPU (only for sm_{}): build with -DSHOAL_CUDA_ARCHITECTURES=\"{};{}\"",
      fmt::join(built, ", sm_"), fmt::join(built, ";"), compute_capability);
}

}  // namespace shoal::cuda
