// Costs of work for the ranks of a mesh. Propagation and lowering compare the costs of alternatives for a node.
// Predictions use the same formulas (machine/costs.h, MachineModel::collective_seconds).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine/costs.h"
#include "machine/machine.h"

namespace shoal::machine {

/// A value type that caches its results. Only one thread at a time may use an object. Copies are independent.
class CostModel {
 public:
  /// Default costs for an unknown mesh: each rank has 50 GB/s of memory bandwidth and 200 G operations/s, and
  /// collectives take rough_collective_seconds().
  CostModel();
  /// Costs for `devices` of the machine, given as indices in rank order. If a device has no product model for a dtype,
  /// the bytes of the weights determine the time.
  CostModel(std::shared_ptr<const MachineModel> machine, std::vector<int> devices);
  /// Finds the devices by name. Returns default costs if `machine` is nullptr or one of the devices is not in the
  /// machine.
  static CostModel of(std::shared_ptr<const MachineModel> machine, std::span<const std::string> devices);

  /// Seconds of a collective among all ranks. `bytes` is the size of the full tensor.
  double collective(Collective kind, int ranks, double bytes) const;
  /// Seconds in which a rank copies `bytes` bytes within its memory, for example to pack or slice a tensor.
  double copy(double bytes) const;
  /// Number of kinds of ranks. Ranks of one kind take the same time for the same work.
  int kinds() const { return static_cast<int>(kinds_.size()); }
  /// Seconds that one rank of this kind takes for the whole node. `experts` has the same meaning as in node_cost().
  double compute(const Tensor& node, int kind, int64_t experts = 0) const;
  /// Seconds that one more (token, selected expert) pair adds to a mul_mat_id on a rank of this kind
  /// (machine::pair_seconds).
  double pair_seconds(const Tensor& node, int kind, int64_t experts) const;
  int kind_of(int rank) const { return ranks_.empty() ? 0 : ranks_[static_cast<size_t>(rank)]; }

  /// Cost factor for moving a weight to other ranks. Weights are split to save memory, so a weight moves only if no
  /// other plan is legal.
  double weight_penalty = 1000.0;

 private:
  struct Kind {
    explicit Kind(DeviceModel model);
    std::shared_ptr<const DeviceModel> device;  ///< owns the product models to which `products` points
    ProductTable products;
  };
  void add_rank(const DeviceModel& device);

  std::shared_ptr<const MachineModel> machine_;  ///< nullptr for an unknown mesh
  std::vector<int> devices_;
  std::vector<Kind> kinds_;
  std::vector<int> ranks_;  ///< kind of each rank
  mutable std::unordered_map<uint64_t, double> collectives_;
};

}  // namespace shoal::machine
