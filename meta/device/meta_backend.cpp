#include "meta/device/meta_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "base/error.h"
#include "devices/functions.h"
#include "meta/device/meta_plan.h"
#include "meta/device/transfer.h"

namespace shoal::meta {
namespace {

using functions::Activity;

void check_range(const Tensor& tensor, size_t offset, size_t size) {
  const size_t bytes = tensor.bytes();
  if (offset <= bytes && size <= bytes - offset) return;
  fail<InvalidArgument>("bytes [{}, {} + {}) are outside {}, which has {} bytes", offset, offset, size,
                        describe(tensor), bytes);
}

/// True if all weights and caches of the local graphs have memory.
bool has_memory(const Plan& plan) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& rank) {
    const std::vector<Tensor*> leaves = rank.graph->leaves();
    return std::all_of(leaves.begin(), leaves.end(),
                       [](const Tensor* leaf) { return !leaf->is_persistent() || leaf->buffer != nullptr; });
  });
}

/// Waits at most `time` until the member's queue is empty. Then returns the state of the queue, or nullopt if the
/// member's family does not report this state.
std::optional<functions::QueueState> state_of(Backend& member, std::chrono::nanoseconds time = {}) {
  const auto wait = find_function(member.device().reg(), functions::kWaitForQueued);
  if (wait == nullptr) return std::nullopt;
  return wait(member, time);
}

}  // namespace

struct MetaBackend::PartialRead {
  PartialSum sum;
  void* data;
  std::atomic<bool> finished{false};
};

struct MetaBackend::Crossing {
  ProcessGroup& group;
  Message message;
  std::string what;
  std::atomic<bool> finished{false};
};

MetaBackend::MetaBackend(std::shared_ptr<MetaState> state, std::vector<std::unique_ptr<Backend>> members,
                         collectives::CommunicatorFactory make_communicator, collectives::Options comm_options)
    : state_(std::move(state)),
      members_(std::move(members)),
      make_communicator_(std::move(make_communicator)),
      comm_options_(comm_options) {
  for (const auto& member : members_) streams_.push_back(member.get());
  for (const size_t rank : mesh().own()) own_.push_back(streams_[rank]);
}

MetaBackend::~MetaBackend() {
  // Queued collectives use the communicator, so every member must finish before the communicator is destroyed. Failures
  // of the members are ignored.
  release_held();
  for (Backend* member : streams_) {
    try {
      member->synchronize();
    } catch (...) {
    }
  }
  plans().clear();
  drop_communicator();  // the communicator and all recordings are destroyed before the streams
}

std::string MetaBackend::name() const {
  return state_->name;
}

void MetaBackend::set_row_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
  const Shards& shards = shards_of(tensor);
  check_addends("set", shards);
  release_held();  // held runs must start before a call below waits for a member
  if (shards.layout.is_partial()) return set_partial_async(shards, data, offset, size);
  const auto* bytes = static_cast<const std::byte*>(data);
  for (const size_t rank : mesh().own()) {
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kWrite)) {
      streams_[rank]->set_2d_async(*shards.local[rank], bytes + r.host_offset, r.host_stride, r.local);
    }
  }
}

void MetaBackend::get_row_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
  if (reads_at_once(tensor, data, offset, size)) return;
  get_async_for(*this, tensor, data, offset, size);
  if (mesh().processes_without_rank().empty() || size == 0) return;
  // A process without a rank has no stream that can wait for the bytes. So the host waits until the bytes have arrived.
  const std::span bytes(static_cast<std::byte*>(data), size);
  if (mesh().is_here() && mesh().front() == 0) {
    for (const int process : mesh().processes_without_rank()) pass_async(true, process, tensor.name, bytes);
  } else if (!mesh().is_here()) {
    const int owner = mesh().process_of(0);
    mesh().group()->receive(owner, mesh().group()->passage_tag(owner), bytes, tensor.name);
  }
}

void MetaBackend::get_async_for(Backend& reader, const Tensor& tensor, void* data, size_t offset, size_t size) {
  if (reads_at_once(tensor, data, offset, size)) return;
  const Shards& shards = shards_of(tensor);
  check_range(tensor, offset, size);
  check_addends("get", shards);
  auto* const other = dynamic_cast<MetaBackend*>(&reader);
  require<InvalidArgument>(
      other != nullptr || mesh().processes_without_rank().empty(),
      "{} of {} cannot be sent to {}, which is not a meta device and may belong to another process; with "
      "several processes, wrap each device in a meta device",
      describe(tensor), name(), reader.name());
  release_held();  // held runs must start before a call below waits for a member
  get_here_async(shards, data, offset, size);
  if (mesh().processes_without_rank().empty() || other == this || size == 0) return;
  const std::span bytes(static_cast<std::byte*>(data), size);
  const int owner = mesh().process_of(0);
  for (const int process : mesh().processes_without_rank()) {
    if (!other->mesh().is_in(process)) continue;
    if (mesh().group()->own() == owner) pass_async(true, process, tensor.name, bytes);
    if (mesh().group()->own() == process) other->pass_async(false, owner, tensor.name, bytes);
  }
}

// This function is needed only for views of a cache that is divided between processes. Plans make all other results
// whole on every rank.
bool MetaBackend::reads_at_once(const Tensor& tensor, void* data, size_t offset, size_t size) {
  if (!mesh().spans() || shards_of(tensor).layout.is_mirrored()) return false;
  synchronize();
  tensor_get(tensor, data, offset, size);
  return true;
}

bool MetaBackend::get_here_async(const Shards& shards, void* data, size_t offset, size_t size) {
  if (!mesh().is_here()) return false;
  if (mesh().spans()) {
    streams_[mesh().front()]->get_async(*shards.local[mesh().front()], data, offset, size);
    return true;
  }
  if (shards.layout.is_partial()) return get_partial_async(shards, data, offset, size), true;
  auto* bytes = static_cast<std::byte*>(data);
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kRead)) {
      streams_[rank]->get_2d_async(*shards.local[rank], bytes + r.host_offset, r.host_stride, r.local);
    }
  }
  return true;
}

void MetaBackend::pass_async(bool sends, int process, std::string_view what, std::span<std::byte> bytes) {
  std::erase_if(crossings_, [](const auto& earlier) { return earlier->finished.load(); });
  ProcessGroup& group = *mesh().group();
  const Message message{sends, process, group.passage_tag(process), bytes.data(), bytes.size()};
  Crossing& crossing = *crossings_.emplace_back(new Crossing{group, message, std::string(what)});
  const auto pass = [](void* object, const void*, bool failed) {
    auto& own = *static_cast<Crossing*>(object);
    if (TraceSpan* span = current_span()) {
      span->describe(TraceKind::kCopy, {own.message.sends ? "send " : "receive ", own.what},
                     static_cast<int64_t>(own.message.size));
    }
    if (failed && own.message.sends)
      own.group.fail(fmt::format("{} cannot be sent, because earlier work failed", own.what));
    // The exchange has no timeout, because earlier work of the other process may take long. The group notices processes
    // that died or stopped.
    if (!failed) own.group.exchange({&own.message, 1}, own.what);
    own.finished = true;
  };
  require<InvalidArgument>(
      enqueue({pass, &crossing, nullptr}),
      "{} cannot run host functions in stream order; copies to other processes need these functions", name());
}

// Writes row by row, because one rectangle of the tensor may become several rectangles on a rank.
void MetaBackend::set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  check_access("set", tensor, host_stride, rows);
  for (size_t row = 0; row < rows.rows; ++row) {
    const auto* bytes = static_cast<const std::byte*>(data) + row * host_stride;
    set_row_async(tensor, bytes, rows.offset + row * rows.stride, rows.row_bytes);
  }
}

void MetaBackend::get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  check_access("get", tensor, host_stride, rows);
  for (size_t row = 0; row < rows.rows; ++row) {
    auto* bytes = static_cast<std::byte*>(data) + row * host_stride;
    get_row_async(tensor, bytes, rows.offset + row * rows.stride, rows.row_bytes);
  }
}

// Rank 0 gets the value. The other ranks get zeros.
void MetaBackend::set_partial_async(const Shards& shards, const void* data, size_t offset, size_t size) {
  static constexpr std::array<std::byte, 16 * 1024> kZeros{};
  if (size > 0) streams_[0]->set_async(*shards.local[0], data, offset, size);
  for (size_t rank = 1; rank < streams_.size(); ++rank) {
    for (size_t done = 0; done < size; done += kZeros.size()) {
      const size_t bytes = std::min(kZeros.size(), size - done);
      streams_[rank]->set_async(*shards.local[rank], kZeros.data(), offset + done, bytes);
    }
  }
}

// Each rank's stream copies its addend to the host. Then a host task, which waits for all streams, sums the addends.
void MetaBackend::get_partial_async(const Shards& shards, void* data, size_t offset, size_t size) {
  if (size == 0) return;
  std::erase_if(partial_reads_, [](const auto& earlier) { return earlier->finished.load(); });
  PartialRead& read = *partial_reads_.emplace_back(new PartialRead{PartialSum(shards, offset, size), data});
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    const auto addend = read.sum.addend(static_cast<int>(rank));
    streams_[rank]->get_async(*shards.local[rank], addend.data(), read.sum.begin(), addend.size());
  }
  const auto finish = [](void* object, const void*, bool failed) {
    auto& own = *static_cast<PartialRead*>(object);
    if (!failed) own.sum.finish(own.data);
    own.finished = true;
  };
  if (enqueue({finish, &read, nullptr})) return;
  // If the streams cannot run `finish` in order, the host waits for all streams.
  for (Backend* member : streams_) member->synchronize();
  read.sum.finish(data);
}

bool MetaBackend::make_order() {
  for (size_t rank = order_.size(); rank < own_.size(); ++rank) {
    auto event = own_[rank]->device().new_event();
    if (event == nullptr) return false;
    order_.push_back(std::move(event));
  }
  return true;
}

bool MetaBackend::pass_failure(size_t first, size_t last) {
  const auto pass = [](void* object, const void*, bool failed) {
    auto& known = *static_cast<std::atomic<bool>*>(object);
    if (failed) known = true;
    if (known && !failed) fail<CommError>("earlier work failed on another device");
  };
  for (size_t rank = first; rank < last; ++rank) {
    if (!own_[rank]->enqueue({pass, &stream_failed_, nullptr})) return false;
  }
  return true;
}

bool MetaBackend::enqueue(const HostTask& task) {
  const size_t ranks = own_.size();
  check(ranks > 0, "{} has no rank in this process to queue work on", name());
  if (ranks == 1) return own_[0]->enqueue(task);
  if (!make_order() || !pass_failure(1, ranks)) return false;
  for (size_t rank = 1; rank < ranks; ++rank) {
    order_[rank]->record(*own_[rank]);
    order_[rank]->wait(*own_[0]);
  }
  if (!pass_failure(0, 1) || !own_[0]->enqueue(task) || !pass_failure(0, 1)) return false;
  order_[0]->record(*own_[0]);
  for (size_t rank = 1; rank < ranks; ++rank) order_[0]->wait(*own_[rank]);
  return pass_failure(1, ranks);
}

void MetaBackend::copy_async(const Tensor& src, Backend& to, Tensor& dst) {
  check_copy(src, dst);
  release_held();
  auto* other = dynamic_cast<MetaBackend*>(&to);
  const Shards* from = find_shards(src);
  const Shards* into = find_shards(dst);
  const bool alike = other != nullptr && from != nullptr && into != nullptr && from->layout == into->layout &&
                     from->local.size() == into->local.size();
  if (!alike) return Backend::copy_async(src, to, dst);
  check_addends("copy", *from);
  check_addends("copy", *into);
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    check(mesh().process_of(rank) == other->mesh().process_of(rank), "{} cannot be copied between processes", src.name);
  }
  for (const size_t rank : mesh().own()) {
    streams_[rank]->copy_async(*from->local[rank], *other->streams_[rank], *into->local[rank]);
  }
}

bool MetaBackend::set_abort_callback(AbortCallback callback) {
  release_held();
  has_abort_callback_ = callback != nullptr;
  bool told = false;
  for (Backend* member : streams_) told |= member->set_abort_callback(callback);
  return told;
}

void MetaBackend::set_tracer(Tracer* tracer) {
  release_held();
  is_traced_ = tracer != nullptr;
  for (Backend* member : streams_) member->set_tracer(tracer);
}

void MetaBackend::release_held() {
  if (!has_held_runs_) return;
  has_held_runs_ = false;
  for (Backend* member : streams_) {
    for (int i = 0; i < holds_; ++i) member->release();
    for (int i = 0; i < holds_; ++i) member->hold();
  }
}

void MetaBackend::hold() {
  ++holds_;
  for (Backend* member : streams_) member->hold();
}

void MetaBackend::release() {
  if (--holds_ == 0) has_held_runs_ = false;
  for (Backend* member : streams_) member->release();
}

// Only this function notices a stall after the last collective, because no other rank waits for the stalled rank. As in
// a rendezvous, the timeout is counted in slices of time. If this process is paused, even for an hour, the pause counts
// as one slice.
std::string MetaBackend::watch_members() {
  constexpr int kSlices = 16;
  const std::chrono::nanoseconds slice = std::chrono::nanoseconds(comm_options_.timeout) / kSlices;
  TimeoutReport report;
  std::string message;
  uint64_t before = 0;
  for (int slices = 0;;) {  // number of consecutive slices in which no work ended and only some members worked
    int able = 0, working = 0;
    uint64_t ended = 0;
    Backend* first = nullptr;
    for (Backend* member : streams_) {
      const auto state = state_of(*member);
      if (!state) continue;
      ++able;
      working += state->activity == Activity::kWorks;
      ended += state->ended;
      if (first == nullptr && state->activity != Activity::kNone) first = member;
    }
    if (first == nullptr) return message;
    const bool stalls = ended == std::exchange(before, ended) && 0 < working && working < able;
    slices = stalls ? slices + 1 : 0;
    if (slices > kSlices && message.empty() && open_timeouts() == 0) message = abandon_late_ranks(report);
    state_of(*first, slice);
  }
}

std::string MetaBackend::abandon_late_ranks(TimeoutReport& report) {
  std::vector<size_t> late;
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    const auto state = state_of(*streams_[rank]);
    if (state && state->activity == Activity::kWorks) late.push_back(rank);
  }
  if (late.empty()) return {};
  const double seconds = std::chrono::duration<double>(comm_options_.timeout).count();
  std::string message = fmt::format("[{}] rank {} of {} did not finish within {:.3f} s after the other ranks; {}",
                                    name(), fmt::join(late, ", "), streams_.size(), seconds, kTimeoutRemedy);
  for (const size_t rank : late) {
    const auto give_up = find_function(streams_[rank]->device().reg(), functions::kCancel);
    if (give_up != nullptr) give_up(*streams_[rank], message);
  }
  report.say(message);
  return message;
}

// This function waits for every member, even if some members fail. A failure of one rank makes the collectives of the
// other ranks fail with CommError. So a failure that is not a CommError is the original cause.
void MetaBackend::synchronize() {
  release_held();
  const std::string late = std::exchange(has_run_collectives_, false) ? watch_members() : "";
  std::exception_ptr cause, consequence;
  for (Backend* member : streams_) {
    try {
      member->synchronize();
    } catch (const CommError&) {
      if (consequence == nullptr) consequence = std::current_exception();
    } catch (...) {
      if (cause == nullptr) cause = std::current_exception();
    }
  }
  partial_reads_.clear();
  crossings_.clear();
  stream_failed_ = false;
  if (cause == nullptr && consequence == nullptr) return;
  drop_communicator();
  if (cause == nullptr && !late.empty()) throw CommError(late);
  std::rethrow_exception(cause != nullptr ? cause : consequence);
}

void MetaBackend::add_recorded(MetaGraphPlan& plan) {
  erase_recorded(plan);
  recorded_plans_.push_back(&plan);
}

void MetaBackend::drop_communicator() {
  for (MetaGraphPlan* plan : std::exchange(recorded_plans_, {})) plan->drop_recordings();
  communicator_.reset();
}

std::unique_ptr<GraphPlan> MetaBackend::create_plan(const GraphRange& range, const PlanOptions& options) {
  check_options(range, options);
  const MetaDevice& device = state_->device();
  auto claim = std::make_unique<GraphClaim>(range, device);
  const auto lookup = [&](const Tensor& tensor) {
    const Shards* shards = find_shards(tensor);
    require<InvalidArgument>(shards == nullptr || &tensor.buffer->type().device() == &device,
                             "{} is stored on {} and cannot be used on {}; copy the tensor there", describe(tensor),
                             shards == nullptr ? "" : tensor.buffer->type().name(), device.name());
    return shards;
  };
  PlanContext context = device.plan_context();
  context.shards = lookup;
  // A prepared plan was made for the communicator traits that the device predicts.
  auto* prepared = dynamic_cast<Plan*>(options.prepared);
  require<InvalidArgument>(prepared == nullptr || !prepared->ranks.empty(),
                           "[{}] the prepared plan of graph '{}' has been used already; prepare a plan for each use",
                           name(), range.graph->name());
  const bool is_ready = prepared != nullptr && prepared->graph_uid == range.graph->uid() && has_memory(*prepared) &&
                        (communicator_ == nullptr || communicator_->describe() == context.communicator);
  if (communicator_ != nullptr) context.communicator = communicator_->describe();
  Plan plan = is_ready ? std::move(*prepared) : make_plan(range, context, device.members(), options);
  // The communicator is created now. Otherwise the first run, and not create_plan(), would report a failure to create
  // it. The plan must use the actual traits of this communicator.
  if (plan.communicates() && communicator().describe() != context.communicator) {
    context.communicator = communicator().describe();
    plan = make_plan(range, context, device.members(), options);
  }
  if (mesh().group() != nullptr) compare(plan);
  return std::make_unique<MetaGraphPlan>(*this, std::move(claim), std::move(plan), options.arena);
}

void MetaBackend::compare(const Plan& plan) {
  ProcessGroup& group = *mesh().group();
  const std::vector<std::string> digests = group.gather(std::to_string(digest(plan)), "a plan");
  for (int process = 1; process < group.size(); ++process) {
    if (digests[static_cast<size_t>(process)] == digests[0]) continue;
    group.fail(
        fmt::format("{} and {} made different plans of {}; use the same version of shoal, the same options and "
                    "the same kind of devices in all processes",
                    group.describe(0), group.describe(process), plan.graph_name));
  }
}

bool MetaBackend::update_plan(GraphPlan& plan, Graph& graph) {
  check_owner(plan);
  auto& own = static_cast<MetaGraphPlan&>(plan);
  if (!own.fits(graph)) return false;
  own.move_to(graph);
  return true;
}

void MetaBackend::compute_async(GraphPlan& plan, int first, int last) {
  check_run(plan, first, last);
  has_held_runs_ = holds_ > 0;
  auto& own = static_cast<MetaGraphPlan&>(plan);
  has_run_collectives_ |= own.communicates();
  own.run(first, last);
}

collectives::Communicator& MetaBackend::communicator() {
  if (communicator_ == nullptr) {
    communicator_ = make_communicator_(streams_, comm_options_);
  }
  return *communicator_;
}

}  // namespace shoal::meta
