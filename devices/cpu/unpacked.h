// Unpacks packed weights (packed_buffer.h) for ops that cannot read the packed layout. Before the first node with such
// an op, an extra step of each run unpacks the weight into memory of the plan. The plan replaces the nodes with such
// ops by copies whose sources are the unpacked weights. No model needs this unpacking, but a device must run every
// graph.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "devices/cpu/team.h"

namespace shoal::cpu {

class UnpackedSources {
 public:
  /// For each weight that must be unpacked, inserts an unpacking step before the first step that needs this weight.
  /// Replaces the nodes that need unpacked weights by copies. The steps are valid while this object exists. Drops the
  /// data of an earlier call.
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
