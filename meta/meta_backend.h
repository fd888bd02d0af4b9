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
              collectives::Options comm_options);
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
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range) override;
  void compute_async(GraphPlan& plan) override;

  /// Made at first use, for the members of this backend; made anew after a failure.
  collectives::Communicator& communicator();
  MetaBufferType& buffer_type() const { return type_; }

 private:
  MetaDevice& device_;
  MetaBufferType& type_;
  std::vector<std::unique_ptr<Backend>> members_;
  std::vector<Backend*> streams_;
  collectives::Options comm_options_;
  std::unique_ptr<collectives::Communicator> communicator_;
};

}  // namespace shoal::meta
