// Node by node: the same graphs on one device and, copied from there, on a meta device, every result compared.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "models/session/session.h"

namespace shoal::tools {

struct NodeError {
  std::string step;  ///< "prompt" or "token"
  std::string name;
  std::string op;      ///< "cache" for what the KV cache holds after the step
  std::string layout;  ///< on the meta device
  double nmse = 0.0;   ///< sum of squared differences / sum of squares on one device
  bool finite = true;  ///< on one device; if not, it is not the devices that are at fault
};

/// Normalised mean squared error of `b` against `a`; 0 for equal values, infinity against zeros, NaN counts as
/// infinity.
double normalised_error(std::span<const float> a, std::span<const float> b);

/// Runs the tokens as one batch, and after them the token that the first device finds best, through the model
/// on `devices` and on the first of them alone. Every node that computes something is compared, in graph order, and
/// after each of the two steps the caches. A context of 0 means as many tokens as that takes. Throws InvalidArgument
/// when it takes more than the context, and DeviceError before anything is loaded when memory is short.
std::vector<NodeError> compare_nodes(std::unique_ptr<models::Model> model, const std::vector<Device*>& devices,
                                     const models::PlacementOptions& placement, models::SessionOptions session,
                                     std::span<const int32_t> tokens);

}  // namespace shoal::tools
