// Schedule: the backend of each node of a graph, the splits, and the copies between them. Plain data. make_schedule
// makes it from the graph and the abilities that the devices report, and touches no memory. The printed schedule is the
// schedule that runs: the scheduler walks the splits in order.
//
// Example, two layers, the first on A and the second on B (tests/sched/schedule_test.cpp prints it):
//
//   schedule of graph: 2 splits on 3 backends, 2 copies, 640 B
//   split 0  A
//     copy x f32 [64] from the caller
//     node h mul_mat  weight
//     node a unary    neighbour
//   split 1  B
//     copy a f32 [96] from split 0
//     node y mul_mat  weight
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "devices/device.h"
#include "graph/graph.h"

namespace shoal::sched {

/// Reason for a node's backend.
enum class Reason : uint8_t {
  kUser,         ///< set by the user
  kWeight,       ///< the backend stores a weight of the node
  kCache,        ///< the backend stores a cache that the node reads or writes
  kOffload,      ///< the node's weights are in host memory, but the batch is large enough to stream them
  kNeighbour,    ///< the nodes around the node run on this backend
  kUnsupported,  ///< the backend of the node's weight cannot run the node
  kView,         ///< a view runs on the backend of its base; every backend makes its own views of leaves
  kCount
};
std::string_view name_of(Reason reason);

struct Assignment {
  int backend = -1;  ///< -1: a view of a leaf, which every backend makes itself
  Reason reason = Reason::kNeighbour;
  int split = -1;  ///< -1: a view of a leaf
};

/// A tensor that a split needs and that is stored elsewhere. It is copied before the split runs, once for each backend.
struct Copy {
  const Tensor* tensor = nullptr;
  int from_split = -1;    ///< the split that computes the tensor; -1: a leaf
  int from_backend = -1;  ///< the backend that stores the tensor; -1: the caller's input
  bool streamed = false;  ///< a weight that is copied directly from host memory, without a slot
  /// If set, only the experts that these ids name are copied (mul_mat_id).
  const Tensor* ids = nullptr;
  const SelectParams* select = nullptr;  ///< with ids: maps ids to experts
  int64_t bytes = 0;                     ///< upper bound of the copied bytes

  bool is_input() const { return from_split < 0 && !tensor->is_persistent(); }
};

struct Split {
  int backend = 0;
  std::vector<int> nodes;  ///< node numbers in ascending order, including views of the nodes
  std::vector<Copy> copies;
};

struct Schedule {
  std::string graph_name;
  const Graph* graph = nullptr;
  std::vector<std::string> backends;
  std::vector<Assignment> nodes;  ///< one for each node of the graph
  std::vector<Split> splits;
  /// True if one backend writes a cache and another backend uses it in place. Each split then waits for the previous
  /// split.
  bool ordered = false;

  int copies() const;
  int64_t copied_bytes() const;
  /// True if no backend is used again after another backend has followed it. Several runs can then be in flight.
  bool is_pipeline() const;
};

/// Number of runs that may be in flight between two backends: `wanted` for a pipeline, otherwise 1, because more runs
/// would gain nothing.
int copies_for(const Schedule& schedule, int wanted);
/// Number of slots of a copy (Scheduler). Inputs have at least two slots, so that a run can be prepared while another
/// run computes.
int slots_for(const Copy& copy, int copies);
/// Bytes of one slot.
size_t slot_bytes(const Copy& copy);
/// Bytes of host memory for all slots, without the caller's inputs.
size_t host_bytes(const Schedule& schedule, int copies);
/// Bytes of host memory for the caller's inputs.
size_t input_bytes(const Graph& graph);

/// Buffer type of a persistent tensor; nullptr if it is not placed.
using Home = std::function<const BufferType*(const Tensor&)>;
const BufferType* home_of(const Tensor& tensor);

struct ScheduleOptions {
  Home home = home_of;
  /// Lets a device stream weights from host memory if the device reports that this is faster (Device::offload_op).
  bool op_offload = true;
  std::unordered_map<const Tensor*, int> user = {};  ///< backend numbers for nodes
  std::unordered_set<const Tensor*> observed = {};   ///< a split ends after each of these nodes
};

/// `devices` are the devices of the backends in order of priority; the last one should be able to run everything.
/// Throws InvalidArgument for a weight without memory or in memory of a device that is not listed. Throws DeviceError,
/// naming the node, if no device can run it, or if the device set by the user cannot run it. ScheduleOptions::user must
/// not contain views, only their bases. If several nodes write into one cache, ScheduleOptions::user may contain only
/// the first of these nodes.
Schedule make_schedule(const Graph& graph, std::span<Device* const> devices, const ScheduleOptions& options = {});

/// Readable text: every split with its copies and nodes.
std::string to_string(const Schedule& schedule);
/// JSON text: {"graph", "splits": [{"backend", "copies": [{"tensor", "dtype", "shape", "bytes", "from"}], "nodes":
/// [{"name", "op", "reason"}]}], "copies", "bytes"}.
std::string to_json(const Schedule& schedule);

}  // namespace shoal::sched
