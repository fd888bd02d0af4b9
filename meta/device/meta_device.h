// The meta device: several devices that act as one. It implements the whole device interface: weights and caches
// placed in its buffers are sharded as the split-state callback says, graphs are planned (meta/plan/plan.h) and run on
// the members with collectives between them. To the rest of a program it is one more Device.
//
//   auto meta = MetaDevice::create({&cpu0, &cpu1}, callback);
//   auto weights = allocate_tensors(context.tensors(), meta->buffer_type(), Usage::kWeights);
//   auto backend = meta->init();
//   auto plan = backend->create_plan(graph);
//   tensor_set(*tokens, ...); backend->compute_async(*plan); backend->synchronize(); tensor_get(*logits, ...);
//
// Over several processes (MetaOptions::processes) each does all of this with the same graphs in the same order, with
// remote devices for the members of the others. What is set is set in every process; what is read is read in every
// process at the same time, and all get it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "devices/device.h"
#include "machine/machine.h"
#include "meta/device/mesh.h"
#include "meta/layout/shards.h"
#include "meta/layout/split_state.h"
#include "meta/plan/plan.h"

namespace shoal::meta {

struct MetaOptions {
  std::vector<std::string> member_params = {};  ///< Device::init parameters of each member's backend; empty = defaults
  std::chrono::milliseconds comm_timeout = collectives::default_timeout();
  /// What the ranks talk through; empty: communicator_for() of collectives/factory.h.
  collectives::CommunicatorFactory communicator = nullptr;
  RuleLookup rules = rule_for;  ///< sharding rules; an op without one runs mirrored
  /// Device::offload_op: is this node worth bringing weights from elsewhere for? By default what all members say.
  std::function<bool(const Tensor& node)> offload_op = {};
  /// The machine that the members are of, by name: plans are made for its speeds and links. Without it, or where it has
  /// not all of them, for rough figures (machine/cost_model.h).
  std::shared_ptr<const machine::MachineModel> machine = {};
  /// Collectives by which implementation, of those that `communicator` offers (collectives::check_implementation).
  std::string comm = collectives::default_implementation();
  /// The processes that the members belong to; each makes the same device, and has the streams and the memory of its
  /// own members only. nullptr: all are of this one.
  ProcessGroup* processes = nullptr;
};

class MetaDevice : public Device {
 public:
  /// Members keep their order: rank i is members[i]. Throws InvalidArgument for no members, one listed twice, one
  /// that is a meta device itself (all simple devices make one, and several are for a scheduler, sched/scheduler.h),
  /// or options that cannot hold (collectives::check_options).
  static std::unique_ptr<MetaDevice> create(std::vector<Device*> members, SplitStateCallback callback,
                                            MetaOptions options = {});
  virtual std::span<Device* const> members() const = 0;
  virtual const Mesh& mesh() const = 0;
  virtual const ShardStore& shards() const = 0;
  /// The tensor, which has no memory yet, gets these shards when it is placed here, provided that they lie as the
  /// callback says: a plan that was made with `store` can then run as it is (PlanOptions::prepared).
  virtual void adopt(const Tensor& tensor, const ShardStore& store) = 0;
  /// The callback's word on a tensor, checked. Of a tensor that is placed here: how it lies, the callback's first word.
  virtual Layout ask(const Tensor& tensor) const = 0;
  /// What graphs are planned by here, but for the shards of what is placed; with a communicator as its factory
  /// describes it.
  virtual PlanContext plan_context() const = 0;
};

/// Rank `rank`'s shard of a tensor placed in a meta buffer (weights, caches, or a planned graph's tensors).
const Tensor& shard(const Tensor& tensor, int rank);
/// The same to write to. What tensor_set writes to a partial tensor goes to rank 0's addend, with zeros for the others;
/// addends of one's own are set one by one: tensor_set(shard(bias, 1), data, 0, bytes).
Tensor& shard(Tensor& tensor, int rank);
/// How a tensor in a meta buffer lies.
const Layout& layout_of(const Tensor& tensor);

/// The plan behind a GraphPlan made by a meta backend, and how many bytes it allocated on each rank.
const Plan& plan_of(const GraphPlan& plan);
std::vector<size_t> allocated_per_rank(const GraphPlan& plan);
/// Bytes of weights or caches that a buffer of the meta device holds on each rank.
std::vector<size_t> allocated_per_rank(const Buffer& buffer);

}  // namespace shoal::meta
