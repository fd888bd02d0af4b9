// A plan that is ready to run. Its memory is allocated on the members, and each member has compiled its Compute steps.
// Each Collective step was converted to one call per rank. The caller of create_plan() owns the plan. The tensors of
// the graph stay bound to the plan until the plan is destroyed.
//
// For the example of lower.h, run() queues the following work and returns at once. Each column is the work of one
// stream:
//   on rank 0's backend         on rank 1's backend
//   compiled nodes 0-3          compiled nodes 0-3
//   host task: all_reduce y     host task: all_reduce y      (the two tasks wait for each other in the communicator)
//   compiled nodes 5-6          compiled nodes 5-6
//
// If every member and the communicator support recording (CUDA devices), the second run of a group of segments is
// recorded. The recording of a rank's column is one CUDA graph. Later runs queue one replay per rank.
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
  /// `plan` must have been made for the range of `claim`.
  MetaGraphPlan(MetaBackend& backend, std::unique_ptr<GraphClaim> claim, Plan plan, ComputeArena* arena);
  ~MetaGraphPlan() override;

  size_t allocated_bytes() const override;
  /// Number of bytes that the plan needs on each rank, in its own allocation or in an arena.
  const std::vector<size_t>& bytes_per_rank() const { return bytes_; }
  int segments() const override { return static_cast<int>(plan_.segments.size()); }
  int writable_from(const Tensor& input) const override;
  /// True if the plan has collectives.
  bool communicates() const { return communicates_; }
  /// The plan after joining: the step of a collective includes the nodes that are joined with this collective
  /// (joined_norm.h).
  const Plan& plan() const { return plan_; }
  const MetaBuffer& buffer() const { return buffer_; }
  /// True if the graph has the topology of the planned graph, the tensors that the range reads from outside still have
  /// the addresses for which the plan was made, and the constraint callback gives the same answers.
  bool fits(Graph& graph) const;
  /// Moves the plan to a graph that fits. Waits for queued runs.
  void move_to(Graph& graph);
  /// Queues the steps of segments [first, last).
  void run(int first, int last);
  /// The backend calls this function before the communicator is destroyed, because recordings use the communicator.
  void drop_recordings() { recorded_.clear(); }

 private:
  /// One prepared step. For each rank, an action has one of these: a compiled range of nodes (`compute`), a collective
  /// (`calls`), or a collective that is joined with a norm (`norms`). A rank without work has the range nullptr.
  struct Action {
    std::vector<std::unique_ptr<GraphPlan>> compute;
    std::vector<collectives::Call> calls;
    std::vector<collectives::FusedNorm> norms;
  };

  /// A tensor that the local graphs read but the range does not compute: a weight, a cache, or a tensor of an earlier
  /// range.
  struct Outside {
    const Tensor* persistent = nullptr;
    bool is_node = false;
    int number = -1;
    uint64_t generation = 0;  ///< generation of the persistent tensor's buffer
    std::vector<const std::byte*> places;
  };

  /// A constraint of the planned graph. The graph may no longer exist, so the tensor is known by its number.
  struct Numbered {
    bool is_node = false;
    int number = -1;
    LayoutConstraint constraint;
    bool operator==(const Numbered&) const = default;
  };

  /// A group of segments recorded on every rank. One replay runs all steps of the group, including collectives.
  struct Recorded {
    int64_t runs = 0;
    int64_t next_try = 2;  ///< number of the next run that is recorded; each attempt to record doubles this number
    std::vector<std::unique_ptr<Recording>> ranks;
  };

  void allocate(ComputeArena* arena);
  void bind();
  void unbind();
  void remember_graph();
  /// The answers of the constraint callback for the planned nodes of `graph` and for its inputs.
  std::vector<Numbered> constraints_in(Graph& graph) const;
  static std::vector<const std::byte*> places_of(const Tensor& tensor);
  void compile();
  std::unique_ptr<GraphPlan> compile(size_t rank, const NodeRange& range, size_t step,
                                     const std::map<int, const Tensor*>& shown) const;
  void pass_forms(size_t step, size_t rank);
  collectives::Call make_call(const Tensor& node, const Step& step) const;
  /// Returns the recording of a group, or nullptr if the steps of the group must be queued. The first run of a group is
  /// never recorded.
  Recorded* recorded(int first, int last);
  bool record(int first, int last, Recorded& into);
  void queue_steps(int first, int last);

  MetaBackend& backend_;  ///< exists if has_backend() is true
  Plan plan_;
  bool communicates_;  ///< cached, because every segment of a run needs this value
  std::unique_ptr<GraphClaim> claim_;
  MetaBuffer buffer_;
  std::vector<size_t> bytes_;
  std::vector<std::vector<PlacedInput>> placed_inputs_;  ///< inputs of each rank, from GraphBuffers
  std::vector<Tensor*> bound_;
  std::shared_ptr<const Topology> topology_;
  std::vector<const Tensor*> inputs_, nodes_;  ///< tensors of the graph; they may no longer exist
  std::vector<Outside> outside_;
  std::vector<Numbered> constraints_;
  std::vector<Action> actions_;  ///< one for each step
  /// The key is the group's first segment and the segment after the group's last segment.
  std::map<std::pair<int, int>, Recorded> recorded_;
};

}  // namespace shoal::meta
