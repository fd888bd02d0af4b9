#include "tuning/propose/walk.h"

#include <algorithm>

namespace shoal::tuning {

using meta::FactorSplit;
using meta::Layout;
using meta::Partition;
using meta::Rule;

namespace {

/// Whether all devices own all elements. Such a tensor is mirrored.
bool is_everywhere(const Layout& layout) {
  const meta::Owners* holders = layout.holders();
  return holders != nullptr && static_cast<int>(holders->size()) == layout.partition.devices();
}

Partition everywhere(int devices, int64_t length) {
  meta::Owners all(static_cast<size_t>(devices));
  for (int device = 0; device < devices; ++device) all[static_cast<size_t>(device)] = device;
  return Partition(devices, {{length, std::move(all)}});
}

/// Whether a cut divides no quantisation block of the leaf.
bool is_storable(const Tensor& leaf, const Layout& layout) {
  const int64_t block = traits(leaf.dtype).block_elems;
  if (layout.axis != 0 || block == 1) return true;
  const auto runs = layout.partition.runs();
  return std::all_of(runs.begin(), runs.end(), [&](const meta::Run& run) { return run.length % block == 0; });
}

bool selects(const Tensor& node) {
  return (node.op == Op::kMulMatId || node.op == Op::kGetRows) && behind_views(*node.src[0]).is_persistent();
}

const Tensor& ids_of(const Tensor& node) {
  return behind_views(*node.src[node.op == Op::kMulMatId ? 2 : 1]);
}

std::array<int, 4> inverse(const std::array<int, 4>& axes) {
  std::array<int, 4> out{};
  for (int i = 0; i < kMaxDims; ++i) out[static_cast<size_t>(axes[static_cast<size_t>(i)])] = i;
  return out;
}

}  // namespace

GraphIndex::GraphIndex(const Graph& graph, const meta::RuleLookup& rules) : graph_(graph), rules_(graph, rules) {
  for (const Tensor* node : graph.nodes()) {
    for (size_t i = 0; i < node->src.size(); ++i) {
      if (node->src[i] != nullptr) users_[node->src[i]].push_back({node, static_cast<int>(i)});
    }
    if (selects(*node)) by_ids_[&ids_of(*node)].push_back(node);
  }
  std::erase_if(by_ids_, [](const auto& entry) {
    return std::none_of(entry.second.begin(), entry.second.end(),
                        [](const Tensor* node) { return node->op == Op::kMulMatId; });
  });
}

const Rule* GraphIndex::rule(const Tensor& node) {
  return node.is_leaf() || is_view(node.op) || node.op == Op::kConcat ? nullptr : rules_.find(node);
}

const std::vector<GraphIndex::User>& GraphIndex::users(const Tensor& tensor) const {
  static const std::vector<User> none;
  const auto found = users_.find(&tensor);
  return found == users_.end() ? none : found->second;
}

const std::vector<const Tensor*>& GraphIndex::same_ids(const Tensor& node) const {
  static const std::vector<const Tensor*> none;
  if (!selects(node)) return none;
  const auto found = by_ids_.find(&ids_of(node));
  return found == by_ids_.end() ? none : found->second;
}

bool Walk::run(const Tensor& node, const FactorSplit& split) {
  const Rule* rule = index_.rule(node);
  if (rule == nullptr || !split_node(node, *rule, split) || !nodes_.contains(&node)) return false;
  if (!drain()) return false;
  // The remaining parts of a fused tensor belong to nodes that the walk does not reach. These parts are mirrored.
  while (!fused_.empty()) {
    if (!close(0, true) || !drain()) return false;
  }
  return true;
}

std::vector<std::pair<const Tensor*, Layout>> Walk::leaves() const {
  std::vector<std::pair<const Tensor*, Layout>> found;
  for (const Tensor* tensor : order_) {
    if (tensor->is_leaf() && tensor->is_persistent()) found.emplace_back(tensor, layouts_.at(tensor));
  }
  return found;
}

bool Walk::drain() {
  while (next_ < order_.size()) {
    const Tensor& tensor = *order_[next_++];
    const Layout layout = layouts_.at(&tensor);
    if (!tensor.is_leaf() && !backward(tensor, layout)) return false;
    for (const GraphIndex::User& user : index_.users(tensor)) {
      if (!forward(layout, user)) return false;
    }
  }
  return true;
}

bool Walk::split_node(const Tensor& node, const Rule& rule, FactorSplit split) {
  const bool is_summed = Rule::axis_of(rule.result, split.factor) < 0;
  if (is_summed) split.partition = split.partition.disjoint();
  if (const auto known = nodes_.find(&node); known != nodes_.end()) {
    return known->second.factor == split.factor && known->second.partition == split.partition;
  }
  const auto result = result_layout(rule, split.factor, split.partition);
  if (!result) return lenient_;
  std::vector<Layout> sources;
  for (size_t i = 0; i < node.src.size(); ++i) {
    const auto layout = node.src[i] == nullptr ? Layout::mirrored()
                                               : operand_layout(rule, split.factor, split.partition, rule.sources[i]);
    if (!layout) return lenient_;
    sources.push_back(*layout);
  }
  nodes_.emplace(&node, split);
  if (std::ranges::find(partitions_, split.partition) == partitions_.end()) partitions_.push_back(split.partition);
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (node.src[i] != nullptr && !assign(*node.src[i], sources[i])) return false;
  }
  if (!assign(node, *result)) return false;
  return rule.factors[static_cast<size_t>(split.factor)].kind != meta::FactorKind::kSelected ||
         split_same_ids(node, split);
}

/// All products of the same selected experts are divided in the same way.
bool Walk::split_same_ids(const Tensor& node, const FactorSplit& split) {
  for (const Tensor* other : index_.same_ids(node)) {
    const Rule* rule = index_.rule(*other);
    for (int factor = 0; rule != nullptr && factor < static_cast<int>(rule->factors.size()); ++factor) {
      const meta::Factor& one = rule->factors[static_cast<size_t>(factor)];
      if (one.kind != meta::FactorKind::kSelected || one.length != split.partition.length()) continue;
      if (!split_node(*other, *rule, {factor, split.partition})) return false;
    }
  }
  return true;
}

bool Walk::assign(const Tensor& tensor, const Layout& layout) {
  if (!layout.is_split() || is_everywhere(layout)) return true;
  if (const auto known = layouts_.find(&tensor); known != layouts_.end()) {
    const Layout& own = known->second;
    return own == layout || (own.is_split(layout.axis) && own.partition.disjoint() == layout.partition);
  }
  if (tensor.is_leaf() && tensor.is_persistent() && !is_storable(tensor, layout)) return lenient_;
  layouts_.emplace(&tensor, layout);
  order_.push_back(&tensor);
  return true;
}

bool Walk::backward(const Tensor& node, const Layout& layout) {
  switch (node.op) {
    case Op::kReshape:
      return assign(*node.src[0], reshape_layout(layout, node.shape, node.src[0]->shape));
    case Op::kPermute:
      return assign(*node.src[0], permute_layout(layout, inverse(std::get<PermuteParams>(node.params).axes)));
    case Op::kSlice:
      return backward_slice(node, layout);
    case Op::kConcat:
      return backward_concat(node, layout);
    default:
      break;
  }
  const Rule* rule = index_.rule(node);
  if (rule == nullptr) return true;
  const int factor = rule->result.axes[static_cast<size_t>(layout.axis)].factor;
  if (factor < 0 || rule->factors[static_cast<size_t>(factor)].kind == meta::FactorKind::kWhole) return true;
  const auto split = factor_split(*rule, rule->result, layout);
  return split ? split_node(node, *rule, *split) : lenient_;
}

bool Walk::backward_slice(const Tensor& node, const Layout& layout) {
  const auto& slice = std::get<SliceParams>(node.params);
  if (!layout.is_split(slice.axis)) return assign(*node.src[0], layout);
  return slice.step != 1 || add_piece(*node.src[0], slice.axis, {slice.begin, layout.partition});
}

bool Walk::backward_concat(const Tensor& node, const Layout& layout) {
  const int axis = std::get<ConcatParams>(node.params).axis;
  int64_t begin = 0;
  for (const Tensor* source : node.src) {
    const int64_t length = source->shape[static_cast<size_t>(axis)];
    const Layout part = layout.is_split(axis) ? Layout::split(axis, layout.partition.slice(begin, length)) : layout;
    begin += length;
    if (length > 0 && !assign(*source, part)) return false;
  }
  return true;
}

bool Walk::forward(const Layout& layout, const GraphIndex::User& user) {
  const Tensor& node = *user.node;
  if (node.op == Op::kReshard) return true;
  if (is_view(node.op)) return assign(node, meta::view_layout(node, layout));
  if (node.op == Op::kConcat) {
    const int axis = std::get<ConcatParams>(node.params).axis;
    if (!layout.is_split(axis)) return assign(node, layout);
    int64_t begin = 0;
    for (int i = 0; i < user.source; ++i) begin += node.src[static_cast<size_t>(i)]->shape[static_cast<size_t>(axis)];
    return add_piece(node, axis, {begin, layout.partition});
  }
  const Rule* rule = index_.rule(node);
  if (rule == nullptr) return true;
  const meta::Operand& operand = rule->sources[static_cast<size_t>(user.source)];
  const int factor = operand.axes[static_cast<size_t>(layout.axis)].factor;
  if (factor < 0 || rule->factors[static_cast<size_t>(factor)].kind == meta::FactorKind::kWhole) return true;
  // The layout of grouped heads does not determine the division of the heads. A known division has precedence.
  for (const Partition& partition : partitions_) {
    if (partition.length() != rule->factors[static_cast<size_t>(factor)].length) continue;
    const auto wanted = operand_layout(*rule, factor, partition, operand);
    if (wanted && *wanted == layout) return split_node(node, *rule, {factor, partition});
  }
  const auto split = factor_split(*rule, operand, layout);
  return split ? split_node(node, *rule, *split) : lenient_;
}

bool Walk::add_piece(const Tensor& tensor, int axis, Piece piece) {
  if (const auto known = layouts_.find(&tensor); known != layouts_.end()) {
    const int64_t length = piece.partition.length();
    return known->second.is_split(axis) && known->second.partition.slice(piece.begin, length) == piece.partition;
  }
  const auto is_same = [&](const Fused& fused) { return fused.tensor == &tensor && fused.axis == axis; };
  auto fused = std::ranges::find_if(fused_, is_same);
  if (fused == fused_.end()) fused = fused_.insert(fused, {&tensor, axis, {}});
  auto& pieces = fused->pieces;
  const auto at = std::ranges::lower_bound(pieces, piece.begin, {}, &Piece::begin);
  if (at != pieces.end() && at->begin == piece.begin) return at->partition == piece.partition;
  pieces.insert(at, std::move(piece));
  return close(static_cast<size_t>(fused - fused_.begin()), false);
}

/// Assigns the layout of a tensor if its pieces cover the axis. With `fill`, the gaps between the pieces are mirrored.
bool Walk::close(size_t number, bool fill) {
  const auto [tensor, axis, pieces] = fused_[number];
  if (layouts_.contains(tensor)) {  // the walk has reached the tensor in another way
    fused_.erase(fused_.begin() + static_cast<std::ptrdiff_t>(number));
    return std::ranges::all_of(pieces,
                               [&, to = tensor, on = axis](const Piece& piece) { return add_piece(*to, on, piece); });
  }
  const int devices = pieces.front().partition.devices();
  std::vector<Partition> parts;
  int64_t at = 0;
  const auto fill_to = [&](int64_t end) {
    if (end > at) parts.push_back(everywhere(devices, end - at));
    return end == at || fill;
  };
  for (const Piece& piece : pieces) {
    if (piece.begin < at) return false;  // the slices overlap
    if (!fill_to(piece.begin)) return true;
    parts.push_back(piece.partition);
    at = piece.begin + piece.partition.length();
  }
  if (!fill_to(tensor->shape[static_cast<size_t>(axis)])) return true;
  fused_.erase(fused_.begin() + static_cast<std::ptrdiff_t>(number));
  return assign(*tensor, Layout::split(axis, Partition::concat(parts)));
}

}  // namespace shoal::tuning
