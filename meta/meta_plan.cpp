#include "meta/meta_plan.h"

#include <numeric>

#include "devices/allocate.h"
#include "graph/error.h"
#include "meta/meta_backend.h"

namespace shoal::meta {
namespace {

collectives::Collective kind_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return collectives::Collective::kAllReduce;
    case Op::kAllGather:
      return collectives::Collective::kAllGather;
    case Op::kReduceScatter:
      return collectives::Collective::kReduceScatter;
    case Op::kAllToAll:
      return collectives::Collective::kAllToAll;
    default:
      break;
  }
  fail<InternalError>("internal error: {} is no collective of a plan", name_of(op));
}

}  // namespace

MetaGraphPlan::MetaGraphPlan(MetaBackend& backend, std::unique_ptr<GraphClaim> claim, Plan plan, ComputeArena* arena)
    : backend_(backend), plan_(std::move(plan)), claim_(std::move(claim)), buffer_(backend.buffer_type(), 0) {
  allocate(arena);
  compile();
  bind();
}

MetaGraphPlan::~MetaGraphPlan() {
  // Queued collectives refer to the calls kept here. Devices without events run nothing behind our back.
  if (const auto queued = backend_.device().new_event()) {
    queued->record(backend_);
    queued->synchronize();
  }
  if (claim_->graph_is_gone()) return;  // the tensors went with it
  for (Tensor* tensor : bound_) {
    if (tensor->buffer == &buffer_) tensor->buffer = nullptr, tensor->data = nullptr;
  }
}

Backend& MetaGraphPlan::backend() const {
  return backend_;
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
    for (const auto& part : memory.parts) buffer_.keep(static_cast<int>(rank), part);
  }
  buffer_.set_usage(Usage::kCompute);
}

void MetaGraphPlan::compile() {
  for (const Step& step : plan_.steps) {
    Action action;
    for (size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      Graph& graph = *plan_.ranks[rank].graph;
      const NodeRange& range = step.ranges[rank];
      if (step.kind == StepKind::kCollective) {
        action.calls.push_back(make_call(*graph.nodes()[range.begin], step));
      } else {
        action.compute.push_back(range.begin == range.end ? nullptr
                                                          : backend_.members()[rank]->create_plan(
                                                                GraphRange{&graph, range.begin, range.end}));
      }
    }
    communicates_ |= step.kind == StepKind::kCollective;
    actions_.push_back(std::move(action));
  }
  if (communicates_) backend_.communicator();  // fail here rather than in the first run
}

collectives::Call MetaGraphPlan::make_call(const Tensor& node, const Step& step) const {
  const auto& params = std::get<CollectiveParams>(node.params);
  const Tensor& source = *node.src[0];
  // Where counts say it all, `count` is the same on every rank: nothing.
  const int64_t count = params.counts.empty() ? source.elements() : 0;
  return {kind_of(node.op), node.dtype, source.data, node.data, count, params.counts, params.root, step.tensor.c_str()};
}

void MetaGraphPlan::bind() {
  const GraphRange& range = claim_->range();
  const auto bind_one = [&](Tensor* tensor) {
    const auto it = plan_.shards.find(tensor);
    if (it == plan_.shards.end()) return;
    buffer_.bind(*tensor, it->second);
    bound_.push_back(tensor);
  };
  for (Tensor* input : range.graph->inputs()) bind_one(input);
  for (int i = range.begin; i < range.end; ++i) bind_one(range.graph->nodes()[i]);
}

void MetaGraphPlan::run(int first, int last) {
  const auto members = backend_.members();
  const auto step = [&](int segment) {
    return segment < segments() ? static_cast<size_t>(plan_.segments[static_cast<size_t>(segment)]) : actions_.size();
  };
  const size_t begin = step(first), end = step(last);
  if (begin == end) return;
  // After a failure a new one is made, which must not meet half of this run's work in the streams.
  if (communicates_) backend_.communicator();
  const HeldBackend held(backend_);
  for (Action& action : std::span(actions_).subspan(begin, end - begin)) {
    for (size_t rank = 0; rank < action.compute.size(); ++rank) {
      if (action.compute[rank] != nullptr) members[rank]->compute_async(*action.compute[rank]);
    }
    for (size_t rank = 0; rank < action.calls.size(); ++rank) {
      backend_.communicator().enqueue(static_cast<int>(rank), action.calls[rank]);
    }
  }
}

}  // namespace shoal::meta
