#include "graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "graph/error.h"
#include "graph/ops/infer.h"

namespace shoal {
namespace {

std::atomic<uint64_t> next_uid{1};

Tensor make_leaf(std::string name, DType dtype, const Shape& shape, Role role) {
  require<InvalidArgument>(infer::addressable(dtype, shape),
                           "[{}] expected axes >= 0 and whole blocks of {} {} elements that fit into memory, got {}",
                           name, traits(dtype).block_elems, name_of(dtype), to_string(shape));
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = contiguous_strides(dtype, shape);
  tensor.role = role;
  return tensor;
}

/// Number, presence and origin of the sources, and the alternative of the parameters.
void check_node(const Tensor& node, const OpInfo& row, std::span<Tensor* const> nodes) {
  const int count = static_cast<int>(node.src.size());
  require<InvalidArgument>(count >= row.min_src && (row.max_src < 0 || count <= row.max_src),
                           "[{} {}] expected {} to {} sources, got {}", row.name, node.name, row.min_src,
                           row.max_src < 0 ? "any number of" : std::to_string(row.max_src), count);
  require<InvalidArgument>(node.params.index() == row.default_params.index(),
                           "[{} {}] expected the parameters of this op, got those of another", row.name, node.name);
  for (int i = 0; i < count; ++i) {
    const Tensor* source = node.src[i];
    require<InvalidArgument>(source || (i >= row.min_src && row.max_src >= 0), "[{} {}] source {} is missing", row.name,
                             node.name, i);
    if (!source || source->is_leaf()) continue;
    const bool known = source->id >= 0 && source->id < static_cast<int>(nodes.size()) && nodes[source->id] == source;
    require<InvalidArgument>(known, "[{} {}] source {} ({}) is a node of another graph", row.name, node.name, i,
                             source->name);
  }
}

}  // namespace

Tensor* TensorContext::add(std::string name, DType dtype, Shape shape, Role role) {
  require<InvalidArgument>(role == Role::kWeight || role == Role::kCache,
                           "[{}] a persistent tensor must be a weight or a cache", name);
  require<InvalidArgument>(!by_name_.contains(name), "[{}] there is a tensor of this name already", name);
  arena_.push_back(make_leaf(std::move(name), dtype, shape, role));
  Tensor* tensor = &arena_.back();
  order_.push_back(tensor);
  by_name_.emplace(tensor->name, tensor);
  return tensor;
}

Tensor* TensorContext::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : found->second;
}

Graph::Graph(std::string name) : name_(std::move(name)), uid_(next_uid.fetch_add(1, std::memory_order_relaxed)) {}

Tensor* Graph::input(std::string name, DType dtype, Shape shape) {
  require<InvalidArgument>(!frozen_, "[{}] the graph is frozen: nothing can be added after its first plan", name);
  if (name.empty()) name = fmt::format("input_{}", inputs_.size());
  arena_.push_back(make_leaf(std::move(name), dtype, shape, Role::kInput));
  inputs_.push_back(&arena_.back());
  return inputs_.back();
}

Tensor* Graph::add_node(Op op, OpParams params, std::vector<Tensor*> src, std::string name) {
  const OpInfo& row = info(op);
  Tensor node;
  node.name = name.empty() ? fmt::format("{}_{}", row.name, nodes_.size()) : std::move(name);
  require<InvalidArgument>(!frozen_, "[{} {}] the graph is frozen: nothing can be added after its first plan", row.name,
                           node.name);
  node.op = op;
  node.params = std::move(params);
  node.src = std::move(src);
  node.id = static_cast<int>(nodes_.size());
  check_node(node, row, nodes_);
  // Absent optional sources are always there as nullptr, so that src[i] is valid for every i < max_src.
  if (row.max_src > 0) node.src.resize(row.max_src, nullptr);
  row.infer(node);
  if (row.alias == Alias::kNone) {
    infer::Expect(node, "x").valid_result(node.dtype, node.shape);
    node.strides = contiguous_strides(node.dtype, node.shape);
  } else {
    node.view_base = node.src[0]->storage();
  }
  arena_.push_back(std::move(node));
  nodes_.push_back(&arena_.back());
  return nodes_.back();
}

Tensor* Graph::output(Tensor* tensor) {
  require<InvalidArgument>(tensor != nullptr, "[output] expected a tensor, got none");
  tensor->is_output = true;
  return tensor;
}

std::vector<Tensor*> Graph::leaves() const {
  std::vector<Tensor*> found;
  std::unordered_set<const Tensor*> seen;
  for (const Tensor* node : nodes_) {
    for (Tensor* source : node->src) {
      if (source && source->is_leaf() && seen.insert(source).second) found.push_back(source);
    }
  }
  return found;
}

Tensor* Graph::find(std::string_view name) const {
  const auto named = [&](const Tensor* tensor) { return tensor->name == name; };
  for (const std::vector<Tensor*>& candidates : {nodes_, inputs_, leaves()}) {
    const auto found = std::find_if(candidates.begin(), candidates.end(), named);
    if (found != candidates.end()) return *found;
  }
  return nullptr;
}

}  // namespace shoal
