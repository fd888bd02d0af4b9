// Groups of flags that several commands share, and what they mean.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "models/place/placement.h"
#include "models/session/loader.h"
#include "models/session/sampler.h"
#include "models/session/session.h"
#include "tools/cli/placement_flags.h"
#include "tools/cli/split_profile.h"
#include "tuning/choose/chooser.h"
#include "tuning/predict.h"

namespace shoal::tools {

/// The value of --tensor-split with which the chooser finds the shares.
inline constexpr std::string_view kAutoRatio = "auto";

/// -m
struct ModelFlags {
  std::string path;
  void add_to(CLI::App& app);
};

/// --plugin
struct PluginFlags {
  std::vector<std::string> files;
  void add_to(CLI::App& app);
  /// Loads those named, then those found where plug-ins are looked for. Throws what Registry::load throws for one
  /// named; one found that cannot be used is in the report.
  PluginReport load() const;
};

/// --devices, each by itself: of probe and bench-comm
struct SingleDevicesFlag {
  std::string list = "all";
  CLI::Option* add_to(CLI::App& app, const std::string& help);
  /// Of all processes. `all`: the names of this process's devices that "all" stands for.
  std::vector<Device*> find(const std::function<std::string()>& all) const;
};

/// Most devices that exchange data by collectives: with layers those of a group, else all.
int devices_together(models::SplitMode mode, std::span<const int> group_sizes);

/// -dev -ts -t --plugin, and where the parts of a model go: those of SplitFlags and HostFlags
struct DeviceFlags {
  PluginFlags plugins;
  std::vector<std::string> names;  ///< until check() none, where the user has named none, or "all"
  std::vector<int> group_sizes;    ///< of the names: those of a group act as one
  std::string ratio;               ///< "auto": the chooser finds it
  int threads = 0;
  void add_to(CLI::App& app);
  /// Reads the profile that the ratio may name (split_profile.h), and takes devices and mode from there where the user
  /// has not given them. Where there is none either, the devices are default_devices(), and all_devices() in place of
  /// "all": plug-ins are loaded for that.
  /// Throws UsageError for a ratio that is none, or one for another number of devices.
  void check();
  void take(const std::string& devices);
  /// Of SplitFlags, for these devices.
  void warn_of_ways(const models::Model& model) const {
    split.warn_of_ways(model, devices_together(split.mode, group_sizes));
  }
  void add_layers_to(CLI::App& app);
  void add_comm_to(CLI::App& app);
  /// Loads the plug-ins; the devices named (see device_names.h).
  std::vector<Device*> find() const;
  models::DeviceGroups find_groups() const;
  /// As many devices as names, in the groups that the names were in.
  models::DeviceGroups grouped(std::span<Device* const> devices) const;
  /// The choice of these flags for the groups: shares are free with "auto".
  tuning::Asked asked(models::DeviceGroups groups) const;

  std::string list;  ///< of devices, as the user has named them; "": not named
  std::string comm;  ///< of --comm; "": not given
  SplitFlags split;
  std::optional<SplitProfile> profile;  ///< that check() has read
  HostFlags host;
};

/// Throws UsageError where --comm asks for what a single device has no use of. `together`: devices_together().
void check_comm(const std::string& comm, models::SplitMode mode, int together);

/// --mmap --no-mmap --repack --no-repack
struct LoadFlags {
  std::optional<bool> mmap;  ///< as the user says
  bool repack = true;
  void add_to(CLI::App& app);
  /// `op_offload`: of the session.
  models::LoadOptions load(bool op_offload) const {
    return {mmap.value_or(true), repack, mmap.value_or(false), op_offload};
  }
};

/// -c -ctk -ctv, and -b -ub where the user has a say in batches, --ctx-checkpoints --checkpoint-every-n-tokens where
/// texts go back
struct ContextFlags {
  int64_t context = 0;
  int64_t batch = 2048;
  int64_t ubatch = 512;
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
  bool auto_k = false, auto_v = false;  ///< the widest types that fit
  bool op_offload = true;
  int64_t checkpoints = 8;
  int64_t checkpoint_every = 8192;
  /// `may_choose`: types may be "auto".
  void add_to(CLI::App& app, bool may_choose = false);
  void add_types_to(CLI::App& app, bool may_choose = false);
  void add_batches_to(CLI::App& app);
  void add_checkpoints_to(CLI::App& app);
  models::SessionOptions session() const { return {context, std::min(batch, ubatch), dtype_k, dtype_v, op_offload}; }
};

/// --fit --fit-ctx --fit-target
struct FitFlags {
  static constexpr int64_t kLeastContext = 4096, kMarginMib = 1024;
  std::optional<bool> on;                            ///< as the user says
  std::optional<int64_t> least_context, margin_mib;  ///< as the user says
  void add_to(CLI::App& app);
  /// Whether the context of -c may shrink, and a part of the model may stay on the host. By default only the trained
  /// length (-c 0) shrinks; with --fit on, or with a limit, an explicit -c does too, and must fit.
  void put_into(tuning::Asked& asked) const;
};

/// -p -n -d, of predictions
struct WorkloadFlags {
  std::optional<int64_t> prompt, generate, depth;  ///< as the user says
  void add_to(CLI::App& app);
  /// Throws InvalidArgument where more tokens are asked for than the context has; what was not asked for becomes less.
  tuning::Workload workload(int64_t context) const;
};

/// --seed --temp --top-k --top-p --min-p, penalties and biases, and --sample-on-host
struct SamplingFlags {
  models::SamplerParams sampler;
  bool random_seed = true;
  bool on_host = false;
  void add_to(CLI::App& app);
  /// --repeat-penalty --presence-penalty --frequency-penalty --penalty-last-n --logit-bias
  void add_penalties_to(CLI::App& app);
  /// Of these only what decides how many candidates the devices select.
  void add_candidates_to(CLI::App& app);
  /// What a session's devices should select for sampling, and for a list of the `listed` best tokens; 0: give all
  /// logits.
  int64_t candidates(int64_t listed = 0) const;
};

/// --output text|json
struct OutputFlag {
  std::string format = "text";
  void add_to(CLI::App& app, const std::string& help = "text or json");
  bool json() const { return format == "json"; }
};

/// The flags that decide how a model runs: of run, chat and plan.
struct ChoiceFlags {
  ModelFlags model;
  DeviceFlags devices;
  ContextFlags context;
  LoadFlags load;
  FitFlags fit;
  void add_to(CLI::App& app);
  /// `candidates`: that the devices select of each output.
  tuning::Asked asked(models::DeviceGroups groups, int64_t candidates) const;
};

}  // namespace shoal::tools
