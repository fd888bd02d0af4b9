// Families of weights and caches that are split together. Each family is the result of a walk (walk.h) that starts at
// one factor of a node. Equal layers have families of equal structure, which form a group. A proposal decides once for
// each group.
//
//   a Llama layer has the families
//     heads        q, k, v, the caches (by heads) and o (by its input)      one all-reduce
//     hidden       gate, up (by rows) and down (by columns)                 one all-reduce
//     inputs of q, k and v; inputs of gate and up                           sums before attention and before glu
//   the embedding, the outputs of o and down, and the inputs of the head have families that span all layers
//
// Units. The walk fails if a cut is inside a head, a quantisation block or a group of heads. So several units are
// tried: the elements of the factor are divided into units, and each unit belongs to one device. Multiples of 32 are
// preferred if there are many units. If a family has fewer units than devices, the devices with units change from
// layer to layer. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tuning/propose/walk.h"

namespace shoal::tuning {

using LeafLayouts = std::vector<std::pair<const Tensor*, meta::Layout>>;

struct FamilyGroup {
  /// Layouts of the split weights and caches of each layer. A tensor has the same layout in all layers that use it.
  std::vector<LeafLayouts> families;
  size_t bytes = 0;  ///< bytes of the split weights and caches of all layers, before the split
  /// Names of the tensors, such as "blk.*.ffn_up.weight axis 1".
  std::string describe() const;
};

/// `shares`: one number >= 0 for each device, with sum 1. Groups are in the order of the graph.
std::vector<FamilyGroup> find_families(const Graph& graph, const meta::RuleLookup& rules,
                                       std::span<const double> shares);

}  // namespace shoal::tuning
