// Index arithmetic of conv_2d and conv_transpose_2d, which the kernels of all devices use. Each element of the result
// is a sum over taps. A tap is an element of the kernel that meets an input element. In conv_transpose_2d with stride
// s, results whose indices differ by a multiple of s have the same taps. These results form a *phase*. conv_2d has one
// phase. So both ops are convolutions of each phase. Any thread may call the functions, which never fail.
//
// Example: conv_transpose_2d with stride 2, a kernel (k0, k1, k2) and no pads along an axis.
//   phase 0: y[2 q] = k0 x[q] + k2 x[q - 1]          first 0, taps 2, tap_step 2, x_first 0, x_step 1, x_tap -1
//   phase 1: y[2 q + 1] = k1 x[q]                    first 1, taps 1, tap_first 1
#pragma once

#include <cstdint>

namespace shoal {

struct Tensor;

/// One axis of a phase. Result number q of the phase is element first + q * step of the node. Tap number j is element
/// tap_first + j * tap_step of the kernel. It meets input x_first + q * x_step + j * x_tap. Inputs outside [0, inputs)
/// are zero.
struct ConvAxis {
  int64_t results = 0, first = 0, step = 1;
  int64_t taps = 0, tap_first = 0, tap_step = 1;
  int64_t inputs = 0, x_first = 0, x_step = 1, x_tap = 1;
};

/// Number of phases of the node along axis 0 or 1.
int64_t conv_phases(const Tensor& node, int axis);
/// The axis in phase `phase`. Each element of the kernel is a tap of at most one phase.
ConvAxis conv_axis(const Tensor& node, int axis, int64_t phase);

/// Groups of channels that do not interact, and channels of one group.
struct ConvChannels {
  int64_t groups = 0, inputs = 0, results = 0;
};
ConvChannels conv_channels(const Tensor& node);

}  // namespace shoal
