// CPU devices that are members of a meta device during one test. A table gives the layouts of persistent tensors by
// name. Tensors that are not in the table are mirrored.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "devices/allocate.h"
#include "graph/text.h"
#include "meta/meta.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/support/gate.h"
#include "tests/support/random_graph.h"

namespace shoal::test {

using Layouts = std::map<std::string, meta::Layout>;

inline meta::SplitStateCallback callback_for(Layouts layouts) {
  return [layouts = std::move(layouts)](const Tensor& tensor) -> meta::SplitState {
    const auto it = layouts.find(tensor.name);
    if (it == layouts.end() || it->second.is_mirrored()) return meta::SplitState::mirrored();
    if (it->second.is_partial()) return meta::SplitState::partial();
    return meta::SplitState::split(it->second.axis, it->second.partition);
  };
}

class CpuMesh {
 public:
  explicit CpuMesh(int ranks, Layouts layouts = {}, meta::MetaOptions options = {})
      : configuration_("devices=" + std::to_string(ranks + 1) + ",threads=1,memory=256M") {
    for (int i = 0; i < ranks; ++i) members.push_back(&Registry::instance().device("CPU" + std::to_string(i)));
    device = meta::MetaDevice::create(members, callback_for(std::move(layouts)), std::move(options));
  }
  /// A CPU device that is not a member of the meta device.
  Device& other() const { return Registry::instance().device("CPU" + std::to_string(members.size())); }
  std::vector<size_t> free() const {
    std::vector<size_t> bytes;
    for (const Device* member : members) bytes.push_back(member->memory().free);
    return bytes;
  }

 private:
  CpuConfiguration configuration_;

 public:
  std::vector<Device*> members;
  std::unique_ptr<meta::MetaDevice> device;
};

/// A graph that is parsed from text. The weights of the graph are placed on the given device.
struct Loaded {
  Loaded(const std::string& text, Device& device, uint64_t seed = 1) : Loaded(text, device.buffer_type(), seed) {}
  Loaded(const std::string& text, BufferType& type, uint64_t seed = 1) : seed(seed) {
    parse_graph(text, graph, weights);
    memory = allocate_tensors(weights.tensors(), type, Usage::kWeights);
    for (Tensor* leaf : weights.tensors()) fill(*leaf);
  }
  void fill(Tensor& leaf) const {
    const auto bytes = leaf_data(leaf, seed);
    tensor_set(leaf, bytes.data(), 0, bytes.size());
  }
  void fill_inputs() const {
    for (Tensor* input : graph.inputs()) fill(*input);
  }
  uint64_t seed;
  TensorContext weights;
  Graph graph{"test"};
  std::unique_ptr<Buffer> memory;
};

inline std::vector<float> read_floats(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensor_get(tensor, values.data(), 0, values.size() * sizeof(float));
  return values;
}

}  // namespace shoal::test
