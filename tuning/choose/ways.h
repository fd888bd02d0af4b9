// Decides how devices that act as one divide routed experts and latent caches. Flags decide; otherwise the faster split
// is chosen (models/place/expert_split.h, latent_split.h).
//
// Experts are divided inside (each device has some columns of every expert) or stay whole (each device has some
// experts). Both splits need one sum over the devices per layer, so links do not matter. The product time of the
// busiest device decides. Qwen3 30B-A3B uses 8 of 128 experts of 768 columns, which are 3 units in Q4_K:
//
//   2 devices   inside: 2 of 3 units, 5.3 experts' worth   whole: 5.05 of 8 experts
//   6 devices   inside: 1 of 3 units, 2.7; 3 devices idle  whole: 2.9 of 8 experts
//   8 devices   inside: 1 of 3 units, 2.7; 5 devices idle  whole: 2.5 of 8 experts
//
// Mixtral's 14336 columns are 56 units, so each of 8 devices has 7. Divided inside, a token then takes the time of 2 /
// 8 of an expert; whole experts take the time of 1.1 of 2 experts.
//
// Latent caches are mirrored or divided by rows. The seconds of attention decide, including the exchanges that rows
// need.
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

/// The splits that flags ask for, and the work for which the other splits are chosen.
struct AskedWays {
  std::optional<models::ExpertSplit> experts = {};  ///< nullopt: the faster split
  std::optional<models::LatentSplit> latent = {};
  int64_t tokens = 1;  ///< number of tokens in a batch
  int64_t rows = 0;    ///< number of cache rows that a token reads; 0: unknown, so the cache is mirrored
  DType cache_type = DType::kF16;
};
/// Parse "auto" (nullopt), "inside" or "whole", and "auto", "mirrored" or "rows". Other texts throw InvalidArgument,
/// whose message lists the valid ones.
std::optional<models::ExpertSplit> parse_expert_split(std::string_view text);
std::optional<models::LatentSplit> parse_latent_split(std::string_view text);

/// The decided splits, with the seconds that were compared; 0 if nothing was compared.
struct Ways {
  models::ExpertSplit experts = models::ExpertSplit::kInside;
  models::LatentSplit latent = models::LatentSplit::kMirrored;
  int64_t tokens = 1, rows = 0;      ///< size of the compared batch, and the cache rows that a token reads
  double inside = 0, whole = 0;      ///< seconds of expert products in all layers, on the slowest device
  double mirrored = 0, by_rows = 0;  ///< seconds of attention in all layers, including exchanges
};

/// The faster splits for devices that act as one, with these shares. Without a machine, or if the machine lacks one of
/// the devices, the costs are rough defaults (machine::CostModel).
Ways faster_ways(const models::Model& model, const std::vector<Device*>& group, std::span<const double> shares,
                 const machine::MachineModel* machine, const AskedWays& asked);

/// Chooses the faster splits for a placement and stores them in the options. The first group of several devices decides
/// for all groups. A cache on the host stays mirrored. Throws InvalidArgument for a ratio that does not match the
/// devices.
Ways take_faster_ways(const models::Model& model, const models::DeviceGroups& groups, const AskedWays& asked,
                      models::PlacementOptions& options);

}  // namespace shoal::tuning
