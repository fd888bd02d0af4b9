// A session evaluates one sequence with a model on the devices of a placement. A session owns the backends, the KV
// cache and the compiled graphs. Only one thread at a time may use a session. The model and the placement must outlive
// the session.
//
//   Session session(model, placement, placement.init(), {.context = 512});
//   session.evaluate(prompt);                         // in batches of at most options.batch tokens
//   for (...) session.evaluate(std::array{sample(session.logits())});
//
// Graphs have fixed sizes, so prompts run in batches of a few sizes (divide_into_batches()). Padding tokens have no
// position and no row of the cache. No other token attends to padding tokens, and the results of padding tokens are not
// read. A session caches the graph for single tokens and the graphs of the four most recently used shapes of prompt
// batches. Generation and prompts of different lengths can therefore alternate without new plans:
//
//   prompt of 700 tokens, batch 512    runs of 512, 128 and 64 tokens (4 padding tokens)
//   prompt of 20 tokens                a run of 32 tokens (12 padding tokens)
//   generation                         one token per run
//
// If options.candidates > 0, the devices also select the best tokens. A Sampler gives the same results with these
// tokens as with all logits:
//
//   for (...) session.evaluate(std::array{sampler.sample_best(session.candidates())});
//
// Recurrent layers and layers with a window overwrite their state. Checkpoints copy this state to host memory, so that
// a session can rewind:
//
//   session.evaluate(system_prompt); session.checkpoint();
//   session.evaluate(question);  ...
//   session.rewind(session.rewindable(common_prefix));        // the largest possible position up to common_prefix
//
// evaluate() queues work and returns. logits(), candidates() and synchronize() wait for the work and throw its errors.
// After an error, the effects of all tokens since the previous wait are unknown. In this case, evaluate() and
// checkpoint() throw until the session has been rewound to rewindable(position()).
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
  int64_t context = 0;  ///< maximum number of tokens; 0: the model's training context
  int64_t batch = 512;  ///< maximum number of tokens in one run of a graph
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
  bool op_offload = true;  ///< see sched::SchedulerOptions
  /// Number of best tokens that the devices select for each output. Only these tokens reach the host: use candidates()
  /// instead of logits(). CUDA devices select at most 256 tokens. 0: the devices return all logits.
  int64_t candidates = 0;
  int64_t checkpoints = 8;  ///< maximum number of checkpoints; an additional checkpoint replaces the checkpoint whose
                            ///< removal leaves the smallest gap between its neighbours
  int64_t checkpoint_every =
      0;  ///< minimum number of tokens between automatic checkpoints; 0: checkpoints only on request
  /// The tracer receives one row per stream and a row "host". The tracer must outlive the session. nullptr: no trace.
  Tracer* tracer = nullptr;
};

/// Maximum number of prompt batches in flight if layers are on several devices.
inline constexpr int kPipelineCopies = 4;

/// Context and batch of a session, in tokens, after defaults and limits are applied.
struct SessionSize {
  int64_t context = 0;
  int64_t batch = 0;
};
/// Throws InvalidArgument if the batch is below 1, or if `context`, `candidates`, `checkpoints` or `checkpoint_every`
/// is below 0.
SessionSize session_size(const Hparams& hparams, const SessionOptions& options);

/// Options of a session's KV cache. `parts` is Placement::latent_parts().
KvCacheOptions cache_options(const SessionSize& size, const SessionOptions& options, int64_t parts);

/// One run of a graph: the number of tokens without padding, and the shape of the graph.
struct Batch {
  int64_t tokens = 1;
  BatchShape shape;
  bool operator==(const Batch&) const = default;
};
/// Divides `tokens` tokens into batches of `most` tokens and a rest of 1 to `most` tokens. Usually the rest is one
/// batch, padded to the next power of two or to `most`, whichever is smaller. The rest becomes two batches if this
/// division saves more than 32 padding tokens (the cost of an additional run) and the second batch has at least
/// `outputs` tokens. The first of these batches has the largest power of two below the length of the rest, and the
/// second batch has the remaining tokens. The last batch has all outputs, so the rest must have at least `outputs`
/// tokens.
///   700 tokens, 1 output, most = 512: 512 tokens in {512, 1}, 128 tokens in {128, 1}, 60 tokens in {64, 1}
///   5 tokens, 5 outputs, most = 512: 5 tokens in {8, 8}
std::vector<Batch> divide_into_batches(int64_t tokens, int64_t outputs, int64_t most);
/// Returns the prompt shapes that need the most memory, largest first. Returns at most as many shapes as a session
/// caches.
///   512 -> {512, 1}, {256, 1}, {128, 1}, {64, 1}
std::vector<BatchShape> largest_prompt_shapes(int64_t batch);

/// Options of a session's scheduler. Plans of the session must use the same options.
sched::SchedulerOptions scheduler_options(const Placement& placement, const SessionOptions& options);

struct ModelPlan;

class Session {
 public:
  /// Allocates the cache. Also allocates compute memory for a full batch with one output. The model's weights must be
  /// loaded on the placement's devices. `backends` has one entry per device. `plan` must be for the same model,
  /// placement and options (model_plan.h), or nullptr. The session takes the graphs of the plan and runs them as
  /// planned.
  Session(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
          const SessionOptions& options = {}, std::shared_ptr<ModelPlan> plan = nullptr);
  ~Session();

  int64_t context() const { return size_.context; }
  /// Maximum number of tokens in one run of a graph.
  int64_t batch() const { return size_.batch; }
  /// Waits for queued work and throws its errors.
  void synchronize();
  /// Throws InvalidArgument if queued work has failed since the last rewind. The message names a position to which the
  /// session can rewind.
  void check_whole() const;
  /// Number of tokens in the cache.
  int64_t position() const { return position_; }
  /// Appends tokens and stores the logits of the last `outputs` tokens. Throws InvalidArgument if the context is full,
  /// a token is outside the vocabulary, or `outputs` exceeds the number of tokens in the last batch.
  void evaluate(std::span<const int32_t> tokens, int64_t outputs = 1);
  /// Logits of the latest evaluate(): vocab values for each output, oldest output first. Waits for queued work. The
  /// result is valid until the next call. Throws InvalidArgument if the devices select candidates.
  std::span<const float> logits();
  /// Whether the devices select candidates.
  bool selects() const { return candidates_per_output_ > 0; }
  /// Tokens that the devices selected in the latest evaluate(): options.candidates tokens for each output, or the whole
  /// vocabulary if the vocabulary is smaller. The tokens are in the order of top_logits() (sampler.h). The logits of
  /// all other tokens are not checked for infinities and NaN. Waits for queued work. The result is valid until the next
  /// call. Throws InvalidArgument if the devices do not select candidates.
  std::span<const TokenLogit> candidates();
  /// Removes all tokens from `position` on. Throws InvalidArgument if can_rewind(position) is false.
  void rewind(int64_t position);
  /// Whether the model has recurrent layers or ring caches.
  bool needs_checkpoints() const { return recurrent_ || ring_rows_ > 0; }
  /// Whether rewind(position) is possible. A rewind is not possible if a layer has overwritten rows or states that the
  /// rewind needs and there is no checkpoint at `position`. A rewind to position 0 is always possible. Without
  /// recurrent layers, the latest batch can always be removed.
  bool can_rewind(int64_t position) const;
  /// The largest position up to `position` for which can_rewind() is true.
  int64_t rewindable(int64_t position) const;
  /// Saves the state at the current position. can_rewind() is true for this position until a rewind to an earlier
  /// position, or until the checkpoint is dropped. Waits for queued work. No-op if needs_checkpoints() is false.
  void checkpoint();
  /// Bytes of host memory that a checkpoint after `tokens` tokens needs.
  size_t checkpoint_bytes(int64_t tokens) const;

  /// Makes process 0's session send its calls to the sessions of other processes. Only process 0 calls lead(). The
  /// other processes must run follow() (orders.h). Collective.
  void lead(ProcessGroup& group) { orders_ = std::make_unique<Orders>(group); }
  /// Makes this session a follower, which executes the calls of process 0's session. The session of process 0 stores
  /// all checkpoints. If a rewind needs a checkpoint, the session of process 0 sends this checkpoint.
  void follow() { follows_ = true; }
  /// Channel to the other sessions; nullptr if the session does not lead other sessions.
  Orders* orders() { return orders_.get(); }

  sched::Scheduler& scheduler() { return *scheduler_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }
  const Model& model() const { return model_; }
  /// The cache tensors, for session_state.h. Synchronise scheduler() before you read or write the tensors.
  const KvCache& cache() const { return cache_; }
  /// Declares rows [0, position) of the cache as written. No logits are available afterwards.
  void set_position(int64_t position);
  /// Rewinds to `position` and restores the contents of `checkpoint`, which may come from another process. `checkpoint`
  /// is empty if the rewind needs no checkpoint.
  void rewind(int64_t position, std::span<const std::byte> checkpoint);
  /// Memory of the cache: one buffer per device of the placement, nullptr for devices without cache.
  std::span<const std::unique_ptr<Buffer>> cache_buffers() const { return cache_buffers_; }
  /// Number of graphs that the session caches.
  size_t kept_graphs() const { return compiled_.size(); }
  /// Number of graphs built so far, without the graphs of the session's plan.
  int64_t compilations() const { return compilations_; }

 private:
  struct Compiled;
  void allocate_cache(const Placement& placement);
  void reserve();
  std::unique_ptr<Compiled> build(BatchShape shape) const;
  /// Takes the graph of this shape from the plan. Returns nullptr if the plan does not contain the graph.
  std::unique_ptr<Compiled> take_planned(BatchShape shape);
  /// Returns host memory to which devices can copy fast. The previous contents of this memory are lost.
  std::byte* result_memory(size_t bytes);
  /// Waits for all queued work. `what` names the wait in traces.
  void wait_for(std::string_view what);
  /// Runs `work`. If `work` throws, sets torn_ to true and latest_ to nullptr.
  template <class Work>
  void tearing(const Work& work);
  /// Finds or builds the graph of this shape.
  Compiled& compiled(BatchShape shape);
  /// Drops the graph of the least recently used prompt shape if one more graph would exceed the limit.
  void make_room();
  /// Whether the caches still have all rows and states that `position` needs.
  bool keeps(int64_t position) const;
  void make_checkpoint();
  void drop_checkpoints_after(int64_t position);
  void run_batch(Compiled& compiled, int64_t begin, const int32_t* out_ids);

  const Model& model_;
  SessionSize size_;
  int64_t candidates_per_output_ = 0;
  TraceRowUse trace_;
  std::shared_ptr<ModelPlan> plan_;  ///< nullptr if the session was created without a plan
  KvCache own_cache_;
  KvCache& cache_;
  std::vector<std::unique_ptr<Buffer>> cache_buffers_;
  std::vector<std::unique_ptr<Backend>> backends_;  // destroyed before the buffers, so that queued work ends first
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<std::unique_ptr<Compiled>> compiled_;  // most recently used first
  int64_t compilations_ = 0;
  Compiled* latest_ = nullptr;
  int64_t outputs_ = 0;  // number of requested outputs of latest_
  int64_t position_ = 0;
  int64_t ring_rows_ = 0, longest_window_ = 0;  // rows of the smallest ring (0: no ring); longest window of a layer
                                                // with a ring
  int64_t oldest_ = 0;                          // oldest position that all rings hold
  bool recurrent_ = false;                      // whether some layer is recurrent
  int64_t whole_ = 0;                           // position at the last successful wait
  bool torn_ = false;                           // work has failed: rows after whole_ and all recurrent states are
                                                // invalid
  int64_t most_checkpoints_ = 0, checkpoint_every_ = 0;
  std::map<int64_t, std::vector<std::byte>> checkpoints_;  // by position
  std::vector<int32_t> tokens_, positions_, out_ids_;      // inputs of the current evaluate()
  std::unique_ptr<Orders> orders_;
  bool follows_ = false;
  std::unique_ptr<Buffer> results_;  // latest results copied to the host
  std::vector<TokenLogit> candidates_;
};

}  // namespace shoal::models
