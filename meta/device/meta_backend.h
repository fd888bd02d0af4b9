// The backend of a meta device: one stream on every member, and plans whose steps are queued on them. Running a plan
// only queues: a Compute step on each rank's backend, a Collective through the communicator. Nothing waits on the
// host between steps, nothing is allocated.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "devices/timeouts.h"
#include "meta/device/meta_buffer.h"
#include "meta/meta.h"

namespace shoal::meta {

class MetaGraphPlan;

class MetaBackend final : public Backend {
 public:
  MetaBackend(std::shared_ptr<MetaState> state, std::vector<std::unique_ptr<Backend>> members,
              collectives::CommunicatorFactory make_communicator, collectives::Options comm_options);
  ~MetaBackend() override;

  std::string name() const override;
  /// Throws InvalidArgument when it has been destroyed.
  Device& device() const override { return state_->device(); }
  std::span<Backend* const> members() const override { return streams_; }

  void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override;
  void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override;
  void get_async_for(Backend& reader, const Tensor& tensor, void* data, size_t offset, size_t size) override;
  /// Shard to shard where both sides lie alike.
  void copy_async(const Tensor& src, Backend& to, Tensor& dst) override;
  void hold() override;
  void release() override;
  void synchronize() override;
  using Backend::compute_async;
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override;
  bool update_plan(GraphPlan& plan, Graph& graph) override;
  void compute_async(GraphPlan& plan, int first, int last) override;
  /// Asks on every member that can; false when none can.
  bool set_abort_callback(AbortCallback callback) override;
  /// On rank 0's stream, after what was queued on any member and before what is queued on any member later. A stream
  /// that has failed by then, or fails by the task, stops the others.
  bool enqueue(const HostTask& task) override;
  /// Every member has a row; plans run step by step meanwhile, so that steps stay visible.
  void set_tracer(Tracer* tracer) override;

  /// Made at first use, for the members of this backend; made anew after a failure.
  collectives::Communicator& communicator();
  /// Recordings ask no abort callback and have no steps to trace, so that there are none where these are wanted.
  bool may_record() const { return !has_abort_callback_ && !is_traced_; }
  /// The plan has recordings, which refer to the communicator; or is going.
  void remember(MetaGraphPlan& plan);
  void forget(MetaGraphPlan& plan) { std::erase(recorded_plans_, &plan); }
  MetaBufferType& buffer_type() const { return state_->buffer_type; }
  const Mesh& mesh() const { return state_->mesh; }

 private:
  /// A sum of addends that are still on their way.
  struct PartialRead;
  /// Bytes of host memory on their way between this process and another one.
  struct Crossing;

  void set_row_async(Tensor& tensor, const void* data, size_t offset, size_t size);
  void get_row_async(const Tensor& tensor, void* data, size_t offset, size_t size);
  void drop_communicator();
  bool make_order();
  /// Streams [first, last) say that they have failed, or stop when another one has said so.
  bool pass_failure(size_t first, size_t last);
  /// Members work on what was computed so far, held or not: one that is waited for may need the others for a
  /// collective.
  void show_held();
  /// Waits for members that have worked together. One that ends nothing for the whole time-out, while others have
  /// nothing to do or (CPU devices) wait for it, is told to give up, and the program that it may never do so. The
  /// message, or "".
  std::string watch_members();
  std::string give_up_the_late(TimeoutReport& report);
  /// Waits and reads, in all processes together, what no process can read by itself. False: each can.
  bool reads_at_once(const Tensor& tensor, void* data, size_t offset, size_t size);
  /// What this process can read by itself. False: it has no rank.
  bool get_here_async(const Shards& shards, void* data, size_t offset, size_t size);
  /// Queues the sending or receiving of the bytes on this backend.
  void pass_async(bool sends, int process, std::string_view what, std::span<std::byte> bytes);
  /// Are the plans of all processes the same? Throws CommError.
  void compare(const Plan& plan);
  void set_partial_async(const Shards& shards, const void* data, size_t offset, size_t size);
  void get_partial_async(const Shards& shards, void* data, size_t offset, size_t size);

  std::shared_ptr<MetaState> state_;
  FamilyUse use_{state_->device()};
  std::vector<std::unique_ptr<Backend>> members_;
  std::vector<Backend*> streams_;  ///< of all ranks; those of other processes run nothing
  std::vector<Backend*> own_;      ///< of this process
  collectives::CommunicatorFactory make_communicator_;
  collectives::Options comm_options_;
  std::unique_ptr<collectives::Communicator> communicator_;
  std::vector<MetaGraphPlan*> recorded_plans_;
  std::vector<std::unique_ptr<PartialRead>> partial_reads_;  ///< until they are finished, and noticed to be
  std::vector<std::unique_ptr<Crossing>> crossings_;         ///< likewise
  std::vector<std::unique_ptr<Event>> order_;                ///< one for each member; made at first use
  bool has_abort_callback_ = false;
  bool is_traced_ = false;
  int holds_ = 0;
  bool has_held_runs_ = false;
  bool has_met_ = false;                    ///< a plan with collectives was run since members were waited for
  std::atomic<bool> stream_failed_{false};  ///< as known to host tasks
};

}  // namespace shoal::meta
