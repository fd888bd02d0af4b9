// The backend of a meta device: one stream on every member, and plans whose steps are queued on them. Running a plan
// only queues: a Compute step on each rank's backend, a Collective through the communicator. Nothing waits on the
// host between steps, nothing is allocated.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "meta/meta_buffer.h"
#include "meta/meta_device.h"

namespace shoal::meta {

class MetaBackend final : public Backend {
 public:
  MetaBackend(MetaDevice& device, MetaBufferType& type, std::vector<std::unique_ptr<Backend>> members,
              collectives::CommunicatorFactory make_communicator, collectives::Options comm_options);
  ~MetaBackend() override;

  std::string name() const override;
  Device& device() const override { return device_; }
  std::string_view guid() const override { return "shoal-meta"; }
  std::span<Backend* const> members() const override { return streams_; }

  void set_async(Tensor& tensor, const void* data, size_t offset, size_t size) override;
  void get_async(const Tensor& tensor, void* data, size_t offset, size_t size) override;
  void hold() override;
  void release() override;
  void synchronize() override;
  using Backend::compute_async;
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override;
  void compute_async(GraphPlan& plan, int first, int last) override;
  /// On rank 0's stream, after what was queued on any member and before what is queued on any member later. `failed` is
  /// said of rank 0's stream.
  bool enqueue(const HostTask& task) override;

  /// Made at first use, for the members of this backend; made anew after a failure.
  collectives::Communicator& communicator();
  MetaBufferType& buffer_type() const { return type_; }

 private:
  /// A sum of addends that are still on their way.
  struct PartialRead;

  void set_partial_async(const Shards& shards, const void* data, size_t offset, size_t size);
  void get_partial_async(const Shards& shards, void* data, size_t offset, size_t size);

  MetaDevice& device_;
  FamilyUse use_{device_};
  MetaBufferType& type_;
  std::vector<std::unique_ptr<Backend>> members_;
  std::vector<Backend*> streams_;
  collectives::CommunicatorFactory make_communicator_;
  collectives::Options comm_options_;
  std::unique_ptr<collectives::Communicator> communicator_;
  std::vector<std::unique_ptr<PartialRead>> partial_reads_;  ///< until they are finished, and noticed to be
  std::vector<std::unique_ptr<Event>> order_;                ///< one for each member; made at first use
};

}  // namespace shoal::meta
