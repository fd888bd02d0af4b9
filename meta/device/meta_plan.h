// A plan made ready to run: memory allocated on the members, every Compute step compiled by its member, every
// Collective turned into the calls that the ranks will queue. Owned by its maker; its graph's tensors are
// bound to it until it is destroyed.
//
// What run() queues for the example of lower.h (every line returns at once; a stream works through its own column):
//   on rank 0's backend         on rank 1's backend
//   its plan of nodes 0-3       its plan of nodes 0-3
//   host task: all_reduce y     host task: all_reduce y      meet inside the communicator
//   its plan of nodes 5-6       its plan of nodes 5-6
//
// Where every member and the communicator can (CUDA devices), the second run of a group of segments is recorded: each
// rank's column becomes one piece, a CUDA graph, and later runs queue one replay for each rank.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/communicator.h"
#include "devices/allocate.h"
#include "graph/topology.h"
#include "meta/device/meta_buffer.h"
#include "meta/plan/plan.h"

namespace shoal::meta {

class MetaBackend;

class MetaGraphPlan final : public GraphPlan {
 public:
  /// `plan` is for the range of the claim.
  MetaGraphPlan(MetaBackend& backend, std::unique_ptr<GraphClaim> claim, Plan plan, ComputeArena* arena);
  ~MetaGraphPlan() override;

  size_t allocated_bytes() const override;
  /// What the plan needs on each rank, its own or part of an arena.
  const std::vector<size_t>& bytes_per_rank() const { return bytes_; }
  int segments() const override { return static_cast<int>(plan_.segments.size()); }
  int writable_from(const Tensor& input) const override;
  /// Has it collectives?
  bool communicates() const { return communicates_; }
  /// As it runs: collectives have taken the nodes that they are joined with (joined_norm.h).
  const Plan& plan() const { return plan_; }
  const MetaBuffer& buffer() const { return buffer_; }
  /// The same topology, and what the range reads from outside lies where it lay when the plan was made.
  bool fits(const Graph& graph) const;
  /// To a graph that fits. Waits for queued runs.
  void move_to(Graph& graph);
  /// Queues the steps of segments [first, last).
  void run(int first, int last);
  /// What is recorded goes before the communicator that it uses.
  void drop_recordings() { recorded_.clear(); }

 private:
  /// One step, ready: per rank either a compiled range (nullptr: nothing to do) or a call, plain or joined.
  struct Action {
    std::vector<std::unique_ptr<GraphPlan>> compute;
    std::vector<collectives::Call> calls;
    std::vector<collectives::FusedNorm> norms;
  };

  /// A weight, cache, or tensor of an earlier range of the graph that the plan's local graphs refer to.
  struct Outside {
    const Tensor* persistent = nullptr;
    bool is_node = false;
    int number = -1;
    uint64_t generation = 0;  ///< of the persistent one's buffer
    std::vector<const std::byte*> places;
  };

  /// A group of segments written down on every rank: its steps, collectives included, in one piece.
  struct Recorded {
    int64_t runs = 0;
    int64_t next_try = 2;  ///< the run that is recorded; each attempt doubles it
    std::vector<std::unique_ptr<Recording>> ranks;
  };

  void allocate(ComputeArena* arena);
  void bind();
  void unbind();
  void remember_graph();
  static std::vector<const std::byte*> places_of(const Tensor& tensor);
  void compile();
  std::unique_ptr<GraphPlan> compile(size_t rank, const NodeRange& range, size_t step,
                                     const std::map<int, const Tensor*>& shown) const;
  void pass_forms(size_t step, size_t rank);
  collectives::Call make_call(const Tensor& node, const Step& step) const;
  /// Ready to be replayed; nullptr: queue the steps. The first run of a group is never recorded.
  Recorded* recorded(int first, int last);
  bool record(int first, int last, Recorded& into);
  void queue_steps(int first, int last);

  MetaBackend& backend_;  ///< see has_backend()
  Plan plan_;
  bool communicates_;  ///< kept, as a plan of many segments asks in each
  std::unique_ptr<GraphClaim> claim_;
  MetaBuffer buffer_;
  std::vector<size_t> bytes_;
  std::vector<std::vector<PlacedInput>> placed_inputs_;  ///< of each rank (GraphBuffers)
  std::vector<Tensor*> bound_;
  std::shared_ptr<const Topology> topology_;
  std::vector<const Tensor*> inputs_, nodes_;  ///< of the graph, which may be gone
  std::vector<Outside> outside_;
  std::vector<Action> actions_;  ///< one for each step
  /// By the first segment and the one behind the last.
  std::map<std::pair<int, int>, Recorded> recorded_;
};

}  // namespace shoal::meta
