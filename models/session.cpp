#include "models/session.h"

#include <algorithm>
#include <numeric>

#include "devices/allocate.h"
#include "graph/error.h"

namespace shoal::models {

struct Session::Compiled {
  BatchShape shape;
  DecoderGraph graph;
  std::unique_ptr<GraphPlan> plan;  // before the graph in destruction order
};

SessionSize session_size(const Hparams& hparams, const SessionOptions& options) {
  require<InvalidArgument>(options.context >= 0, "a context of {} tokens is not possible; use 0 for the model's own",
                           options.context);
  require<InvalidArgument>(options.batch >= 1, "a batch of {} tokens is not possible; use 1 or more", options.batch);
  SessionSize size;
  size.context = options.context == 0 ? hparams.context : options.context;
  size.batch = std::min(options.batch, size.context);
  return size;
}

Session::Session(const Model& model, Device& device, std::unique_ptr<Backend> backend, const SessionOptions& options)
    : model_(model), size_(session_size(model.hparams, options)), backend_(std::move(backend)) {
  require<InvalidArgument>(model.buffer != nullptr, "the weights of {} are not loaded", model.file.path());
  declare_cache(cache_, model.hparams, {size_.context, options.dtype_k, options.dtype_v});
  cache_buffer_ = allocate_tensors(cache_.context.tensors(), device.buffer_type(), Usage::kAny);
  cache_buffer_->clear(0);
}

Session::~Session() {
  try {
    backend_->synchronize();
  } catch (const Error&) {
    // Nobody is left to be told; the work has ended, which is what matters here.
  }
}

Session::Compiled& Session::compiled(BatchShape shape) {
  std::unique_ptr<Compiled>& slot = shape == BatchShape{1, 1} ? single_ : other_;
  if (slot && slot->shape == shape) return *slot;
  // The old graph may still be queued, and its memory is better freed before more is asked for.
  backend_->synchronize();
  if (latest_ == slot.get()) latest_ = nullptr;
  slot.reset();
  auto fresh = std::make_unique<Compiled>();
  fresh->shape = shape;
  fresh->graph = model_.architecture->build(model_.hparams, model_.weights, cache_, shape);
  fresh->plan = backend_->create_plan(*fresh->graph.graph);
  slot = std::move(fresh);
  return *slot;
}

void Session::run_batch(Compiled& c, int64_t begin, const int32_t* out_ids) {
  const HeldBackend held(*backend_);
  size_t bytes = c.shape.tokens * sizeof(int32_t);
  backend_->set_async(*c.graph.tokens, tokens_.data() + begin, 0, bytes);
  backend_->set_async(*c.graph.positions, positions_.data() + begin, 0, bytes);
  backend_->set_async(*c.graph.cache_rows, positions_.data() + begin, 0, bytes);
  backend_->set_async(*c.graph.out_ids, out_ids, 0, c.shape.outputs * sizeof(int32_t));
  backend_->compute_async(*c.plan);
  latest_ = &c;
}

void Session::evaluate(std::span<const int32_t> tokens, int64_t outputs) {
  int64_t count = static_cast<int64_t>(tokens.size());
  require<InvalidArgument>(count > 0, "no tokens to evaluate");
  require<InvalidArgument>(count <= size_.context - position_,
                           "{} tokens do not fit: {} of the context of {} are used; ask for a larger context", count,
                           position_, size_.context);
  for (int32_t token : tokens) {
    require<InvalidArgument>(token >= 0 && token < model_.hparams.vocab, "token {} is not in the vocabulary of {}",
                             token, model_.hparams.vocab);
  }
  int64_t last = (count - 1) % size_.batch + 1;
  require<InvalidArgument>(outputs >= 1 && outputs <= last, "{} outputs asked of a last batch of {} tokens", outputs,
                           last);
  backend_->synchronize();  // the inputs of earlier work may be replaced now
  tokens_.assign(tokens.begin(), tokens.end());
  positions_.resize(count);
  std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(position_));
  // The first entry serves all batches but the last, whose output nobody reads; the rest are the last batch's.
  out_ids_.assign(outputs + 1, 0);
  std::iota(out_ids_.begin() + 1, out_ids_.end(), static_cast<int32_t>(last - outputs));
  int64_t begin = 0;
  for (; begin + last < count; begin += size_.batch) run_batch(compiled({size_.batch, 1}), begin, out_ids_.data());
  run_batch(compiled({last, outputs}), begin, out_ids_.data() + 1);
  position_ += count;
}

std::span<const float> Session::logits() {
  require<InvalidArgument>(latest_ != nullptr, "no logits yet; evaluate something first");
  const Tensor& logits = *latest_->graph.logits;
  logits_.resize(logits.elements());
  backend_->get_async(logits, logits_.data(), 0, logits_.size() * sizeof(float));
  backend_->synchronize();
  return logits_;
}

void Session::rewind(int64_t position) {
  require<InvalidArgument>(position >= 0 && position <= position_, "cannot go back to token {} of {}", position,
                           position_);
  position_ = position;
}

std::vector<const GraphPlan*> Session::plans() const {
  std::vector<const GraphPlan*> out;
  for (const Compiled* c : {single_.get(), other_.get()}) {
    if (c) out.push_back(c->plan.get());
  }
  return out;
}

}  // namespace shoal::models
