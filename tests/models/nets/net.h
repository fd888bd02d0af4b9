// A network from scripts/reference/write_nets.py: the graph, its weights and inputs, and the axes on which a meta
// device splits the weights. Used by tests and benchmarks. Single-threaded.
//
//   NetFiles files("build/release/tests/nets", "unet");
//   auto meta = meta::MetaDevice::create(devices, files.callback({3, 1}));
//   Net net(files, *meta);
//   net.run();
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "devices/allocate.h"
#include "graph/text.h"
#include "meta/meta.h"
#include "models/gguf/weights.h"

namespace shoal::models {

struct NetFiles {
  NetFiles(const std::string& folder, const std::string& net) : path(folder + "/" + net) {
    std::ifstream rows(path + ".splits");
    std::string name;
    for (Split split; rows >> name >> split.axis >> split.units;) splits[name] = split;
    require<InvalidArgument>(!splits.empty(), "{}.splits has no rows; run scripts/reference/write_nets.py", path);
  }

  /// Divides `length` in units in proportion to `shares`: 8 units and shares 3:1 give 6 and 2 units.
  static std::vector<int64_t> divided(int64_t length, int64_t units, const std::vector<int64_t>& shares) {
    const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    std::vector<int64_t> lengths;
    for (int64_t sum = 0, before = 0; const int64_t share : shares) {
      sum += share;
      const int64_t end = length / units * ((2 * units * sum + total) / (2 * total));
      lengths.push_back(end - before);
      before = end;
    }
    return lengths;
  }
  meta::SplitStateCallback callback(std::vector<int64_t> shares) const {
    return [this, shares = std::move(shares)](const Tensor& tensor) {
      const auto split = splits.find(tensor.name);
      if (split == splits.end()) return meta::SplitState::mirrored();
      const auto [axis, units] = split->second;
      return meta::SplitState::split(axis, {divided(tensor.shape[static_cast<size_t>(axis)], units, shares)});
    };
  }

  struct Split {
    int axis = 0;
    int64_t units = 1;
  };
  std::string path;
  std::map<std::string, Split> splits;
};

class Net {
 public:
  Net(const NetFiles& files, Device& device, std::string_view params = {}) : backend_(device.init(params)) {
    std::stringstream text;
    text << std::ifstream(files.path + ".txt").rdbuf();
    parse_graph(text.str(), graph, weights);
    memory = allocate_tensors(weights.tensors(), device.weights_type(), Usage::kWeights);
    load_tensors(GgufFile(files.path + ".gguf"), weights.tensors());
    plan_ = backend_->create_plan(whole(graph), {});
    load_tensors(GgufFile(files.path + ".inputs.gguf"), graph.inputs());
  }
  void run() {
    backend_->compute_async(*plan_);
    backend_->synchronize();
  }
  std::vector<float> read(std::string_view output) const {
    const Tensor* tensor = graph.find(output);
    require<InvalidArgument>(tensor != nullptr, "the graph has no tensor '{}'", output);
    std::vector<float> values(static_cast<size_t>(tensor->elements()));
    tensor_get(*tensor, values.data(), 0, values.size() * sizeof(float));
    return values;
  }

  TensorContext weights;
  Graph graph;
  std::unique_ptr<Buffer> memory;

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<GraphPlan> plan_;
};

}  // namespace shoal::models
