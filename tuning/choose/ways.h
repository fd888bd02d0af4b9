// Selects the expert split and the latent split for devices that act as one. Flags can fix a split; otherwise the
// faster split is selected (models/place/expert_split.h, latent_split.h).
//
// Experts are divided *inside* (each device has some columns of every expert) or stay *whole* (each device has some
// experts). With both splits, each layer needs one sum over the devices, so communication takes the same time. The
// split with the shorter product time on the busiest device is faster. Qwen3 30B-A3B uses 8 of 128 experts with 768
// columns. In Q4_K, a unit has 256 columns, so an expert has 3 units. The busiest device then multiplies:
//
//   2 devices   inside: 2 of 3 units, equal to 5.3 experts                     whole: 5.05 of 8 experts
//   6 devices   inside: 1 of 3 units, equal to 2.7 experts; 3 devices idle     whole: 2.9 of 8 experts
//   8 devices   inside: 1 of 3 units, equal to 2.7 experts; 5 devices idle     whole: 2.5 of 8 experts
//
// Mixtral's 14336 columns are 56 units, so each of 8 devices has 7 units. A token uses 2 of 8 experts. With the inside
// split, the token takes the time of 2 / 8 of an expert. With whole experts, the token takes the time of 1.1 experts.
//
// Latent caches are mirrored or divided by rows. The split with the shorter attention time is selected. The attention
// time of divided rows includes the exchange of partial results.
//
// All functions are pure and thread-safe.
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

/// The splits that flags fix, and the work for which the other splits are selected.
struct AskedWays {
  std::optional<models::ExpertSplit> experts = {};  ///< nullopt: select the faster split
  std::optional<models::LatentSplit> latent = {};
  int64_t tokens = 1;  ///< number of tokens in a batch
  int64_t rows = 0;    ///< number of cache rows that a token reads; 0: unknown, so the cache is mirrored
  DType cache_type = DType::kF16;
};
/// Parse the values of the flags: "auto" (returns nullopt), "inside" or "whole" for experts, and "auto", "mirrored" or
/// "rows" for latent caches. Other texts throw InvalidArgument with a list of the valid texts.
std::optional<models::ExpertSplit> parse_expert_split(std::string_view text);
std::optional<models::LatentSplit> parse_latent_split(std::string_view text);

/// The selected splits, and the predicted seconds of the compared splits. The seconds are 0 if nothing was compared.
struct Ways {
  models::ExpertSplit experts = models::ExpertSplit::kInside;
  models::LatentSplit latent = models::LatentSplit::kMirrored;
  int64_t tokens = 1, rows = 0;      ///< number of tokens in the compared batch, and number of cache rows that a token
                                     ///< reads
  double inside = 0, whole = 0;      ///< seconds of the expert products of all layers on the slowest device, for each
                                     ///< split
  double mirrored = 0, by_rows = 0;  ///< seconds of the attention of all layers, including exchanges, for each split
};

/// The faster splits for devices that act as one and have these shares. If the machine model is missing or does not
/// contain one of the devices, the costs are rough defaults (machine::CostModel).
Ways faster_ways(const models::Model& model, const std::vector<Device*>& group, std::span<const double> shares,
                 const machine::MachineModel* machine, const AskedWays& asked);

/// Selects the faster splits for a placement and stores them in the options. The first group with several devices
/// decides for all groups. A cache on the host stays mirrored. Throws InvalidArgument if the ratio does not match the
/// number of devices.
Ways take_faster_ways(const models::Model& model, const models::DeviceGroups& groups, const AskedWays& asked,
                      models::PlacementOptions& options);

}  // namespace shoal::tuning
