// Searches for single dimensions of a choice. Each search changes one dimension of the given choice and compares the
// chooser's verdicts.
//
//   dimension    flags              free with              search
//   shares       -ts                -ts auto               fastest_shares(): moves parts between devices, by time
//                                   remedies               shares_by_free_memory(): in proportion to the devices' room
//   context      -c                 --fit, -c 0            largest_plan(): interpolates between two plans
//   host         -ngl -ncmoe        --fit                  host_parts(): bisects layers and experts
//   groups, mode --devices -sm      plan --recommend       useful_sets(), for compare() in compare.h
//   ways         --expert-split ... auto                   faster_ways() in ways.h
//   cache types  -ctk -ctv          auto                   Chooser::choose(): the widest first
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tuning/choose/chooser.h"

namespace shoal::tuning {

/// Contexts are tried in multiples of this number of tokens.
inline constexpr int64_t kContextStep = 32;

/// Returns the plan with the choice's context if it leaves the margin. Otherwise returns the plan with the largest
/// context that leaves the margin, a multiple of 32 or `least`. If no context leaves room for mapped weights, weights
/// may be read from the disk. nullopt: not even `least` fits. `most_prompts`: see ModelPlan.
std::optional<models::ModelPlan> largest_plan(Chooser& chooser, const Choice& choice, Margin margin, int64_t least,
                                              size_t most_prompts);

struct ShareLimits {
  int predictions = 0;  ///< limit of predictions; 0: in proportion to the number of shares, at most 96
  /// Every device or group gets at least one unit (of the feed-forward block, or a layer).
  bool all_take_part = false;
};
struct FoundShares {
  Verdict best;  ///< the fastest fitting verdict; if nothing fits, the verdict with the least missing memory
  Verdict even;
  int predictions = 0;  ///< number of different splits that were predicted
};
/// Finds the fastest shares. The search starts from even shares and from shares in proportion to the devices' speed. If
/// shares do not fit, the excess of a device moves to other devices. Then smaller and smaller parts move between
/// devices as long as the predicted time falls. Requires a machine. Throws like Chooser::judge().
///   CPU0 three times as fast as CPU1, 8 KV heads: starts with 3,1 (6 and 2 heads); 7 and 1 or 5 and 3 heads are
///   slower, so the result is 3,1
FoundShares fastest_shares(Chooser& chooser, const Choice& choice, const ShareLimits& limits = {});
/// The shares with the shortest text that give the same split: 3,1 for {0.7512, 0.2488}. Decimals if no whole numbers
/// up to 99 give this split.
std::vector<double> simplest_shares(const Chooser& chooser, const Choice& choice);
/// Shares in proportion to the speed at which each device or group runs the model alone, even if the model does not fit
/// on it.
std::vector<double> shares_by_speed(Chooser& chooser, const Choice& choice);
/// The shares of a verdict, changed as little as possible so that each device has enough memory.
std::vector<double> clipped_by_memory(const Verdict& verdict);
/// A function that returns the memory of a choice.
using UsesOf = std::function<std::vector<models::DeviceUse>(const Choice&)>;
/// Shares in proportion to the room that each device or group has for divided tensors; numbers of layers in kLayer
/// mode.
///   RTX4090 (24 GB), L40S (48 GB):  even shares have room for 37000 tokens, 0.34,0.66 for 90100
std::vector<double> shares_by_free_memory(Chooser& chooser, const Choice& choice, const UsesOf& uses_of);
/// Number of layers for each group. Minimises the used fraction of the fullest group's room. `uses`: memory for any
/// division of the layers; only its compute and communication memory is read. `margin`: bytes that stay free on each
/// device.
std::vector<double> layers_by_free_memory(const Chooser& chooser, const Choice& choice,
                                    std::span<const models::DeviceUse> uses, size_t margin = 0);

/// The device for weights that stay on the host: the host in the options, otherwise a CPU of this machine. nullptr if
/// the devices are CPUs themselves (they share the memory of the host), or if the options already decide which weights
/// stay on the host.
Device* find_host(std::span<Device* const> devices, const models::PlacementOptions& options);
/// Choices that leave as little as possible on the host, as verdicts sorted by time. The part on the host is the
/// experts of the first layers (a token uses few of them), whole layers, or both. Without figures of the devices,
/// experts come first and verdicts have no time. The result is empty if everything fits on the devices, if there is no
/// host, or if no part is enough. The choices leave the margin. If no choice leaves it, weights on the host may be read
/// from the disk.
///   4 x 24 GB, 404 GB of DeepSeek V3:  -ncmoe 49 with divided layers; -ncmoe 50 with all devices per layer; -ngl 13
std::vector<Verdict> host_parts(Chooser& chooser, const Choice& choice, const Margin& margin);

/// Sets of devices in order of size, one of each group of equivalent sets. Sets are equivalent if their devices have
/// the same figures (within 10 %) and the same free memory, and share domains in the same way. If there are more than
/// 64 sets, returns only the sets of the first 1, 2, 3, ... devices by bandwidth.
///   four equal devices: one set each of 1, 2, 3 and 4 devices instead of 15 sets
std::vector<std::vector<Device*>> useful_sets(std::span<Device* const> devices, const machine::MachineModel& machine);
/// For each set, the index of the first equivalent set.
std::vector<size_t> alike_sets(std::span<const std::vector<Device*>> sets, const machine::MachineModel& machine);
/// A number for each device of the set, equal for interchangeable devices. Devices are interchangeable if they are of
/// one kind and either share a domain or are each alone in equal domains.
std::vector<size_t> exchangeable(std::span<Device* const> set, const machine::MachineModel& machine);
/// Whether all devices are interchangeable.
bool are_alike(std::span<Device* const> set, const machine::MachineModel& machine);

}  // namespace shoal::tuning
