// Where a model runs: which device has each weight and each layer's cache. Devices act as one (a meta device with the
// default split policy), or one after the other (each has some of the layers), or both; and layers, caches or single
// tensors can stay on the host's CPU beside them. A Scheduler (sched/scheduler.h) runs the graphs on the devices of a
// placement. Owns the meta devices; members belong to their families. Must outlive the buffers and backends made
// from it.
//
//   devices CPU0,CPU1                          META(CPU0,CPU1) has everything
//   devices CPU0,CPU1, kLayer, ratio 3,1       of 8 layers CPU0 has the first 6, CPU1 the last 2 and the output head
//   devices CPU0+CPU1,CPU2+CPU3, kLayer        META(CPU0,CPU1) the first half of the layers, META(CPU2,CPU3) the second
//   devices CPU0,CPU1, device_layers 2         the host has the embedding and all layers but the last two
//   devices CUDA0, expert_layers 8             the host has the experts of the first eight layers that have any
#pragma once

#include <algorithm>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "meta/meta.h"
#include "models/arch/model.h"
#include "models/place/split_policy.h"

namespace shoal::models {

/// Devices in groups: those of a group act as one.
using DeviceGroups = std::vector<std::vector<Device*>>;
/// All devices in one group.
DeviceGroups joined(const DeviceGroups& groups);

/// Layers of a model that have experts.
int64_t layers_with_experts(const Model& model);

enum class SplitMode : uint8_t {
  kTensor,  ///< all devices act as one, whatever their groups
  kLayer,   ///< each group has some of the layers
};

/// Weights whose names match lie on a device: one that the placement has anyway, or the host.
struct TensorOverride {
  std::string pattern;  ///< regular expression (ECMAScript), found anywhere in the name
  std::string device;   ///< "CPU0", "META(CPU0,CPU1)"
};
/// Throws InvalidArgument for what is no regular expression.
void check_pattern(const std::string& pattern);

/// A device for the model's part next to the groups: `asked`, else a CPU device that is none of them, else any;
/// nullptr: there is none.
Device* find_host(const DeviceGroups& groups, Device* asked);

struct PlacementOptions {
  std::string ratio;  ///< as parse_ratio reads it, of the devices (kTensor) or groups (kLayer); empty: even
  int threads = 0;    ///< of each CPU device; 0: its default
  SplitMode mode = SplitMode::kTensor;
  int64_t device_layers = -1;  ///< the last N layers are on the devices, the rest on the host; -1: everything
  int64_t expert_layers = 0;   ///< the experts of the first N layers that have any are on the host
  bool cache_on_host = false;
  std::vector<TensorOverride> overrides = {};
  /// Where what stays on the host lies; nullptr: on a CPU device that is none of the devices, if there is one.
  Device* host = nullptr;
  /// From this many tokens on, products with weights on the host run on the meta devices, which are sent the weights;
  /// 0: where all members say so (Device::offload_op).
  int64_t offload_batch = 0;
  /// The machine that the devices are of: meta devices plan for its speeds and links (meta::MetaOptions::machine).
  std::shared_ptr<const machine::MachineModel> machine = {};
  /// Collectives of meta devices by which implementation (meta::MetaOptions::comm); empty: its default.
  std::string comm = {};
  /// How meta devices divide routed experts, and have latent caches; tuning/choose/ways.h chooses.
  ExpertSplit experts = ExpertSplit::kInside;
  LatentSplit latent = LatentSplit::kMirrored;
  /// The processes that the devices belong to (processes/remote_device.h); nullptr: all are of this one.
  ProcessGroup* processes = nullptr;

  /// Does something stay on the host, whatever the devices?
  bool uses_host() const { return device_layers >= 0 || expert_layers > 0 || cache_on_host || !overrides.empty(); }
};

class Placement {
 public:
  /// Throws InvalidArgument for no devices, one listed twice, a ratio that does not fit, a pattern that is no regular
  /// expression, or an override to a device that is not here.
  Placement(const Model& model, std::vector<Device*> devices, const PlacementOptions& options = {});
  Placement(const Model& model, DeviceGroups groups, const PlacementOptions& options = {});

  /// Simple devices, each once: members of meta devices too.
  std::span<Device* const> members() const { return members_; }
  /// What the scheduler runs on, in order of priority: one for each group with layers, then the host where it is
  /// needed.
  std::span<Device* const> devices() const { return devices_; }
  /// The first of them.
  Device& device() const { return *devices_.front(); }
  /// Are all devices one meta device?
  bool is_meta() const { return devices_.size() == 1 && policy_of(0) != nullptr; }
  /// Where a weight, or a tensor of the KV cache, lies: a number in devices(). By name.
  int device_of(const Tensor& tensor) const;
  /// How a meta device among devices() divides its tensors; nullptr for a simple device.
  const SplitPolicy* policy_of(int device) const { return policies_[static_cast<size_t>(device)].get(); }
  /// Of the first device, which must be a meta device.
  const SplitPolicy& policy() const { return *policies_.front(); }
  /// Parts of latent caches on meta devices (SplitPolicy::latent_parts()), the same on all.
  int64_t latent_parts() const { return std::max<int64_t>(1, latent_parts_); }
  /// Is one of devices() a meta device of several?
  bool acts_as_one() const { return latent_parts_ > 0; }
  /// Members of devices()[device]: it alone, if it is simple.
  std::span<Device* const> members_of(int device) const;
  /// A stream of work on each of devices(), with the threads asked for.
  std::vector<std::unique_ptr<Backend>> init() const;

 private:
  void place_layers(const Model& model, const DeviceGroups& groups, const PlacementOptions& options);
  void add_device(const Model& model, const std::vector<Device*>& group, std::span<const double> shares,
                  const PlacementOptions& options);
  int host_index(const DeviceGroups& groups);
  void place_experts(const Model& model, const DeviceGroups& groups, int64_t layers);
  void override_tensors(const Model& model, const DeviceGroups& groups, const std::vector<TensorOverride>& overrides);

  int threads_ = 0;
  int64_t latent_parts_ = 0;  ///< as the first meta device of several has; 0: there is none
  Device* host_ = nullptr;
  std::vector<Device*> members_, devices_;
  std::vector<std::string> params_;                     ///< for Device::init, one for each of devices_
  std::vector<std::unique_ptr<SplitPolicy>> policies_;  ///< nullptr for simple devices
  std::vector<std::unique_ptr<meta::MetaDevice>> metas_;
  std::vector<std::vector<Device*>> groups_;    ///< members of each of devices_
  std::unordered_map<std::string, int> homes_;  ///< weights and caches by name
};

}  // namespace shoal::models
