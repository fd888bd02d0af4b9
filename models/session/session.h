// A session: one text going through a model on the devices of a placement. Owns the streams of work, the KV
// cache and the compiled graphs. One thread at a time may use it; the model and the placement must outlive
// it.
//
//   Session session(model, placement, placement.init(), {.context = 512});
//   session.evaluate(prompt);                         // in batches of at most options.batch tokens
//   for (...) session.evaluate(std::array{sample(session.logits())});
//
// Graphs are static, so prompts run in batches of few different sizes (divide_into_batches). Tokens that fill a batch
// up have no position and no row of the cache: they see nothing, nothing sees them, and their results are not read.
// The graph for single tokens is kept, and those of the four shapes used last, so that prompts of different lengths and
// generation can alternate without planning anything again:
//
//   batch 512: 700 tokens run as 512, 128 and 64 (60 and padding), 20 tokens as 32, and then one by one
//
// With options.candidates selecting the best tokens is the devices' work too. A Sampler does with these what it would
// do with all logits:
//
//   for (...) session.evaluate(std::array{sampler.sample_best(session.candidates())});
//
// Recurrent layers and those with a window forget. Checkpoints, host memory with what they will overwrite, let a
// session go back to where they were made:
//
//   session.evaluate(system_prompt); session.checkpoint();
//   session.evaluate(question);  ...
//   session.rewind(session.rewindable(common_prefix));        // the largest place before it that is still known
//
// evaluate() queues work and returns; logits(), candidates() and synchronize() wait for it and throw what failed. What
// tokens since the wait before have left is not known then: evaluate() and checkpoint() are refused until the session
// has gone back to rewindable(position()).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "models/arch/model.h"
#include "models/place/placement.h"
#include "models/session/orders.h"
#include "models/session/sampler.h"
#include "sched/scheduler.h"

namespace shoal::models {

struct SessionOptions {
  int64_t context = 0;  ///< tokens that fit; 0: what the model was trained for
  int64_t batch = 512;  ///< most tokens in one run of a graph
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
  bool op_offload = true;  ///< see sched::SchedulerOptions
  /// The devices select this number of tokens for each output, and only these come to the host: candidates() instead of
  /// logits(). CUDA devices select at most 256. 0: logits().
  int64_t candidates = 0;
  int64_t checkpoints = 8;  ///< kept at most; those go first that are close to others
  int64_t checkpoint_every =
      0;  ///< made by itself after a batch from that number of tokens on; 0: at the caller's word
  /// Gets a row for each stream, and one called "host"; must outlive the session. nullptr: nothing is recorded.
  Tracer* tracer = nullptr;
};

/// Batches of a prompt that may be on their way at a time where layers lie on several devices.
inline constexpr int kPipelineCopies = 4;

/// What the options mean for a model: the context it gets and its largest batch.
struct SessionSize {
  int64_t context = 0;
  int64_t batch = 0;
};
/// Throws InvalidArgument for a batch below 1 and for a context, candidates or checkpoints below 0.
SessionSize session_size(const Hparams& hparams, const SessionOptions& options);

/// The KV cache of a session, in so many parts (Placement::latent_parts()).
KvCacheOptions cache_options(const SessionSize& size, const SessionOptions& options, int64_t parts);

/// One run of a graph: that many tokens in a graph of that shape.
struct Batch {
  int64_t tokens = 1;
  BatchShape shape;
  bool operator==(const Batch&) const = default;
};
/// Full batches, and for the rest the next power of two or, where that saves more than another run costs, the power of
/// two below and what then remains. The last batch has all outputs, which must fit into the rest.
///   700 tokens, 1 output, batches of 512: 512 in {512, 1}, 128 in {128, 1}, 60 in {64, 1};  5, 5 and 512: 5 in {8, 8}
std::vector<Batch> divide_into_batches(int64_t tokens, int64_t outputs, int64_t most);
/// The shapes that take most memory of those that a session has at a time beside single tokens, largest first:
///   512 -> {512, 1}, {256, 1}, {128, 1}, {64, 1}
std::vector<BatchShape> largest_prompt_shapes(int64_t batch);

/// How a session's scheduler works, and what a plan of it must assume.
sched::SchedulerOptions scheduler_options(const Placement& placement, const SessionOptions& options);

struct ModelPlan;

class Session {
 public:
  /// Allocates the cache, and compute memory for a full batch with one output. The model's weights must be loaded on
  /// the placement's devices; `backends`: one for each of them. The graphs of `plan`, if there is one for such a
  /// session (model_plan.h), are run as they were planned; they are taken out of it.
  Session(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
          const SessionOptions& options = {}, std::shared_ptr<ModelPlan> plan = nullptr);
  ~Session();

  int64_t context() const { return size_.context; }
  /// Most tokens in one run of a graph.
  int64_t batch() const { return size_.batch; }
  /// Waits for queued work, and throws what failed.
  void synchronize();
  /// Throws InvalidArgument that says where one can go back to, if queued work has failed since then.
  void check_whole() const;
  /// Tokens in the cache.
  int64_t position() const { return position_; }
  /// Appends tokens and keeps the logits of the last `outputs` of them (of its last batch). Throws InvalidArgument when
  /// the context is full, a token is outside the vocabulary, or more outputs are asked for than the last batch has.
  void evaluate(std::span<const int32_t> tokens, int64_t outputs = 1);
  /// Logits of the latest evaluate: vocab values for each output, oldest first. Waits. Valid until the next call.
  /// Throws InvalidArgument where the devices select candidates.
  std::span<const float> logits();
  /// Do the devices select candidates?
  bool selects() const { return candidates_per_output_ > 0; }
  /// What the devices selected in the latest evaluate: options.candidates tokens for each output, or the vocabulary if
  /// that is less, as top_logits() of sampler.h gives them, except that the other logits were not read. Waits.
  /// Valid until the next call. Throws InvalidArgument where they select nothing.
  std::span<const TokenLogit> candidates();
  /// Forgets all tokens from `position` on. Throws InvalidArgument where can_rewind() is false.
  void rewind(int64_t position);
  /// Are there layers that forget?
  bool forgets() const { return recurrent_ || ring_rows_ > 0; }
  /// Those with a window forget tokens before it, recurrent ones all that was, so that there may be too little
  /// of what was before `position`, and no checkpoint: false if so. Everything can be taken back at any time, and in
  /// models without recurrent layers one batch.
  bool can_rewind(int64_t position) const;
  /// The largest position up to `position` that can be gone back to.
  int64_t rewindable(int64_t position) const;
  /// Remembers this place, so that can_rewind() is true for it as long as the text before it stays. Waits for queued
  /// work. Nothing in models that forget nothing.
  void checkpoint();
  /// Host memory of a checkpoint after that many tokens.
  size_t checkpoint_bytes(int64_t tokens) const;

  /// From now on the sessions of the other processes are told what this one, of process 0, is asked to do. They
  /// follow() meanwhile (orders.h). Collective.
  void lead(ProcessGroup& group) { orders_ = std::make_unique<Orders>(group); }
  /// It is told what to do by that of process 0, which has the checkpoints of both and sends what it goes back to.
  void follow() { follows_ = true; }
  /// nullptr: it leads no others.
  Orders* orders() { return orders_.get(); }

  sched::Scheduler& scheduler() { return *scheduler_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }
  const Model& model() const { return model_; }
  /// Its tensors, for session_state.h: to be read and written once scheduler() is synchronised.
  const KvCache& cache() const { return cache_; }
  /// Rows [0, position) of the cache have been written. There are no logits then.
  void set_position(int64_t position);
  /// rewind(), with what the checkpoint there has; of another process, empty where none is needed.
  void rewind(int64_t position, std::span<const std::byte> checkpoint);
  /// The cache's memory, one buffer for each of the placement's devices; nullptr where it has none of it.
  std::span<const std::unique_ptr<Buffer>> cache_buffers() const { return cache_buffers_; }
  /// How many graphs are at hand.
  size_t kept_graphs() const { return compiled_.size(); }
  /// How many graphs were built so far, those of the plan that the session was made from not among them.
  int64_t compilations() const { return compilations_; }

 private:
  struct Compiled;
  void allocate_cache(const Placement& placement);
  void reserve();
  std::unique_ptr<Compiled> build(BatchShape shape) const;
  /// Takes it from the plan; nullptr where it is not there.
  std::unique_ptr<Compiled> take_planned(BatchShape shape);
  /// Host memory that the devices copy to quickly; its contents are lost.
  std::byte* result_memory(size_t bytes);
  /// Waits for what is queued, `what` among it.
  void wait_for(std::string_view what);
  /// Does work that waits, or may. Should it throw, the session is torn.
  template <class Work>
  void tearing(const Work& work);
  /// Finds or makes it.
  Compiled& compiled(BatchShape shape);
  /// Drops the shape used longest ago where one more would be too many.
  void make_room();
  /// Is everything that is needed at `position` still in the caches?
  bool keeps(int64_t position) const;
  void make_checkpoint();
  void drop_checkpoints_after(int64_t position);
  void run_batch(Compiled& compiled, int64_t begin, const int32_t* out_ids);

  const Model& model_;
  SessionSize size_;
  int64_t candidates_per_output_ = 0;
  TraceRowUse trace_;
  std::shared_ptr<ModelPlan> plan_;  ///< nullptr: made without one
  KvCache own_cache_;
  KvCache& cache_;
  std::vector<std::unique_ptr<Buffer>> cache_buffers_;
  std::vector<std::unique_ptr<Backend>> backends_;  // after the buffers: their queues must end before they go
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<std::unique_ptr<Compiled>> compiled_;  // the latest used first
  int64_t compilations_ = 0;
  Compiled* latest_ = nullptr;
  int64_t outputs_ = 0;  // of latest_ that were asked for
  int64_t position_ = 0;
  int64_t ring_rows_ = 0, longest_window_ = 0;  // of caches that are rings; the fewest rows; 0: there are none
  int64_t oldest_ = 0;                          // they hold positions from this one on
  bool recurrent_ = false;                      // some layer keeps a state
  int64_t whole_ = 0;                           // the position when work was last waited for
  bool torn_ = false;                           // work has failed: nothing after whole_ is known, nor any state
  int64_t most_checkpoints_ = 0, checkpoint_every_ = 0;
  std::map<int64_t, std::vector<std::byte>> checkpoints_;  // by position
  std::vector<int32_t> tokens_, positions_, out_ids_;      // inputs of the batches of an evaluate
  std::unique_ptr<Orders> orders_;
  bool follows_ = false;
  std::unique_ptr<Buffer> results_;  // what the devices copy to the host, latest
  std::vector<TokenLogit> candidates_;
};

}  // namespace shoal::models
