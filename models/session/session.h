// A session evaluates one sequence with a model on the devices of a placement. It owns the streams of work, the KV
// cache and the compiled graphs. Only one thread at a time may use it. The model and the placement must outlive it.
//
//   Session session(model, placement, placement.init(), {.context = 512});
//   session.evaluate(prompt);                         // in batches of at most options.batch tokens
//   for (...) session.evaluate(std::array{sample(session.logits())});
//
// Graphs are static, so prompts run in batches of a few different sizes (divide_into_batches). Padding tokens have no
// position and no row of the cache. No other token attends to them, and their results are not read. A session caches
// the graph for single tokens and the graphs of the four latest shapes. Prompts of different lengths and generation can
// therefore alternate without new plans:
//
//   batch 512: 700 tokens run as 512, 128 and 64 (60 and 4 padding tokens), 20 tokens as 32, then one token per run
//
// With options.candidates, the devices also select the best tokens. A Sampler gives the same results with these tokens
// as with all logits:
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
// After an error, the effects of all tokens since the previous wait are unknown. evaluate() and checkpoint() then throw
// until the session has been rewound to rewindable(position()).
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
  /// instead of logits(). CUDA devices select at most 256. 0: all logits.
  int64_t candidates = 0;
  int64_t checkpoints = 8;  ///< maximum number; beyond it, the checkpoint that leaves the smallest gap is dropped
  int64_t checkpoint_every =
      0;  ///< minimum number of tokens between automatic checkpoints; 0: checkpoints only on request
  /// Receives one row per stream and a row "host". Must outlive the session. nullptr: no trace.
  Tracer* tracer = nullptr;
};

/// Number of prompt batches that may be in flight if layers are on several devices.
inline constexpr int kPipelineCopies = 4;

/// Resolved context and batch of a session.
struct SessionSize {
  int64_t context = 0;
  int64_t batch = 0;
};
/// Throws InvalidArgument for a batch below 1 and for a context, candidates or checkpoints below 0.
SessionSize session_size(const Hparams& hparams, const SessionOptions& options);

/// Options of a session's KV cache, with `parts` parts (Placement::latent_parts()).
KvCacheOptions cache_options(const SessionSize& size, const SessionOptions& options, int64_t parts);

/// One run of a graph: the number of tokens without padding, and the shape of the graph.
struct Batch {
  int64_t tokens = 1;
  BatchShape shape;
  bool operator==(const Batch&) const = default;
};
/// Divides tokens into full batches and a rest. The rest is rounded up to the next power of two, or split into the
/// power of two below and a remainder if the split saves more than the cost of another run. The last batch has all
/// outputs, which must fit into the rest.
///   700 tokens, 1 output, batches of 512: 512 in {512, 1}, 128 in {128, 1}, 60 in {64, 1}
///   5 tokens, 5 outputs, batches of 512: 5 in {8, 8}
std::vector<Batch> divide_into_batches(int64_t tokens, int64_t outputs, int64_t most);
/// The prompt shapes that need the most memory, largest first, as many as a session caches:
///   512 -> {512, 1}, {256, 1}, {128, 1}, {64, 1}
std::vector<BatchShape> largest_prompt_shapes(int64_t batch);

/// Options of a session's scheduler. Plans of the session must use the same options.
sched::SchedulerOptions scheduler_options(const Placement& placement, const SessionOptions& options);

struct ModelPlan;

class Session {
 public:
  /// Allocates the cache, and compute memory for a full batch with one output. The model's weights must be loaded on
  /// the placement's devices. `backends` has one entry per device. `plan`, if given, must be made for the same model,
  /// placement and options (model_plan.h); its graphs move into the session and run as planned.
  Session(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
          const SessionOptions& options = {}, std::shared_ptr<ModelPlan> plan = nullptr);
  ~Session();

  int64_t context() const { return size_.context; }
  /// Maximum number of tokens in one run of a graph.
  int64_t batch() const { return size_.batch; }
  /// Waits for queued work and throws its errors.
  void synchronize();
  /// Throws InvalidArgument if queued work has failed since the last rewind. The message names a position for a rewind.
  void check_whole() const;
  /// Number of tokens in the cache.
  int64_t position() const { return position_; }
  /// Appends tokens and stores the logits of the last `outputs` tokens. Throws InvalidArgument if the context is full,
  /// a token is outside the vocabulary, or `outputs` exceeds the number of tokens in the last batch.
  void evaluate(std::span<const int32_t> tokens, int64_t outputs = 1);
  /// Logits of the latest evaluate(): vocab values for each output, oldest output first. Waits. Valid until the next
  /// call. Throws InvalidArgument if the devices select candidates.
  std::span<const float> logits();
  /// Whether the devices select candidates.
  bool selects() const { return candidates_per_output_ > 0; }
  /// Tokens that the devices selected in the latest evaluate(): options.candidates tokens for each output, or the whole
  /// vocabulary if it is smaller. They have the order of top_logits() of sampler.h. The logits of other tokens are not
  /// checked. Waits. Valid until the next call. Throws InvalidArgument if the devices do not select candidates.
  std::span<const TokenLogit> candidates();
  /// Removes all tokens from `position` on. Throws InvalidArgument unless can_rewind(position).
  void rewind(int64_t position);
  /// Whether the model has recurrent layers or ring caches.
  bool needs_checkpoints() const { return recurrent_ || ring_rows_ > 0; }
  /// Whether rewind(position) is possible. False if a layer has overwritten state that `position` needs and there is no
  /// checkpoint at `position`. Position 0 is always possible. Without recurrent layers, the latest batch can always be
  /// removed.
  bool can_rewind(int64_t position) const;
  /// The largest position up to `position` for which can_rewind() is true.
  int64_t rewindable(int64_t position) const;
  /// Saves the state at the current position. can_rewind() is true for this position until earlier tokens are removed
  /// or the checkpoint is dropped. Waits for queued work. No-op in models without recurrent layers and ring caches.
  void checkpoint();
  /// Bytes of host memory of a checkpoint after `tokens` tokens.
  size_t checkpoint_bytes(int64_t tokens) const;

  /// From now on, process 0's session forwards its calls to the sessions of other processes, which must run follow()
  /// (orders.h). Collective.
  void lead(ProcessGroup& group) { orders_ = std::make_unique<Orders>(group); }
  /// Makes this session a follower: process 0's session drives it, keeps its checkpoints and sends them on rewind.
  void follow() { follows_ = true; }
  /// Channel to the other sessions; nullptr if the session does not lead other sessions.
  Orders* orders() { return orders_.get(); }

  sched::Scheduler& scheduler() { return *scheduler_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }
  const Model& model() const { return model_; }
  /// The cache tensors, for session_state.h. Synchronise scheduler() before reading or writing them.
  const KvCache& cache() const { return cache_; }
  /// Declares rows [0, position) of the cache as written. No logits are available afterwards.
  void set_position(int64_t position);
  /// Rewinds and restores the contents of a checkpoint. `checkpoint` may come from another process. An empty
  /// `checkpoint` means that none is needed.
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
  /// Host memory to which devices can copy fast. Its previous contents are lost.
  std::byte* result_memory(size_t bytes);
  /// Waits for all queued work. `what` names the wait in traces.
  void wait_for(std::string_view what);
  /// Runs `work`. If it throws, torn_ becomes true and latest_ nullptr.
  template <class Work>
  void tearing(const Work& work);
  /// Finds or builds the graph of this shape.
  Compiled& compiled(BatchShape shape);
  /// Drops the least recently used shape if another shape would exceed the limit.
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
  std::shared_ptr<ModelPlan> plan_;  ///< nullptr if created without a plan
  KvCache own_cache_;
  KvCache& cache_;
  std::vector<std::unique_ptr<Buffer>> cache_buffers_;
  std::vector<std::unique_ptr<Backend>> backends_;  // declared after the buffers, so queues drain first
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<std::unique_ptr<Compiled>> compiled_;  // most recently used first
  int64_t compilations_ = 0;
  Compiled* latest_ = nullptr;
  int64_t outputs_ = 0;  // number of requested outputs of latest_
  int64_t position_ = 0;
  int64_t ring_rows_ = 0, longest_window_ = 0;  // rows of the smallest ring (0: no ring); longest window with a ring
  int64_t oldest_ = 0;                          // oldest position that all rings hold
  bool recurrent_ = false;                      // whether some layer is recurrent
  int64_t whole_ = 0;                           // position at the last successful wait
  bool torn_ = false;                           // work has failed: rows after whole_ and all states are invalid
  int64_t most_checkpoints_ = 0, checkpoint_every_ = 0;
  std::map<int64_t, std::vector<std::byte>> checkpoints_;  // by position
  std::vector<int32_t> tokens_, positions_, out_ids_;      // inputs of the current evaluate()
  std::unique_ptr<Orders> orders_;
  bool follows_ = false;
  std::unique_ptr<Buffer> results_;  // latest results copied to the host
  std::vector<TokenLogit> candidates_;
};

}  // namespace shoal::models
