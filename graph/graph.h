// A graph: nodes in execution order over leaves. A Graph owns its compute tensors and inputs; weights and
// caches live in a TensorContext and outlive the graphs that use them. Build on one thread, then run: making
// the first plan freezes the graph. Positions, cache rows and other things that change from step to step are
// input tensors, so that one graph serves all steps of a batch size.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/tensor.h"

namespace shoal {

class Topology;

/// Owner of persistent tensors. Placement in buffers is up to devices/allocate.h or the model loader.
class TensorContext {
 public:
  /// role must be kWeight or kCache. Throws InvalidArgument when the name is taken or the shape is bad.
  Tensor* add(std::string name, DType dtype, Shape shape, Role role = Role::kWeight);
  /// nullptr when absent.
  Tensor* find(std::string_view name) const;
  std::span<Tensor* const> tensors() const { return order_; }

 private:
  std::deque<Tensor> arena_;
  std::vector<Tensor*> order_;
  std::unordered_map<std::string, Tensor*> by_name_;
};

/// The last node that reads the bytes of each node and input: -1 for none, the number of nodes for the host (outputs).
/// Reading a view is reading the tensor that owns the bytes.
struct LastUses {
  std::vector<int> nodes, inputs;
};

class Graph {
 public:
  /// For messages; an empty name becomes "graph".
  explicit Graph(std::string name = {});
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Unique over the process and never reused: plan caches key on it.
  uint64_t uid() const { return uid_; }
  const std::string& name() const { return name_; }

  /// Expires when the graph is destroyed: for those who keep something about it (plans).
  std::weak_ptr<const void> life() const { return life_; }

  /// A leaf that the caller writes before each run. All axes must be >= 0. Throws InvalidArgument when another input
  /// has the name.
  Tensor* input(std::string name, DType dtype, Shape shape);
  /// An input in place of a tensor of another graph: its name, which another input may have here, and dtype.
  Tensor* stand_in(const Tensor& tensor, const Shape& shape);
  /// One that holds a copy of a tensor which nodes here cannot read where it is: the same dtype and shape, without
  /// gaps. See Tensor::copied_from. An empty name becomes that of the tensor.
  Tensor* copy_of(const Tensor& tensor, std::string name = {});
  /// Appends a node: checks the number of sources, runs shape inference, sets view base and offset.
  /// An empty name becomes "<op>_<index>". Throws InvalidArgument; the graph is unchanged then.
  Tensor* add_node(Op op, OpParams params, std::vector<Tensor*> src, std::string name = {});
  /// Keeps the tensor until the caller has read it; of a view its base, and a view of a cache shows it before or after
  /// later writes. Returns its argument. Throws InvalidArgument for a tensor of another graph. Throws it once the graph
  /// is frozen, too, as plans may reuse the memory.
  Tensor* output(Tensor* tensor);
  /// After this nothing can be added.
  void freeze() { frozen_ = true; }
  /// See graph/topology.h. Kept once the graph is frozen: its ranges may have many plans. One thread at a time.
  std::shared_ptr<const Topology> topology() const;
  /// Kept likewise.
  std::shared_ptr<const LastUses> last_uses() const;

  /// Nodes [begin, end) belong to the plan of `owner` (a device's name, for the message) until they are released: a
  /// tensor has one address, so that it cannot be in the memory of two plans. Throws InvalidArgument when another plan
  /// has one of them.
  void claim(int begin, int end, std::string_view owner);
  void release(int begin, int end);

  std::span<Tensor* const> nodes() const { return nodes_; }
  std::span<Tensor* const> inputs() const { return inputs_; }
  /// Weights, caches and inputs that nodes use, each once, in order of first use.
  std::vector<Tensor*> leaves() const;
  /// A node or leaf by name; nullptr when absent. Linear in the graph's size.
  Tensor* find(std::string_view name) const;

 private:
  std::string name_;
  uint64_t uid_;
  bool frozen_ = false;
  mutable std::shared_ptr<const Topology> topology_;
  mutable std::shared_ptr<const LastUses> last_uses_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  struct Claim {
    int end;
    std::string owner;
  };

  Tensor* add_input(std::string name, DType dtype, const Shape& shape);
  /// A tensor of the graph's own. In blocks, because plans make graphs of thousands of nodes.
  Tensor* keep(Tensor&& tensor);
  void check_origin(const Tensor& node, std::string_view op, int index) const;
  void check_reads_latest(const Tensor& node, std::string_view op, int index) const;

  std::vector<std::vector<Tensor>> arena_;  ///< none of them grows past its capacity: tensors stay where they are
  std::vector<Tensor*> nodes_, inputs_;
  std::unordered_map<const Tensor*, const Tensor*> writers_;  ///< latest node that wrote into a persistent tensor
  std::unordered_set<std::string> input_names_;               ///< but for stand-ins
  std::map<int, Claim> claims_;                               ///< by first node; none overlap
};

/// Part of a graph: nodes [begin, end) in order.
struct GraphRange {
  Graph* graph = nullptr;
  int begin = 0;
  int end = 0;
};
/// Throws InvalidArgument for no graph or a range that is not inside it.
void check_range(const GraphRange& range);
inline GraphRange whole(Graph& graph) {
  return {&graph, 0, static_cast<int>(graph.nodes().size())};
}
/// The nodes of a range that is inside its graph.
inline std::span<Tensor* const> nodes_of(const GraphRange& range) {
  return range.graph->nodes().subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
}

/// The leaf or computed node behind views.
inline const Tensor& behind_views(const Tensor& tensor) {
  const Tensor* behind = &tensor;
  while (is_view(behind->op)) behind = behind->src[0];
  return *behind;
}

}  // namespace shoal
