// The loop that gathers the inputs of conv_2d and conv_transpose_2d into panels. A panel has one lane per result and
// one vector per product term (PanelKernels). Terms are numbered with the taps of axis 0 innermost, then the taps of
// axis 1, then the channels. kernels.h gives the reason why this header has no inline functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/convolution.h"

namespace shoal::cpu {

/// Maximum number of results per call.
inline constexpr int64_t kConvResults = 64;

/// Panel number p gets the inputs of results first + p * panel_rows and following, which are numbered row by row in the
/// phase. Unused lanes of the last panel are not written.
struct ConvPanels {
  const float* x = nullptr;          ///< channel 0 of the group in one batch
  int64_t x_strides[3] = {0, 0, 0};  ///< in floats, along axes 0 to 2
  ConvAxis axes[2];
  int64_t first = 0;
  int64_t results = 0;  ///< number of lanes of all panels
  int64_t k_begin = 0;  ///< number of the first term
  int64_t k = 0;        ///< number of terms
  std::byte* panels = nullptr;
  size_t panel_stride = 0;
};

}  // namespace shoal::cpu
