// Turns lifetimes into offsets. Every planned tensor gets a slot: a size in bytes and the steps during which the tensor
// is live. A node that runs in place shares the slot of its source. Slots are placed from largest to smallest. Each
// slot is placed in the smallest gap between slots that are live at the same time ("greedy by size", Pisarchyk and Lee
// 2020). This order needs less memory than the order of the nodes, because small tensors do not fragment the space for
// large tensors. Planning N nodes takes O(N log N) if the occupied bytes form few separate ranges at each step. This is
// the usual case, because most slots are adjacent.
#include "graph/memory_plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace shoal {
namespace {

constexpr size_t kMaxInPlace = 32;  // number of bits in OpInfo::in_place_sources

/// Bytes that are live during the steps [first, last]. Step i is node i of the graph.
struct Slot {
  int first = 0;
  int last = 0;
  size_t size = 0;   ///< a multiple of the alignment
  size_t bytes = 0;  ///< size before rounding
  int chunk = -1;
  size_t offset = 0;
};

/// Bytes [begin, end) of a chunk.
struct Stretch {
  size_t begin = 0, end = 0;
};

/// Stretches in ascending order. Adjacent stretches are merged.
class Stretches {
 public:
  void add(size_t begin, size_t end) {
    auto first = std::lower_bound(all_.begin(), all_.end(), begin,
                                  [](const Stretch& stretch, size_t value) { return stretch.end < value; });
    auto last = first;
    for (; last != all_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      all_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      all_.erase(first + 1, last);
    }
  }
  const std::vector<Stretch>& all() const { return all_; }

 private:
  std::vector<Stretch> all_;
};

/// The occupied bytes of a chunk over time, as a binary tree over the steps. add() and find() each visit O(log steps)
/// nodes of the tree.
class TakenBytes {
 public:
  /// The tree covers the steps [first, last].
  TakenBytes(int first, int last) : first_(first) {
    size_t leaves = 1;
    while (leaves < static_cast<size_t>(last - first) + 1) leaves *= 2;
    nodes_.resize(2 * leaves);
  }

  void add(const Slot& slot) { add(1, first_, first_ + static_cast<int>(nodes_.size() / 2) - 1, slot); }
  /// Appends the stretches that are occupied during the slot's steps.
  void find(const Slot& slot, std::vector<Stretch>& found) const {
    find(1, first_, first_ + static_cast<int>(nodes_.size() / 2) - 1, slot, found);
  }

 private:
  struct Node {
    Stretches always;  ///< bytes of slots that are live during all steps of the tree node
    Stretches ever;    ///< bytes of slots that are live during any step of the tree node
  };

  void add(size_t node, int first, int last, const Slot& slot) {
    if (slot.last < first || last < slot.first) return;
    const size_t end = slot.offset + slot.size;
    nodes_[node].ever.add(slot.offset, end);
    if (slot.first <= first && last <= slot.last) return nodes_[node].always.add(slot.offset, end);
    const int middle = first + (last - first) / 2;
    add(2 * node, first, middle, slot);
    add(2 * node + 1, middle + 1, last, slot);
  }

  void find(size_t node, int first, int last, const Slot& slot, std::vector<Stretch>& found) const {
    if (slot.last < first || last < slot.first) return;
    const bool is_inside = slot.first <= first && last <= slot.last;
    const auto& taken = (is_inside ? nodes_[node].ever : nodes_[node].always).all();
    found.insert(found.end(), taken.begin(), taken.end());
    if (is_inside) return;
    const int middle = first + (last - first) / 2;
    find(2 * node, first, middle, slot, found);
    find(2 * node + 1, middle + 1, last, slot, found);
  }

  int first_;
  std::vector<Node> nodes_;  ///< node n has the children 2n and 2n + 1; the root is node 1
};

/// Places slots in chunks.
class Arena {
 public:
  /// All slots must be within the steps [first, last].
  Arena(size_t max_chunk, int first, int last) : max_chunk_(max_chunk), first_(first), last_(last) {}

  void place(Slot& slot) {
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      if (const auto offset = find_room(chunks_[chunk], slot)) return put(slot, chunk, *offset);
    }
    chunks_.push_back({0, 0, TakenBytes(first_, last_)});
    put(slot, chunks_.size() - 1, 0);
  }

  std::vector<size_t> chunk_sizes() const {
    std::vector<size_t> sizes;
    for (const Chunk& chunk : chunks_) sizes.push_back(size_of(chunk));
    return sizes;
  }

 private:
  struct Chunk {
    size_t size = 0;
    size_t used = 0;  ///< largest end of a slot, computed without rounding up the slot's size
    TakenBytes taken;
  };

  /// Size of the chunk. The size is rounded up, but not above the limit. If the content exceeds the limit, the size is
  /// not rounded.
  size_t size_of(const Chunk& chunk) const {
    return chunk.size <= max_chunk_ ? chunk.size : std::max(max_chunk_, chunk.used);
  }

  /// The offset of the smallest gap that is large enough. If no gap is large enough, the end of the last occupied
  /// stretch. nullopt if a slot at this end would exceed the chunk's size limit.
  std::optional<size_t> find_room(const Chunk& chunk, const Slot& slot) {
    rivals_.clear();
    chunk.taken.find(slot, rivals_);
    std::sort(rivals_.begin(), rivals_.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
    std::optional<size_t> best;
    size_t best_gap = std::numeric_limits<size_t>::max();
    size_t end = 0;
    for (const Stretch& other : rivals_) {
      if (other.begin >= end + slot.size && other.begin - end < best_gap) {
        best = end;
        best_gap = other.begin - end;
      }
      end = std::max(end, other.end);
    }
    if (best) return best;
    const size_t limit = std::max(max_chunk_, chunk.size);
    if (slot.size > limit || end > limit - slot.size) return std::nullopt;
    return end;
  }

  void put(Slot& slot, size_t chunk, size_t offset) {
    slot.chunk = static_cast<int>(chunk);
    slot.offset = offset;
    Chunk& target = chunks_[chunk];
    target.size = std::max(target.size, offset + slot.size);
    target.used = std::max(target.used, offset + slot.bytes);
    if (slot.size > 0) target.taken.add(slot);
  }

  size_t max_chunk_;
  int first_, last_;
  std::vector<Chunk> chunks_;
  std::vector<Stretch> rivals_;  ///< stretches that are occupied during the current slot's steps
};

/// The ranges of nodes that compute the weighted sum of each token's expert outputs: mul_mat_id, weighting,
/// transposition, sum. A device may fuse these nodes.
std::vector<NodeRange> weighted_sums(const GraphRange& range) {
  constexpr std::array kBehind = {Op::kMul, Op::kContiguous, Op::kSumRows};
  std::vector<NodeRange> found;
  const auto nodes = range.graph->nodes();
  for (int begin = range.begin; begin < range.end; ++begin) {
    if (nodes[begin]->op != Op::kMulMatId || nodes[begin]->shape[2] != 1) continue;
    size_t known = 0;
    int end = begin + 1;
    for (; end < range.end && known < kBehind.size(); ++end) {
      if (nodes[end]->op == kBehind[known]) {
        ++known;
      } else if (!is_view(nodes[end]->op)) {
        break;
      }
    }
    if (known == kBehind.size()) found.push_back({begin, end});
  }
  return found;
}

class Planner {
 public:
  Planner(const GraphRange& range, const MemoryPlanOptions& options)
      : range_(range),
        options_(options),
        nodes_(range.graph->nodes()),
        uses_(range.graph->last_uses()),
        of_nodes_(static_cast<size_t>(range.end - range.begin)),
        joined_(weighted_sums(range)) {
    joined_.insert(joined_.end(), options.fused.begin(), options.fused.end());
    std::sort(joined_.begin(), joined_.end(), [](NodeRange a, NodeRange b) { return a.begin < b.begin; });
    slots_.reserve(2 * static_cast<size_t>(range.end - range.begin));
    members_.reserve(2 * static_cast<size_t>(range.end - range.begin));
  }

  std::vector<size_t> chunks() {
    find_last_uses();
    assign_inputs();
    for (int step = range_.begin; step < range_.end; ++step) assign_node(step, *nodes_[step]);
    return place_slots();
  }

  MemoryPlan run() {
    const std::vector<size_t> sizes = chunks();
    return collect(sizes);
  }

 private:
  struct Member {
    const Tensor* tensor;
    int slot;
    size_t size;
    bool is_workspace;
  };
  /// Lifetime and slot of the bytes that a node or an input owns.
  struct Life {
    int last_use = -1;  ///< step of the last use
    int slot = -1;
  };

  /// `owner` is an input or a node of the range.
  Life& life(const Tensor& owner) {
    if (!owner.is_leaf()) return of_nodes_[static_cast<size_t>(owner.id - range_.begin)];
    const auto [found, is_new] = of_inputs_.try_emplace(owner.id);
    if (is_new) found->second.last_use = last_use_of(uses_->inputs[static_cast<size_t>(owner.id)]);
    return found->second;
  }
  const Life& life(const Tensor& owner) const { return const_cast<Planner*>(this)->life(owner); }

  // A use of a view counts as a use of the tensor that owns the bytes. Outputs, inputs, and all bytes with a reader
  // after the range are live until range_.end, one step past the last node. A late input is live only until its last
  // use, unless it is an output.
  int last_use_of(int step) const { return std::min(step, range_.end); }
  void find_last_uses() {
    for (size_t i = 0; i < of_nodes_.size(); ++i) {
      of_nodes_[i].last_use = last_use_of(uses_->nodes[static_cast<size_t>(range_.begin) + i]);
    }
    for (const Tensor* node : options_.shown) {
      // The node is live past the next cut, so that the last node before the cut cannot reuse the memory of this
      // node.
      if (!has_life(*node->storage())) continue;
      int& last = life(*node->storage()).last_use;
      last = std::max(last, segment_end(node->id));
    }
  }

  /// Whether the plan of this range places the tensor. Weights, caches and nodes of earlier ranges have their own
  /// memory.
  bool has_life(const Tensor& owner) const {
    return owner.is_leaf() ? !owner.is_persistent() : owner.id >= range_.begin && owner.id < range_.end;
  }

  int begin_of(int segment) const {
    return segment == 0 ? range_.begin : options_.cuts[static_cast<size_t>(segment) - 1];
  }
  /// The first cut after a step. If no cut follows the step, the end of the range.
  int segment_end(int step) const {
    const auto after = std::upper_bound(options_.cuts.begin(), options_.cuts.end(), step);
    return after == options_.cuts.end() ? range_.end : std::min(range_.end, *after);
  }

  // If the range does not cover the whole graph, only inputs that nodes of the range use are placed.
  void assign_inputs() {
    for (const LateInput& late : options_.late) assign_late(late);
    if (range_.begin == 0 && range_.end == static_cast<int>(nodes_.size())) {
      for (Tensor* input : range_.graph->inputs()) {
        if (awaits_slot(*input)) assign_new(*input, range_.begin, range_.end);
      }
    }
    for (int step = range_.begin; step < range_.end; ++step) {
      for (const Tensor* source : nodes_[step]->src) {
        if (source == nullptr || source->role != Role::kInput) continue;
        if (awaits_slot(*source)) assign_new(*source, range_.begin, range_.end);
        if (life(*source).slot >= 0) check_written(step, *source);
      }
    }
  }

  bool awaits_slot(const Tensor& input) const { return needs_placement(input) && life(input).slot < 0; }

  // A late input needs memory even if no node reads it, because the caller writes it in every run.
  void assign_late(const LateInput& late) {
    check(late.segment >= 0 && static_cast<size_t>(late.segment) <= options_.cuts.size(),
          "late input {} belongs to segment {}, but there are only {} segments", late.input->name, late.segment,
          options_.cuts.size() + 1);
    if (!awaits_slot(*late.input)) return;
    const int first = begin_of(late.segment);
    const int last = std::max(first, last_use(*late.input));
    assign_new(*late.input, first, last);
  }

  void check_written(int step, const Tensor& input) const {
    const int first = slots_[static_cast<size_t>(life(input).slot)].first;
    require<InvalidArgument>(step >= first, "[{} {}] node {} reads late input {}, but the input is written at node {}",
                             name_of(nodes_[step]->op), nodes_[step]->name, step, input.name, first);
  }

  void assign_node(int step, const Tensor& node) {
    if (needs_placement(node)) {
      const int last = std::max(step, last_use(node));
      if (const Tensor* source = source_to_overwrite(step, node)) {
        join(node, life(*source->storage()).slot, last);
      } else {
        assign_new(node, step, last);
      }
    }
    if (!options_.workspace_size || is_view(node.op)) return;
    const size_t size = options_.workspace_size(node);
    if (size == 0) return;
    slots_.push_back({step, end_of_use(step), round_up(size), size});
    members_.push_back({&node, static_cast<int>(slots_.size()) - 1, size, true});
  }

  /// `step`: last use of some memory. Returns the last step at which this memory is live: the last step of the range in
  /// `joined_` that contains `step`, or `step` if no range contains it.
  int end_of_use(int step) const {
    const auto after = std::upper_bound(joined_.begin(), joined_.end(), step,
                                        [](int value, const NodeRange& range) { return value < range.begin; });
    return after == joined_.begin() ? step : std::max(step, (after - 1)->end - 1);
  }

  void assign_new(const Tensor& tensor, int first, int last) {
    slots_.push_back({first, last, 0, 0});
    join(tensor, static_cast<int>(slots_.size()) - 1, last);
  }

  void join(const Tensor& tensor, int slot, int last) {
    const size_t size = size_of(tensor);
    slots_[slot].size = std::max(slots_[slot].size, round_up(size));
    slots_[slot].bytes = std::max(slots_[slot].bytes, size);
    slots_[slot].last = end_of_use(last);
    life(tensor).slot = slot;
    members_.push_back({&tensor, slot, size, false});
  }

  size_t size_of(const Tensor& tensor) const {
    return options_.alloc_size ? options_.alloc_size(tensor) : tensor.bytes();
  }

  /// The first source whose memory the node may overwrite; nullptr if the node may not overwrite any source.
  const Tensor* source_to_overwrite(int step, const Tensor& node) const {
    const uint32_t candidates = info(node.op).in_place_sources;
    for (size_t i = 0; i < std::min(node.src.size(), kMaxInPlace); ++i) {
      const Tensor* source = node.src[i];
      if (source && (candidates >> i & 1) && fits_exactly(*source, node) && dies_here(step, *source) &&
          no_other_view(*source, node, candidates)) {
        return source;
      }
    }
    return nullptr;
  }

  /// Whether the source has the node's layout and covers the whole tensor that owns its bytes. A view with this
  /// property has view_offset 0.
  static bool fits_exactly(const Tensor& source, const Tensor& node) {
    return source.dtype == node.dtype && source.shape == node.shape && source.is_contiguous() &&
           source.bytes() == source.storage()->bytes();
  }

  /// Whether a node of this range owns the source's bytes and no later step needs these bytes. Leaves are never
  /// overwritten.
  bool dies_here(int step, const Tensor& source) const {
    const Tensor* owner = source.storage();
    return !owner->is_leaf() && has_life(*owner) && life(*owner).slot >= 0 && last_use(*owner) == step;
  }

  /// Whether every source that shares the bytes of `source` has the node's layout and may be overwritten.
  static bool no_other_view(const Tensor& source, const Tensor& node, uint32_t candidates) {
    for (size_t i = 0; i < node.src.size(); ++i) {
      const Tensor* other = node.src[i];
      if (!other || other->storage() != source.storage()) continue;
      if (!(candidates >> i & 1) || !fits_exactly(*other, node)) return false;
    }
    return true;
  }

  int last_use(const Tensor& owner) const { return life(owner).last_use; }

  std::vector<size_t> place_slots() {
    std::vector<int> order(slots_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return slots_[a].size > slots_[b].size; });
    Arena arena(options_.max_chunk, range_.begin, range_.end);
    for (const int slot : order) arena.place(slots_[slot]);
    return arena.chunk_sizes();
  }

  MemoryPlan collect(const std::vector<size_t>& chunk_sizes) const {
    MemoryPlan plan;
    plan.chunk_sizes = chunk_sizes;
    plan.tensors.reserve(members_.size());
    for (const Member& member : members_) {
      const Slot& slot = slots_[member.slot];
      (member.is_workspace ? plan.workspaces : plan.tensors)[member.tensor] = {slot.chunk, slot.offset, member.size,
                                                                               slot.first};
    }
    return plan;
  }

  size_t round_up(size_t size) const {
    return (size + options_.alignment - 1) / options_.alignment * options_.alignment;
  }

  const GraphRange& range_;
  const MemoryPlanOptions& options_;
  std::span<Tensor* const> nodes_;
  std::shared_ptr<const LastUses> uses_;
  std::vector<Life> of_nodes_;               ///< lifetimes of the nodes of the range
  std::vector<NodeRange> joined_;            ///< ranges of nodes that may run as one unit, in ascending order
  std::unordered_map<int, Life> of_inputs_;  ///< lifetimes by input number; only inputs that are used
  std::vector<Slot> slots_;
  std::vector<Member> members_;
};

}  // namespace

size_t MemoryPlan::total_bytes() const {
  return std::accumulate(chunk_sizes.begin(), chunk_sizes.end(), size_t{0});
}

bool needs_placement(const Tensor& tensor) {
  return !tensor.is_view() && !tensor.is_persistent() && tensor.buffer == nullptr;
}

MemoryPlan plan_memory(const GraphRange& range, const MemoryPlanOptions& options) {
  check_range(range);
  require<InvalidArgument>(options.alignment > 0, "[plan_memory] expected an alignment > 0, got 0");
  return Planner(range, options).run();
}

std::vector<size_t> plan_chunks(const GraphRange& range, const MemoryPlanOptions& options) {
  check_range(range);
  require<InvalidArgument>(options.alignment > 0, "[plan_memory] expected an alignment > 0, got 0");
  return Planner(range, options).chunks();
}

}  // namespace shoal
