// Two modes of dividing routed experts among the devices of a meta device:
//
//   inside   The columns of each expert are divided. All devices have equal work, regardless of the experts that a
//            token uses. Columns are divided in units of quantisation blocks. A narrow expert has few units, so some
//            devices may get no columns of this expert.
//   whole    Every device has some of the experts, with all columns. A token uses few experts, so the busiest device
//            computes more than its share (machine/expert_load.h).
//
// tuning/choose/ways.h compares both modes.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::models {

enum class ExpertSplit : uint8_t { kInside, kWhole };
/// Returns "inside" or "whole".
constexpr std::string_view name_of(ExpertSplit split) {
  return split == ExpertSplit::kInside ? "inside" : "whole";
}

}  // namespace shoal::models
