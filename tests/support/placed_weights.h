// Places the weights and caches of a random case on one or several devices, and can move them to other memory.
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

  /// Moves each tensor to new memory of the device that `home` returns, and frees the old memory. After the call,
  /// nothing may use the old addresses. Views in graphs that were built earlier also contain old addresses.
  void place(const std::function<Device&(const Tensor&)>& home);
  /// Writes the value of model.leaf() to each tensor.
  void write(const CaseModel& model);

  TensorContext& context() { return weights_; }

 private:
  const RandomCase& one_;
  TensorContext weights_;
  std::vector<std::unique_ptr<Buffer>> memory_;
};

}  // namespace shoal::test
