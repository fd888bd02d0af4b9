// A Schedule contains the backend of each node of a graph, the splits, and the copies between splits. A Schedule is
// plain data. make_schedule() makes a Schedule from the graph and from the abilities that the devices report.
// make_schedule() does not access the data of tensors. The scheduler runs exactly the splits of the printed schedule,
// in the printed order.
//
// Example with two layers, the first on A and the second on B (tests/sched/schedule_test.cpp). The third backend runs
// no nodes:
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

/// Reason for the choice of a node's backend.
enum class Reason : uint8_t {
  kUser,         ///< the user has set the backend
  kWeight,       ///< the backend stores a weight of the node
  kCache,        ///< the backend stores a cache that the node reads or writes
  kOffload,      ///< the weights are in host memory; this backend runs the node faster than the host does, even with
                 ///< the copy of the weights (large batches)
  kNeighbour,    ///< nodes before or after this node run on this backend
  kUnsupported,  ///< the backend that stores the node's weight or cache cannot run the node
  kView,         ///< the node is a view, and has the backend of its base (see Assignment::backend for views of leaves)
  kCount
};
std::string_view name_of(Reason reason);

struct Assignment {
  int backend = -1;  ///< -1 for a view of a leaf, because every backend makes its own view; an output that is a view of
                     ///< a weight or cache has the backend that stores this leaf
  Reason reason = Reason::kNeighbour;
  int split = -1;  ///< -1 if `backend` is -1
};

/// A tensor that a split reads, but that another backend or the caller stores. Each backend that reads the tensor
/// copies the tensor once per run, before the first split that reads the tensor.
struct Copy {
  const Tensor* tensor = nullptr;
  int from_split = -1;    ///< the split that computes the tensor; -1 for a leaf
  int from_backend = -1;  ///< the backend that stores the tensor; -1 for an input of the caller
  bool streamed = false;  ///< whether the tensor is a weight that is copied directly from host memory, without a slot
                          ///< (scheduled_graph.h)
  /// If not nullptr, only the experts that these ids select are copied (mul_mat_id).
  const Tensor* ids = nullptr;
  const SelectParams* select = nullptr;  ///< maps `ids` to experts; nullptr if `ids` is nullptr
  int64_t bytes = 0;                     ///< upper bound of the number of copied bytes

  bool is_input() const { return from_split < 0 && !tensor->is_persistent(); }
};

struct Split {
  int backend = 0;
  std::vector<int> nodes;  ///< numbers of the split's nodes, including views of these nodes, in ascending order
  std::vector<Copy> copies;
};

struct Schedule {
  std::string graph_name;
  const Graph* graph = nullptr;
  std::vector<std::string> backends;
  std::vector<Assignment> nodes;  ///< one element for each node of the graph
  std::vector<Split> splits;
  /// Whether one backend writes a cache that another backend uses in place. If true, each split waits for the previous
  /// split.
  bool ordered = false;

  int copies() const;
  int64_t copied_bytes() const;
  /// Whether the splits of each backend are consecutive. If true, several runs can be in flight.
  bool is_pipeline() const;
};

/// Number of runs that may be in flight between two backends. Returns `wanted` if the schedule is a pipeline. Otherwise
/// returns 1, because concurrent runs would not save time.
int copies_for(const Schedule& schedule, int wanted);
/// Number of slots of a copy (scheduled_graph.h). A copy of an input has at least two slots, so that the host can write
/// the inputs of the next run during the current run.
int slots_for(const Copy& copy, int copies);
/// Bytes of one slot.
size_t slot_bytes(const Copy& copy);
/// Bytes of host memory for all slots. The caller's inputs are not included.
size_t host_bytes(const Schedule& schedule, int copies);
/// Bytes of host memory for the caller's inputs.
size_t input_bytes(const Graph& graph);

/// Function that returns the buffer type of a weight or cache, or nullptr if the tensor has no memory.
using Home = std::function<const BufferType*(const Tensor&)>;
const BufferType* home_of(const Tensor& tensor);

struct ScheduleOptions {
  Home home = home_of;
  /// Whether a device may stream weights from host memory. If true, Device::offload_op() of a device decides for each
  /// node whether the device streams the weights of the node.
  bool op_offload = true;
  std::unordered_map<const Tensor*, int> user = {};  ///< nodes for which the user has set a backend, and the number of
                                                     ///< this backend
  std::unordered_set<const Tensor*> observed = {};   ///< a split ends after each of these nodes
};

/// `devices` contains the devices of the backends in order of priority. The last device should be able to run all
/// nodes. Throws InvalidArgument if a weight or cache has no memory, or if no device in `devices` can use this memory.
/// Throws DeviceError with the name of a node if no device can run the node, or if the user has set a device that
/// cannot run the node. ScheduleOptions::user must not contain views, but may contain the bases of views. If several
/// nodes write into one cache, ScheduleOptions::user may contain only the first of these nodes.
Schedule make_schedule(const Graph& graph, std::span<Device* const> devices, const ScheduleOptions& options = {});

/// Returns a readable text that lists every split with its copies and nodes.
std::string to_string(const Schedule& schedule);
/// Returns JSON text with this structure: {"graph", "splits": [{"backend", "copies": [{"tensor", "dtype", "shape",
/// "bytes", "from"}], "nodes": [{"name", "op", "reason"}]}], "copies", "bytes"}.
std::string to_json(const Schedule& schedule);

}  // namespace shoal::sched
