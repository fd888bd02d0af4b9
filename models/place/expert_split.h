// How routed experts are divided over the devices of a meta device:
//
//   inside   every device has some columns of each expert: all are equally busy whichever experts a token takes, but
//            columns come in units of quantisation blocks, of which narrow experts have few
//   whole    every device has some of the experts: units are experts, and each keeps its width, but of the few that one
//            token takes the busiest device has more than its share (machine/expert_load.h)
//   groups   devices in groups of n: a group has some of the experts, each of its devices one of n slices of their
//            columns
//
// In each case a layer's sum over devices is reduced once, so that links make no difference, and what counts is how
// long the busiest device takes for its products. Qwen3 30B-A3B takes 8 of 128 experts of 768 columns, 3 units in Q4_K:
//
//   2 devices   inside: 2 of 3 units, 5.3 experts' worth   whole: 5.05 of 8 experts
//   6 devices   inside: 1 of 3 units, 2.7; 3 devices idle  whole: 2.9 of 8 experts   groups of 3: 5.05 / 3 = 1.7
//   8 devices   inside: 1 of 3 units, 2.7; 5 devices idle  whole: 2.5 of 8 experts
//
// Mixtral's 14336 columns are 56 units, 7 on each of 8 devices: inside takes 2 / 8 of an expert, whole 1.1 of 2
// experts.
//
// In groups the n slices of an expert are experts of their own, narrower ones: a tensor [embd, ff, experts] is declared
// as [embd, ff / n, n * experts], slice j of expert e at j * experts + e, and loaded so (models/session/slices.h). The
// graph has each slice's products, and their sum (models/arch/experts.cpp); a device runs those of its slice alone
// (meta/plan/lower.h). The rest is as with experts that lie whole.
//
//   4 devices in groups of 2, 128 experts: 64:{0} 64:{2} 64:{1} 64:{3}
//
// Pure functions of their arguments; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "machine/cost_model.h"
#include "meta/layout/partition.h"
#include "models/arch/architecture.h"

namespace shoal::models {

enum class ExpertSplit : uint8_t { kAuto, kInside, kWhole, kGroups };

/// What is asked for.
struct ExpertWay {
  ExpertWay(ExpertSplit split = ExpertSplit::kAuto, int64_t slices = 0) : split(split), slices(slices) {}
  ExpertSplit split;
  int64_t slices;  ///< kGroups: devices of a group; 0: as is faster
};
/// "auto", "inside", "whole", "groups", "groups:4".
std::string to_string(const ExpertWay& way);
/// Throws InvalidArgument that lists them.
ExpertWay parse_expert_way(std::string_view text);

struct ExpertOptions {
  ExpertWay way = {};
  int64_t tokens = 1;             ///< of the batch that "auto" is to be good for
  machine::CostModel costs = {};  ///< of the devices
  bool may_be_sliced = true;      ///< else "auto" is one of the others
};

/// How they are divided, and what that was compared with.
struct ExpertChoice {
  ExpertSplit split = ExpertSplit::kInside;  ///< never kAuto
  int64_t slices = 1;                        ///< of an expert's columns: more than 1 in groups, and nowhere else
  bool chosen = false;                       ///< by the seconds below; else asked for, or there was no choice
  int64_t tokens = 1;
  /// Seconds of a batch in which the devices wait for products of experts, of the shared one, too. By slices of groups
  /// that are possible.
  double inside = 0, whole = 0;
  std::map<int64_t, double> groups;
  ExpertWay way() const { return {split, slices > 1 ? slices : 0}; }
};

/// Does it have something for each expert that may be cut by columns?
bool is_of_experts(const TensorSpec& spec);
/// Which experts a tensor has is counted on this axis: of a matrix for each expert, or of a row.
int expert_axis(const TensorSpec& spec);
/// A tensor of experts with their columns in slices: [embd, 768, 128] in 3 -> [embd, 256, 384].
Shape sliced(const TensorSpec& spec, int64_t slices);
/// Into how many slices its experts are cut; 1: they are as in the file.
int64_t slices_of(const TensorSpec& spec, const Tensor& tensor);

/// [g][j]: the device that has slice j of the experts of group g. Those with a share, in order, `slices` to a group;
/// what is left over has none, and where there are fewer they have several slices each.
std::vector<std::vector<int>> expert_groups(std::span<const double> shares, int64_t slices);

/// The experts of a layer: what is the same for all devices.
struct ExpertLayer {
  int64_t experts = 0, used = 0, ff = 0, shared_ff = 0;
  std::vector<ModelTensor> matrices;  ///< cut by columns on axis 1 (gate, up) or 0 (down)
  std::vector<ModelTensor> shared;    ///< the same of the expert that all tokens use
};
/// How they are divided: by columns, or by experts or slices of them; and the columns of the shared one, if there is
/// one.
struct ExpertParts {
  meta::Partition experts;
  meta::Partition shared;
};
/// Seconds until the last device has done its part, its columns (`inside`), its experts (`whole`) or slices of them
/// (`groups`: as expert_groups() has them), and that of the shared expert, for `tokens` tokens.
double seconds_inside(const ExpertLayer& layer, const ExpertParts& parts, const ExpertOptions& options);
double seconds_whole(const ExpertLayer& layer, const ExpertParts& parts, const ExpertOptions& options);
double seconds_groups(const ExpertLayer& layer, const ExpertParts& parts, std::span<const std::vector<int>> groups,
                      const ExpertOptions& options);

}  // namespace shoal::models
