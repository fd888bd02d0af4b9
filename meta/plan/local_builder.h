// LocalBuilder builds the local graphs of all ranks and the steps of the plan. A node is added to the graph of one
// rank. A collective is added to all graphs and ends the open Compute step.
//
//   rank 0: mul_mat, view, mul_mat | all_reduce | rms_norm      steps: compute [0,3) [0,2)
//   rank 1: mul_mat, mul_mat       | all_reduce | rms_norm             all_reduce 3, 2
//                                                                      compute [4,5) [3,4)
// The Compute step also ends at a node before which a run may pause (PlanOptions::cuts). A segment is a range of steps
// and may be empty.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/memory_plan.h"
#include "graph/ops/ops.h"

namespace shoal::meta {

enum class StepKind : uint8_t { kCompute, kCollective };

/// A step of a plan: a range of nodes of every rank's local graph, or one collective among the ranks. Plain data.
struct Step {
  StepKind kind = StepKind::kCompute;
  /// For each rank, the nodes of its local graph. In a collective step, these nodes are the collective and the nodes
  /// that are joined with the collective (joined_norm.h).
  std::vector<NodeRange> ranges;
  Collective collective = Collective::kAllReduce;  ///< kCollective only
  std::string tensor;                              ///< name of the global tensor
  DType dtype = DType::kF32;
  int64_t bytes = 0;  ///< size of the full tensor that is reduced or gathered
};

/// One local tensor for each rank.
using Locals = std::vector<Tensor*>;

class LocalBuilder {
 public:
  LocalBuilder(int ranks, const std::string& name);

  int ranks() const { return static_cast<int>(graphs_.size()); }
  Graph& graph(int rank) { return *graphs_[rank]; }

  /// Adds a collective node on every rank, and a step for the collective. Each source must be flat (one row).
  /// CollectiveParams explains `counts`.
  Locals collective(Collective kind, const Locals& sources, std::vector<int64_t> counts, const std::string& name,
                    int64_t bytes);

  /// Sum of Step::bytes of all collectives so far.
  int64_t collective_bytes() const { return collective_bytes_; }

  /// Ends the Compute step and the segment. Nodes that are added later belong to the next segment.
  void cut();
  /// segments() returns the first step of each segment. cuts() returns the nodes before which the graph of a rank is
  /// cut.
  const std::vector<int>& segments() const { return segments_; }
  const std::vector<int>& cuts(int rank) const { return cuts_[rank]; }

  /// Ends the last Compute step and moves the steps and graphs out of the builder.
  std::vector<Step> finish();
  std::unique_ptr<Graph> take_graph(int rank) { return std::move(graphs_[rank]); }

 private:
  void close_compute();

  std::vector<std::unique_ptr<Graph>> graphs_;
  std::vector<int> begin_;  ///< first node of the open Compute step, per rank
  std::vector<Step> steps_;
  int64_t collective_bytes_ = 0;
  std::vector<int> segments_{0};
  std::vector<std::vector<int>> cuts_;
};

}  // namespace shoal::meta
