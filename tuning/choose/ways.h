// Which way devices that act as one divide routed experts, and how they have a latent cache: as asked for, or as is
// faster (models/place/expert_split.h, latent_split.h).
//
// Either way a layer's sum over devices is reduced once, so links make no difference to experts. The time of the
// busiest device for its products counts. Qwen3 30B-A3B takes 8 of 128 experts of 768 columns, 3 units in Q4_K:
//
//   2 devices   inside: 2 of 3 units, 5.3 experts' worth   whole: 5.05 of 8 experts
//   6 devices   inside: 1 of 3 units, 2.7; 3 devices idle  whole: 2.9 of 8 experts
//   8 devices   inside: 1 of 3 units, 2.7; 5 devices idle  whole: 2.5 of 8 experts
//
// Mixtral's 14336 columns are 56 units, 7 on each of 8 devices: inside takes 2 / 8 of an expert, whole 1.1 of 2
// experts.
//
// Of a latent cache the seconds of attention count, with those of the exchanges that it needs by rows.
//
// Pure functions of their arguments; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "machine/machine.h"
#include "models/arch/model.h"
#include "models/place/placement.h"

namespace shoal::tuning {

/// The ways that flags ask for, and the work that the others are to be good for.
struct AskedWays {
  std::optional<models::ExpertSplit> experts = {};  ///< nullopt: the faster one
  std::optional<models::LatentSplit> latent = {};
  int64_t tokens = 1;  ///< of a batch
  int64_t rows = 0;    ///< of the text that a token sees; 0: unknown, the cache is mirrored
  DType cache_type = DType::kF16;
};
/// "auto" (nullopt), "inside" or "whole"; "auto", "mirrored" or "rows". Throw InvalidArgument that lists them.
std::optional<models::ExpertSplit> parse_expert_split(std::string_view text);
std::optional<models::LatentSplit> parse_latent_split(std::string_view text);

/// Decided ways, and the seconds that were compared: 0 if there was no choice.
struct Ways {
  models::ExpertSplit experts = models::ExpertSplit::kInside;
  models::LatentSplit latent = models::LatentSplit::kMirrored;
  int64_t tokens = 1, rows = 0;      ///< of the batch that was compared
  double inside = 0, whole = 0;      ///< of products of experts, in all layers, until the last device is done
  double mirrored = 0, by_rows = 0;  ///< of attention in all layers, with its exchanges
};

/// For devices that act as one by these shares. Without a machine, or if it lacks one of the devices, the costs are
/// rough figures (machine::CostModel).
Ways faster_ways(const models::Model& model, const std::vector<Device*>& group, std::span<const double> shares,
                 const machine::MachineModel* machine, const AskedWays& asked);

/// The same for a placement: its first group of several devices decides for all. A cache on the host stays mirrored.
/// Puts the ways into the options. Throws InvalidArgument for a ratio that does not fit.
Ways take_faster_ways(const models::Model& model, const models::DeviceGroups& groups, const AskedWays& asked,
                      models::PlacementOptions& options);

}  // namespace shoal::tuning
