// Helpers for tests of schedulers: CPU devices and meta devices, and graphs with weights on several devices.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "tests/meta/mesh.h"
#include "tests/support/run_case.h"
#include "tests/support/tensors.h"

namespace shoal::test {

/// A graph in which a router computes the ids of the experts.
inline constexpr const char* kChosenExperts = R"(
input %x f32 [32, 1, 4]
weight %router f32 [32, 6]
weight %experts f32 [32, 16, 6]
%flat = reshape(%x) {shape=[32,4,1,1]}
%scores = mul_mat(%router, %flat)
%chosen = top_k(%scores) {k=2}
%e = mul_mat_id(%experts, %x, %chosen)
output %e
)";

/// CPU devices with one thread each, for the duration of a test.
class Rig {
 public:
  explicit Rig(int devices) : configuration_("devices=" + std::to_string(devices) + ",threads=1,memory=64M") {}
  static Device& cpu(int index) { return Registry::instance().device("CPU" + std::to_string(index)); }
  static std::unique_ptr<meta::MetaDevice> mesh(const std::vector<int>& indices, Layouts layouts) {
    std::vector<Device*> members;
    for (int index : indices) members.push_back(&cpu(index));
    return meta::MetaDevice::create(members, callback_for(std::move(layouts)));
  }

 private:
  CpuConfiguration configuration_;
};

/// Maps names of weights and caches to devices. A name may end with `*`. The first entry with a matching name is used.
using Homes = std::vector<std::pair<std::string, Device*>>;

inline Device& home_for(const std::string& name, const Homes& homes) {
  for (const auto& [pattern, device] : homes) {
    const bool open = pattern.ends_with('*');
    if (open ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern) return *device;
  }
  throw std::runtime_error("no home for " + name);
}

/// Weights and caches with memory on several devices, and the graphs that use them.
struct World {
  explicit World(Homes homes, uint64_t seed = 1) : homes(std::move(homes)), seed(seed) {}

  Graph& add(const std::string& text) {
    graphs.push_back(std::make_unique<Graph>("g" + std::to_string(graphs.size())));
    parse_graph(text, *graphs.back(), weights);
    for (Tensor* leaf : weights.tensors()) {
      if (leaf->buffer != nullptr) continue;
      memory.push_back(allocate_tensors({&leaf, 1}, home_for(leaf->name, homes).buffer_type(), Usage::kWeights));
      fill(*leaf);
    }
    return *graphs.back();
  }
  void fill(Tensor& leaf) const {
    const auto bytes = leaf_data(leaf, seed);
    tensor_set(leaf, bytes.data(), 0, bytes.size());
  }
  void fill_inputs(const Graph& graph) const {
    for (Tensor* input : graph.inputs()) fill(*input);
  }
  void fill_caches() const {
    for (Tensor* leaf : weights.tensors()) {
      if (leaf->role == Role::kCache) fill(*leaf);
    }
  }

  Homes homes;
  uint64_t seed;
  TensorContext weights;
  std::vector<std::unique_ptr<Buffer>> memory;
  std::vector<std::unique_ptr<Graph>> graphs;
};

/// Returns the values of the graph's outputs by name.
inline std::map<std::string, Values> outputs(const Graph& graph) {
  std::map<std::string, Values> values;
  for (const Tensor* node : graph.nodes()) {
    if (node->is_output) values[node->name] = read_values(*node);
  }
  return values;
}

/// Runs a graph text on one device and returns the outputs. If `all` is set, every node becomes an output.
inline std::map<std::string, Values> on_one(const std::string& text, Device& device, uint64_t seed = 1,
                                            bool all = false) {
  World world({{"*", &device}}, seed);
  Graph& graph = world.add(text);
  for (Tensor* node : graph.nodes()) {
    if (all) graph.output(node);
  }
  const auto backend = device.init();
  const auto plan = backend->create_plan(graph);
  world.fill_inputs(graph);
  backend->compute_async(*plan);
  backend->synchronize();
  return outputs(graph);
}

inline void expect_close(const std::map<std::string, Values>& got, const std::map<std::string, Values>& expected,
                         double nmse = 1e-9) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(close_to(got.at(name), values, {nmse})) << name;
  }
}

}  // namespace shoal::test
