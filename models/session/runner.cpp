#include "models/session/runner.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "devices/allocate.h"
#include "models/session/model_plan.h"
#include "models/session/orders.h"

namespace shoal::models {
namespace {

constexpr BatchShape kSingle{1, 1, 1};
// Padding tokens of a batch may have any id, because no token attends to them and no cache row stores them.
constexpr int32_t kPaddingToken = 0, kNowhere = -1;

void pad(std::vector<int32_t>& to, std::span<const int32_t> values, int64_t room, int32_t padding) {
  to.assign(static_cast<size_t>(room), padding);
  std::copy(values.begin(), values.end(), to.begin());
}

}  // namespace

struct Runner::Compiled {
  BatchShape shape;
  DecoderGraph graph;
};

Runner::Runner(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
               const SessionOptions& options, std::shared_ptr<ModelPlan> plan)
    : model_(model),
      size_(session_size(model.hparams, options)),
      candidates_per_output_(std::min(options.candidates, model.hparams.vocab)),
      returns_logits_(options.candidates == 0 || options.keeps_logits),
      kept_shapes_(models::kept_shapes(options)),
      trace_(options.tracer != nullptr ? options.tracer->row("host") : nullptr),
      plan_(std::move(plan)),
      cache_(plan_ != nullptr ? plan_->cache : own_cache_),
      backends_(std::move(backends)) {
  const auto cached = cache_.context.tensors();
  require<InvalidArgument>(cached.empty() || cached.front()->buffer == nullptr,
                           "the plan already belongs to another session; make a plan for each session");
  require<InvalidArgument>(model.is_loaded(), "the weights of {} are not loaded; load them before making a session",
                           model.file.path());
  for (const auto& backend : backends_) backend->set_tracer(options.tracer);
  const TraceScope scope(trace_.get(), TraceKind::kHost, {"make a session"});
  if (plan_ == nullptr) declare_cache(cache_, model.hparams, cache_options(size_, options, placement.latent_parts()));
  allocate_cache(placement);
  std::vector<Backend*> streams;
  for (const auto& backend : backends_) streams.push_back(backend.get());
  scheduler_ = std::make_unique<sched::Scheduler>(std::move(streams), scheduler_options(placement, options));
  reserve(largest_shapes(size_, options));
}

Runner::~Runner() {
  // The destructor cannot report errors. After synchronize(), no queued work uses the members.
  try {
    if (orders_ != nullptr) orders_->send(Order::Kind::kEnd);
  } catch (...) {
  }
  try {
    scheduler_->synchronize();
  } catch (...) {
  }
}

void Runner::allocate_cache(const Placement& placement) {
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
void Runner::reserve(std::span<const BatchShape> shapes) {
  if (shapes.empty()) return void(compiled(kSingle));
  if (plan_ != nullptr) return void(compiled(shapes.front()));
  const auto largest = build(shapes.front());
  scheduler_->allocate(*largest->graph.graph);
}

std::unique_ptr<Runner::Compiled> Runner::build(BatchShape shape) const {
  auto fresh = std::make_unique<Compiled>();
  fresh->shape = shape;
  shape.candidates = candidates_per_output_;
  shape.keeps_logits = returns_logits_;
  fresh->graph = model_.architecture->build(model_.hparams, model_.weights, cache_, shape);
  return fresh;
}

std::unique_ptr<Runner::Compiled> Runner::take_planned(BatchShape shape) {
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

Runner::Compiled& Runner::compiled(BatchShape shape) {
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

void Runner::make_room() {
  const auto is_other = [](const auto& c) { return c->shape != kSingle; };
  if (std::count_if(compiled_.begin(), compiled_.end(), is_other) < static_cast<ptrdiff_t>(kept_shapes_)) return;
  const auto oldest = std::find_if(compiled_.rbegin(), compiled_.rend(), is_other);
  scheduler_->synchronize();  // queued work may use the graph
  if (latest_ == oldest->get()) latest_ = nullptr;
  compiled_.erase(std::next(oldest).base());
}

void Runner::run(const RunnerBatch& batch) {
  const BatchShape& shape = batch.shape;
  check(static_cast<int64_t>(batch.tokens.size()) <= shape.tokens && !batch.outputs.empty() &&
            static_cast<int64_t>(batch.outputs.size()) <= shape.outputs &&
            static_cast<int64_t>(batch.inputs.of.size()) <= shape.sequences,
        "a batch of {} tokens, {} outputs and {} sequences does not fit its shape", batch.tokens.size(),
        batch.outputs.size(), batch.inputs.of.size());
  latest_ = nullptr;  // stays nullptr if the batch fails
  if (orders_ != nullptr) {
    const std::vector<int32_t> numbers = to_numbers(batch);
    orders_->send(Order::Kind::kRun, 0, 0, std::as_bytes(std::span(numbers)));
  }
  Compiled& c = compiled(shape);
  const std::string tokens = trace_ != nullptr ? std::to_string(shape.tokens) : std::string();
  const TraceScope scope(trace_.get(), TraceKind::kHost,
                         {"evaluate ", tokens, shape.tokens == 1 ? " token" : " tokens"});
  pad(tokens_, batch.tokens, shape.tokens, kPaddingToken);
  pad(positions_, batch.inputs.positions, shape.tokens, kNowhere);
  pad(sequences_, batch.inputs.sequences, shape.tokens, 0);
  // The outputs are padded with copies of the last output.
  pad(outputs_, batch.outputs, shape.outputs, batch.outputs.back());
  tensor_set(*c.graph.tokens, tokens_.data(), 0, tokens_.size() * sizeof(int32_t));
  write_inputs(c.graph, model_.hparams, cache_, {positions_, sequences_, batch.inputs.of});
  tensor_set(*c.graph.out_ids, outputs_.data(), 0, outputs_.size() * sizeof(int32_t));
  scheduler_->compute_async(*c.graph.graph);
  latest_ = &c;
}

void Runner::wait_for(std::string_view what) {
  const TraceScope scope(trace_.get(), TraceKind::kWait, {"wait for ", what});
  scheduler_->synchronize();
}

std::byte* Runner::result_memory(size_t bytes) {
  if (results_ != nullptr && results_->size() >= bytes) return results_->base();
  results_.reset();
  results_ = scheduler_->allocate_host(bytes);
  return results_->base();
}

std::span<const float> Runner::logits(int64_t first, int64_t count) {
  check(latest_ != nullptr && returns_logits_, "the latest batch has no logits");
  if (orders_ != nullptr) orders_->send(Order::Kind::kLogits, first, count);
  const auto row = static_cast<size_t>(model_.hparams.vocab) * sizeof(float);
  const auto values = static_cast<size_t>(count * model_.hparams.vocab);
  auto* const to = reinterpret_cast<float*>(result_memory(values * sizeof(float)));
  scheduler_->get_async(*latest_->graph.logits, to, static_cast<size_t>(first) * row, values * sizeof(float));
  wait_for("logits");
  return {to, values};
}

std::span<const TokenLogit> Runner::candidates(int64_t outputs) {
  check(latest_ != nullptr && candidates_per_output_ > 0, "the latest batch has no candidates");
  if (orders_ != nullptr) orders_->send(Order::Kind::kCandidates, 0, outputs);
  const auto count = static_cast<size_t>(outputs * candidates_per_output_);
  std::byte* const memory = result_memory(count * (sizeof(int32_t) + sizeof(float)));
  auto* const ids = reinterpret_cast<int32_t*>(memory);
  auto* const logits = reinterpret_cast<float*>(memory + count * sizeof(int32_t));
  scheduler_->get_async(*latest_->graph.candidate_ids, ids, 0, count * sizeof(int32_t));
  scheduler_->get_async(*latest_->graph.candidate_logits, logits, 0, count * sizeof(float));
  wait_for("candidates");
  candidates_.resize(count);
  for (size_t i = 0; i < count; ++i) candidates_[i] = {ids[i], logits[i]};
  return candidates_;
}

std::vector<std::byte> Runner::read_cache(int64_t tokens, CacheScope scope) {
  if (orders_ != nullptr) orders_->send(Order::Kind::kReadCache, tokens, static_cast<int64_t>(scope));
  wait_for("the caches");
  std::vector<std::byte> contents(cache_bytes(cache_, model_.hparams, tokens, scope));
  models::read_cache(cache_, model_.hparams, tokens, scope, contents.data());
  return contents;
}

void Runner::write_cache(int64_t tokens, CacheScope scope, std::span<const std::byte> contents) {
  if (orders_ != nullptr) orders_->send(Order::Kind::kWriteCache, tokens, static_cast<int64_t>(scope), contents);
  wait_for("the caches");
  models::write_cache(cache_, model_.hparams, tokens, scope, contents.data());
}

void Runner::lead(ProcessGroup& group) {
  orders_ = std::make_unique<Orders>(group);
}

}  // namespace shoal::models
