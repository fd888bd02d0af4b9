// Making a model fit: the largest context for which there is memory (fit.cpp), and what else would help (remedies.cpp).
// By ModelPlan, which allocates nothing; memory grows with the context, so that a few plans find it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tuning/predict.h"

namespace shoal::tuning {

/// Tokens by which contexts are tried.
inline constexpr int64_t kContextStep = 32;

/// What a context has to be that is made to fit.
struct FitOptions {
  int64_t least_context = 4096;  ///< not smaller than this, nor than what was asked for where that is less
  int64_t prompt = 0;            ///< tokens that the context has to hold besides one more
  size_t margin = 0;             ///< bytes that stay free on every device
  /// On CPU devices at least 2 % of the memory and 64 MiB (a sixteenth, where that is less) stay free: what runs beside
  /// the plan, here and in other programs, takes from the same memory, and the system kills what takes too much.
  bool spare_host = false;
  bool from_disk = false;  ///< mapped weights need no memory: they may be read from the disk for every token
  bool required = true;    ///< where not even the least context fits, that is an error

  int64_t least() const { return std::max(least_context, prompt + 1); }
};

/// What has to stay free on a device.
size_t margin_of(const models::DeviceUse& use, const FitOptions& options);
/// Bytes that a device has beyond what is needed and what has to stay free, negative if it does not fit.
int64_t spare_bytes(const models::DeviceUse& use, const FitOptions& options);

/// Is one of them of a kind that repacks weights? To others it is all the same.
bool repack_weights(std::span<Device* const> devices);

/// Has every device as much memory as it needs, and the margin?
bool fits(std::span<const models::DeviceUse> uses, size_t margin);

/// The plan with the context asked for if that fits; else with the largest that does, a multiple of 32 or the least
/// one. Weights that do not fit repacked may lie as they are in the file. If no context fits with mapped weights in
/// memory, they may be read from the disk. nullopt: not even the least context fits.
std::optional<models::ModelPlan> largest_plan(const models::Model& model, const models::Placement& placement,
                                              const models::SessionOptions& session, const models::LoadOptions& load,
                                              const FitOptions& options);
/// Its context.
std::optional<int64_t> largest_context(const models::Model& model, const models::Placement& placement,
                                       const models::SessionOptions& session, const models::LoadOptions& load,
                                       const FitOptions& options);

/// How a split differs from what was asked for.
struct SplitChange {
  std::string devices;                         ///< "CPU0,CPU1"; "": the same
  std::string ratio;                           ///< "3,1"; "": the same
  std::optional<models::SplitMode> mode = {};  ///< nullopt: the same
};

/// A context for which there is memory, and all that has to change for it.
struct ContextThatFits {
  int64_t context = 0;
  Candidate candidate;  ///< with the shares for it
  SplitChange change;
  bool q8_0_cache = false;
  bool repacks = true;  ///< false: only with weights as they are in the file
};

/// What would make a model fit that does not; each by itself.
struct Remedies {
  std::vector<models::DeviceUse> lacking;       ///< devices that need more than they have
  std::optional<ContextThatFits> context;       ///< the largest, with any shares in any of the ways
  std::optional<ContextThatFits> context_q8_0;  ///< and with a q8_0 cache, where that is more
  double bits = 0;                              ///< bits per weight of the file
  std::optional<double> bits_that_fit;          ///< with the context asked for
  SplitChange bits_change;                      ///< that it takes, too
  std::vector<std::string> quantisations;       ///< with no more bits than that, and smaller than the file's: "Q4_K_M"
  std::optional<int> more_devices;              ///< this many like `device`
  std::string device;                           ///< that has most memory
  bool even_shares = true;                      ///< false: with shares chosen for these devices
  std::optional<models::SplitMode> devices_mode;  ///< another than was asked for
  bool none() const { return !context && !context_q8_0 && !bits_that_fit && !more_devices; }
};

/// `asked`: a prediction that does not fit. `groups` and the mode and ratio of `scenario.placement` are what was asked
/// for: changes are from there. `ways`: devices and modes to look at, the ones that are liked best first; their shares
/// do not count.
Remedies remedies(const Scenario& scenario, const Prediction& asked, const models::DeviceGroups& groups,
                  std::span<const Candidate> ways);
/// For the devices of the candidate, in either mode.
Remedies remedies(const Scenario& scenario, const Prediction& asked);

}  // namespace shoal::tuning
