// Predictions as `shoal plan` and `shoal simulate` print them: tables for people, JSON for scripts. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tuning/choose/compare.h"

namespace shoal::tools {

/// "2.1 GiB (20 %)": what a device has to spare; "1.2 GiB short".
std::string margin_text(const models::DeviceUse& use);
/// The device with least to spare.
const models::DeviceUse& fullest(const tuning::Verdict& verdict);
/// For each device {"device", "weights", "kv", "compute", "communication", "total", "mapped", "memory", "free",
/// "margin", "margin_percent"}; in bytes.
nlohmann::ordered_json memory_json(std::span<const models::DeviceUse> memory);
/// Speeds, what the time goes to, imbalance. `origin`: of the machine's figures.
std::string prediction_text(const tuning::Verdict& prediction, const std::string& origin);
/// All candidates, fastest first, and what to take.
std::string comparison_text(const tuning::Comparison& comparison, tuning::Objective objective);

/// [3, 1]: one number for each device, or group with layers.
nlohmann::json shares_json(const tuning::Choice& choice);
/// {"name", "devices", "split_mode", "tensor_split", "host", "split_key", "context", "fits", "from_disk", "prompt",
/// "generation", "memory"}; of a phase {"tokens", "depth", "seconds", "tokens_per_second", "imbalance",
/// "communication_seconds", "copy_seconds", "disk_seconds", "host_seconds", "collectives", "devices"}.
nlohmann::json prediction_json(const tuning::Verdict& prediction);
/// Adds "candidates", "recommended" (the best one, or null), "reason", and "remedies" if nothing fits.
void add_comparison(nlohmann::json& json, const tuning::Comparison& comparison);
/// Lines: how meta devices divide routed experts and a latent cache, and why. "" if there is neither.
std::string ways_text(const models::Model& model, const models::Placement& placement, const tuning::Ways& ways);
/// Adds the same as "experts": {"split", and if that was chosen "tokens", "inside_seconds", "whole_seconds"}, and as
/// "latent_cache": {"split", "parts", and if that was chosen "rows", "tokens", "mirrored_seconds",
/// "rows_seconds"}.
void add_ways(nlohmann::json& json, const models::Model& model, const models::Placement& placement,
              const tuning::Ways& ways);
/// {"query_heads": 4, "feed_forward": 24, "vocabulary": 32}: models::split_units.
nlohmann::json units_json(const models::Model& model);

}  // namespace shoal::tools
