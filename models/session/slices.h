// Experts whose columns are in slices (models/place/expert_split.h): where the bytes of the file go.
#pragma once

#include <cstddef>
#include <span>

#include "models/arch/tensor_spec.h"

namespace shoal::models {

/// What the file has for `count` experts, put in the order of the sliced tensor: slice 0 of each, slice 1 of each, ...
/// An expert is a matrix, or a row of biases, as `spec` has it; `from` and `to` are equally long.
///   2 experts of 4 columns a0 a1 a2 a3 b0 b1 b2 b3, in 2 slices -> a0 a1 b0 b1 a2 a3 b2 b3
void copy_in_slices(const TensorSpec& spec, int64_t count, int64_t slices, std::span<const std::byte> from,
                    std::span<std::byte> to);

}  // namespace shoal::models
