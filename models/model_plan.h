// What running a model on some devices would take, computed without loading or allocating anything: the plans of a
// step of generation and of a prompt batch, and each device's memory. What a Session on the same placement then
// allocates is the same to the byte (a shorter prompt takes less compute memory).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "meta/plan.h"
#include "models/placement.h"
#include "models/session.h"

namespace shoal::models {

struct DeviceUse {
  std::string device;
  meta::MemoryUse use;
  DeviceMemory memory;  ///< live figures of the device
};

struct ModelPlan {
  /// Throws InvalidArgument for options that do not fit the model.
  ModelPlan(const Model& model, const Placement& placement, const SessionOptions& options);

  SessionSize size;
  KvCache cache;
  meta::ShardStore store;
  DecoderGraph step_graph, prompt_graph;  ///< one token; a full batch
  meta::Plan step, prompt;
  std::vector<DeviceUse> memory;
};

/// Throws DeviceError for the first device that has less free memory than it needs: names both and the remedy.
void require_memory(std::span<const DeviceUse> uses);

}  // namespace shoal::models
