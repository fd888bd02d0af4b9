// What plans ask of attention.
#pragma once

#include "graph/tensor.h"

namespace shoal::cuda {

/// The result can be left as a record (LaunchContext::writes) by all kernels that may be chosen when addresses are
/// known.
bool attention_records(const Tensor& node);

}  // namespace shoal::cuda
