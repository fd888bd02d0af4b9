// Maps each weight and each layer's cache of a model to a device. With kTensor, several devices form one meta device
// with the default split policy. With kLayer, each group of devices has some of the layers, and the groups run one
// after the other. A group of several devices forms a meta device. Layers, caches or single tensors can stay on the
// host's CPU. A Scheduler (sched/scheduler.h) runs the graphs on the devices of a placement.
//
// A Placement owns its meta devices. Device families own the members of the meta devices. The Placement must outlive
// all buffers and backends of its devices.
//
//   devices CPU0,CPU1                          META(CPU0,CPU1) has the whole model
//   devices CPU0,CPU1, kLayer, ratio 3,1       with 8 layers: CPU0 has 6 layers, CPU1 has 2 layers and the output head
//   devices CPU0+CPU1,CPU2+CPU3, kLayer        with 8 layers: META(CPU0,CPU1) and META(CPU2,CPU3) have 4 layers each
//   devices CPU0,CPU1, device_layers 2         META(CPU0,CPU1) has the last 2 layers; the host has all other tensors
//   devices CUDA0, expert_layers 8             the host has the experts of the first 8 layers that have experts
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

/// Devices in groups. The devices of a group act as one.
using DeviceGroups = std::vector<std::vector<Device*>>;
/// Returns one group with all devices.
DeviceGroups joined(const DeviceGroups& groups);

/// Number of layers that have experts.
int64_t layers_with_experts(const Model& model);

enum class SplitMode : uint8_t {
  kTensor,  ///< all devices act as one, regardless of groups
  kLayer,   ///< each group has some of the layers
};

/// Places weights with matching names on one device: a device of the placement, or the host.
struct TensorOverride {
  std::string pattern;  ///< ECMAScript regular expression, matched anywhere in the name
  std::string device;   ///< name of the device, such as "CPU0" or "META(CPU0,CPU1)"; "CPU": the host
};
/// Throws InvalidArgument if `pattern` is not a regular expression.
void check_pattern(const std::string& pattern);

/// Returns the device for the part of the model that stays on the host: `asked` if given, else a CPU device outside the
/// groups, else any CPU device. Returns nullptr if there is no CPU device.
Device* find_host(const DeviceGroups& groups, Device* asked);

struct PlacementOptions {
  std::string ratio;  ///< text for parse_ratio(), with one share per device (kTensor) or per group (kLayer); empty:
                      ///< even shares
  int threads = 0;    ///< number of threads of each CPU device; 0: the device's default
  SplitMode mode = SplitMode::kTensor;
  int64_t device_layers = -1;  ///< the last `device_layers` layers are on devices, and earlier layers are on the host;
                               ///< -1: all layers are on devices
  int64_t expert_layers = 0;   ///< the experts of the first `expert_layers` layers with experts are on the host
  bool cache_on_host = false;
  std::vector<TensorOverride> overrides = {};
  /// Device for the part of the model that stays on the host; nullptr: chosen by find_host().
  Device* host = nullptr;
  /// Minimum number of tokens in a batch for which meta devices copy weights from the host and compute the products. 0:
  /// a meta device copies weights if all its members request the copies (Device::offload_op).
  int64_t offload_batch = 0;
  /// Model of the machine that contains the devices. The plans of meta devices depend on the speeds and links of this
  /// machine (meta::MetaOptions::machine).
  std::shared_ptr<const machine::MachineModel> machine = {};
  /// Implementation of the collectives of meta devices (meta::MetaOptions::comm); empty: the default.
  std::string comm = {};
  /// Modes of dividing routed experts and latent caches in meta devices. tuning/choose/ways.h selects these modes.
  ExpertSplit experts = ExpertSplit::kInside;
  LatentSplit latent = LatentSplit::kMirrored;
  /// The processes that own the devices (processes/remote_device.h); nullptr if all devices belong to this process.
  ProcessGroup* processes = nullptr;

  /// Whether these options place layers, experts, caches or tensors on the host, even if the device list does not
  /// contain the host.
  bool uses_host() const { return device_layers >= 0 || expert_layers > 0 || cache_on_host || !overrides.empty(); }
};

class Placement {
 public:
  /// Throws InvalidArgument in these cases:
  /// - There are no devices, or a device is listed twice.
  /// - parse_ratio() rejects the ratio.
  /// - A pattern is not a regular expression, or matches no tensor.
  /// - An override names a device outside the placement.
  /// - expert_layers > 0, but the model has no experts.
  /// - The options place parts of the model on the host, but there is no CPU device, or PlacementOptions::processes is
  ///   set.
  Placement(const Model& model, std::vector<Device*> devices, const PlacementOptions& options = {});
  Placement(const Model& model, DeviceGroups groups, const PlacementOptions& options = {});

  /// All simple devices, each once, including members of meta devices.
  std::span<Device* const> members() const { return members_; }
  /// Devices for the scheduler, in order of priority: one for each group with layers, then the host if needed.
  std::span<Device* const> devices() const { return devices_; }
  /// The first of devices().
  Device& device() const { return *devices_.front(); }
  /// Whether there is only one device and it is a meta device.
  bool is_meta() const { return devices_.size() == 1 && policy_of(0) != nullptr; }
  /// Index in devices() of the device that holds a weight or KV cache tensor. The tensor is looked up by name.
  int device_of(const Tensor& tensor) const;
  /// Split policy of devices()[device]; nullptr for a simple device.
  const SplitPolicy* policy_of(int device) const { return policies_[static_cast<size_t>(device)].get(); }
  /// Split policy of the first device, which must be a meta device.
  const SplitPolicy& policy() const { return *policies_.front(); }
  /// Number of parts of each latent cache (SplitPolicy::latent_parts()). All meta devices have the same number.
  int64_t latent_parts() const { return std::max<int64_t>(1, latent_parts_); }
  /// Whether devices() contains a meta device with several members.
  bool acts_as_one() const { return latent_parts_ > 0; }
  /// Members of devices()[device]. The only member of a simple device is the device itself.
  std::span<Device* const> members_of(int device) const;
  /// Creates a backend on each of devices(), with the requested number of threads.
  std::vector<std::unique_ptr<Backend>> init() const;

 private:
  void place_layers(const Model& model, const DeviceGroups& groups, const PlacementOptions& options);
  void add_device(const Model& model, const std::vector<Device*>& group, std::span<const double> shares,
                  const PlacementOptions& options);
  int host_index(const DeviceGroups& groups);
  void place_experts(const Model& model, const DeviceGroups& groups, int64_t layers);
  void override_tensors(const Model& model, const DeviceGroups& groups, const std::vector<TensorOverride>& overrides);

  int threads_ = 0;
  int64_t latent_parts_ = 0;  ///< parts per latent cache; 0: no meta device has several members
  Device* host_ = nullptr;
  std::vector<Device*> members_, devices_;
  std::vector<std::string> params_;                     ///< parameters of Device::init, one entry per device
  std::vector<std::unique_ptr<SplitPolicy>> policies_;  ///< nullptr for simple devices
  std::vector<std::unique_ptr<meta::MetaDevice>> metas_;
  std::vector<std::vector<Device*>> groups_;    ///< members of each device in devices_
  std::unordered_map<std::string, int> homes_;  ///< index in devices_ for the name of each weight and cache tensor
};

}  // namespace shoal::models
