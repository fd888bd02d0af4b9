// A graph: leaves, and nodes in execution order. A Graph owns its compute tensors and inputs. Weights and caches reside
// in a TensorContext and outlive the graphs that use them. Build a graph on one thread, then run it: the first plan
// freezes the graph. Values that change from run to run, such as positions and cache rows, are input tensors. All runs
// with the same batch size can therefore use the same graph.
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

/// Owner of persistent tensors. devices/allocate.h or the model loader places them in buffers.
class TensorContext {
 public:
  /// role must be kWeight or kCache. Throws InvalidArgument if the name is already used or the shape is invalid.
  Tensor* add(std::string name, DType dtype, Shape shape, Role role = Role::kWeight);
  /// Returns nullptr if there is no tensor of this name.
  Tensor* find(std::string_view name) const;
  std::span<Tensor* const> tensors() const { return order_; }

 private:
  std::deque<Tensor> arena_;
  std::vector<Tensor*> order_;
  std::unordered_map<std::string, Tensor*> by_name_;
};

/// For each node and input: the index of the last node that reads its bytes. Reading a view counts as reading the
/// tensor that owns the bytes. The index is -1 if no node reads the bytes. For an output, the index is the number of
/// nodes, because the host reads the output after the last node.
struct LastUses {
  std::vector<int> nodes, inputs;
};

class Graph {
 public:
  /// The name appears in messages; an empty name becomes "graph".
  explicit Graph(std::string name = {});
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// A number that is unique within the process and never reused. Plan caches use it as a key.
  uint64_t uid() const { return uid_; }
  const std::string& name() const { return name_; }

  /// This pointer expires when the graph is destroyed. Owners of data about the graph, such as plans, check this
  /// pointer to detect the destruction.
  std::weak_ptr<const void> life() const { return life_; }

  /// A leaf that the caller writes before each run. All axis lengths must be >= 0. Throws InvalidArgument if another
  /// input has this name.
  Tensor* input(std::string name, DType dtype, Shape shape);
  /// An input that replaces `tensor`, which belongs to another graph. The input gets the name and dtype of `tensor`.
  /// This graph may already have an input of this name.
  Tensor* placeholder(const Tensor& tensor, const Shape& shape);
  /// An input that holds a copy of a tensor which this graph's nodes cannot read in place. The input is contiguous and
  /// has the tensor's dtype and shape. See Tensor::copied_from. If `name` is empty, the input has the tensor's name.
  Tensor* copy_of(const Tensor& tensor, std::string name = {});
  /// Appends a node: checks the number of sources, infers the shape, and sets view_base and view_offset. An empty name
  /// becomes "<op>_<index>". For wrong arguments, throws InvalidArgument and leaves the graph unchanged.
  Tensor* add_node(Op op, OpParams params, std::vector<Tensor*> src, std::string name = {});
  /// Marks the tensor as an output, whose bytes stay valid until the caller has read them. Returns the tensor. For a
  /// view, the bytes of its base stay valid. If the base is a cache, it is unspecified whether these bytes include the
  /// rows that later nodes write. Throws InvalidArgument for a tensor of another graph. Also throws after the graph is
  /// frozen, because plans may already reuse the memory.
  Tensor* output(Tensor* tensor);
  /// Freezes the graph: nodes, inputs and outputs can no longer be added.
  void freeze() { frozen_ = true; }
  /// See graph/topology.h. After the graph is frozen, the result is cached, because the graph may have many plans. Only
  /// one thread at a time may call this function.
  std::shared_ptr<const Topology> topology() const;
  /// See LastUses. The result is cached like the result of topology().
  std::shared_ptr<const LastUses> last_uses() const;

  /// Reserves nodes [begin, end) for a plan until the nodes are released. `owner` is the name of the plan's device;
  /// messages print this name. A tensor has one address, so it cannot be placed in the memory of two plans. Throws
  /// InvalidArgument if another plan has reserved one of the nodes.
  void claim(int begin, int end, std::string_view owner);
  void release(int begin, int end);

  std::span<Tensor* const> nodes() const { return nodes_; }
  std::span<Tensor* const> inputs() const { return inputs_; }
  /// Weights, caches and inputs that nodes use, each once, in order of first use.
  std::vector<Tensor*> leaves() const;
  /// Finds a node or leaf by name. Returns nullptr if no tensor has this name. The time is linear in the size of the
  /// graph.
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
  /// Stores a tensor in the arena. The arena grows in blocks, because graphs may have thousands of nodes.
  Tensor* keep(Tensor&& tensor);
  void check_origin(const Tensor& node, std::string_view op, int index) const;
  void check_reads_latest(const Tensor& node, std::string_view op, int index) const;

  std::vector<std::vector<Tensor>> arena_;  ///< blocks never exceed their capacity, so tensors do not move
  std::vector<Tensor*> nodes_, inputs_;
  std::unordered_map<const Tensor*, const Tensor*> writers_;  ///< latest node that wrote into a persistent tensor
  std::unordered_set<std::string> input_names_;               ///< names of the inputs that input() has made
  std::map<int, Claim> claims_;                               ///< node ranges that plans have reserved; the key is the
                                                              ///< first node; the ranges are disjoint
};

/// Part of a graph: nodes [begin, end).
struct GraphRange {
  Graph* graph = nullptr;
  int begin = 0;
  int end = 0;
};
/// Throws InvalidArgument if the graph is null or the range is outside the graph.
void check_range(const GraphRange& range);
inline GraphRange whole(Graph& graph) {
  return {&graph, 0, static_cast<int>(graph.nodes().size())};
}
/// The nodes of a valid range.
inline std::span<Tensor* const> nodes_of(const GraphRange& range) {
  return range.graph->nodes().subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
}

/// The leaf or computed node at the end of a chain of views that starts at `tensor`. If `tensor` is not a view, returns
/// `tensor`.
inline const Tensor& behind_views(const Tensor& tensor) {
  const Tensor* behind = &tensor;
  while (is_view(behind->op)) behind = behind->src[0];
  return *behind;
}

}  // namespace shoal
