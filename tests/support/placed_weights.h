// Weights and caches of a random case, placed on one or several devices. They can be moved to other memory.
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

  /// Moves each tensor to new memory of the device that `home` returns, and frees the old memory. Afterwards the old
  /// addresses must not be used, not even by views in graphs.
  void place(const std::function<Device&(const Tensor&)>& home);
  /// Writes the values that all tensors have before the model's run.
  void write(const CaseModel& model);

  TensorContext& context() { return weights_; }

 private:
  const RandomCase& one_;
  TensorContext weights_;
  std::vector<std::unique_ptr<Buffer>> memory_;
};

}  // namespace shoal::test
