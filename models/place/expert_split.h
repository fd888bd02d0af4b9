// How routed experts are divided over the devices of a meta device:
//
//   inside   every device has some columns of each expert: all are equally busy whichever experts a token takes, but
//            columns come in units of quantisation blocks, of which narrow experts have few
//   whole    every device has some of the experts: units are experts, and each keeps its width, but of the few that one
//            token takes the busiest device has more than its share (machine/expert_load.h)
//
// tuning/choose/ways.h compares them.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::models {

enum class ExpertSplit : uint8_t { kInside, kWhole };
/// "inside", "whole".
constexpr std::string_view name_of(ExpertSplit split) {
  return split == ExpertSplit::kInside ? "inside" : "whole";
}

}  // namespace shoal::models
