// Weights that lie packed (packed_buffer.h) for ops that do not read them so: before each run of such a node its packed
// sources are unpacked into memory of the plan, and the node runs on a copy of itself that has these as sources. Rare:
// no model does it, but a device runs every graph.
#pragma once

#include <deque>
#include <vector>

#include "devices/cpu/team.h"

namespace shoal::cpu {

class UnpackedSources {
 public:
  /// Puts a step that unpacks before each step whose node needs it, and lets that one work on a copy. The steps are
  /// valid while this lives; what an earlier call made is dropped.
  void insert_into(std::vector<Step>& steps);

 private:
  Tensor& copy_of(const Tensor& tensor);
  Tensor* unpacked(const Tensor& source);

  std::deque<Tensor> tensors_;
  std::deque<std::vector<std::byte>> memory_;
};

}  // namespace shoal::cpu
