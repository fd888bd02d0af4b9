// Predictions as `shoal plan` and `shoal simulate` print them: tables for people, JSON for scripts. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tuning/choose/compare.h"

namespace shoal::tools {

/// Spare memory of a device as a part of the bytes that are free.
double spare_part(const models::DeviceUse& use);
/// {"device", "weights", "kv", "compute", "communication", "total"}: memory in bytes.
template <class Json>
Json use_json(const models::DeviceUse& use) {
  return {{"device", use.device},
          {"weights", use.use.weights},
          {"kv", use.use.cache},
          {"compute", use.use.compute},
          {"communication", use.use.communication},
          {"total", use.use.total()}};
}
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
/// For each device {"device", "total", "free", "margin", "margin_percent"}; in bytes.
nlohmann::json margins_json(std::span<const models::DeviceUse> memory);
/// Adds "candidates", "recommended" (the best one, or null), "reason", and "remedies" if nothing fits.
void add_comparison(nlohmann::json& json, const tuning::Comparison& comparison);
/// A line: how meta devices divide routed experts, and why. "" where there are none.
std::string experts_text(const models::Model& model, const models::Placement& placement, const tuning::Ways& ways);
/// Adds the same as "experts": {"split", and where that was chosen "tokens", "inside_seconds", "whole_seconds"}.
void add_experts(nlohmann::json& json, const models::Model& model, const models::Placement& placement,
                 const tuning::Ways& ways);
/// A line: how meta devices have a latent cache, and why. "" where there is none.
std::string latent_cache_text(const models::Model& model, const models::Placement& placement, const tuning::Ways& ways);
/// Adds the same as "latent_cache": {"split", "parts", and where that was chosen "rows", "tokens", "mirrored_seconds",
/// "rows_seconds"}.
void add_latent_cache(nlohmann::json& json, const models::Model& model, const models::Placement& placement,
                      const tuning::Ways& ways);
/// {"query_heads": 4, "feed_forward": 24, "vocabulary": 32}: models::split_units.
nlohmann::json units_json(const models::Model& model);

}  // namespace shoal::tools
