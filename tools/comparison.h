// Node by node: the same graph on a meta device and on one device, every result of both read back and compared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/placement.h"
#include "models/session.h"

namespace shoal::tools {

struct NodeError {
  std::string name;
  std::string op;
  std::string layout;  ///< on the meta device
  double nmse = 0.0;   ///< sum of squared differences / sum of squares on one device
};

/// Normalised mean squared error of `b` against `a`; 0 for equal values, infinity against zeros, NaN counts as
/// infinity.
double normalised_error(std::span<const float> a, std::span<const float> b);

/// Runs the tokens as one batch through the file's model on `devices` and on the first of them alone. Every node that
/// computes something is compared, in graph order.
std::vector<NodeError> compare_nodes(const std::string& path, const std::vector<Device*>& devices,
                                     const models::PlacementOptions& placement, const models::SessionOptions& session,
                                     std::span<const int32_t> tokens);

}  // namespace shoal::tools
