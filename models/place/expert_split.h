// How routed experts are divided over the devices of a meta device:
//
//   inside   every device has some columns of each expert: all are equally busy whichever experts a token takes, but
//            columns come in units of quantisation blocks, of which narrow experts have few
//   whole    every device has some of the experts: units are experts, and each keeps its width, but of the few that one
//            token takes the busiest device has more than its share (machine/expert_load.h)
//
// Either way a layer's sum over devices is reduced once, so that links make no difference, and what counts is how
// long the busiest device takes for its products. Qwen3 30B-A3B takes 8 of 128 experts of 768 columns, 3 units in Q4_K:
//
//   2 devices   inside: 2 of 3 units, 5.3 experts' worth   whole: 5.05 of 8 experts
//   6 devices   inside: 1 of 3 units, 2.7; 3 devices idle  whole: 2.9 of 8 experts
//   8 devices   inside: 1 of 3 units, 2.7; 5 devices idle  whole: 2.5 of 8 experts
//
// Mixtral's 14336 columns are 56 units, 7 on each of 8 devices: inside takes 2 / 8 of an expert, whole 1.1 of 2
// experts.
//
// Pure functions of their arguments; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "machine/cost_model.h"
#include "meta/layout/partition.h"
#include "models/arch/architecture.h"

namespace shoal::models {

enum class ExpertSplit : uint8_t { kAuto, kInside, kWhole };
/// "auto", "inside", "whole".
std::string_view name_of(ExpertSplit split);
/// Throws InvalidArgument that lists them.
ExpertSplit parse_expert_split(std::string_view text);

struct ExpertOptions {
  ExpertSplit split = ExpertSplit::kAuto;
  int64_t tokens = 1;             ///< of the batch that "auto" is to be good for
  machine::CostModel costs = {};  ///< of the devices
};

/// How they are divided, and what that was compared with.
struct ExpertChoice {
  ExpertSplit split = ExpertSplit::kInside;  ///< never kAuto
  bool chosen = false;                       ///< by the seconds below; else asked for, or there was no choice
  int64_t tokens = 1;
  /// Seconds of a batch in which the devices wait for products of experts, of the shared one, too.
  double inside = 0, whole = 0;
};

/// Does it have something for each expert that may be cut by columns?
bool is_of_experts(const TensorSpec& spec);
/// Which experts a tensor has is counted on this axis: of a matrix for each expert, or of a row.
int expert_axis(const TensorSpec& spec);
/// The experts of a layer: what is the same for all devices.
struct ExpertLayer {
  int64_t experts = 0, used = 0, ff = 0, shared_ff = 0;
  std::vector<ModelTensor> matrices;  ///< cut by columns on axis 1 (gate, up) or 0 (down)
  std::vector<ModelTensor> shared;    ///< the same of the expert that all tokens use
};
/// How they are divided: by columns or by experts; and the columns of the shared one, if there is one.
struct ExpertParts {
  meta::Partition experts;
  meta::Partition shared;
};
/// Seconds until the last device has done its part, its columns (`inside`) or its experts (`whole`), and that of the
/// shared expert, for `tokens` tokens.
double seconds_inside(const ExpertLayer& layer, const ExpertParts& parts, const ExpertOptions& options);
double seconds_whole(const ExpertLayer& layer, const ExpertParts& parts, const ExpertOptions& options);
}  // namespace shoal::models
