#include "models/session/slices.h"

#include <algorithm>

namespace shoal::models {

void copy_in_slices(const TensorSpec& spec, int64_t count, int64_t slices, std::span<const std::byte> from,
                    std::span<std::byte> to) {
  // Columns are the rows of gate and up, one after the other where they are one tensor, and part of each row of down.
  const auto outer = static_cast<size_t>(spec.cut.axis == 0 && !spec.elementwise ? spec.shape[1] : 1);
  const size_t segments = spec.cut.more[0].group == CutGroup::kNone ? 1 : 2;
  const auto experts = static_cast<size_t>(count), parts = static_cast<size_t>(slices);
  const size_t step = from.size() / (experts * outer * segments * parts);
  std::byte* next = to.data();
  for (size_t slice = 0; slice < parts; ++slice) {
    for (size_t i = 0; i < experts * outer * segments; ++i) {
      next = std::copy_n(from.data() + (i * parts + slice) * step, step, next);
    }
  }
}

}  // namespace shoal::models
