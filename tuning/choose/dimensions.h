// The searches of single dimensions of a choice. Each takes a choice, changes its dimension alone, and asks the
// chooser's judge.
//
//   dimension    flags              free with              search
//   shares       -ts                -ts auto               fastest_shares(): moves parts between devices, by time
//                                   remedies               roomiest_shares(): in proportion to the devices' room
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

/// Tokens by which contexts are tried.
inline constexpr int64_t kContextStep = 32;

/// The plan with the choice's context if it leaves the margin; else with the largest context that does, a multiple of
/// 32 or `least`. If no context fits with mapped weights in memory, they may be read from the disk. nullopt: not even
/// the least context fits. `most_prompts`: as ModelPlan has it.
std::optional<models::ModelPlan> largest_plan(Chooser& chooser, const Choice& choice, Margin margin, int64_t least,
                                              size_t most_prompts);

struct ShareLimits {
  int predictions = 0;  ///< most of them; 0: in proportion to the number of shares, at most 96
  /// Each device, or group, has a share of at least one unit (of the feed-forward block, or a layer).
  bool all_take_part = false;
};
struct FoundShares {
  Verdict best;  ///< the fastest that fits; if none does, the one that lacks least
  Verdict even;
  int predictions = 0;  ///< different splits that were predicted
};
/// The fastest shares, from even ones and from shares in proportion to the devices' speed. Shares that do not fit give
/// the excess to other devices; then parts move between devices, in smaller and smaller parts, as long as that is
/// predicted to gain. Needs a machine. Throws what Chooser::judge() throws.
///   CPU0 three times as fast as CPU1, 8 KV heads:  start 3,1 -> 6 and 2 heads; 7 and 1 slower, 5 and 3 slower: 3,1
FoundShares fastest_shares(Chooser& chooser, const Choice& choice, const ShareLimits& limits = {});
/// The shortest shares with the same split: 3,1 for {0.7512, 0.2488}; with few decimals if no numbers up to 99 have it.
std::vector<double> simplest_shares(const Chooser& chooser, const Choice& choice);
/// Shares in proportion to the speed of each sharer by itself, whether the model would fit there or not.
std::vector<double> shares_by_speed(Chooser& chooser, const Choice& choice);
/// The smallest change of a verdict's shares after which no device needs more than its memory, as far as the verdict
/// tells.
std::vector<double> clipped_by_memory(const Verdict& verdict);
/// Memory of a choice.
using UsesOf = std::function<std::vector<models::DeviceUse>(const Choice&)>;
/// Shares in proportion to the memory that each sharer has for its part, in kLayer mode whole layers.
///   RTX4090 (24 GB), L40S (48 GB):  even shares have room for 37000 tokens, 0.34,0.66 for 90100
std::vector<double> roomiest_shares(Chooser& chooser, const Choice& choice, const UsesOf& uses_of);
/// Layers for each group, as few as possible for the fullest one. `uses`: memory with some division of the layers, of
/// which the memory to compute counts. `margin`: bytes that stay free on each device.
std::vector<double> roomiest_layers(const Chooser& chooser, const Choice& choice,
                                    std::span<const models::DeviceUse> uses, size_t margin = 0);

/// A place for a part of the model: the host of the options, or a CPU of this machine. nullptr: next to CPUs, which
/// have the same memory, or if the options say themselves what stays on the host.
Device* host_beside(std::span<Device* const> devices, const models::PlacementOptions& options);
/// Ways to leave as little as possible on the host, each with its verdict, the fastest first (without figures of the
/// devices: experts before layers): experts of the first layers, of which a token uses few, or whole layers, or both.
/// Empty if everything fits on the devices, if there is no host, or if nothing helps. Ways leave the margin; if none
/// does, the host may read its weights from the disk. Ways without figures have no time.
///   4 x 24 GB, 404 GB of DeepSeek V3:  -ncmoe 49 with layers divided; -ncmoe 50 with all devices on each layer; -ngl
///   13
std::vector<Verdict> host_parts(Chooser& chooser, const Choice& choice, const Margin& margin);

/// Sets of devices that differ: by their figures (give or take 10 %), by their free memory, and by the devices that
/// share a domain. In order of size. If there were more than 64, the sets of the first 1, 2, 3, ... devices by
/// bandwidth.
///   four alike: 1, 2, 3 and 4 of them, not 15 sets
std::vector<std::vector<Device*>> useful_sets(std::span<Device* const> devices, const machine::MachineModel& machine);
/// The number of the first set that is alike, for each set.
std::vector<size_t> alike_sets(std::span<const std::vector<Device*>> sets, const machine::MachineModel& machine);
/// A number for each device of the set. The work of two devices with the same number may be exchanged: they are of one
/// kind, and in one domain, or each alone of the set in domains that are alike.
std::vector<size_t> exchangeable(std::span<Device* const> set, const machine::MachineModel& machine);
/// All devices are of one kind.
bool are_alike(std::span<Device* const> set, const machine::MachineModel& machine);

}  // namespace shoal::tuning
