#include "models/session/session.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "devices/allocate.h"
#include "models/session/cache_rows.h"
#include "models/session/inputs.h"
#include "models/session/model_plan.h"

namespace shoal::models {

namespace {

constexpr BatchShape kSingle{1, 1};
constexpr size_t kKeptPromptShapes = 4;
// The fixed cost of one run of a graph is the time in which a long run computes kRunCost tokens. Each run has this
// cost, because each run reads all weights.
constexpr int64_t kRunCost = 32;
// Padding tokens of a batch may have any id, because no token attends to them and no cache row stores them.
constexpr int32_t kPaddingToken = 0, kNowhere = -1;

int64_t round_up(int64_t count, int64_t most) {
  return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))), most);
}
/// The largest power of two below `count`. `count` is at least 2.
int64_t power_below(int64_t count) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1)));
}

Batch padded(int64_t tokens, int64_t outputs, int64_t most) {
  const int64_t room = round_up(tokens, most);
  return {tokens, {room, round_up(outputs, room)}};
}

}  // namespace

struct Session::Compiled {
  BatchShape shape;
  DecoderGraph graph;
};

SessionSize session_size(const Hparams& hparams, const SessionOptions& options) {
  require<InvalidArgument>(options.context >= 0,
                           "a context of {} tokens is not possible; use 0 for the training context", options.context);
  require<InvalidArgument>(options.batch >= 1, "a batch of {} tokens is not possible; use 1 or more", options.batch);
  require<InvalidArgument>(options.candidates >= 0, "{} candidates are not possible; use 0 for all logits",
                           options.candidates);
  require<InvalidArgument>(options.checkpoints >= 0 && options.checkpoint_every >= 0,
                           "{} checkpoints, one every {} tokens, are not possible; use 0 for no checkpoints",
                           options.checkpoints, options.checkpoint_every);
  SessionSize size;
  size.context = options.context == 0 ? hparams.context : options.context;
  size.batch = std::min(options.batch, size.context);
  return size;
}

KvCacheOptions cache_options(const SessionSize& size, const SessionOptions& options, int64_t parts) {
  return {size.context, options.dtype_k, options.dtype_v, size.batch, parts};
}

std::vector<Batch> divide_into_batches(int64_t tokens, int64_t outputs, int64_t most) {
  std::vector<Batch> batches;
  for (; tokens > most; tokens -= most) batches.push_back({most, {most, 1}});
  const int64_t first = tokens > 1 ? power_below(tokens) : 0, second = tokens - first;
  const bool divided =
      first > 0 && outputs <= second && first + round_up(second, most) + kRunCost < round_up(tokens, most);
  if (divided) batches.push_back({first, {first, 1}});
  batches.push_back(padded(divided ? second : tokens, outputs, most));
  return batches;
}

std::vector<BatchShape> largest_prompt_shapes(int64_t batch) {
  std::vector<BatchShape> shapes;
  for (int64_t tokens = batch; tokens > 1 && shapes.size() < kKeptPromptShapes; tokens = power_below(tokens)) {
    shapes.push_back({tokens, 1});
  }
  return shapes;
}

Session::Session(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
                 const SessionOptions& options, std::shared_ptr<ModelPlan> plan)
    : model_(model),
      size_(session_size(model.hparams, options)),
      candidates_per_output_(std::min(options.candidates, model.hparams.vocab)),
      trace_(options.tracer != nullptr ? options.tracer->row("host") : nullptr),
      plan_(std::move(plan)),
      cache_(plan_ != nullptr ? plan_->cache : own_cache_),
      backends_(std::move(backends)),
      most_checkpoints_(options.checkpoints),
      checkpoint_every_(options.checkpoint_every) {
  const auto cached = cache_.context.tensors();
  require<InvalidArgument>(cached.empty() || cached.front()->buffer == nullptr,
                           "the plan already belongs to another session; make a plan for each session");
  require<InvalidArgument>(model.is_loaded(), "the weights of {} are not loaded; load them before making a session",
                           model.file.path());
  for (const auto& backend : backends_) backend->set_tracer(options.tracer);
  const TraceScope scope(trace_.get(), TraceKind::kHost, {"make a session"});
  if (plan_ == nullptr) declare_cache(cache_, model.hparams, cache_options(size_, options, placement.latent_parts()));
  allocate_cache(placement);
  for (size_t layer = 0; layer < cache_.layers.size(); ++layer) {
    if (!model.hparams.layer(static_cast<int64_t>(layer)).attends()) recurrent_ = true;
    if (!cache_.is_ring(layer)) continue;
    const int64_t rows = cache_.rows_of(layer);
    ring_rows_ = ring_rows_ == 0 ? rows : std::min(ring_rows_, rows);
    longest_window_ = std::max(longest_window_, model.hparams.layer(static_cast<int64_t>(layer)).attention.window);
  }
  std::vector<Backend*> streams;
  for (const auto& backend : backends_) streams.push_back(backend.get());
  scheduler_ = std::make_unique<sched::Scheduler>(std::move(streams), scheduler_options(placement, options));
  reserve();
}

sched::SchedulerOptions scheduler_options(const Placement& placement, const SessionOptions& options) {
  sched::SchedulerOptions scheduler;
  scheduler.copies = placement.devices().size() > 1 ? kPipelineCopies : 1;
  scheduler.op_offload = options.op_offload;
  scheduler.kept_graphs = kKeptPromptShapes + 2;
  return scheduler;
}

Session::~Session() {
  try {
    if (orders_ != nullptr) orders_->send(Order::Kind::kEnd);
    scheduler_->synchronize();
  } catch (...) {
    // The destructor cannot report the error. The queued work has ended, so the members can be destroyed.
  }
}

void Session::allocate_cache(const Placement& placement) {
  std::vector<std::vector<Tensor*>> homes(placement.devices().size());
  for (Tensor* tensor : cache_.context.tensors()) {
    homes[static_cast<size_t>(placement.device_of(*tensor))].push_back(tensor);
  }
  for (size_t d = 0; d < homes.size(); ++d) {
    cache_buffers_.push_back(allocate_tensors(homes[d], placement.devices()[d]->buffer_type(), Usage::kAny));
    if (cache_buffers_.back() != nullptr) cache_buffers_.back()->clear(0);
  }
}

// Allocates the largest graph first. Later graphs fit into the memory of this graph, so no graph is planned twice.
void Session::reserve() {
  if (plan_ != nullptr) return void(compiled({size_.batch, 1}));
  const auto largest = build({size_.batch, 1});
  scheduler_->allocate(*largest->graph.graph);
}

std::unique_ptr<Session::Compiled> Session::build(BatchShape shape) const {
  auto fresh = std::make_unique<Compiled>();
  fresh->shape = shape;
  shape.candidates = candidates_per_output_;
  fresh->graph = model_.architecture->build(model_.hparams, model_.weights, cache_, shape);
  return fresh;
}

std::unique_ptr<Session::Compiled> Session::take_planned(BatchShape shape) {
  const auto take = [&](PlannedGraph& planned) -> std::unique_ptr<Compiled> {
    if (planned.graph.graph == nullptr || !(planned.shape == shape)) return nullptr;
    auto taken = std::make_unique<Compiled>(Compiled{shape, std::move(planned.graph)});
    sched::PreparedGraph prepared{std::move(planned.schedule), std::move(planned.local)};
    for (auto& plan : planned.plans) prepared.plans.push_back(plan ? &*plan : nullptr);
    scheduler_->allocate(*taken->graph.graph, std::move(prepared));
    planned.plans.clear();
    return taken;
  };
  if (plan_ == nullptr) return nullptr;
  if (auto taken = take(plan_->step)) return taken;
  for (PlannedGraph& planned : plan_->prompts) {
    if (auto taken = take(planned)) return taken;
  }
  return nullptr;
}

Session::Compiled& Session::compiled(BatchShape shape) {
  const auto found = std::find_if(compiled_.begin(), compiled_.end(), [&](const auto& c) { return c->shape == shape; });
  if (found != compiled_.end()) {
    std::rotate(compiled_.begin(), found, found + 1);
    return *compiled_.front();
  }
  if (shape != kSingle) make_room();
  if (auto planned = take_planned(shape)) return **compiled_.insert(compiled_.begin(), std::move(planned));
  const TraceScope scope(trace_.get(), TraceKind::kHost, {"plan a graph"});
  auto fresh = build(shape);
  scheduler_->allocate(*fresh->graph.graph);
  ++compilations_;
  return **compiled_.insert(compiled_.begin(), std::move(fresh));
}

void Session::make_room() {
  const auto is_prompt = [](const auto& c) { return c->shape != kSingle; };
  if (std::count_if(compiled_.begin(), compiled_.end(), is_prompt) < static_cast<ptrdiff_t>(kKeptPromptShapes)) return;
  const auto oldest = std::find_if(compiled_.rbegin(), compiled_.rend(), is_prompt);
  if (latest_ == oldest->get()) latest_ = nullptr;
  compiled_.erase(std::next(oldest).base());
}

void Session::run_batch(Compiled& c, int64_t begin, const int32_t* out_ids) {
  const std::string tokens = trace_ != nullptr ? std::to_string(c.shape.tokens) : std::string();
  const TraceScope scope(trace_.get(), TraceKind::kHost,
                         {"evaluate ", tokens, c.shape.tokens == 1 ? " token" : " tokens"});
  tensor_set(*c.graph.tokens, tokens_.data() + begin, 0, static_cast<size_t>(c.shape.tokens) * sizeof(int32_t));
  write_inputs(c.graph, model_.hparams, std::span(positions_).subspan(static_cast<size_t>(begin), c.shape.tokens));
  tensor_set(*c.graph.out_ids, out_ids, 0, static_cast<size_t>(c.shape.outputs) * sizeof(int32_t));
  scheduler_->compute_async(*c.graph.graph);
}

void Session::evaluate(std::span<const int32_t> tokens, int64_t outputs) {
  int64_t count = static_cast<int64_t>(tokens.size());
  require<InvalidArgument>(count > 0, "no tokens to evaluate");
  require<InvalidArgument>(count <= size_.context - position_,
                           "{} tokens do not fit: {} of the context's {} tokens are used; use a larger context", count,
                           position_, size_.context);
  for (int32_t token : tokens) {
    require<InvalidArgument>(token >= 0 && token < model_.hparams.vocab, "token {} is not in a vocabulary of {} tokens",
                             token, model_.hparams.vocab);
  }
  int64_t last = (count - 1) % size_.batch + 1;
  require<InvalidArgument>(outputs >= 1 && outputs <= last,
                           "{} outputs were requested, but the last batch has {} tokens", outputs, last);
  check_whole();
  if (orders_ != nullptr) orders_->send(Order::Kind::kEvaluate, outputs, std::as_bytes(tokens));
  const std::vector<Batch> batches = divide_into_batches(count, outputs, size_.batch);
  // Only the last batch has padding.
  const Batch& end = batches.back();
  const int64_t room = count - end.tokens + end.shape.tokens;
  tokens_.assign(room, kPaddingToken);
  std::copy(tokens.begin(), tokens.end(), tokens_.begin());
  positions_.assign(room, kNowhere);
  std::iota(positions_.begin(), positions_.begin() + count, static_cast<int32_t>(position_));
  // Entry 0 is the only output of each batch before the last batch, and this output is not read. The last batch uses
  // all other entries. These entries are padded with copies of the last output.
  out_ids_.assign(1 + end.shape.outputs, static_cast<int32_t>(end.tokens - 1));
  out_ids_[0] = 0;
  std::iota(out_ids_.begin() + 1, out_ids_.begin() + 1 + outputs, static_cast<int32_t>(end.tokens - outputs));
  latest_ = nullptr;  // stays nullptr if a batch fails
  outputs_ = outputs;
  int64_t begin = 0;
  for (const Batch& batch : batches) {
    Compiled& c = compiled(batch.shape);
    tearing([&] { run_batch(c, begin, out_ids_.data() + (&batch == &end ? 1 : 0)); });
    if (&batch == &end) latest_ = &c;
    begin += batch.tokens;
    position_ += batch.tokens;
    if (ring_rows_ > 0) oldest_ = std::max(oldest_, position_ - ring_rows_);
    const int64_t last = checkpoints_.empty() ? 0 : checkpoints_.rbegin()->first;
    if (checkpoint_every_ > 0 && position_ - last >= checkpoint_every_) make_checkpoint();
  }
}

template <class Work>
void Session::tearing(const Work& work) {
  try {
    work();
  } catch (...) {
    latest_ = nullptr;
    torn_ = true;
    throw;
  }
}

void Session::wait_for(std::string_view what) {
  const TraceScope scope(trace_.get(), TraceKind::kWait, {"wait for ", what});
  tearing([&] { scheduler_->synchronize(); });
  if (!torn_) whole_ = position_;
}

void Session::synchronize() {
  wait_for("everything");
}

void Session::check_whole() const {
  require<InvalidArgument>(!torn_, "the evaluation from token {} on has failed; rewind to token {} and evaluate again",
                           whole_, rewindable(position_));
}

std::byte* Session::result_memory(size_t bytes) {
  if (results_ != nullptr && results_->size() >= bytes) return results_->base();
  results_.reset();
  results_ = scheduler_->allocate_host(bytes);
  return results_->base();
}

std::span<const float> Session::logits() {
  require<InvalidArgument>(latest_ != nullptr, "no logits yet; evaluate tokens first");
  require<InvalidArgument>(candidates_per_output_ == 0,
                           "the devices select {} candidates and return no logits; make the session without candidates",
                           candidates_per_output_);
  if (orders_ != nullptr) orders_->send(Order::Kind::kLogits);
  const Tensor& logits = *latest_->graph.logits;
  const auto count = static_cast<size_t>(outputs_ * model_.hparams.vocab);
  auto* const values = reinterpret_cast<float*>(result_memory(count * sizeof(float)));
  tearing([&] { scheduler_->get_async(logits, values, 0, count * sizeof(float)); });
  wait_for("logits");
  return {values, count};
}

std::span<const TokenLogit> Session::candidates() {
  require<InvalidArgument>(latest_ != nullptr, "no candidates yet; evaluate tokens first");
  require<InvalidArgument>(candidates_per_output_ > 0, "the devices return logits; make the session with candidates");
  if (orders_ != nullptr) orders_->send(Order::Kind::kCandidates);
  const auto count = static_cast<size_t>(outputs_ * candidates_per_output_);
  std::byte* const memory = result_memory(count * (sizeof(int32_t) + sizeof(float)));
  auto* const ids = reinterpret_cast<int32_t*>(memory);
  auto* const logits = reinterpret_cast<float*>(memory + count * sizeof(int32_t));
  tearing([&] {
    scheduler_->get_async(*latest_->graph.candidate_ids, ids, 0, count * sizeof(int32_t));
    scheduler_->get_async(*latest_->graph.candidate_logits, logits, 0, count * sizeof(float));
  });
  wait_for("candidates");
  candidates_.resize(count);
  for (size_t i = 0; i < count; ++i) candidates_[i] = {ids[i], logits[i]};
  return candidates_;
}

bool Session::keeps(int64_t position) const {
  if (position == 0) return true;
  if (torn_ && (recurrent_ || position > whole_)) return false;
  if (position == position_) return true;
  return !recurrent_ && oldest_ <= std::max<int64_t>(0, position - longest_window_ + 1);
}

bool Session::can_rewind(int64_t position) const {
  return keeps(position) || checkpoints_.contains(position);
}

int64_t Session::rewindable(int64_t position) const {
  position = std::min(position, torn_ ? whole_ : position_);
  if (can_rewind(position)) return position;
  const auto after = checkpoints_.upper_bound(position);
  return after == checkpoints_.begin() ? 0 : std::prev(after)->first;
}

void Session::checkpoint() {
  check_whole();
  if (orders_ != nullptr) orders_->send(Order::Kind::kCheckpoint);
  make_checkpoint();
}

void Session::make_checkpoint() {
  if (!needs_checkpoints() || position_ == 0 || most_checkpoints_ == 0 || checkpoints_.contains(position_)) return;
  wait_for("a checkpoint");
  std::vector<std::byte> bytes(checkpoint_bytes(position_));
  read_cache(cache_, model_.hparams, position_, CacheScope::kOverwritten, bytes.data());
  checkpoints_.emplace(position_, follows_ ? std::vector<std::byte>() : std::move(bytes));
  if (static_cast<int64_t>(checkpoints_.size()) <= most_checkpoints_) return;
  // Drops the checkpoint whose removal leaves the smallest gap between its neighbors. Never drops the new checkpoint.
  auto closest = checkpoints_.begin();
  int64_t gap = std::numeric_limits<int64_t>::max(), before = 0;
  for (auto at = checkpoints_.begin(); std::next(at) != checkpoints_.end(); before = at->first, ++at) {
    if (std::next(at)->first - before >= gap) continue;
    gap = std::next(at)->first - before;
    closest = at;
  }
  checkpoints_.erase(closest);
}

size_t Session::checkpoint_bytes(int64_t tokens) const {
  return needs_checkpoints() ? cache_bytes(cache_, model_.hparams, tokens, CacheScope::kOverwritten) : 0;
}

void Session::rewind(int64_t position) {
  require<InvalidArgument>(position >= 0 && position <= position_, "cannot rewind to token {} of {}", position,
                           position_);
  if (!can_rewind(position)) {
    if (position > whole_) check_whole();
    const std::string kept =
        recurrent_ ? "recurrent layers keep only the latest state"
                   : fmt::format("layers with a window of {} keep tokens from {} on", longest_window_, oldest_);
    fail<InvalidArgument>(
        "cannot rewind to token {} of {}: {}, and this token has no checkpoint; rewind to token {} and evaluate again",
        position, position_, kept, rewindable(position));
  }
  const auto found = checkpoints_.find(position);
  const bool is_needed = !keeps(position) && found != checkpoints_.end();
  if (is_needed) wait_for("a rewind");  // waits before the other processes receive the order
  const std::span<const std::byte> bytes =
      is_needed ? std::span<const std::byte>(found->second) : std::span<const std::byte>();
  if (orders_ != nullptr) orders_->send(Order::Kind::kRewind, position, bytes);
  rewind(position, bytes);
}

void Session::rewind(int64_t position, std::span<const std::byte> checkpoint) {
  if (!checkpoint.empty()) {
    wait_for("a rewind");
    write_cache(cache_, model_.hparams, position, CacheScope::kOverwritten, checkpoint.data());
    oldest_ = ring_rows_ == 0 ? 0 : std::max<int64_t>(0, position - longest_window_);
  }
  position_ = position;
  whole_ = std::min(whole_, position);
  torn_ = false;
  if (position == 0) oldest_ = 0;
  drop_checkpoints_after(position);
}

void Session::drop_checkpoints_after(int64_t position) {
  checkpoints_.erase(checkpoints_.upper_bound(position), checkpoints_.end());
}

void Session::set_position(int64_t position) {
  require<InvalidArgument>(position >= 0 && position <= size_.context, "position {} is outside the context of {}",
                           position, size_.context);
  position_ = whole_ = position;
  oldest_ = ring_rows_ == 0 ? 0 : std::max<int64_t>(0, position - longest_window_);
  latest_ = nullptr;
  torn_ = false;
  checkpoints_.clear();
}

}  // namespace shoal::models
