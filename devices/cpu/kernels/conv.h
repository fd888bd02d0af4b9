// The loops of conv_2d and conv_transpose_2d. Terms are numbered with the taps of axis 0 innermost, then the taps of
// axis 1, then the channels. kernels.h gives the reason why this header has no inline functions.
//
// conv_panels() gathers inputs into panels. A panel has one lane per result and one vector per product term
// (PanelKernels). conv_rows() gathers inputs and computes the products of 1 to kMostRowChannels channels, with the same
// bits as the product of panels. It needs a step of 1 along axis 0 (x_step and x_strides[0]).
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/convolution.h"

namespace shoal::cpu {

/// Maximum number of results per call of conv_panels().
inline constexpr int64_t kConvResults = 64;
inline constexpr int64_t kMostRowChannels = 3;
/// conv_rows() copies the inputs of at most this number of results at a time. Its memory `panels` has at least
/// kConvRun + (taps - 1) * x_tap floats for each row of taps of axis 0 that contains a term of the call.
inline constexpr int64_t kConvRun = 64;

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
