// Graphs in text form that have addresses but no memory. Tests with these graphs check which nodes run in one launch
// (devices/cuda/fusion.h).
//
//   expect_fused(text, {{3, "out=a"}, {1, "out=a+16 out=g.work"}});  // 3 nodes if %out has the address of %a
#pragma once

#include <gtest/gtest.h>

#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include "devices/cuda/fusion.h"
#include "graph/text.h"

namespace shoal::test {

/// A graph in which each tensor and each workspace has its own address. The addresses are 1 MiB apart. No memory is
/// allocated.
struct Placed {
  explicit Placed(const std::string& text) {
    parse_graph(text, graph, weights);
    size_t next = 0;
    const auto give = [&] { return reinterpret_cast<std::byte*>(next += 0x100000); };
    for (Tensor* leaf : graph.leaves()) leaf->data = give();
    for (Tensor* node : graph.nodes()) {
      node->data = node->is_view() ? node->view_base->data + node->view_offset : give();
      node->workspace = give();
      if (!is_view(node->op)) running.push_back(node);
    }
  }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  ~Placed() {
    for (Tensor* leaf : graph.leaves()) leaf->data = nullptr;
    for (Tensor* node : graph.nodes()) node->data = node->workspace = nullptr;
  }

  /// The address of tensor NAME. For "NAME.work", the address of the tensor's workspace.
  std::byte*& at(std::string name) {
    const bool is_workspace = name.ends_with(".work");
    if (is_workspace) name.resize(name.size() - 5);
    Tensor* const tensor = graph.find(name);
    if (tensor != nullptr) return is_workspace ? tensor->workspace : tensor->data;
    throw std::runtime_error("no tensor " + name);
  }
  /// Moves tensors. `changes` has the form "NAME=OTHER+BYTES,NAME=OTHER...".
  void move(const std::string& changes) {
    std::istringstream all(changes);
    for (std::string one; std::getline(all, one, ',');) {
      const size_t equal = one.find('='), plus = one.find('+');
      size_t offset = 0;
      if (plus != std::string::npos) std::from_chars(one.data() + plus + 1, one.data() + one.size(), offset);
      at(one.substr(0, equal)) = at(one.substr(equal + 1, std::min(plus, one.size()) - equal - 1)) + offset;
    }
  }
  /// Number of nodes in the launch of the first node, including this node.
  size_t fused(const cuda::GpuTraits& gpu = {}) {
    return cuda::fuse(running, Readers(whole(graph), {}), gpu).nodes.size();
  }

  TensorContext weights;
  Graph graph{"placed"};
  std::vector<Tensor*> running;  ///< nodes that are not views
};

/// Alternative placements, separated by spaces (see Placed::move). With each placement, the first launch contains
/// `count` nodes.
struct Places {
  size_t count;
  std::string alternatives;
};
template <class Count>
void expect_counts(const std::string& text, const std::vector<Places>& table, const Count& count) {
  for (const Places& row : table) {
    std::istringstream alternatives(row.alternatives);
    for (std::string one; alternatives >> one;) {
      Placed placed(text);
      placed.move(one);
      EXPECT_EQ(count(placed), row.count) << one << "\n" << text;
    }
  }
}
inline void expect_fused(const std::string& text, const std::vector<Places>& table, const cuda::GpuTraits& gpu = {}) {
  expect_counts(text, table, [&](Placed& placed) { return placed.fused(gpu); });
}

}  // namespace shoal::test
