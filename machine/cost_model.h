// What work costs the ranks of a mesh, for propagation and lowering to compare ways to run a node: the formulas of
// predictions (machine/costs.h, MachineModel::collective_seconds) for the devices of the mesh.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine/costs.h"
#include "machine/machine.h"

namespace shoal::machine {

/// A value. Remembers what it was asked: one thread at a time may use one, copies are independent.
class CostModel {
 public:
  /// Of a mesh that nothing is known of: 50 GB/s of memory and 200 G operations/s a rank, collectives as where a
  /// machine has no figures.
  CostModel();
  /// Of these devices (indices), in rank order. A dtype without figures counts by the bytes of its weights.
  CostModel(std::shared_ptr<const MachineModel> machine, std::vector<int> devices);
  /// Of devices by name; the one without a machine where it has not all of them.
  static CostModel of(std::shared_ptr<const MachineModel> machine, std::span<const std::string> devices);

  /// Seconds among all ranks. `bytes`: of the full tensor.
  double collective(Collective kind, int ranks, double bytes) const;
  /// Seconds in which a rank writes `bytes` anew: packing, slicing.
  double copy(double bytes) const;
  /// Ranks are of as many kinds, which take different times.
  int kinds() const { return static_cast<int>(kinds_.size()); }
  /// Seconds of a node on a rank of that kind that does all of it.
  /// `experts`: as node_cost() takes them.
  double compute(const Tensor& node, int kind, int64_t experts = 0) const;
  /// Of one more pair of a mul_mat_id on such a rank (machine::pair_seconds).
  double pair_seconds(const Tensor& node, int kind, int64_t experts) const;
  int kind_of(int rank) const { return ranks_.empty() ? 0 : ranks_[static_cast<size_t>(rank)]; }

  /// Factor on moving a weight. It was split because it should not be on every device: it moves only where nothing else
  /// is legal.
  double weight_penalty = 1000.0;

 private:
  struct Kind {
    explicit Kind(DeviceModel model);
    std::shared_ptr<const DeviceModel> device;  ///< its products are what the table points to
    ProductTable products;
  };
  void add_rank(const DeviceModel& device);

  std::shared_ptr<const MachineModel> machine_;  ///< nullptr: nothing is known
  std::vector<int> devices_;
  std::vector<Kind> kinds_;
  std::vector<int> ranks_;  ///< the kind of each
  mutable std::unordered_map<uint64_t, double> collectives_;
};

}  // namespace shoal::machine
