#include "sched/scheduled_graph.h"

#include <algorithm>
#include <exception>
#include <unordered_map>

#include "base/error.h"
#include "graph/ops/select.h"
#include "sched/assign.h"

namespace shoal::sched {
namespace {

/// While this object exists, the backends may delay the start of queued work (DeviceStream::hold). So each backend can
/// submit its queued work in one batch.
class HeldBackends {
 public:
  explicit HeldBackends(std::span<Backend* const> backends) : backends_(backends) {
    for (Backend* backend : backends_) backend->hold();
  }
  ~HeldBackends() {
    for (Backend* backend : backends_) backend->release();
  }
  HeldBackends(const HeldBackends&) = delete;
  HeldBackends& operator=(const HeldBackends&) = delete;

 private:
  std::span<Backend* const> backends_;
};

// If `event` is nullptr, the device has no events. The host then waits for the stream of the device.
void record(Event* event, Backend& backend) {
  if (event != nullptr) event->record(backend);
}
void wait(Event* event, Backend& recorded_on, Backend& waiting) {
  if (event != nullptr) return event->wait(waiting);
  recorded_on.synchronize();
}
void wait_on_host(Event* event, Backend& recorded_on) {
  if (event != nullptr) return event->synchronize();
  recorded_on.synchronize();
}

}  // namespace

void synchronize_all(std::span<Backend* const> backends) {
  std::exception_ptr cause, consequence;
  for (Backend* backend : backends) {
    try {
      backend->synchronize();
    } catch (const CommError&) {
      if (consequence == nullptr) consequence = std::current_exception();
    } catch (...) {
      if (cause == nullptr) cause = std::current_exception();
    }
  }
  if (cause == nullptr && consequence == nullptr) return;
  std::rethrow_exception(cause != nullptr ? cause : consequence);
}

ScheduledGraph::ScheduledGraph(Graph& graph, PreparedGraph prepared, const std::unordered_set<const Tensor*>& observed,
                               std::span<Backend* const> backends, std::span<std::unique_ptr<ComputeArena>> arenas,
                               BufferType& host, int copies)
    : graph_(graph),
      claim_(whole(graph), backends.front()->device()),
      schedule_(std::move(prepared.schedule)),
      backends_(backends.begin(), backends.end()),
      copies_(static_cast<size_t>(copies_for(schedule_, copies))),
      local_(std::move(prepared.local)) {
  for (const Backend* backend : backends_) lives_.push_back(backend->life());
  make_plans(arenas, prepared.plans);
  make_actions(observed);
  try {
    place_slots(host);
    bind();
  } catch (...) {
    unbind();
    throw;
  }
  graph.freeze();
}

ScheduledGraph::~ScheduledGraph() {
  // Queued work uses the slots. So the destructor waits for this work. A destroyed backend has already finished its
  // work.
  for (size_t b = 0; b < backends_.size(); ++b) {
    if (!lives_[b].expired()) finish_queued(*backends_[b]);
  }
  unbind();
}

size_t ScheduledGraph::host_bytes() const {
  return slots_ != nullptr ? slots_->size() : 0;
}

void ScheduledGraph::make_plans(std::span<std::unique_ptr<ComputeArena>> arenas,
                                std::span<PreparedPlan* const> prepared) {
  for (size_t b = 0; b < backends_.size(); ++b) {
    LocalGraph& local = local_.backends[b];
    PlanOptions options = plan_options(local, arenas[b].get());
    if (!prepared.empty()) options.prepared = prepared[b];
    plans_.push_back(local.graph == nullptr ? nullptr : backends_[b]->create_plan(*local.graph, options));
  }
}

void ScheduledGraph::make_actions(const std::unordered_set<const Tensor*>& observed) {
  for (size_t s = 0; s < schedule_.splits.size(); ++s) {
    const auto b = static_cast<size_t>(schedule_.splits[s].backend);
    Action action;
    action.backend = backends_[b];
    action.plan = plans_[b].get();
    action.segment = local_.splits[s].segment;
    check_writable(local_.splits[s], *action.plan);
    action.written = action.backend->device().new_event();
    for (size_t slot = 0; slot < copies_; ++slot) action.read.push_back(action.backend->device().new_event());
    for (size_t slot = 0; slot < input_slots(); ++slot) action.taken.push_back(action.backend->device().new_event());
    for (const int index : schedule_.splits[s].nodes) {
      const Tensor* node = graph_.nodes()[static_cast<size_t>(index)];
      if (observed.contains(node)) action.observed.push_back(node);
    }
    actions_.push_back(std::move(action));
  }
  for (size_t s = 0; s < schedule_.splits.size(); ++s) {
    const std::vector<Copy>& copies = schedule_.splits[s].copies;
    for (size_t i = 0; i < copies.size(); ++i) add_copy(static_cast<int>(s), copies[i], local_.splits[s].copies[i]);
    std::vector<int>& waits = actions_[s].waits;
    std::ranges::sort(waits);
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    // Inputs are sorted by size. So a device can copy all inputs of the same size in one operation.
    std::stable_sort(actions_[s].inputs.begin(), actions_[s].inputs.end(),
                     [](const Transfer& a, const Transfer& b) { return a.bytes < b.bytes; });
  }
}

void ScheduledGraph::add_copy(int split, const Copy& copy, Tensor* target) {
  Action& action = actions_[static_cast<size_t>(split)];
  const size_t bytes = target->bytes();
  Transfer transfer{copy.tensor, target, nullptr, bytes, slot_bytes(copy), split};
  if (copy.from_split >= 0) {
    transfer.source = local_.backends[static_cast<size_t>(copy.from_backend)].tensors.at(copy.tensor);
    action.values.push_back(transfer);
    action.waits.push_back(copy.from_split);
    actions_[static_cast<size_t>(copy.from_split)].results.push_back(transfer);
  } else if (!copy.tensor->is_persistent()) {
    action.inputs.push_back(transfer);
  } else if (copy.streamed) {
    action.streams.push_back({copy.tensor, target});
    if (copy.ids == nullptr) return;
    action.streams.back().ids = chosen_ids(*copy.ids, *action.backend);
    action.streams.back().select = copy.select;
  } else {
    Backend* home = backends_[static_cast<size_t>(copy.from_backend)];
    action.leaves.push_back({transfer, home, home->device().new_event()});
  }
}

ScheduledGraph::ChosenIds* ScheduledGraph::chosen_ids(const Tensor& ids, Backend& reader) {
  for (const auto& known : chosen_) {
    if (known->tensor == &ids && known->reader == &reader) return known.get();
  }
  ChosenIds& chosen = *chosen_.emplace_back(std::make_unique<ChosenIds>());
  chosen.tensor = &ids;
  chosen.reader = &reader;
  chosen.values.resize(static_cast<size_t>(ids.elements()));
  if (ids.is_leaf()) return &chosen;
  const Assignment& made = schedule_.nodes[static_cast<size_t>(ids.id)];
  chosen.source = local_.backends[static_cast<size_t>(made.backend)].tensors.at(&ids);
  chosen.maker = backends_[static_cast<size_t>(made.backend)];
  actions_[static_cast<size_t>(made.split)].chosen.push_back(&chosen);
  return &chosen;
}

void ScheduledGraph::place_slots(BufferType& host) {
  const size_t size = sched::host_bytes(schedule_, static_cast<int>(copies_));
  if (size == 0) return;
  slots_ = host.allocate(size);
  std::byte* next = slots_->base();
  const auto give = [&](Transfer& transfer, size_t slots) {
    transfer.slots = next;
    next += transfer.stride * slots;
  };
  std::unordered_map<const Tensor*, std::byte*> slots_of;  // the key is Transfer::source for an input of the caller,
                                                           // and Transfer::target for any other value
  for (Action& action : actions_) {
    for (Transfer& transfer : action.inputs) {
      const auto [known, is_new] = slots_of.try_emplace(transfer.source, next);
      transfer.slots = known->second;
      if (!is_new) continue;
      next += transfer.stride * input_slots();
      inputs_.push_back(transfer);
    }
    for (Transfer& transfer : action.values) {
      give(transfer, copies_);
      slots_of.emplace(transfer.target, transfer.slots);
    }
    for (Leaf& leaf : action.leaves) give(leaf.transfer, copies_);
  }
  check(next == slots_->base() + size, "the slots take {} bytes, expected {}", next - slots_->base(), size);
  // The writer and the reader of a value use the same slots.
  for (Action& action : actions_) {
    for (Transfer& result : action.results) result.slots = slots_of.at(result.target);
  }
}

// Makes the caller's tensors aliases of the local tensors. Views of inputs refer to the caller's memory.
void ScheduledGraph::bind() {
  for (Tensor* node : graph_.nodes()) {
    const int backend = schedule_.nodes[static_cast<size_t>(node->id)].backend;
    if (backend >= 0) {
      const Tensor& made = *local_.backends[static_cast<size_t>(backend)].tensors.at(node);
      made.buffer->alias(*node, made);
    } else if (node->storage()->role == Role::kInput) {
      Buffer::place_view(*node);
    } else {
      continue;
    }
    bound_.push_back(node);
  }
}

void ScheduledGraph::unbind() {
  if (claim_.graph_is_destroyed()) return;
  // The buffers of weights and caches outlive the plans of this graph. Each buffer has a list of the tensors that are
  // placed in the buffer. So the aliases must be removed from these lists. All other records of the aliases are
  // destroyed with the plans.
  for (Tensor* node : bound_) {
    node->placement.leave();
    node->buffer = nullptr;
    node->data = nullptr;
  }
}

void ScheduledGraph::meet() {
  for (size_t b = meeting_.size(); b < backends_.size(); ++b) meeting_.push_back(backends_[b]->device().new_event());
  for (size_t b = 0; b < backends_.size(); ++b) record(meeting_[b].get(), *backends_[b]);
  for (size_t b = 0; b < backends_.size(); ++b) {
    for (Backend* other : backends_) {
      if (other != backends_[b]) wait(meeting_[b].get(), *backends_[b], *other);
    }
  }
}

bool ScheduledGraph::run(const Observer& observer) {
  const uint64_t run = runs_++;
  for (const auto& ids : chosen_) ids->known = false;
  take_inputs(run % input_slots());
  try {
    const bool finished = queue(run, observer);
    release_inputs(run % input_slots());
    return finished;
  } catch (...) {
    release_inputs(run % input_slots());
    throw;
  }
}

bool ScheduledGraph::queue(uint64_t run, const Observer& observer) {
  const HeldBackends held(backends_);
  for (Action& action : actions_) {
    if (schedule_.ordered) follow(action, last_);
    for (const Transfer& input : action.inputs) {
      const std::byte* slot = input.slots + run % input_slots() * input.stride;
      action.backend->set_async(*input.target, slot, 0, input.bytes);
    }
    bring(action, run % copies_);
    action.backend->compute_async(*action.plan, action.segment, action.segment + 1);
    pass_on(action, run % copies_);
    last_ = &action;
    if (observer && !action.observed.empty() && !show(action, observer)) return false;
  }
  return true;
}

void ScheduledGraph::follow(Action& action, Action* before) {
  if (before == nullptr) return;
  record(before->written.get(), *before->backend);
  wait(before->written.get(), *before->backend, *action.backend);
  for (const Leaf& leaf : action.leaves) wait(before->written.get(), *before->backend, *leaf.home);
}

// The events are recorded after the whole run and not directly after the reads of the inputs. The recording of an event
// submits the work that HeldBackends delays, so earlier events would divide this work into several submissions.
void ScheduledGraph::release_inputs(size_t slot) {
  for (Action& action : actions_) {
    if (!action.inputs.empty()) record(action.taken[slot].get(), *action.backend);
  }
}

void ScheduledGraph::take_inputs(size_t slot) {
  for (Action& action : actions_) {
    if (!action.inputs.empty()) wait_on_host(action.taken[slot].get(), *action.backend);
  }
  for (const Transfer& input : inputs_) {
    tensor_get(*input.source, input.slots + slot * input.stride, 0, input.bytes);
  }
}

void ScheduledGraph::bring(Action& action, size_t slot) {
  Backend& backend = *action.backend;
  const auto set = [&](const Transfer& transfer) {
    backend.set_async(*transfer.target, transfer.slots + slot * transfer.stride, 0, transfer.bytes);
  };
  for (const int writer : action.waits) {
    const Action& other = actions_[static_cast<size_t>(writer)];
    wait(other.written.get(), *other.backend, backend);
  }
  for (const Transfer& value : action.values) set(value);
  for (const Leaf& leaf : action.leaves) {
    wait(action.read[slot].get(), backend, *leaf.home);
    leaf.home->get_async_for(backend, *leaf.transfer.source, leaf.transfer.slots + slot * leaf.transfer.stride, 0,
                             leaf.transfer.bytes);
    record(leaf.fetched.get(), *leaf.home);
    wait(leaf.fetched.get(), *leaf.home, backend);
    set(leaf.transfer);
  }
  if (action.reads_slots()) record(action.read[slot].get(), backend);
  for (const Stream& stream : action.streams) {
    if (stream.ids == nullptr) backend.set_async(*stream.target, stream.weight->data, 0, stream.target->bytes());
  }
  // Experts are copied last, because the ids that select them may be among the tensors copied above.
  for (const Stream& stream : action.streams) {
    if (stream.ids != nullptr) stream_experts(action, stream);
  }
}

// The host caches the ids and not the list of experts, because another weight may select different experts with the
// same ids.
void ScheduledGraph::stream_experts(Action& action, const Stream& stream) {
  ChosenIds& ids = *stream.ids;
  if (!ids.known && ids.maker != nullptr) {
    ids.maker->synchronize();
    // If a device of another process computes the ids, the ids arrive on the reader's stream.
    if (ids.reader != ids.maker) ids.reader->synchronize();
  }
  if (!ids.known && ids.maker == nullptr) tensor_get(*ids.tensor, ids.values.data(), 0, ids.tensor->bytes());
  ids.known = true;
  const int64_t experts = stream.weight->shape[2];
  std::vector<bool> used(static_cast<size_t>(experts), false);
  for (const int32_t id : ids.values) {
    const int64_t expert = local_index(*stream.select, experts, id);
    if (expert >= 0) used[static_cast<size_t>(expert)] = true;
  }
  const size_t bytes = stream.weight->strides[2];
  for (size_t first = 0; first < used.size();) {
    if (!used[first]) {
      ++first;
      continue;
    }
    const auto end =
        static_cast<size_t>(std::find(used.begin() + static_cast<ptrdiff_t>(first), used.end(), false) - used.begin());
    action.backend->set_async(*stream.target, stream.weight->data + first * bytes, first * bytes,
                              (end - first) * bytes);
    first = end;
  }
}

void ScheduledGraph::pass_on(Action& action, size_t slot) {
  for (ChosenIds* ids : action.chosen) {
    action.backend->get_async_for(*ids->reader, *ids->source, ids->values.data(), 0, ids->tensor->bytes());
  }
  if (action.results.empty()) return;
  int reader = -1;
  for (const Transfer& result : action.results) {
    const Action& other = actions_[static_cast<size_t>(result.split)];
    if (result.split != reader) wait(other.read[slot].get(), *other.backend, *action.backend);
    reader = result.split;
    action.backend->get_async_for(*other.backend, *result.source, result.slots + slot * result.stride, 0, result.bytes);
  }
  record(action.written.get(), *action.backend);
}

bool ScheduledGraph::show(Action& action, const Observer& observer) {
  synchronize_all(backends_);  // throws failures of earlier splits, so that the observer cannot read wrong values
  return std::all_of(action.observed.begin(), action.observed.end(),
                     [&](const Tensor* node) { return observer(*node); });
}

}  // namespace shoal::sched
