#include "meta/device/meta_plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "devices/allocate.h"
#include "meta/device/meta_backend.h"
#include "meta/meta.h"
#include "meta/plan/joined_norm.h"

namespace shoal::meta {

MetaGraphPlan::MetaGraphPlan(MetaBackend& backend, std::unique_ptr<GraphClaim> claim, Plan plan, ComputeArena* arena)
    : GraphPlan(backend),
      backend_(backend),
      plan_(std::move(plan)),
      communicates_(plan_.communicates()),
      claim_(std::move(claim)),
      buffer_(backend.buffer_type(), 0),
      topology_(claim_->range().graph->topology()) {
  remember_graph();
  allocate(arena);
  compile();
  bind();
}

// Queued collectives refer to the calls stored in this plan, so the destructor waits until the collectives have
// finished.
MetaGraphPlan::~MetaGraphPlan() {
  if (has_backend()) finish_queued(backend_);
  unbind();
  if (has_backend()) backend_.erase_recorded(*this);
}

size_t MetaGraphPlan::allocated_bytes() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), size_t{0});
}

void MetaGraphPlan::allocate(ComputeArena* arena) {
  for (size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
    const RankPlan& local = plan_.ranks[rank];
    const PlanOptions options = allocation_options(local, arena != nullptr ? &arena->member(rank) : nullptr);
    const GraphBuffers memory = allocate_graph(whole(*local.graph), backend_.members()[rank]->device(), options);
    bytes_.push_back(memory.bytes);
    placed_inputs_.push_back(memory.inputs);
    for (const auto& part : memory.parts) buffer_.keep(static_cast<int>(rank), part);
  }
  buffer_.set_usage(Usage::kCompute);
}

int MetaGraphPlan::writable_from(const Tensor& input) const {
  const auto found = plan_.shards.find(&input);
  require<InvalidArgument>(found != plan_.shards.end() && input.is_leaf(), "{} is not an input of the plan's graph",
                           describe(input));
  int segment = 0;
  for (size_t rank = 0; rank < placed_inputs_.size(); ++rank) {
    const PlacedInput* placed = find_placed(placed_inputs_[rank], found->second.local[rank]->id);
    if (placed != nullptr) segment = std::max(segment, placed->segment);
  }
  return segment;
}

void MetaGraphPlan::compile() {
  const Mesh& mesh = backend_.mesh();
  std::vector<std::map<int, const Tensor*>> shown(plan_.ranks.size());  // the key is the node number
  for (size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
    for (const Tensor* node : plan_.ranks[rank].shown) shown[rank].emplace(node->id, node);
  }
  for (const Step& step : plan_.steps) {
    Action action;
    for (size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      const NodeRange& range = step.ranges[rank];
      if (is_joined(step)) {
        action.norms.push_back(joined_norm(*plan_.ranks[rank].graph, range, step.tensor.c_str()));
      } else if (step.kind == StepKind::kCollective) {
        const Graph& graph = *plan_.ranks[rank].graph;
        action.calls.push_back(make_call(*graph.nodes()[static_cast<size_t>(range.begin)], step));
      } else {
        action.compute.push_back(mesh.is_own(rank) ? compile(rank, range, actions_.size(), shown[rank]) : nullptr);
      }
    }
    actions_.push_back(std::move(action));
  }
  for (size_t i = 0; i < actions_.size(); ++i) {
    for (size_t rank = 0; rank < actions_[i].compute.size(); ++rank) pass_forms(i, rank);
  }
}

/// A compiled step and the joined calls (joined_norm.h) directly before and after the step pass columns to each other,
/// for example in quantised form. This function copies the forms of these columns (PassedForms) from a rank's compiled
/// step to these calls. Joined calls never cross a segment boundary, so segments need no special case.
void MetaGraphPlan::pass_forms(size_t step, size_t rank) {
  if (actions_[step].compute[rank] == nullptr) return;
  const PassedForms forms = actions_[step].compute[rank]->passed_forms();
  if (step > 0 && is_joined(plan_.steps[step - 1])) actions_[step - 1].norms[rank].normed_forms = forms.before;
  if (step + 1 < actions_.size() && is_joined(plan_.steps[step + 1])) {
    actions_[step + 1].norms[rank].column_forms = forms.behind;
  }
}

std::unique_ptr<GraphPlan> MetaGraphPlan::compile(size_t rank, const NodeRange& range, size_t step,
                                                  const std::map<int, const Tensor*>& shown) const {
  if (range.begin == range.end) return nullptr;
  const RankPlan& local = plan_.ranks[rank];
  PlanOptions options;  // nodes in `shown` are computed even if no other node reads them
  for (auto it = shown.lower_bound(range.begin); it != shown.end() && it->first < range.end; ++it) {
    options.shown.push_back(it->second);
  }
  options.label = "step " + std::to_string(step);
  const auto node = [&](int id) { return local.graph->nodes()[static_cast<size_t>(id)]; };
  if (step > 0 && is_joined(plan_.steps[step - 1])) options.before = node(plan_.steps[step - 1].ranges[rank].end - 1);
  if (step + 1 < plan_.steps.size() && is_joined(plan_.steps[step + 1])) {
    options.behind = node(plan_.steps[step + 1].ranges[rank].begin);
  }
  return backend_.members()[rank]->create_plan(GraphRange{local.graph.get(), range.begin, range.end}, options);
}

collectives::Call MetaGraphPlan::make_call(const Tensor& node, const Step& step) const {
  const auto& params = std::get<CollectiveParams>(node.params);
  const Tensor& source = *node.src[0];
  // All ranks pass the same `count`. If `counts` has the number of elements of each rank, `count` is 0.
  const int64_t count = params.counts.empty() ? source.elements() : 0;
  return {step.collective, node.dtype, source.data, node.data, count, params.counts, 0, step.tensor.c_str()};
}

void MetaGraphPlan::bind() {
  const GraphRange& range = claim_->range();
  note_memory(range);
  const auto bind_one = [&](Tensor* tensor) {
    const auto it = plan_.shards.find(tensor);
    if (it == plan_.shards.end()) return;
    buffer_.bind(*tensor, it->second);
    bound_.push_back(tensor);
  };
  for (Tensor* input : range.graph->inputs()) bind_one(input);
  for (int i = range.begin; i < range.end; ++i) bind_one(range.graph->nodes()[i]);
}

void MetaGraphPlan::unbind() {
  for (Tensor* tensor : bound_) {
    buffer_.unbind(tensor);
    if (claim_->graph_is_destroyed()) continue;  // the tensors were destroyed with the graph
    if (tensor->buffer == &buffer_) tensor->buffer = nullptr, tensor->data = nullptr;
  }
  bound_.clear();
}

std::vector<const std::byte*> MetaGraphPlan::places_of(const Tensor& tensor) {
  std::vector<const std::byte*> places;
  if (const Shards* shards = find_shards(tensor)) {
    for (const Tensor* local : shards->local) places.push_back(local->data);
  }
  return places;
}

void MetaGraphPlan::remember_graph() {
  const Graph& graph = *claim_->range().graph;
  inputs_.assign(graph.inputs().begin(), graph.inputs().end());
  nodes_.assign(graph.nodes().begin(), graph.nodes().end());
  for (const auto& [tensor, layout] : plan_.layouts) {
    if (plan_.shards.contains(tensor)) continue;
    Outside outside{nullptr, !tensor->is_leaf(), tensor->id, 0, places_of(*tensor)};
    if (tensor->is_leaf() && tensor->is_persistent()) {
      outside.persistent = tensor;
      outside.generation = tensor->buffer->generation();
    }
    outside_.push_back(std::move(outside));
  }
  constraints_ = constraints_in(*claim_->range().graph);
}

std::vector<MetaGraphPlan::Numbered> MetaGraphPlan::constraints_in(Graph& graph) const {
  const ConstraintLookup lookup = static_cast<const MetaDevice&>(backend_.device()).constraints();
  if (!lookup) return {};
  const GraphRange range{&graph, claim_->range().begin, claim_->range().end};
  std::vector<Numbered> found;
  for (ConstrainedTensor& one : constraints_of(range, static_cast<int>(plan_.ranks.size()), lookup)) {
    found.push_back({!one.tensor->is_leaf(), one.tensor->id, std::move(one.constraint)});
  }
  return found;
}

bool MetaGraphPlan::fits(Graph& graph) const {
  if (*graph.topology() != *topology_ || constraints_in(graph) != constraints_) return false;
  const ConstraintLookup lookup = static_cast<const MetaDevice&>(backend_.device()).constraints();
  return std::all_of(outside_.begin(), outside_.end(), [&](const Outside& outside) {
    // A new plan reports the constraint of a weight or cache.
    if (outside.persistent != nullptr && lookup && lookup(*outside.persistent)) return false;
    const auto number = static_cast<size_t>(outside.number);
    const Tensor& tensor = outside.persistent != nullptr ? *outside.persistent
                           : outside.is_node             ? *graph.nodes()[number]
                                                         : *graph.inputs()[number];
    const uint64_t generation =
        outside.persistent != nullptr && tensor.buffer != nullptr ? tensor.buffer->generation() : 0;
    return generation == outside.generation && places_of(tensor) == outside.places;
  });
}

void MetaGraphPlan::move_to(Graph& graph) {
  const GraphRange& from = claim_->range();
  auto claim = std::make_unique<GraphClaim>(GraphRange{&graph, from.begin, from.end}, backend_.device());
  finish_queued(backend_);
  unbind();
  claim_ = std::move(claim);
  std::unordered_map<const Tensor*, Tensor*> heir;
  for (size_t i = 0; i < inputs_.size(); ++i) heir.emplace(inputs_[i], graph.inputs()[i]);
  for (size_t i = 0; i < nodes_.size(); ++i) heir.emplace(nodes_[i], graph.nodes()[i]);
  for (auto& [tensor, layout] : plan_.layouts) {
    if (const auto found = heir.find(tensor); found != heir.end()) tensor = found->second;
  }
  for (ConstrainedTensor& one : plan_.constraints) one.tensor = heir.at(one.tensor);
  decltype(plan_.shards) shards;
  for (auto& [tensor, own] : plan_.shards) shards.emplace(heir.at(tensor), std::move(own));
  plan_.shards = std::move(shards);
  plan_.graph_uid = graph.uid();
  plan_.graph_name = graph.name();
  inputs_.assign(graph.inputs().begin(), graph.inputs().end());
  nodes_.assign(graph.nodes().begin(), graph.nodes().end());
  bind();
  graph.freeze();
}

void MetaGraphPlan::run(int first, int last) {
  // After a failure, this call creates a new communicator. The communicator must exist before the first step of this
  // run is queued.
  if (communicates_) backend_.communicator();
  const HeldBackend held(backend_);
  if (Recorded* ready = recorded(first, last)) {
    for (size_t rank = 0; rank < ready->ranks.size(); ++rank) {
      backend_.members()[rank]->replay_async(*ready->ranks[rank]);
    }
  } else {
    queue_steps(first, last);
  }
}

void MetaGraphPlan::queue_steps(int first, int last) {
  const auto members = backend_.members();
  const auto step = [&](int segment) {
    return segment < segments() ? static_cast<size_t>(plan_.segments[static_cast<size_t>(segment)]) : actions_.size();
  };
  const size_t begin = step(first), end = step(last);
  for (Action& action : std::span(actions_).subspan(begin, end - begin)) {
    for (size_t rank = 0; rank < action.compute.size(); ++rank) {
      if (action.compute[rank] != nullptr) members[rank]->compute_async(*action.compute[rank]);
    }
    for (const size_t rank : backend_.mesh().own()) {
      const int number = static_cast<int>(rank);
      if (!action.calls.empty()) backend_.communicator().enqueue(number, action.calls[rank]);
      if (!action.norms.empty()) backend_.communicator().enqueue_fused(number, action.norms[rank]);
    }
  }
}

MetaGraphPlan::Recorded* MetaGraphPlan::recorded(int first, int last) {
  if (!backend_.may_record() || (communicates_ && !backend_.communicator().can_be_recorded())) return nullptr;
  Recorded& group = recorded_[{first, last}];
  ++group.runs;
  if (!group.ranks.empty()) return &group;
  if (group.runs != group.next_try) return nullptr;
  group.next_try *= 2;
  return record(first, last, group) ? &group : nullptr;
}

bool MetaGraphPlan::record(int first, int last, Recorded& into) {
  const auto members = backend_.members();
  size_t started = 0;
  while (started < members.size() && members[started]->start_recording()) ++started;
  bool complete = started == members.size();
  try {
    if (complete) queue_steps(first, last);
  } catch (...) {
    for (Backend* member : members) member->stop_recording();
    throw;
  }
  for (size_t rank = 0; rank < started; ++rank) {
    into.ranks.push_back(members[rank]->stop_recording());
    complete &= into.ranks.back() != nullptr;
  }
  if (!complete) into.ranks.clear();
  if (complete) backend_.add_recorded(*this);
  return complete;
}

}  // namespace shoal::meta
