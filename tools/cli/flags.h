// Groups of flags that several commands share.
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

/// Value of --tensor-split that lets the chooser find the shares.
inline constexpr std::string_view kAutoRatio = "auto";

/// -m or -hf
struct ModelFlags {
  std::string path;        ///< with -hf: "" until resolve_repositories() has found the file
  std::string repository;  ///< value of -hf; "" if not given
  void add_to(CLI::App& app);
};

/// --plugin
struct PluginFlags {
  std::vector<std::string> files;
  void add_to(CLI::App& app);
  /// Loads the named plug-ins, then the plug-ins found in the plug-in directories. Throws the errors of Registry::load
  /// for a named plug-in. A found plug-in that cannot be used is listed in the report.
  PluginReport load() const;
};

/// --devices as a list of single devices without groups, for probe and bench-comm
struct SingleDevicesFlag {
  std::string list = "all";
  CLI::Option* add_to(CLI::App& app, const std::string& help);
  /// The devices of all processes. `all`: returns the device names for which "all" stands in this process.
  std::vector<Device*> find(const std::function<std::string()>& all) const;
};

/// Maximum number of devices that exchange data by collectives. With -sm layer, this number is the size of the largest
/// group. Otherwise, this number is the number of all devices.
int devices_together(models::SplitMode mode, std::span<const int> group_sizes);

/// -dev -ts -t --plugin. add_layers_to() adds --comm and the placement flags in SplitFlags and HostFlags.
struct DeviceFlags {
  PluginFlags plugins;
  std::vector<std::string> names;  ///< may be empty before check()
  std::vector<int> group_sizes;    ///< number of devices in each group of `names`; the devices of a group act as one
                                   ///< device
  std::string ratio;               ///< "auto": the chooser finds the shares
  int threads = 0;
  void add_to(CLI::App& app);
  /// Completes and checks the flags. If `ratio` names a profile (split_profile.h), reads the profile. The profile
  /// supplies the devices and the mode if the command line does not contain them. If neither the command line nor the
  /// profile names devices, uses default_devices(). Replaces "all" with all_devices(). Loads the plug-ins before a call
  /// of default_devices() or all_devices(). Throws UsageError for an invalid ratio, and for a ratio whose number of
  /// shares differs from the number of devices or groups.
  void check();
  void take(const std::string& devices);
  /// Calls SplitFlags::warn_of_ways() for these devices.
  void warn_of_ways(const models::Model& model) const {
    split.warn_of_ways(model, devices_together(split.mode, group_sizes));
  }
  void add_layers_to(CLI::App& app);
  void add_comm_to(CLI::App& app);
  /// Loads the plug-ins and returns the named devices (device_names.h).
  std::vector<Device*> find() const;
  models::DeviceGroups find_groups() const;
  /// Divides `devices` into the groups of the names. `devices` contains one device for each name.
  models::DeviceGroups grouped(std::span<Device* const> devices) const;
  /// The request that these flags make for the groups. With "auto", the chooser finds the shares.
  tuning::Asked asked(models::DeviceGroups groups) const;

  std::string list;  ///< value of --devices; "" if not given
  std::string comm;  ///< value of --comm; "" if not given
  SplitFlags split;
  std::optional<SplitProfile> profile;  ///< the profile that check() read
  HostFlags host;
};

/// Throws UsageError if --comm names an implementation that needs several devices, but `together` is 1. `together`:
/// devices_together().
void check_comm(const std::string& comm, models::SplitMode mode, int together);

/// --mmap --no-mmap --repack --no-repack
struct LoadFlags {
  std::optional<bool> mmap;  ///< nullopt: not given
  bool repack = true;
  void add_to(CLI::App& app);
  /// `op_offload`: as in SessionOptions.
  models::LoadOptions load(bool op_offload) const {
    return {mmap.value_or(true), repack, mmap.value_or(false), op_offload};
  }
};

/// -c -ctk -ctv. add_batches_to() adds -b -ub; add_checkpoints_to() adds --ctx-checkpoints.
struct ContextFlags {
  int64_t context = 0;
  int64_t batch = 2048;
  int64_t ubatch = 512;
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
  bool auto_k = false, auto_v = false;  ///< true: the chooser chooses the widest type that fits
  bool op_offload = true;
  int64_t checkpoints = 8;
  /// `may_choose`: whether cache types may also be "auto".
  void add_to(CLI::App& app, bool may_choose = false);
  void add_types_to(CLI::App& app, bool may_choose = false);
  void add_batches_to(CLI::App& app);
  void add_checkpoints_to(CLI::App& app);
  models::SessionOptions session() const { return {context, std::min(batch, ubatch), dtype_k, dtype_v, op_offload}; }
};

/// --fit --fit-ctx --fit-target
struct FitFlags {
  static constexpr int64_t kLeastContext = 4096, kMarginMib = 1024;
  std::optional<bool> on;                            ///< nullopt: not given
  std::optional<int64_t> least_context, margin_mib;  ///< nullopt: not given
  void add_to(CLI::App& app);
  /// With --fit on, lets the chooser reduce the context and keep parts of the model on the host. Without --fit, has the
  /// same effect with the training context (-c 0), with --fit-ctx or with --fit-target. A model that does not fit is
  /// then an error only with --fit on or an explicit -c.
  void put_into(tuning::Asked& asked) const;
};

/// -p -n -d -np for predictions
struct WorkloadFlags {
  std::optional<int64_t> prompt, generate, depth;  ///< nullopt: not given
  int64_t sequences = 1;
  void add_to(CLI::App& app);
  /// The work to predict. Default counts shrink to fit into the context. Throws InvalidArgument if counts from the
  /// command line do not fit.
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
  /// Adds only the flags that decide how many candidates the devices select.
  void add_candidates_to(CLI::App& app);
  /// Number of candidates that the devices select, enough for sampling and for a list of the `listed` best tokens. 0:
  /// the devices return all logits.
  int64_t candidates(int64_t listed = 0) const;
};

/// --output text|json
struct OutputFlag {
  std::string format = "text";
  void add_to(CLI::App& app, const std::string& help = "Output format: text or json");
  bool json() const { return format == "json"; }
};

/// The flags that decide how a model runs, for run, chat and plan.
struct ChoiceFlags {
  ModelFlags model;
  DeviceFlags devices;
  ContextFlags context;
  LoadFlags load;
  FitFlags fit;
  void add_to(CLI::App& app);
  /// `candidates`: number of candidates that the devices select for each output.
  tuning::Asked asked(models::DeviceGroups groups, int64_t candidates) const;
};

}  // namespace shoal::tools
