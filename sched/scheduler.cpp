#include "sched/scheduler.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "devices/host_buffer.h"
#include "sched/assign.h"

namespace shoal::sched {

/// A graph that is ready to run, and the state for which its plans were made.
struct Scheduler::Entry {
  uint64_t uid;
  std::weak_ptr<const void> life;
  std::unordered_map<const Tensor*, int> user;
  std::unordered_set<const Tensor*> observed;
  PersistentPlaces places;
  std::unique_ptr<ScheduledGraph> scheduled;
};

/// Host memory for the graph inputs that the caller has not placed. The scheduler keeps this memory until the graph is
/// destroyed, even if the graph has no plan.
class Scheduler::Inputs {
 public:
  Inputs(Graph& graph, BufferType& type) : uid_(graph.uid()), life_(graph.life()) {
    for (Tensor* input : graph.inputs()) {
      if (input->buffer == nullptr) placed_.push_back(input);
    }
    memory_ = allocate_tensors(placed_, type, Usage::kCompute);
  }
  ~Inputs() {
    if (graph_is_destroyed()) return;
    for (Tensor* input : placed_) input->buffer = nullptr, input->data = nullptr;
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  bool graph_is_destroyed() const { return life_.expired(); }
  uint64_t uid() const { return uid_; }
  size_t bytes() const { return memory_ != nullptr ? memory_->size() : 0; }

 private:
  uint64_t uid_;
  std::weak_ptr<const void> life_;
  std::vector<Tensor*> placed_;
  std::unique_ptr<Buffer> memory_;
};

/// A Busy exists during each call that uses `entries_` and that may call the evaluation callback. If the callback makes
/// such a call, the constructor throws InvalidArgument.
class Scheduler::Busy {
 public:
  Busy(Scheduler& scheduler, std::string_view what) : busy_(scheduler.busy_) {
    require<InvalidArgument>(
        !busy_, "a scheduler cannot {} inside its own evaluation callback; wait until compute has returned", what);
    busy_ = true;
  }
  ~Busy() { busy_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool& busy_;
};

namespace {

std::unordered_set<const Tensor*> ask_observed(const Graph& graph, const EvalCallback& callback) {
  std::unordered_set<const Tensor*> observed;
  if (!callback) return observed;
  for (const Tensor* node : graph.nodes()) {
    if (!is_leaf_view(*node) && callback(*node, true)) observed.insert(node);
  }
  return observed;
}

}  // namespace

Scheduler::Scheduler(std::vector<Backend*> backends, const SchedulerOptions& options)
    : backends_(std::move(backends)), options_(options) {
  require<InvalidArgument>(!backends_.empty(), "a scheduler needs at least one backend");
  constexpr int kMostCopies = 1024;
  require<InvalidArgument>(options.copies >= 1 && options.copies <= kMostCopies,
                           "SchedulerOptions::copies (runs in flight) must be 1 to {}, got {}", kMostCopies,
                           options.copies);
  options_.kept_graphs = std::max<size_t>(options_.kept_graphs, 1);
  for (size_t i = 0; i < backends_.size(); ++i) {
    require<InvalidArgument>(backends_[i] != nullptr, "backend {} of the scheduler is missing", i);
    require<InvalidArgument>(std::find(backends_.begin(), backends_.begin() + static_cast<ptrdiff_t>(i),
                                       backends_[i]) == backends_.begin() + static_cast<ptrdiff_t>(i),
                             "backend {} of the scheduler is listed twice", backends_[i]->name());
    devices_.push_back(&backends_[i]->device());
    lives_.push_back(backends_[i]->life());
    BufferType* type = i < options.buffer_types.size() ? options.buffer_types[i] : nullptr;
    arenas_.push_back(std::make_unique<ComputeArena>(*backends_[i], type));
  }
}

Scheduler::~Scheduler() = default;

std::span<Backend* const> Scheduler::live() const {
  const auto gone = std::find_if(lives_.begin(), lives_.end(), [](const auto& life) { return life.expired(); });
  require<InvalidArgument>(gone == lives_.end(),
                           "backend {} of the scheduler has been destroyed; destroy the scheduler before its backends",
                           gone - lives_.begin());
  return backends_;
}

void Scheduler::set_backend(const Tensor& node, const Backend* backend) {
  if (backend == nullptr) return void(user_.erase(&node));
  const auto found = std::find(backends_.begin(), backends_.end(), backend);
  require<InvalidArgument>(found != backends_.end(), "{} is set to run on {}, which is not a backend of the scheduler",
                           node.name, backend->name());
  user_[&node] = {static_cast<int>(found - backends_.begin()), node.id, node.name};
}

// A node of a new graph may have the address of a node of a destroyed graph. So this function also compares the numbers
// and names of the nodes.
std::unordered_map<const Tensor*, int> Scheduler::user_for(const Graph& graph) const {
  std::unordered_map<const Tensor*, int> user;
  for (const auto& [node, set] : user_) {
    const auto nodes = graph.nodes();
    const bool ours = set.id >= 0 && set.id < static_cast<int>(nodes.size()) &&
                      nodes[static_cast<size_t>(set.id)] == node && node->name == set.name;
    if (ours) user.emplace(node, set.backend);
  }
  return user;
}

Backend* Scheduler::backend_of(const Tensor& node) const {
  const auto nodes = schedule().graph->nodes();
  const bool known = node.id >= 0 && node.id < static_cast<int>(nodes.size()) && nodes[node.id] == &node;
  if (!known) return nullptr;
  const int backend = schedule().nodes[static_cast<size_t>(node.id)].backend;
  return backend < 0 ? nullptr : backends_[static_cast<size_t>(backend)];
}

void Scheduler::set_eval_callback(EvalCallback callback) {
  callback_ = std::move(callback);
}

ScheduleOptions Scheduler::schedule_options(const Graph& graph,
                                            const std::unordered_set<const Tensor*>& observed) const {
  ScheduleOptions options;
  options.op_offload = options_.op_offload;
  options.user = user_for(graph);
  options.observed = observed;
  return options;
}

Schedule Scheduler::split(const Graph& graph) const {
  const EvalCallback callback = callback_;
  return make_schedule(graph, devices_, schedule_options(graph, ask_observed(graph, callback)));
}

std::unique_ptr<ScheduledGraph> Scheduler::make(Graph& graph, const std::unordered_set<const Tensor*>& observed,
                                                PreparedGraph* prepared) {
  place_inputs(graph);
  PreparedGraph fresh;
  if (prepared == nullptr || !observed.empty() || !user_for(graph).empty()) {
    fresh.schedule = make_schedule(graph, devices_, schedule_options(graph, observed));
    fresh.local = make_local_graphs(fresh.schedule, observed);
    prepared = &fresh;
  }
  return std::make_unique<ScheduledGraph>(graph, std::move(*prepared), observed, backends_, arenas_, host_type(),
                                          options_.copies);
}

size_t Scheduler::checked(int index) const {
  require<InvalidArgument>(index >= 0 && index < backends(), "the scheduler has {} backends, got index {}", backends(),
                           index);
  return static_cast<size_t>(index);
}

BufferType& Scheduler::host_type() {
  for (Backend* backend : live()) {
    if (BufferType* pinned = backend->device().host_buffer_type()) return *pinned;
  }
  return pageable_type();
}

BufferType& Scheduler::pageable_type() {
  if (pageable_ == nullptr) pageable_ = std::make_unique<HostBufferType>(*devices_.back());
  return *pageable_;
}

std::unique_ptr<Buffer> Scheduler::allocate_host(size_t bytes) {
  try {
    return host_type().allocate(bytes);
  } catch (const OutOfMemory&) {
    return pageable_type().allocate(bytes);
  }
}

void Scheduler::place_inputs(Graph& graph) {
  inputs_.remove_if([](const Inputs& inputs) { return inputs.graph_is_destroyed(); });
  const bool known =
      std::any_of(inputs_.begin(), inputs_.end(), [&](const Inputs& i) { return i.uid() == graph.uid(); });
  if (!known) inputs_.emplace_back(graph, host_type());
}

size_t Scheduler::reserved() const {
  size_t bytes = 0;
  for (const auto& arena : arenas_) bytes += arena->bytes();
  return bytes;
}

size_t Scheduler::host_bytes() const {
  size_t bytes = 0;
  for (const Inputs& inputs : inputs_) bytes += inputs.graph_is_destroyed() ? 0 : inputs.bytes();
  for (const Entry& entry : entries_) bytes += entry.life.expired() ? 0 : entry.scheduled->host_bytes();
  return bytes;
}

bool Scheduler::reserve(Graph& graph) {
  const Busy busy(*this, "reserve memory");
  synchronize();
  entries_.clear();  // otherwise, the cached plans would keep the old memory of the arenas alive
  try {
    make(graph, {});
    return true;
  } catch (const OutOfMemory&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Scheduler::Entry& Scheduler::entry(Graph& graph, const EvalCallback& callback, PreparedGraph* prepared) {
  live();
  std::unordered_set<const Tensor*> observed = ask_observed(graph, callback);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.uid == graph.uid(); });
  if (found != entries_.end()) {
    const bool valid = found->user == user_for(graph) && found->places.unchanged() && found->observed == observed;
    if (valid) {
      entries_.splice(entries_.begin(), entries_, found);
      return entries_.front();
    }
    entries_.erase(found);
  }
  make_room();
  const size_t before = reserved();
  std::unique_ptr<ScheduledGraph> scheduled;
  try {
    scheduled = make(graph, observed, prepared);
  } catch (const OutOfMemory&) {
    if (entries_.empty()) throw;
    // The arenas need more memory, but the cached plans still use the old memory. Destroying these plans frees the old
    // memory.
    entries_.clear();
    scheduled = make(graph, observed);
  }
  if (reserved() != before) entries_.clear();
  ++plans_made_;
  entries_.push_front(
      {graph.uid(), graph.life(), user_for(graph), std::move(observed), PersistentPlaces(graph), std::move(scheduled)});
  return entries_.front();
}

void Scheduler::make_room() {
  entries_.remove_if([](const Entry& entry) { return entry.life.expired(); });
  while (entries_.size() >= options_.kept_graphs) entries_.pop_back();
}

void Scheduler::allocate(Graph& graph) {
  const Busy busy(*this, "allocate a graph");
  entry(graph, EvalCallback(callback_));
}

void Scheduler::allocate(Graph& graph, PreparedGraph prepared) {
  const Busy busy(*this, "allocate a graph");
  entry(graph, EvalCallback(callback_), &prepared);
}

bool Scheduler::compute_async(Graph& graph) {
  const Busy busy(*this, "run a graph");
  const EvalCallback callback = callback_;
  ScheduledGraph& scheduled = *entry(graph, callback).scheduled;
  // This graph may copy a weight or cache that the previous graph uses in place, or the reverse. So the runs of the two
  // graphs must be ordered.
  if (latest_run_ != nullptr && latest_run_ != &scheduled && backends_.size() > 1) scheduled.meet();
  latest_run_ = &scheduled;
  if (!callback) return scheduled.run({});
  return scheduled.run([&callback](const Tensor& node) { return callback(node, false); });
}

Status Scheduler::compute(Graph& graph) {
  bool finished = true;
  const Status status = status_of([&] {
    finished = compute_async(graph);
    synchronize();
  });
  return status == Status::kSuccess && !finished ? Status::kAborted : status;
}

void Scheduler::synchronize() {
  synchronize_all(live());
}

void Scheduler::reset() {
  const Busy busy(*this, "reset");
  user_.clear();
  entries_.clear();
  latest_run_ = nullptr;
}

void Scheduler::get_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
  live();
  Backend* backend = backend_of(tensor);
  if (backend != nullptr) return backend->get_async(tensor, data, offset, size);
  synchronize();
  tensor_get(tensor, data, offset, size);
}

const Schedule& Scheduler::schedule() const {
  return scheduled().schedule();
}

const ScheduledGraph& Scheduler::scheduled() const {
  require<InvalidArgument>(!entries_.empty() && !entries_.front().life.expired(),
                           "no scheduled graph exists; allocate or compute a graph first");
  return *entries_.front().scheduled;
}

}  // namespace shoal::sched
