#include "graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "base/error.h"
#include "graph/external_op.h"
#include "graph/ops/infer.h"
#include "graph/param_text.h"

namespace shoal {
namespace {

std::atomic<uint64_t> next_uid{1};

/// Names are also C strings in several interfaces.
void check_name(const std::string& name) {
  require<InvalidArgument>(name.find('\0') == std::string::npos, "[{}] the name has a NUL character; remove it",
                           name.c_str());
}

Tensor make_leaf(std::string name, DType dtype, const Shape& shape, Role role) {
  check_name(name);
  require<InvalidArgument>(infer::addressable(dtype, shape),
                           "[{}] expected lengths >= 0 that fit in memory and fill whole blocks of {} {} elements, "
                           "got {}",
                           name, traits(dtype).block_elems, name_of(dtype), to_string(shape));
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = contiguous_strides(dtype, shape);
  tensor.role = role;
  return tensor;
}

/// Checks the number and presence of the sources and the type of the parameters.
void check_node(const Tensor& node, const OpInfo& row) {
  const int count = static_cast<int>(node.src.size());
  require<InvalidArgument>(count >= row.min_src && (row.max_src < 0 || count <= row.max_src),
                           "[{} {}] expected {}, got {}", row.name, node.name,
                           infer::source_counts(row.min_src, row.max_src), count);
  require<InvalidArgument>(node.params.index() == row.default_params.index(),
                           "[{} {}] expected the parameters of this op, got the parameters of another op", row.name,
                           node.name);
  check_params(node.params);
  for (int i = 0; i < count; ++i) {
    const Tensor* source = node.src[i];
    require<InvalidArgument>(source || (i >= row.min_src && row.max_src >= 0), "[{} {}] source {} is missing", row.name,
                             node.name, i);
  }
}

/// Whether the tensor is a weight, a cache, or an element of `inputs` or `nodes`.
bool is_of(const Tensor& tensor, std::span<Tensor* const> inputs, std::span<Tensor* const> nodes) {
  if (tensor.is_persistent() && tensor.is_leaf()) return true;
  const std::span<Tensor* const> own = tensor.is_leaf() ? inputs : nodes;
  return tensor.id >= 0 && tensor.id < static_cast<int>(own.size()) && own[static_cast<size_t>(tensor.id)] == &tensor;
}

}  // namespace

Tensor* TensorContext::add(std::string name, DType dtype, Shape shape, Role role) {
  require<InvalidArgument>(role == Role::kWeight || role == Role::kCache,
                           "[{}] a persistent tensor must be a weight or a cache", name);
  require<InvalidArgument>(!by_name_.contains(name), "[{}] a tensor of this name already exists", name);
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

Graph::Graph(std::string name)
    : name_(name.empty() ? "graph" : std::move(name)), uid_(next_uid.fetch_add(1, std::memory_order_relaxed)) {}

Tensor* Graph::input(std::string name, DType dtype, Shape shape) {
  const bool is_named = !name.empty();
  for (size_t i = inputs_.size(); !is_named && (name.empty() || input_names_.contains(name)); ++i) {
    name = fmt::format("input_{}", i);
  }
  require<InvalidArgument>(!input_names_.contains(name), "[{}] the graph already has an input of this name", name);
  Tensor* made = add_input(std::move(name), dtype, shape);
  input_names_.insert(made->name);
  return made;
}

Tensor* Graph::placeholder(const Tensor& tensor, const Shape& shape) {
  return add_input(tensor.name, tensor.dtype, shape);
}

Tensor* Graph::add_input(std::string name, DType dtype, const Shape& shape) {
  require<InvalidArgument>(!frozen_, "[{}] the graph is frozen: nothing can be added after its first plan", name);
  inputs_.push_back(keep(make_leaf(std::move(name), dtype, shape, Role::kInput)));
  inputs_.back()->id = static_cast<int>(inputs_.size()) - 1;
  return inputs_.back();
}

Tensor* Graph::keep(Tensor&& tensor) {
  constexpr size_t kLeast = 8, kMost = 128;
  if (arena_.empty() || arena_.back().size() == arena_.back().capacity()) {
    const size_t room = arena_.empty() ? kLeast : std::min(kMost, 2 * arena_.back().capacity());
    arena_.emplace_back().reserve(room);
  }
  return &arena_.back().emplace_back(std::move(tensor));
}

Tensor* Graph::copy_of(const Tensor& tensor, std::string name) {
  if (name.empty()) name = tensor.name;
  Tensor* copy = add_input(std::move(name), tensor.dtype, tensor.shape);
  copy->copied_from = &tensor;
  return copy;
}

Tensor* Graph::add_node(Op op, OpParams params, std::vector<Tensor*> src, std::string name) {
  const OpInfo& row = info(op);
  Tensor node;
  node.name = name.empty() ? fmt::format("{}_{}", row.name, nodes_.size()) : std::move(name);
  check_name(node.name);
  require<InvalidArgument>(!frozen_, "[{} {}] the graph is frozen: nothing can be added after its first plan", row.name,
                           node.name);
  node.op = op;
  node.params = std::move(params);
  node.src = std::move(src);
  node.id = static_cast<int>(nodes_.size());
  check_node(node, row);
  for (int i = 0; i < static_cast<int>(node.src.size()); ++i) {
    if (node.src[i] == nullptr) continue;
    check_origin(node, row.name, i);
    check_reads_latest(node, row.name, i);
  }
  // Absent optional sources are stored as nullptr, so that src[i] is valid for every i < max_src.
  if (row.max_src > 0) node.src.resize(row.max_src, nullptr);
  // This call precedes the inference, so that the functions of the op stay loaded.
  if (op == Op::kExternal && find_op(std::get<ExternalParams>(node.params).op) != nullptr) note_use(node, life_);
  row.infer(node);
  if (row.alias == Alias::kNone) {
    infer::Expect(node, "x").valid_result(node.dtype, node.shape);
    node.strides = contiguous_strides(node.dtype, node.shape);
  } else {
    node.view_base = node.src[0]->storage();
  }
  nodes_.push_back(keep(std::move(node)));
  if (row.alias == Alias::kWrites) writers_[nodes_.back()->storage()] = nodes_.back();
  return nodes_.back();
}

void Graph::check_origin(const Tensor& node, std::string_view op, int index) const {
  const Tensor* source = node.src[index];
  require<InvalidArgument>(is_of(*source, inputs_, nodes_), "[{} {}] source {} ({}) is {} of another graph", op,
                           node.name, index, source->name, source->is_leaf() ? "an input" : "a node");
}

// After a write, nodes must read the result of the write instead of older tensors that alias the same bytes. Otherwise
// the placement would decide whether the nodes read the old or the new rows.
void Graph::check_reads_latest(const Tensor& node, std::string_view op, int index) const {
  const Tensor& source = *node.src[index];
  if (!source.storage()->is_leaf()) return;
  const auto writer = writers_.find(source.storage());
  if (writer == writers_.end()) return;
  require<InvalidArgument>(&behind_views(source) == writer->second,
                           "[{} {}] source {} ({}) reads the old value of {}, which {} changed; use the result of {}",
                           op, node.name, index, source.name, source.storage()->name, writer->second->name,
                           writer->second->name);
}

Tensor* Graph::output(Tensor* tensor) {
  require<InvalidArgument>(tensor != nullptr, "[output] expected a tensor, got none");
  require<InvalidArgument>(is_of(*tensor, inputs_, nodes_), "[{}] the tensor is not part of graph '{}'", tensor->name,
                           name_);
  require<InvalidArgument>(!frozen_ || tensor->is_output,
                           "[{}] the graph is frozen: nothing can become an output after its first plan", tensor->name);
  tensor->is_output = true;
  return tensor;
}

void Graph::claim(int begin, int end, std::string_view owner) {
  if (begin == end) return;
  auto other = claims_.upper_bound(begin);
  if (other != claims_.begin() && std::prev(other)->second.end > begin) --other;
  if (other != claims_.end() && other->first < end) {
    fail<InvalidArgument>(
        "graph '{}': node {} already has a plan on {}; destroy that plan first (or clear the "
        "backend's cached plans), or build a second graph",
        name_, nodes_[static_cast<size_t>(std::max(begin, other->first))]->name, other->second.owner);
  }
  claims_.insert({begin, {end, std::string(owner)}});
}

void Graph::release(int begin, int end) {
  if (const auto found = claims_.find(begin); found != claims_.end() && found->second.end == end) claims_.erase(found);
}

std::shared_ptr<const LastUses> Graph::last_uses() const {
  if (last_uses_ != nullptr) return last_uses_;
  auto made = std::make_shared<LastUses>();
  made->nodes.resize(nodes_.size(), -1);
  made->inputs.resize(inputs_.size(), -1);
  const auto note = [&](const Tensor& read, int step) {
    const Tensor& owner = *read.storage();
    if (owner.is_persistent()) return;
    (owner.is_leaf() ? made->inputs : made->nodes)[static_cast<size_t>(owner.id)] = step;
  };
  for (const Tensor* node : nodes_) {
    for (const Tensor* source : node->src) {
      if (source != nullptr) note(*source, node->id);
    }
  }
  const int host = static_cast<int>(nodes_.size());
  for (const Tensor* node : nodes_) {
    if (node->is_output) note(*node, host);
  }
  for (const Tensor* input : inputs_) {
    if (input->is_output) note(*input, host);
  }
  if (frozen_) last_uses_ = made;
  return made;
}

void check_range(const GraphRange& range) {
  const int count = range.graph != nullptr ? static_cast<int>(range.graph->nodes().size()) : 0;
  require<InvalidArgument>(range.graph != nullptr && range.begin >= 0 && range.begin <= range.end && range.end <= count,
                           "expected a range inside the {} nodes of a graph, got [{}, {})", count, range.begin,
                           range.end);
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
