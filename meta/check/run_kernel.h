// Calls the CPU kernel of an external op directly, without a device. So a check can call single parts, in memory whose
// bounds are guarded. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "meta/check/rule_trial.h"

namespace shoal::meta {

/// Stored bytes of the values, rounded to the dtype. Throws InvalidArgument if shoal cannot encode the dtype.
std::vector<std::byte> encode(DType dtype, const Values& values);
Values decode(DType dtype, const std::vector<std::byte>& bytes, int64_t elements);

/// Parts to run, and the byte that fills the memory of the result and of the workspace before the call.
struct KernelRun {
  int parts = 1;
  std::optional<int> only = {};  ///< runs only this part
  std::byte fill{0};
};
/// Returns the bytes of the result of a kExternal node. Throws InvalidArgument if the op has no CPU kernel for the
/// node, or if the kernel changes a source or writes outside the result or the workspace.
std::vector<std::byte> run_kernel(const Tensor& node, const TensorValues& leaves, const KernelRun& run);

/// Checks that each element of the result is written by exactly one of several parts, and that its bytes do not depend
/// on the number of parts. Returns a description of the first error, or "".
std::string check_parts(const Tensor& node, const TensorValues& leaves);

}  // namespace shoal::meta
