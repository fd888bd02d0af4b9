// The backend of a meta device: one stream on every member, and plans whose steps are queued on these streams. A run
// queues each Compute step on the ranks' backends and each Collective through the communicator. Between steps the host
// does not wait and nothing is allocated.
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
  /// Throws InvalidArgument if the device has been destroyed.
  Device& device() const override { return state_->device(); }
  std::span<Backend* const> members() const override { return streams_; }

  void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override;
  void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override;
  void get_async_for(Backend& reader, const Tensor& tensor, void* data, size_t offset, size_t size) override;
  /// If both tensors have the same layout, each shard is copied directly. Otherwise Backend::copy_async() makes the
  /// copy.
  void copy_async(const Tensor& src, Backend& to, Tensor& dst) override;
  void hold() override;
  void release() override;
  void synchronize() override;
  using Backend::compute_async;
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override;
  bool update_plan(GraphPlan& plan, Graph& graph) override;
  void compute_async(GraphPlan& plan, int first, int last) override;
  /// Sets the callback on every member that supports abort callbacks. Returns false if no member supports them.
  bool set_abort_callback(AbortCallback callback) override;
  /// Runs the task on rank 0's stream. The task runs after all work that any member has queued before this call, and
  /// before all work that any member queues later. If a stream has failed before the task, or the task fails, all
  /// streams fail.
  bool enqueue(const HostTask& task) override;
  /// Each member is traced on its own row of the trace. A traced plan runs step by step, so that its steps are visible.
  void set_tracer(Tracer* tracer) override;

  /// The communicator of this backend's members. The first call creates the communicator. The first call after a
  /// failure creates a new communicator.
  collectives::Communicator& communicator();
  /// Whether plans may be recorded. False if an abort callback or a tracer is set, because recordings call no abort
  /// callback and trace no steps.
  bool may_record() const { return !has_abort_callback_ && !is_traced_; }
  /// Registers a plan whose recordings use the communicator. erase_recorded() unregisters it.
  void add_recorded(MetaGraphPlan& plan);
  void erase_recorded(MetaGraphPlan& plan) { std::erase(recorded_plans_, &plan); }
  MetaBufferType& buffer_type() const { return state_->buffer_type; }
  const Mesh& mesh() const { return state_->mesh; }

 private:
  /// A read of a partial tensor whose addends are still in flight.
  struct PartialRead;
  /// A message in flight to or from another process. Its bytes are in host memory.
  struct Crossing;

  void set_row_async(Tensor& tensor, const void* data, size_t offset, size_t size);
  void get_row_async(const Tensor& tensor, void* data, size_t offset, size_t size);
  void drop_communicator();
  bool make_order();
  /// Queues a task on each of the streams [first, last). The task reports a failure of its stream to the other tasks.
  /// If another stream has reported a failure, the task makes its own stream fail. Returns false if a stream cannot run
  /// host tasks.
  bool pass_failure(size_t first, size_t last);
  /// Lets all members start the runs that they hold (Backend::hold). Callers call this function before the host waits
  /// for a member, because this member may wait for the other members in a collective.
  void release_held();
  /// Waits until all members are idle. The backend calls this function after runs with collectives. A timeout occurs if
  /// some, but not all, members compute and no work ends within the time limit. The remaining members are idle or, on
  /// CPU devices, wait in a collective. After a timeout, the runs of the computing members are cancelled and the
  /// program is notified. Returns the message of the timeout, or "".
  std::string watch_members();
  std::string abandon_late_ranks(TimeoutReport& report);
  /// If all ranks belong to one process, or the tensor is mirrored, this function reads nothing and returns false.
  /// Otherwise this function synchronizes, and all processes read the tensor together.
  bool reads_at_once(const Tensor& tensor, void* data, size_t offset, size_t size);
  /// Queues the read of the shards in this process. Returns false if this process has no rank.
  bool get_here_async(const Shards& shards, void* data, size_t offset, size_t size);
  /// Queues a send or a receive of the bytes on this backend.
  void pass_async(bool sends, int process, std::string_view what, std::span<std::byte> bytes);
  /// Throws CommError unless all processes made the same plan.
  void compare(const Plan& plan);
  void set_partial_async(const Shards& shards, const void* data, size_t offset, size_t size);
  void get_partial_async(const Shards& shards, void* data, size_t offset, size_t size);

  std::shared_ptr<MetaState> state_;
  FamilyUse use_{state_->device()};
  std::vector<std::unique_ptr<Backend>> members_;
  std::vector<Backend*> streams_;  ///< streams of all ranks; a stream of another process's rank runs nothing
  std::vector<Backend*> own_;      ///< streams of the ranks in this process
  collectives::CommunicatorFactory make_communicator_;
  collectives::Options comm_options_;
  std::unique_ptr<collectives::Communicator> communicator_;
  std::vector<MetaGraphPlan*> recorded_plans_;
  std::vector<std::unique_ptr<PartialRead>> partial_reads_;  ///< get_partial_async() removes finished reads
  std::vector<std::unique_ptr<Crossing>> crossings_;         ///< pass_async() removes finished messages
  std::vector<std::unique_ptr<Event>> order_;                ///< one event for each stream of this process, created at
                                                             ///< first use
  bool has_abort_callback_ = false;
  bool is_traced_ = false;
  int holds_ = 0;
  bool has_held_runs_ = false;
  bool has_run_collectives_ = false;        ///< whether a plan with collectives has run since the last synchronize()
  std::atomic<bool> stream_failed_{false};  ///< shared by the tasks of pass_failure()
};

}  // namespace shoal::meta
