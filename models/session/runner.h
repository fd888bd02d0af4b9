// Runs batches of tokens of one or several sequences. A runner owns the backends, the cache and the compiled graphs.
// The caller decides which pages and states the sequences use (kv_cache.h). Only one thread at a time may use a runner.
// The model and the placement must outlive the runner.
//
//   Runner runner(model, placement, placement.init(), {.context = 4096, .sequences = 8, .slots = 16}, nullptr);
//   runner.run(batch);                  // queues the batch
//   runner.candidates(8);               // waits
//
// Graphs have fixed shapes, and padding fills the batch. Padding tokens have no position and no row of the cache. No
// other token attends to padding tokens, and the results of padding tokens are not read. A runner caches the graph for
// single tokens and the most recently used graphs of other shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "models/arch/model.h"
#include "models/place/placement.h"
#include "models/session/cache_rows.h"
#include "models/session/inputs.h"
#include "models/session/sampler.h"
#include "models/session/session_options.h"
#include "processes/process_group.h"
#include "sched/scheduler.h"

namespace shoal::models {

class Orders;
struct ModelPlan;

/// One run of a graph. The spans must be valid during run().
struct RunnerBatch {
  std::span<const int32_t> tokens;
  BatchInputs inputs;                ///< for the tokens, without padding
  std::span<const int32_t> outputs;  ///< indices of the tokens whose results are wanted, at least one
  BatchShape shape;                  ///< at least as large as the batch; `candidates` is ignored
};

class Runner {
 public:
  /// Allocates the cache, and the compute memory for largest_shapes(). The compute memory grows if a smaller batch
  /// needs slightly more, because its tensors leave larger gaps. The model's weights must be loaded on the placement's
  /// devices. `backends` has one entry per device. `plan` must be for the same model, placement and options
  /// (model_plan.h), or nullptr. The runner takes the graphs of the plan and runs them as planned.
  Runner(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
         const SessionOptions& options, std::shared_ptr<ModelPlan> plan);
  /// Waits for queued work.
  ~Runner();

  const SessionSize& size() const { return size_; }
  /// Queues a batch.
  void run(const RunnerBatch& batch);
  /// Waits for all queued work. `what` names the wait in traces.
  void wait_for(std::string_view what);
  /// Whether a batch has been queued and its results are available.
  bool has_results() const { return latest_ != nullptr; }
  /// Whether the next batch can start before the latest batch ends. There must be a latest batch.
  bool is_pipeline() const { return sched::copies_for(scheduler_->schedule(), scheduler_->copies()) > 1; }
  /// Drops the results of the latest batch.
  void drop_results() { latest_ = nullptr; }
  /// Number of candidates per output; 0: the devices return only logits.
  int64_t candidates_per_output() const { return candidates_per_output_; }
  /// Logits of output `first` and the next outputs of the latest batch: vocab values for each of `count` outputs. Waits
  /// for queued work. The result is valid until the next call. has_results() must be true, and the options must keep
  /// logits.
  std::span<const float> logits(int64_t first, int64_t count);
  /// The memory of the latest logits() or candidates(). Later results may use other memory.
  std::shared_ptr<const Buffer> results() const { return results_; }
  /// Best tokens of the first `outputs` outputs, candidates_per_output() tokens for each, in the order of top_logits()
  /// (sampler.h). Waits for queued work. The result is valid until the next call.
  std::span<const TokenLogit> candidates(int64_t outputs);

  /// The contents of the caches after `tokens` tokens (cache_rows.h), of a sequence that has the whole cache. Waits for
  /// queued work.
  std::vector<std::byte> read_cache(int64_t tokens, CacheScope scope);
  void write_cache(int64_t tokens, CacheScope scope, std::span<const std::byte> contents);

  /// Makes process 0's runner send its calls to the runners of other processes. Only process 0 calls lead(). The other
  /// processes must run follow() (orders.h). Collective.
  void lead(ProcessGroup& group);

  sched::Scheduler& scheduler() { return *scheduler_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }
  const Model& model() const { return model_; }
  const KvCache& cache() const { return cache_; }
  /// Memory of the cache: one buffer per device of the placement, nullptr for devices without cache.
  std::span<const std::unique_ptr<Buffer>> cache_buffers() const { return cache_buffers_; }
  /// Number of graphs that the runner caches.
  size_t kept_graphs() const { return compiled_.size(); }
  /// Number of graphs built so far, without the graphs of the plan.
  int64_t compilations() const { return compilations_; }
  TraceRow* trace() const { return trace_.get(); }

 private:
  struct Compiled;
  void allocate_cache(const Placement& placement);
  void reserve(std::span<const BatchShape> shapes);
  std::unique_ptr<Compiled> build(BatchShape shape) const;
  /// Takes the graph of this shape from the plan. Returns nullptr if the plan does not contain the graph.
  std::unique_ptr<Compiled> take_planned(BatchShape shape);
  /// Finds or builds the graph of this shape.
  Compiled& compiled(BatchShape shape);
  /// Drops the least recently used graph if one more graph would exceed the limit.
  void make_room();
  /// Returns host memory to which devices can copy fast. The previous contents of this memory are lost.
  std::byte* result_memory(size_t bytes);

  const Model& model_;
  SessionSize size_;
  int64_t candidates_per_output_ = 0;
  bool returns_logits_ = true;
  size_t kept_shapes_ = 0;
  TraceRowUse trace_;
  std::shared_ptr<ModelPlan> plan_;  ///< nullptr if the runner was created without a plan
  KvCache own_cache_;
  KvCache& cache_;
  std::vector<std::unique_ptr<Buffer>> cache_buffers_;
  std::vector<std::unique_ptr<Backend>> backends_;  // destroyed before the buffers, so that queued work ends first
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<std::unique_ptr<Compiled>> compiled_;  // most recently used first
  int64_t compilations_ = 0;
  Compiled* latest_ = nullptr;
  std::vector<int32_t> tokens_, positions_, sequences_, outputs_;  // the padded inputs
  std::shared_ptr<Buffer> results_;                                // latest results copied to the host
  std::vector<TokenLogit> candidates_;
  std::unique_ptr<Orders> orders_;  ///< nullptr if the runner does not lead other runners
};

}  // namespace shoal::models
