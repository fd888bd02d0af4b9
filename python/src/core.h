// The core of shoal in Python: Tensor, Graph, Device, MetaDevice, SplitState and Plan of shoal._shoal.
//
// Shapes and axes of Python are in NumPy order: the slowest axis is first, and negative axes count from the end. The
// core has the innermost axis first and always four axes. So a Python tensor stores its number of axes:
//
//   Python (6, 4), axis 0 of 2    ==  core [4, 6, 1, 1], axis 1
//   Python (2, 1, 8), axis -1     ==  core [8, 1, 2, 1], axis 0
//
// A Python Tensor is a TensorHandle inside a GraphHolder, and keeps the Python Graph alive. A Plan keeps its Graph and
// its Device alive. All Python references are visible to the garbage collector (references()). A stream is locked while
// its backend works. The lock is taken only after the global interpreter lock was released, so that a callback of
// planning can take the global interpreter lock.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "devices/device.h"
#include "graph/graph.h"
#include "meta/meta.h"

namespace shoal::python {

namespace nb = nanobind;

/// The process that created an object with threads. A fork does not copy threads, so another process can neither use
/// nor destroy the object.
class Process {
 public:
  bool is_current() const { return pid_ == getpid(); }
  /// Throws Error in another process.
  void check() const;

 private:
  pid_t pid_ = getpid();
};

/// Deletes an object in its process. A child process never deletes it.
struct DeleteInProcess : Process {
  void operator()(auto* object) const {
    if (is_current()) delete object;
  }
};
template <class T>
using Owned = std::unique_ptr<T, DeleteInProcess>;

/// The backend of a device. All plans of the device use this backend.
struct Stream {
  Process process;
  std::shared_ptr<Device> device;  ///< does not own a device of the registry
  std::unique_ptr<Backend> backend;
  std::recursive_mutex mutex;

  /// The first call creates the backend.
  Backend& open();
  static std::shared_ptr<Stream> create(std::shared_ptr<Device> device);
};

/// Releases the global interpreter lock during its lifetime. If the interpreter exits meanwhile, CPython unwinds the
/// stack of a daemon thread that wants the lock. This thread then sleeps until the process ends, because an unwound
/// destructor would end the process with an error.
class UnlockedPython {
 public:
  UnlockedPython() : state_(PyEval_SaveThread()) {}
  ~UnlockedPython();
  UnlockedPython(const UnlockedPython&) = delete;
  UnlockedPython& operator=(const UnlockedPython&) = delete;

 private:
  PyThreadState* state_;
};

/// Takes the global interpreter lock during its lifetime. If the interpreter exits meanwhile, the thread sleeps, as for
/// UnlockedPython.
class LockedPython {
 public:
  LockedPython() : state_(PyGILState_Ensure()) {}
  ~LockedPython();
  LockedPython(const LockedPython&) = delete;
  LockedPython& operator=(const LockedPython&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Releases the global interpreter lock, then locks a stream. Throws Error in a child process.
class Locked {
 public:
  explicit Locked(Stream& stream) : lock_((stream.process.check(), stream.mutex)) {}

 private:
  UnlockedPython release_;
  std::unique_lock<std::recursive_mutex> lock_;
};

struct GraphHolder;
struct PlanHolder;

/// The Python class Tensor.
struct TensorHandle {
  GraphHolder* graph = nullptr;
  Tensor* tensor = nullptr;
  int axes = 0;             ///< number of axes in Python
  bool is_written = false;  ///< for leaves: whether the memory has values
  bool is_claimed = false;  ///< for weights and caches: whether a compile() is placing the tensor (Placing)
};

/// Memory of weights and caches, and the stream that uses it.
struct StoredMemory {
  std::shared_ptr<Stream> stream;
  Owned<Buffer> buffer;
};

/// The Python class Graph, with its weights and caches. The member functions need the global interpreter lock.
struct GraphHolder {
  explicit GraphHolder(const std::string& name) : graph(name) {}
  ~GraphHolder();
  template <class Visit>
  void references(Visit visit) {
    for (nb::object& other : others) visit(other);
  }
  void clear() { others.clear(); }

  /// The handle of a tensor of this graph. The first call for a tensor creates the handle.
  TensorHandle* handle(Tensor* tensor, int axes = 0);
  /// The handle of a tensor of this graph, or of a weight that this graph uses. nullptr for other tensors.
  TensorHandle* find(const Tensor& tensor);
  /// The handles of the leaves that nodes use.
  std::vector<TensorHandle*> leaves();
  /// The stream that uses the memory of a weight or cache of this graph. nullptr: it has no memory.
  std::shared_ptr<Stream> stream_of(const Tensor& tensor) const;
  /// Throws while the graph is being planned, because callbacks of planning must not change the graph.
  void check_open() const;
  /// Checks that the tensor can be a source in this graph, and keeps the graph of the tensor alive.
  Tensor* source(TensorHandle& given);

  Graph graph;
  TensorContext weights;
  std::deque<TensorHandle> handles;
  std::unordered_map<const Tensor*, TensorHandle*> by_tensor;
  std::vector<nb::object> others;  ///< graphs whose weights this graph uses
  std::vector<StoredMemory> memory;
  PlanHolder* plan = nullptr;  ///< the plan of this graph, if there is one
  int planned = 0;             ///< number of running calls of compile() and compare()
};

/// The Python class Device.
struct DeviceHandle {
  std::shared_ptr<Stream> stream;
  virtual ~DeviceHandle() = default;
  Device& device() const { return *stream->device; }
  /// The graph that is being planned, for the callbacks of a meta device. The stream must be locked.
  virtual void set_planning(GraphHolder*) {}
  virtual bool is_planning() const { return false; }
};

/// Marks a graph as being planned until the end of the scope, so that no thread and no callback changes the graph.
/// Needs the global interpreter lock.
class Marked {
 public:
  explicit Marked(GraphHolder& graph) : graph_(graph) { ++graph.planned; }
  ~Marked() { --graph_.planned; }
  Marked(const Marked&) = delete;
  Marked& operator=(const Marked&) = delete;

 private:
  GraphHolder& graph_;
};

/// Sets the graph that is being planned for the callbacks of devices until the end of the scope. The streams must be
/// locked. Throws if a callback of a device called the function.
class Planning {
 public:
  Planning(std::vector<DeviceHandle*> devices, GraphHolder& graph);
  ~Planning();
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

 private:
  std::vector<DeviceHandle*> devices_;
};

/// The Python class Plan.
struct PlanHolder {
  ~PlanHolder() { clear(); }
  template <class Visit>
  void references(Visit visit) {
    visit(graph_object);
    visit(device_object);
  }
  /// Destroys the plan, so that the graph can get another plan.
  void clear();
  /// Throws if the plan was cleared.
  GraphHolder& graph() const;

  nb::object graph_object, device_object;
  GraphHolder* holder = nullptr;
  std::shared_ptr<Stream> stream;
  Owned<GraphPlan> plan;
  std::unordered_set<const Tensor*> shown;  ///< nodes that can be read, apart from outputs
  bool has_results = false;                 ///< whether a run has begun
};

/// The text of a Python string. Throws TypeError for other values, and ValueError if UTF-8 cannot encode it.
std::string checked_text(nb::handle value, std::string_view what);

/// A split state whose axis is in NumPy order. It becomes a meta::SplitState when its tensor is known.
struct AnyState {
  enum class Kind : uint8_t { kMirrored, kPartial, kEven, kLengths, kRuns, kRatio };
  Kind kind = Kind::kMirrored;
  int64_t axis = 0;
  std::vector<std::vector<int64_t>> segments;
  std::vector<meta::Run> runs;
  std::vector<double> ratio;

  meta::SplitState for_tensor(const Tensor& tensor, int axes, int devices) const;
  /// The text of a reshard node (ReshardParams).
  std::string reshard_text(const Tensor& tensor, int axes) const;
  std::string to_string() const;
};

/// Shows the references of T to Python's garbage collector.
template <class T>
const PyType_Slot* collected() {
  static const PyType_Slot slots[] = {
      {Py_tp_traverse, reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) -> int {
         Py_VISIT(Py_TYPE(self));
         if (!nb::inst_ready(self)) return 0;
         int result = 0;
         nb::inst_ptr<T>(self)->references([&](nb::object& object) {
           if (result == 0 && object.is_valid()) result = visit(object.ptr(), arg);
         });
         return result;
       })},
      {Py_tp_clear, reinterpret_cast<void*>(+[](PyObject* self) -> int {
         if (nb::inst_ready(self)) nb::inst_ptr<T>(self)->clear();
         return 0;
       })},
      {0, nullptr}};
  return slots;
}

// --- order of axes (core_order.cpp) ------------------------------------------------------------------------------

/// A Python integer, also of NumPy. Other types give a TypeError.
int64_t integer(nb::handle value);
/// The integers of a sequence, or one integer.
std::vector<int64_t> integers(nb::handle value);
/// The core's shape of up to four lengths in NumPy order. `what` starts the message of an error.
Shape core_shape(const std::vector<int64_t>& lengths, std::string_view what);
/// Number of axes without the outer axes of length 1.
int least_axes(const Shape& shape);
nb::tuple python_shape(const Shape& shape, int axes);
std::vector<int64_t> python_lengths(const Shape& shape, int axes);
/// The core's number of an axis that Python names.
int core_axis(int64_t axis, int axes, std::string_view what);
/// "mirrored", "partial" or "split 0 [4:{0} 2:{1}]" with the axis of Python. "held by {0,2}" means that these devices
/// have the whole tensor.
std::string layout_text(const meta::Layout& layout, int axes);
/// {"layout": "split", "axis": 0, "runs": [[4, [0]], [2, [1]]], "lengths": [4, 2]}.
nb::dict layout_dict(const meta::Layout& layout, int axes);
/// "(6, 4)".
std::string shape_text(const Shape& shape, int axes);

// --- parts of the module -----------------------------------------------------------------------------------------

/// The Python object of a tensor.
nb::object object_of(TensorHandle& handle);
/// "up f32 (6, 4)".
std::string describe(const TensorHandle& handle);
DType dtype_of(std::string_view name);
/// A NumPy array with the stored bytes of the tensor.
nb::object stored_array(const TensorHandle& handle, nb::handle values);
/// An array of uninitialised memory for the stored bytes of a tensor with this shape.
nb::object empty_array(DType dtype, const Shape& shape, int axes);
/// The bytes of a C-contiguous array.
class ArrayBytes {
 public:
  explicit ArrayBytes(nb::handle array, bool writable = false);
  ~ArrayBytes() { PyBuffer_Release(&view_); }
  ArrayBytes(const ArrayBytes&) = delete;
  ArrayBytes& operator=(const ArrayBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

void bind_tensors(nb::module_& module);
void bind_arrays(nb::class_<TensorHandle>& tensor);
void bind_ops(nb::class_<GraphHolder>& graph);
void bind_devices(nb::module_& module);
void bind_plans(nb::module_& module);
void bind_compare(nb::module_& module);

}  // namespace shoal::python
