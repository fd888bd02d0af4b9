// Proposes split states: finds the weights and caches of a graph to split, so that the predicted time of the graph is
// small and each device has enough memory. A program without a split policy of its own uses the proposal as the
// split-state callback of a meta device:
//
//   const Proposal proposal = propose_split_states(graph, devices, machine);
//   auto meta = MetaDevice::create(devices, proposal);
//
// Walks through the sharding rules find families of tensors that can be split together (families.h). The search first
// combines the groups of families in the order of their predicted gain. Then it adds, removes and replaces single
// groups as long as the predicted time decreases. If the tensors do not fit into memory, the search adds the groups
// with the smallest loss of time. Each time comes from a plan (meta/plan/plan.h) and an estimate (tuning/estimate.h).
// So the search runs nothing and allocates no device memory.
//
// Example: y = down * relu(up * x) with up [4, 6] and down [6, 3] on two devices gives
//   up    axis 1 [3:{0} 3:{1}]
//   down  axis 0 [3:{0} 3:{1}]
//
// The search is a heuristic. It changes whole groups of equal layers, and uses only the given shares. The result is
// deterministic, so all processes get the same states. Only one thread at a time may use a graph.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"
#include "meta/meta.h"

namespace shoal::tuning {

struct ProposeOptions {
  /// One number >= 0 for each device, as for --tensor-split. A device with share 0 gets only mirrored tensors. Empty:
  /// even shares.
  std::vector<double> shares = {};
  /// Bytes that each device may use for weights, caches, compute memory and communication. Empty: the free memory of
  /// the devices.
  std::vector<size_t> memory = {};
  /// Average number of rows of the KV caches that a query reads; 0: all rows.
  double kv_rows = 0;
  /// The sharding rules and the communicator for the plans. `shards`, `costs` and `copied_weights` are ignored.
  meta::PlanContext context = {};
};

struct Proposal {
  /// States of the split weights and caches, by name. All other tensors are mirrored.
  std::map<std::string, meta::SplitState> states;
  double seconds = 0;                   ///< predicted time of a run of the graph
  double mirrored_seconds = 0;          ///< predicted time if all tensors are mirrored
  std::vector<std::string> devices;     ///< names, in rank order
  std::vector<meta::MemoryUse> memory;  ///< bytes on each device
  std::string reason;                   ///< one line

  /// The split-state callback. A tensor that is not in `states` is mirrored.
  meta::SplitState operator()(const Tensor& tensor) const;
};

/// The predicted time and memory of a graph for given split states.
struct Prediction {
  double seconds = 0;
  std::vector<meta::MemoryUse> memory;
};
/// Plans the graph and estimates the time of one run. The time includes the copies to the host of all addends of an
/// output, except the first addend. Freezes the graph. Throws InvalidArgument like propose_split_states(), or for an
/// invalid state.
Prediction predict_graph(Graph& graph, std::span<Device* const> devices, const machine::MachineModel& machine,
                         const meta::SplitStateCallback& states, const ProposeOptions& options = {});

/// Finds split states for the weights and caches of the graph. Rank i is devices[i]; the machine has a device of the
/// same name. Freezes the graph. Throws InvalidArgument in these cases:
/// - there are no devices, or a device is not in the machine
/// - the number of shares or of memory sizes differs from the number of devices
/// - a share is negative, or the sum of the shares is 0 or not finite
/// - two weights or caches of the graph have the same name
/// - the machine has no product measurements for a dtype of the graph
/// Throws DeviceError if the tensors do not fit. The message names the device with the most missing bytes:
///   [G1] decoder needs 3.1 GiB on this device, but 2.0 GiB are free, so 1.1 GiB are missing: add devices, ...
Proposal propose_split_states(Graph& graph, std::span<Device* const> devices, const machine::MachineModel& machine,
                              const ProposeOptions& options = {});

/// Text with the reason, the predicted time, the memory of each device and one line for each state.
std::string to_string(const Proposal& proposal);

}  // namespace shoal::tuning
