// Formats predictions for `shoal plan` and `shoal simulate`: tables for users, JSON for scripts. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tuning/choose/compare.h"

namespace shoal::tools {

/// Spare memory of a device, such as "2.1 GiB (20 %)", or the missing memory, such as "1.2 GiB short".
std::string margin_text(const models::DeviceUse& use);
/// The device with the least spare memory.
const models::DeviceUse& fullest(const tuning::Verdict& verdict);
/// An array with one object per device. Its keys are "device", "weights", "kv", "compute", "communication", "total",
/// "mapped", "memory", "free", "margin" and "margin_percent". Sizes are in bytes.
nlohmann::ordered_json memory_json(std::span<const models::DeviceUse> memory);
/// The predicted speeds, the components of the predicted times, and the imbalance. `origin`: source of the machine's
/// performance data.
std::string prediction_text(const tuning::Verdict& prediction, const std::string& origin);
/// All candidates, fastest first, and the recommendation.
std::string comparison_text(const tuning::Comparison& comparison, tuning::Objective objective);

/// The shares: [3, 1]. One number for each device, or for each group with -sm layer.
nlohmann::json shares_json(const tuning::Choice& choice);
/// An object with the keys "name", "devices", "device_list", "split_mode", "tensor_split", "host", "split_key",
/// "context", "fits", "from_disk", "prompt", "generation" and "memory". "prompt" and "generation" are objects with the
/// keys "tokens", "depth", "seconds", "tokens_per_second", "imbalance", "communication_seconds", "copy_seconds",
/// "disk_seconds", "host_seconds", "collectives" and "devices".
nlohmann::json prediction_json(const tuning::Verdict& prediction);
/// Adds "candidates", "recommended" (the best candidate, or null), "reason", and "remedies" if nothing fits.
void add_comparison(nlohmann::json& json, const tuning::Comparison& comparison);
/// Describes how meta devices divide routed experts and a latent cache, with the predicted time of each mode. Returns
/// "" if no meta device has routed experts or a latent cache.
std::string ways_text(const models::Model& model, const models::Placement& placement, const tuning::Ways& ways);
/// Adds the contents of ways_text() as JSON: "experts" with "split", and "latent_cache" with "split" and "parts". If
/// "split" was chosen by cost, "experts" also has "tokens", "inside_seconds" and "whole_seconds", and "latent_cache"
/// also has "rows", "tokens", "mirrored_seconds" and "rows_seconds".
void add_ways(nlohmann::json& json, const models::Model& model, const models::Placement& placement,
              const tuning::Ways& ways);
/// models::split_units() as JSON: {"query_heads": 4, "feed_forward": 24, "vocabulary": 32}.
nlohmann::json units_json(const models::Model& model);

}  // namespace shoal::tools
