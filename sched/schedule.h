// Schedule: which backend runs which node of a graph, cut into splits, and what is copied between them. Plain data,
// made by make_schedule from the graph and what the devices say of themselves; it touches no memory. What is printed is
// what runs: the scheduler walks the splits in order.
//
// Example, two layers of which A has the first and B the second (tests/sched/schedule_test.cpp prints it):
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

/// Why a node runs where it does.
enum class Reason : uint8_t {
  kUser,         ///< set by the user
  kWeight,       ///< a weight of it lies there
  kCache,        ///< a cache that it reads or writes lies there
  kOffload,      ///< its weights lie in host memory, but the batch is large enough to bring them
  kNeighbour,    ///< the nodes around it run there
  kUnsupported,  ///< where it belongs, it cannot run; this backend is the first that can
  kView,         ///< a view, seen where its base is (of a leaf: wherever it is used)
  kCount
};
std::string_view name_of(Reason reason);

struct Assignment {
  int backend = -1;  ///< -1: a view of a leaf, which every backend makes for itself
  Reason reason = Reason::kNeighbour;
  int split = -1;  ///< -1: none, as above
};

/// Something that a split needs and that lies elsewhere: it is copied before the split runs, once for each backend.
struct Copy {
  const Tensor* tensor = nullptr;
  int from_split = -1;    ///< made by this one; -1: a leaf
  int from_backend = -1;  ///< that has it; -1: the caller's input
  bool streamed = false;  ///< a weight in host memory, taken from there without a stop in between
  /// Of the experts of a mul_mat_id only those that these ids name are copied.
  const Tensor* ids = nullptr;
  const SelectParams* select = nullptr;  ///< with ids: which expert an id names
  int64_t bytes = 0;                     ///< at most

  bool is_input() const { return from_split < 0 && !tensor->is_persistent(); }
};

struct Split {
  int backend = 0;
  std::vector<int> nodes;  ///< of the graph, ascending; views of what is made here too
  std::vector<Copy> copies;
};

struct Schedule {
  std::string graph_name;
  const Graph* graph = nullptr;
  std::vector<std::string> backends;
  std::vector<Assignment> nodes;  ///< one for each node of the graph
  std::vector<Split> splits;
  /// Some cache is written by one backend and used where it lies by another: splits wait for each other.
  bool ordered = false;

  int copies() const;
  int64_t copied_bytes() const;
  /// No backend comes back once another one has followed it, so that several runs can be on their way.
  bool is_pipeline() const;
};

/// Runs that may be on their way between two backends where `wanted` are allowed: a schedule that goes back and forth
/// gains nothing from more than one.
int copies_for(const Schedule& schedule, int wanted);
/// How many slots a copy has (Scheduler): inputs have two at least, so that a run can be prepared while another
/// computes.
int slots_for(const Copy& copy, int copies);
/// Bytes of one slot.
size_t slot_bytes(const Copy& copy);
/// Host memory for all slots (the caller's inputs themselves are not counted).
size_t host_bytes(const Schedule& schedule, int copies);
/// And for the caller's inputs.
size_t input_bytes(const Graph& graph);

/// Where persistent tensors lie: the type of their buffer; nullptr: not placed.
using Home = std::function<const BufferType*(const Tensor&)>;
const BufferType* home_of(const Tensor& tensor);

struct ScheduleOptions {
  Home home = home_of;
  /// Let a device bring in weights that lie in host memory where it says that this pays (Device::offload_op).
  bool op_offload = true;
  std::unordered_map<const Tensor*, int> user = {};  ///< backend numbers for nodes
  std::unordered_set<const Tensor*> observed = {};   ///< a split ends after each of these
};

/// `devices`: of the backends, in order of priority; the last one should be able to run everything. Throws
/// InvalidArgument for a weight without a home, or in memory of a device that is not among them; DeviceError, naming
/// the node, where no device can run it or the user's one cannot. Views are not set, but what they are views of; of
/// several writes into one cache the first.
Schedule make_schedule(const Graph& graph, std::span<Device* const> devices, const ScheduleOptions& options = {});

/// For people: every split with its copies and nodes.
std::string to_string(const Schedule& schedule);
/// JSON text: {"graph", "splits": [{"backend", "copies": [{"tensor", "dtype", "shape", "bytes", "from"}], "nodes":
/// [{"name", "op", "reason"}]}], "copies", "bytes"}.
std::string to_json(const Schedule& schedule);

}  // namespace shoal::sched
