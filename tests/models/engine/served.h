// A loaded model with an engine on CPU devices, for tests.
#pragma once

#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/engine/engine.h"
#include "models/session/model_plan.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {

/// Path of a model of scripts/reference, or of the small model: "tiny-q8_0".
inline std::string engine_model(const std::string& name) {
  return name.starts_with("tiny-") ? tiny_model_path(name.substr(5))
                                   : fmt::format("{}/{}.gguf", SHOAL_REFERENCE_MODELS, name);
}

/// Groups of CPU devices: one group, or one group per device if the devices divide the layers.
inline DeviceGroups groups_of(int devices, SplitMode mode) {
  if (mode == SplitMode::kTensor) return cpu_groups({devices});
  return cpu_groups(std::vector<int>(static_cast<size_t>(devices), 1));
}

/// A model on some devices.
struct Placed {
  Placed(const std::string& name, int devices, const PlacementOptions& where = {{}, 1})
      : model(open_model(engine_model(name))), placement(*model, groups_of(devices, where.mode), where) {
    load_weights(*model, placement);
  }
  ~Placed() { unload_weights(*model); }
  std::unique_ptr<Engine> engine(const SessionOptions& options, const Tokenizer* tokenizer = nullptr) const {
    return std::make_unique<Engine>(*model, placement, placement.init(), engine_options(options), nullptr, tokenizer);
  }

  std::unique_ptr<Model> model;
  Placement placement;
};

/// The answers of an engine.
struct Answers {
  std::map<RequestId, std::vector<int32_t>> tokens;
  std::map<RequestId, std::string> texts;
  std::map<RequestId, Output> ends;

  void take(Engine& engine) {
    for (Output& output : engine.take_outputs()) {
      if (output.token >= 0) tokens[output.request].push_back(output.token);
      texts[output.request] += output.text;
      if (output.finish) ends[output.request] = std::move(output);
    }
  }
  /// Runs until all requests have ended.
  void run(Engine& engine) {
    while (engine.step()) take(engine);
    take(engine);
  }
};

/// Description of memory that is in use although all requests have ended; "" if there is none.
inline std::string leaks(const Engine& engine) {
  std::string text;
  for (const Pool& pool : engine.memory().pages()) {
    if (pool.free_units() < pool.size()) text += fmt::format("{} pages; ", pool.size() - pool.free_units());
  }
  const Pool& slots = engine.memory().slots();
  if (slots.free_units() < slots.size()) text += fmt::format("{} slots", slots.size() - slots.free_units());
  return text;
}

}  // namespace shoal::models
