// Weights that lie packed (packed_buffer.h) for ops that do not read them so: in each run they are unpacked before the
// first such node, into memory of the plan, and these nodes run on copies of themselves that have what was unpacked as
// sources. Rare: no model does it, but a device runs every graph.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "devices/cpu/team.h"

namespace shoal::cpu {

class UnpackedSources {
 public:
  /// Puts a step that unpacks before each step whose node needs it, and lets that one work on a copy. The steps are
  /// valid while this lives; what an earlier call made is dropped.
  void insert_into(std::vector<Step>& steps);
  /// Of the memory for what is unpacked.
  size_t bytes() const;

 private:
  Tensor& copy_of(const Tensor& tensor);

  std::deque<Tensor> tensors_;
  std::deque<std::vector<std::byte>> memory_;
  std::unordered_map<const Tensor*, Tensor*> unpacked_;  ///< the node that unpacks a weight
};

}  // namespace shoal::cpu
