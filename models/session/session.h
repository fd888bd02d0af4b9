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

#include "models/session/runner.h"
#include "models/session/session_options.h"

namespace shoal::models {

class Session {
 public:
  /// Allocates the cache. Also allocates compute memory for a full batch with one output. The model's weights must be
  /// loaded on the placement's devices. `backends` has one entry per device. `plan` must be for the same model,
  /// placement and options (model_plan.h), or nullptr. The session takes the graphs of the plan and runs them as
  /// planned.
  Session(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
          const SessionOptions& options = {}, std::shared_ptr<ModelPlan> plan = nullptr);

  int64_t context() const { return runner_.size().context; }
  /// Maximum number of tokens in one run of a graph.
  int64_t batch() const { return runner_.size().batch; }
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
  /// The memory of the latest logits(). Later results may use other memory. Must not outlive the session.
  std::shared_ptr<const Buffer> results() const { return runner_.results(); }
  /// Whether the devices select candidates.
  bool selects() const { return runner_.candidates_per_output() > 0; }
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

  /// The runner of the session, for session_state.h and for several processes (Runner::lead()).
  Runner& runner() { return runner_; }
  const Runner& runner() const { return runner_; }
  sched::Scheduler& scheduler() { return runner_.scheduler(); }
  const sched::Scheduler& scheduler() const { return runner_.scheduler(); }
  const Model& model() const { return runner_.model(); }
  /// The cache tensors, for session_state.h. Synchronise scheduler() before you read or write the tensors.
  const KvCache& cache() const { return runner_.cache(); }
  /// Declares rows [0, position) of the cache as written. No logits are available afterwards.
  void set_position(int64_t position);
  /// Memory of the cache: one buffer per device of the placement, nullptr for devices without cache.
  std::span<const std::unique_ptr<Buffer>> cache_buffers() const { return runner_.cache_buffers(); }
  /// Number of graphs that the session caches.
  size_t kept_graphs() const { return runner_.kept_graphs(); }
  /// Number of graphs built so far, without the graphs of the session's plan.
  int64_t compilations() const { return runner_.compilations(); }

 private:
  /// Waits for all queued work. `what` names the wait in traces.
  void wait_for(std::string_view what);
  /// Runs `work`. If `work` throws, sets torn_ to true and drops the results.
  template <class Work>
  void tearing(const Work& work);
  /// Whether the caches still have all rows and states that `position` needs.
  bool keeps(int64_t position) const;
  void make_checkpoint();
  void drop_checkpoints_after(int64_t position);

  Runner runner_;
  const WholeCache pages_;
  int64_t outputs_ = 0;  // number of requested outputs of the latest evaluate()
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
};

}  // namespace shoal::models
