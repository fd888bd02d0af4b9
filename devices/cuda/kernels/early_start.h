// May a kernel of launch_early() (platform.h) start before the one in front of it has ended?
#pragma once

#include <initializer_list>

namespace shoal::cuda {

/// Where a GPU runs code that waits in wait_for_previous(), which is what was compiled for 9.0 or later.
/// `architectures` are those of the build, 900 for 9.0. GPUs run code of their own generation; where there is none,
/// what the driver makes of the PTX of an older one, and which of them have PTX is not known.
constexpr bool can_start_early(std::initializer_list<int> architectures, int compute_capability) {
  const int own = compute_capability * 10;
  bool has_own = false, has_old = false;
  for (const int architecture : architectures) {
    if (architecture > own) continue;
    has_own |= architecture / 100 == own / 100;
    has_old |= architecture < 900;
  }
  return own >= 900 && (has_own || !has_old);
}

}  // namespace shoal::cuda
