// Runs the same graphs on one device and on a meta device, with copied inputs, and compares the result of every node.
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
  std::string step;  ///< name of the step: "prompt" or "token"
  std::string name;
  std::string op;      ///< operation of the node; "cache" for the content of the KV cache after the step
  std::string layout;  ///< layout on the meta device
  double nmse = 0.0;   ///< sum of squared differences / sum of squares of the result on one device
  bool finite = true;  ///< whether the result on one device is finite; an infinite or NaN result is caused by the
                       ///< weights
};

/// Normalised mean squared error of `b` relative to `a`: 0 for equal values, infinity if `a` is all zeros or a value is
/// NaN.
double normalised_error(std::span<const float> a, std::span<const float> b);

/// Runs a model on `devices`, and on the first device alone. The first step evaluates the tokens as one batch. The
/// second step evaluates the token that the first device finds most probable. Compares every node that computes a new
/// tensor, in graph order, and compares the caches after each step. A context of 0 means the size that the tokens need.
/// Throws InvalidArgument if the context is too small. Throws DeviceError before loading if a device has too little
/// memory.
std::vector<NodeError> compare_nodes(std::unique_ptr<models::Model> model, const std::vector<Device*>& devices,
                                     const models::PlacementOptions& placement, models::SessionOptions session,
                                     std::span<const int32_t> tokens);

}  // namespace shoal::tools
