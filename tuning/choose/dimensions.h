// Searches for single fields of a choice. Each search changes one field of the given choice and compares the verdicts
// of the chooser.
//
//   field        flags              searched with          search
//   shares       -ts                -ts auto               fastest_shares(): moves fractions between devices, by time
//                                   remedies               shares_by_free_memory(): in proportion to free memory
//   context      -c                 --fit, -c 0            largest_plan(): interpolates between two plans
//   host         -ngl -ncmoe        --fit                  host_parts(): bisects layers and experts
//   groups, mode --devices -sm      plan --recommend       useful_sets(), for compare() in compare.h
//   splits       --expert-split ... auto                   faster_ways() in ways.h
//   cache types  -ctk -ctv          auto                   Chooser::choose(): tries the widest types first
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tuning/choose/chooser.h"

namespace shoal::tuning {

/// Searched contexts are multiples of this number of tokens.
inline constexpr int64_t kContextStep = 32;

/// Returns the plan with the context of the choice if this plan leaves the margin free. Otherwise, returns the plan
/// with the largest context that leaves the margin free: a multiple of 32, or `least`. If mapped weights do not fit
/// into memory with any context, they may be read from the disk. Returns nullopt if not even `least` fits.
/// `most_prompts`: see ModelPlan.
std::optional<models::ModelPlan> largest_plan(Chooser& chooser, const Choice& choice, Margin margin, int64_t least,
                                              size_t most_prompts);

struct ShareLimits {
  int predictions = 0;  ///< limit of the number of predictions; 0: in proportion to the number of shares, at most 96
  /// Whether every device gets at least one unit of the feed-forward block (kTensor), or every group gets at least one
  /// layer (kLayer).
  bool all_take_part = false;
};
struct FoundShares {
  Verdict best;  ///< the fastest verdict that fits; if nothing fits, the verdict with the fewest missing bytes
  Verdict even;
  int predictions = 0;  ///< number of different splits with a prediction
};
/// Finds the fastest shares. The search starts from even shares and from shares in proportion to the speed of the
/// devices. If shares do not fit on a device, the search moves the excess to other devices. The search then moves
/// smaller and smaller fractions between devices until the predicted time no longer falls. Requires a machine model.
/// Throws the exceptions of Chooser::judge().
///
///   CPU0 three times as fast as CPU1, 8 KV heads: starts with 3,1 (6 and 2 heads); 7 and 1 or 5 and 3 heads are
///   slower, so the result is 3,1
FoundShares fastest_shares(Chooser& chooser, const Choice& choice, const ShareLimits& limits = {});
/// The shares with the shortest text that give the same split as the choice, such as 3,1 for {0.7512, 0.2488}. The
/// shares are decimals if no whole numbers up to 99 give this split.
std::vector<double> simplest_shares(const Chooser& chooser, const Choice& choice);
/// Shares in proportion to speed. The speed of each device or group is predicted for the whole model, even if the model
/// does not fit on this device or group.
std::vector<double> shares_by_speed(Chooser& chooser, const Choice& choice);
/// Changes the shares of a verdict as little as possible so that each device has enough memory.
std::vector<double> clipped_by_memory(const Verdict& verdict);
/// A function that returns the memory of a choice.
using UsesOf = std::function<std::vector<models::DeviceUse>(const Choice&)>;
/// Shares in proportion to the free memory that each device or group has for divided tensors. In kLayer mode, the
/// shares are numbers of layers.
///
///   RTX4090 (24 GB), L40S (48 GB):  room for 37000 tokens with even shares, and for 90100 with 0.34,0.66
std::vector<double> shares_by_free_memory(Chooser& chooser, const Choice& choice, const UsesOf& uses_of);
/// Number of layers for each group. Fills the free memory of all groups to the same fraction, as far as whole layers
/// allow. `uses`: memory use with any division of the layers; the function reads only the compute and communication
/// memory. `margin`: number of bytes that stay free on each device.
std::vector<double> layers_by_free_memory(const Chooser& chooser, const Choice& choice,
                                    std::span<const models::DeviceUse> uses, size_t margin = 0);

/// The device for weights that stay on the host: the host in the options, otherwise a CPU of this machine. Returns
/// nullptr in these cases:
///
/// - One of the devices is a CPU, which shares the memory of the host.
/// - The options already decide which weights stay on the host.
/// - The options name several processes.
Device* find_host(std::span<Device* const> devices, const models::PlacementOptions& options);
/// Choices with the smallest possible host part, as verdicts sorted by time. The host part contains the experts of the
/// first layers, whole layers, or both. Experts need little time on the host, because a token uses few of them. Without
/// a machine model, choices with experts come first and verdicts have no time. The result is empty if everything fits
/// on the devices, if there is no host, or if no host part is large enough. The choices leave the margin free. If no
/// choice leaves the margin free, weights on the host may be read from the disk.
///
///   4 x 24 GB, 404 GB of DeepSeek V3:  -ncmoe 49 with divided layers; -ncmoe 50 with all devices per layer; -ngl 13
std::vector<Verdict> host_parts(Chooser& chooser, const Choice& choice, const Margin& margin);

/// Sets of devices in order of size, with one set for each group of equivalent sets. Two sets are equivalent under
/// three conditions: their devices have the same measurements and the same free memory (both within 10 %), and the same
/// assignment to domains. If there are more than 12 devices or 64 sets, returns one set for each size n: the n devices
/// with the highest bandwidth.
///
///   four equal devices: one set each of 1, 2, 3 and 4 devices instead of 15 sets
std::vector<std::vector<Device*>> useful_sets(std::span<Device* const> devices, const machine::MachineModel& machine);
/// For each set, the index of the first set that is equivalent to it.
std::vector<size_t> alike_sets(std::span<const std::vector<Device*>> sets, const machine::MachineModel& machine);
/// Numbers the devices of the set. Interchangeable devices get the same number. Devices are interchangeable if they are
/// equal and share a domain. Equal devices in different domains are interchangeable if the domains are equal and
/// contain no other device of the set.
std::vector<size_t> exchangeable(std::span<Device* const> set, const machine::MachineModel& machine);
/// Whether all devices of the set are interchangeable.
bool are_alike(std::span<Device* const> set, const machine::MachineModel& machine);

}  // namespace shoal::tuning
