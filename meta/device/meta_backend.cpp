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
  fail<InvalidArgument>("bytes [{}, {} + {}) are outside {} of {} bytes", offset, offset, size, describe(tensor),
                        bytes);
}

/// Are the weights and caches that the local graphs use placed?
bool has_memory(const Plan& plan) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& rank) {
    const std::vector<Tensor*> leaves = rank.graph->leaves();
    return std::all_of(leaves.begin(), leaves.end(),
                       [](const Tensor* leaf) { return !leaf->is_persistent() || leaf->buffer != nullptr; });
  });
}

/// After `time`, or when all that is queued has ended; nullopt: its family cannot say.
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
  // Queued collectives use the communicator: let every member finish before it goes. Failures have no reader left.
  show_held();
  for (Backend* member : streams_) {
    try {
      member->synchronize();
    } catch (...) {
    }
  }
  plans().clear();
  drop_communicator();  // before the streams, with what other plans have recorded
}

std::string MetaBackend::name() const {
  return state_->name;
}

void MetaBackend::set_row_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
  const Shards& shards = shards_of(tensor);
  check_addends("set", shards);
  show_held();  // members need not be able to do this without waiting
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
  if (mesh().strangers().empty() || size == 0) return;
  // Those without a rank have no stream that could wait.
  const std::span bytes(static_cast<std::byte*>(data), size);
  if (mesh().is_here() && mesh().front() == 0) {
    for (const int stranger : mesh().strangers()) pass_async(true, stranger, tensor.name, bytes);
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
  require<InvalidArgument>(other != nullptr || mesh().strangers().empty(),
                           "{} of {} is for {}, which is no meta device: it may be of another process; over several "
                           "processes make a meta device of each",
                           describe(tensor), name(), reader.name());
  show_held();  // members need not be able to do this without waiting
  get_here_async(shards, data, offset, size);
  if (mesh().strangers().empty() || other == this || size == 0) return;
  const std::span bytes(static_cast<std::byte*>(data), size);
  const int owner = mesh().process_of(0);
  for (const int stranger : mesh().strangers()) {
    if (!other->mesh().is_in(stranger)) continue;
    if (mesh().group()->own() == owner) pass_async(true, stranger, tensor.name, bytes);
    if (mesh().group()->own() == stranger) other->pass_async(false, owner, tensor.name, bytes);
  }
}

// Views of caches that are divided between processes: plans make everything else whole where it is read.
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
      own.group.fail(fmt::format("{} cannot be sent: earlier work on it failed", own.what));
    // However long what comes before takes on the other side: one that has died or is stopped is noticed by the group.
    if (!failed) own.group.exchange({&own.message, 1}, own.what);
    own.finished = true;
  };
  require<InvalidArgument>(enqueue({pass, &crossing, nullptr}),
                           "{} cannot run host functions in stream order, which sends to other processes need", name());
}

// A rectangle of the tensor may be many on a rank: row by row.
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

// Rank 0 gets the value, the others zeros.
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

// Every rank's stream fetches its addend; a host task behind all of them adds them up.
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
  // Members that cannot wait for each other by themselves: the host does.
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
  check(ranks > 0, "{} has nothing in this process to queue work on", name());
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
  show_held();
  auto* other = dynamic_cast<MetaBackend*>(&to);
  const Shards* from = find_shards(src);
  const Shards* into = find_shards(dst);
  const bool alike = other != nullptr && from != nullptr && into != nullptr && from->layout == into->layout &&
                     from->local.size() == into->local.size();
  if (!alike) return Backend::copy_async(src, to, dst);
  check_addends("copy", *from);
  check_addends("copy", *into);
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    check(mesh().process_of(rank) == other->mesh().process_of(rank), "{} is to be copied between processes", src.name);
  }
  for (const size_t rank : mesh().own()) {
    streams_[rank]->copy_async(*from->local[rank], *other->streams_[rank], *into->local[rank]);
  }
}

bool MetaBackend::set_abort_callback(AbortCallback callback) {
  show_held();
  has_abort_callback_ = callback != nullptr;
  bool told = false;
  for (Backend* member : streams_) told |= member->set_abort_callback(callback);
  return told;
}

void MetaBackend::set_tracer(Tracer* tracer) {
  show_held();
  is_traced_ = tracer != nullptr;
  for (Backend* member : streams_) member->set_tracer(tracer);
}

void MetaBackend::show_held() {
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

// Behind the last collective only the host and streams that wait for a rank miss it. In slices, as in a
// rendezvous: a process that was stopped for an hour has not waited for an hour.
std::string MetaBackend::watch_members() {
  constexpr int kSlices = 16;
  const std::chrono::nanoseconds slice = std::chrono::nanoseconds(comm_options_.timeout) / kSlices;
  TimeoutReport report;
  std::string message;
  uint64_t before = 0;
  for (int slices = 0;;) {  // running ones in which some worked, others did not, and nothing ended
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
    if (slices > kSlices && message.empty() && open_timeouts() == 0) message = give_up_the_late(report);
    state_of(*first, slice);
  }
}

std::string MetaBackend::give_up_the_late(TimeoutReport& report) {
  std::vector<size_t> late;
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    const auto state = state_of(*streams_[rank]);
    if (state && state->activity == Activity::kWorks) late.push_back(rank);
  }
  if (late.empty()) return {};
  const double seconds = std::chrono::duration<double>(comm_options_.timeout).count();
  std::string message = fmt::format("[{}] rank {} of {} did not finish within {:.3f} s after the others; {}", name(),
                                    fmt::join(late, ", "), streams_.size(), seconds, kTimeoutRemedy);
  for (const size_t rank : late) {
    const auto give_up = find_function(streams_[rank]->device().reg(), functions::kGiveUp);
    if (give_up != nullptr) give_up(*streams_[rank], message);
  }
  report.say(message);
  return message;
}

// Every member is waited for, whatever fails. A rank's own failure makes the others' collectives fail too: the one
// that is not about a collective is the cause.
void MetaBackend::synchronize() {
  show_held();
  const std::string late = std::exchange(has_met_, false) ? watch_members() : "";
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

void MetaBackend::remember(MetaGraphPlan& plan) {
  forget(plan);
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
                             "{} lies on {}, another device than {}, which is to use it; copy it there",
                             describe(tensor), shards == nullptr ? "" : tensor.buffer->type().name(), device.name());
    return shards;
  };
  PlanContext context = device.plan_context();
  context.shards = lookup;
  // One that was made before is for the communicator that the device foresees.
  auto* prepared = dynamic_cast<Plan*>(options.prepared);
  require<InvalidArgument>(prepared == nullptr || !prepared->ranks.empty(),
                           "[{}] the prepared plan of graph '{}' has been used already; prepare one for each use",
                           name(), range.graph->name());
  const bool is_ready = prepared != nullptr && prepared->graph_uid == range.graph->uid() && has_memory(*prepared) &&
                        (communicator_ == nullptr || communicator_->describe() == context.communicator);
  if (communicator_ != nullptr) context.communicator = communicator_->describe();
  Plan plan = is_ready ? std::move(*prepared) : make_plan(range, context, device.members(), options);
  // Made now, to fail here rather than in the first run, and to plan for what there really is.
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
        fmt::format("{} and {} planned {} in different ways; use the same shoal, the same options and the same "
                    "kind of devices in all processes",
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
  has_met_ |= own.communicates();
  own.run(first, last);
}

collectives::Communicator& MetaBackend::communicator() {
  if (communicator_ == nullptr) {
    communicator_ = make_communicator_(streams_, comm_options_);
  }
  return *communicator_;
}

}  // namespace shoal::meta
