// Unpacks packed weights (packed_buffer.h) for ops that cannot read them packed. In each run, a step before the first
// such node unpacks the weight into memory of the plan. These nodes run as copies that have the unpacked weights as
// sources. No model needs this, but a device must run every graph.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "devices/cpu/team.h"

namespace shoal::cpu {

class UnpackedSources {
 public:
  /// Inserts an unpacking step before each step that needs one, and replaces the node of that step by a copy. The steps
  /// are valid while this object exists. Drops the data of an earlier call.
  void insert_into(std::vector<Step>& steps);
  /// Bytes of memory for unpacked weights.
  size_t bytes() const;

 private:
  Tensor& copy_of(const Tensor& tensor);

  std::deque<Tensor> tensors_;
  std::deque<std::vector<std::byte>> memory_;
  std::unordered_map<const Tensor*, Tensor*> unpacked_;  ///< for each packed weight, the node that unpacks it
};

}  // namespace shoal::cpu
