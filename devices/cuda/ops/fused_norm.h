// rms_norm together with what stands around it in a decoder, in one launch: rows of f32 without gaps, of any length.
// The weight is one row. A result may lie where an operand of its own shape lies, at the same address; other overlaps
// are not allowed. As run() of an op these queue and return, and may be captured.
#pragma once

#include "devices/cuda/op_kernel.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

/// The row that normed rows are multiplied by.
struct NormWeight {
  const std::byte* data;
  bool is_constant;  ///< it is read while the kernel before this one ends
  explicit NormWeight(const Tensor& tensor) : data(tensor.data), is_constant(cuda::is_constant(tensor)) {}
};

// z may be left as a record, too (LaunchContext::writes).

/// z = rms_norm(x) * weight.
void launch_rms_norm_mul(const LaunchContext& context, const View& x, const NormWeight& weight, View z, float eps);

/// y = a + b; z = rms_norm(y) * weight. z may be where y is: it is what stays there.
void launch_add_rms_norm(const LaunchContext& context, const View& a, const View& b, View y, const NormWeight& weight,
                         View z, float eps);

/// Can these be the operands? Contiguous f32 of one shape and not empty, the weight [shape[0]]; b and y nullptr where
/// there is no sum.
bool can_fuse_rms_norm(const Tensor& a, const Tensor* b, const Tensor* y, const Tensor& weight, const Tensor& z);

/// z can be left as a record.
bool rms_norm_records(const Tensor& z, const GpuTraits& gpu);

}  // namespace shoal::cuda
