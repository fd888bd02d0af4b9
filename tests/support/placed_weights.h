// Weights and caches of a random case in memory of one or several devices, and moved to other memory.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "devices/device.h"
#include "tests/support/case_model.h"

namespace shoal::test {

class PlacedWeights {
 public:
  explicit PlacedWeights(const RandomCase& one);
  ~PlacedWeights() = default;
  PlacedWeights(const PlacedWeights&) = delete;
  PlacedWeights& operator=(const PlacedWeights&) = delete;

  /// Into new memory of the device that `home` names for each; the old memory goes. Nothing that refers to the old
  /// places may be used from then on, views among the nodes of graphs too.
  void place(const std::function<Device&(const Tensor&)>& home);
  /// Writes all of them as they are before the model's run.
  void write(const CaseModel& model);

  TensorContext& context() { return weights_; }

 private:
  const RandomCase& one_;
  TensorContext weights_;
  std::vector<std::unique_ptr<Buffer>> memory_;
};

}  // namespace shoal::test
