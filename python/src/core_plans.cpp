// Plan of the Python module: places weights, makes plans, runs them and describes them.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "devices/allocate.h"
#include "graph/text.h"
#include "python/src/core.h"

namespace shoal::python {

using namespace nb::literals;

void PlanHolder::clear() {
  if (holder != nullptr && holder->plan == this) holder->plan = nullptr;
  holder = nullptr;
  if (plan != nullptr && stream->process.is_current()) {
    const Locked lock(*stream);
    plan.reset();
  }
  graph_object.reset();
  device_object.reset();
}

GraphHolder& PlanHolder::graph() const {
  require<InvalidArgument>(holder != nullptr, "the plan was deleted; compile its graph again");
  return *holder;
}

namespace {

// --- placement ---------------------------------------------------------------------------------------------------

/// Claims the weights and caches that have no memory yet. Throws if another compile() is placing some of them: a
/// callback or another thread compiles a graph with the same weights for another device.
class Placing {
 public:
  explicit Placing(const std::vector<TensorHandle*>& leaves) {
    const std::lock_guard lock(mutex_);
    for (const TensorHandle* leaf : leaves) {
      require<InvalidArgument>(
          !leaf->is_claimed, "another compile() is placing {}; compile the graphs with this tensor one after the other",
          describe(*leaf));
    }
    for (TensorHandle* leaf : leaves) {
      if (!leaf->tensor->is_persistent() || leaf->tensor->buffer != nullptr) continue;
      leaf->is_claimed = true;
      claimed_.push_back(leaf);
    }
  }
  ~Placing() {
    const std::lock_guard lock(mutex_);
    for (TensorHandle* leaf : claimed_) leaf->is_claimed = false;
  }
  Placing(const Placing&) = delete;
  Placing& operator=(const Placing&) = delete;

 private:
  static inline std::mutex mutex_;
  std::vector<TensorHandle*> claimed_;
};

/// Throws if two outputs have the same name, because the results of a run have names.
void check_outputs(const GraphHolder& graph) {
  std::unordered_set<std::string_view> names;
  const auto check = [&](const Tensor& tensor) {
    require<InvalidArgument>(!tensor.is_output || names.insert(tensor.name).second,
                             "graph '{}' has two outputs with the name '{}'; name them differently", graph.graph.name(),
                             tensor.name);
  };
  for (const Tensor* input : graph.graph.inputs()) check(*input);
  for (const Tensor* node : graph.graph.nodes()) check(*node);
}

/// Memory of the weights and caches of a graph that had no memory. If compile() fails, they lose this memory again.
class NewMemory {
 public:
  /// Places the leaves on the device. Throws if a leaf is on another device.
  void place(const std::vector<TensorHandle*>& leaves, Device& device) {
    std::vector<TensorHandle*> plain, quantised, caches;
    for (TensorHandle* leaf : leaves) {
      const Tensor& tensor = *leaf->tensor;
      if (!tensor.is_persistent()) continue;
      if (tensor.buffer != nullptr) {
        check_device(*leaf, device);
      } else if (tensor.role == Role::kCache) {
        caches.push_back(leaf);
      } else {
        (traits(tensor.dtype).is_quantized ? quantised : plain).push_back(leaf);
      }
    }
    add(plain, device.buffer_type(), Usage::kWeights);
    add(quantised, device.weights_type(), Usage::kWeights);  // packed on CPU devices
    add(caches, device.buffer_type(), Usage::kAny);
    for (const Placed& placed : memory_) placed.buffer->clear(0);
  }
  /// Gives the memory to the graphs that own the tensors. Other threads read the lists of these graphs with the global
  /// interpreter lock.
  void keep(const std::shared_ptr<Stream>& stream) {
    const LockedPython lock;
    for (Placed& placed : memory_) {
      for (TensorHandle* leaf : placed.leaves) leaf->is_written = leaf->tensor->role == Role::kCache;
      GraphHolder& owner = *placed.leaves.front()->graph;
      owner.memory.push_back({stream, Owned<Buffer>(placed.buffer.release())});
    }
  }

 private:
  struct Placed {
    std::unique_ptr<Buffer> buffer;
    std::vector<TensorHandle*> leaves;  ///< of one graph
  };

  static void check_device(const TensorHandle& leaf, const Device& device) {
    const Device& other = leaf.tensor->buffer->type().device();
    require<InvalidArgument>(&other == &device,
                             "{} is stored on {}; compile the graph for that device, or build the graph again for {}",
                             describe(leaf), other.name(), device.name());
  }
  /// Allocates one buffer for each graph that owns some of the tensors.
  void add(std::vector<TensorHandle*> leaves, BufferType& type, Usage usage) {
    while (!leaves.empty()) {
      const GraphHolder* owner = leaves.front()->graph;
      const auto others = std::ranges::stable_partition(leaves, [&](auto* leaf) { return leaf->graph == owner; });
      Placed placed{nullptr, {leaves.begin(), others.begin()}};
      std::vector<Tensor*> tensors;
      for (const TensorHandle* leaf : placed.leaves) tensors.push_back(leaf->tensor);
      placed.buffer = allocate_tensors(tensors, type, usage);
      memory_.push_back(std::move(placed));
      leaves.erase(leaves.begin(), others.begin());
    }
  }

  std::vector<Placed> memory_;
};

PlanHolder* compile(nb::handle_t<DeviceHandle> device_object, nb::handle_t<GraphHolder> graph_object,
                    const std::vector<TensorHandle*>& shown) {
  auto& device = nb::cast<DeviceHandle&>(device_object);
  auto& graph = nb::cast<GraphHolder&>(graph_object);
  auto result = std::make_unique<PlanHolder>();
  PlanOptions options;
  for (const TensorHandle* node : shown) {
    require<InvalidArgument>(node != nullptr && node->graph == &graph && !node->tensor->is_leaf(),
                             "{} is not a node of graph '{}', so it cannot be shown",
                             node == nullptr ? "None" : describe(*node), graph.graph.name());
    options.shown.push_back(node->tensor);
    result->shown.insert(node->tensor);
  }
  graph.check_open();
  const Marked marked(graph);
  check_outputs(graph);
  const std::vector<TensorHandle*> leaves = graph.leaves();
  {
    const Locked lock(*device.stream);
    const Planning planning({&device}, graph);
    const Placing placing(leaves);
    NewMemory memory;
    memory.place(leaves, device.device());
    result->plan.reset(device.stream->open().create_plan(graph.graph, options).release());
    memory.keep(device.stream);
  }
  for (Tensor* input : graph.graph.inputs()) graph.handle(input)->is_written = false;
  graph.plan = result.get();
  result->holder = &graph;
  result->stream = device.stream;
  result->graph_object = nb::borrow(graph_object);
  result->device_object = nb::borrow(device_object);
  return result.release();
}

// --- runs --------------------------------------------------------------------------------------------------------

TensorHandle& input_of(GraphHolder& graph, const std::string& name) {
  std::string known;
  for (Tensor* input : graph.graph.inputs()) {
    if (input->name == name) return *graph.handle(input);
    known += (known.empty() ? "" : ", ") + input->name;
  }
  fail<InvalidArgument>("graph '{}' has no input '{}'; its inputs are: {}", graph.graph.name(), name, known);
}

/// An array of Python for a tensor of the graph.
struct Exchange {
  TensorHandle* tensor;
  nb::object array;
  std::unique_ptr<ArrayBytes> bytes;
};

std::vector<Exchange> arrays_in(GraphHolder& graph, const nb::dict& given) {
  std::vector<Exchange> all;
  for (const auto& [name, values] : given) {
    TensorHandle& tensor = input_of(graph, checked_text(name, "the name of an input"));
    const nb::object array = stored_array(tensor, values);
    all.push_back({&tensor, array, std::make_unique<ArrayBytes>(array)});
  }
  return all;
}

std::vector<Exchange> arrays_out(GraphHolder& graph) {
  std::vector<Exchange> all;
  const auto add = [&](Tensor* tensor) {
    if (!tensor->is_output) return;
    TensorHandle& handle = *graph.find(*tensor);
    const nb::object array = empty_array(tensor->dtype, tensor->shape, handle.axes);
    all.push_back({&handle, array, std::make_unique<ArrayBytes>(array, true)});
  };
  for (Tensor* input : graph.graph.inputs()) add(input);
  for (Tensor* node : graph.graph.nodes()) add(node);
  return all;
}

/// Throws if an input that is not given, a weight or a cache has no values, and nodes or results need them.
void check_written(GraphHolder& graph, const std::vector<Exchange>& in) {
  std::vector<TensorHandle*> needed = graph.leaves();
  for (Tensor* input : graph.graph.inputs()) {
    if (input->is_output) needed.push_back(graph.handle(input));
  }
  for (const TensorHandle* leaf : needed) {
    const bool is_given = std::ranges::any_of(in, [&](const Exchange& one) { return one.tensor == leaf; });
    if (is_given || leaf->is_written || leaf->tensor->empty()) continue;
    fail<InvalidArgument>("{} has no values; {}", describe(*leaf),
                          leaf->tensor->is_persistent()
                              ? "write them with Tensor.write() after compile()"
                              : "pass an array for it to run(), or write it with Tensor.write()");
  }
}

void compute(PlanHolder& self, const std::vector<Exchange>& in, const std::vector<Exchange>& out) {
  check_written(self.graph(), in);
  const Locked lock(*self.stream);
  for (const Exchange& one : in) {
    tensor_set(*one.tensor->tensor, one.bytes->data(), 0, one.bytes->size());
    one.tensor->is_written = true;
  }
  self.has_results = true;
  Backend& backend = self.stream->open();
  backend.compute_async(*self.plan);
  backend.synchronize();
  for (const Exchange& one : out) tensor_get(*one.tensor->tensor, one.bytes->data(), 0, one.bytes->size());
}

nb::dict run(PlanHolder& self, const nb::dict& inputs) {
  GraphHolder& graph = self.graph();
  const std::vector<Exchange> in = arrays_in(graph, inputs);
  const std::vector<Exchange> out = arrays_out(graph);
  compute(self, in, out);
  nb::dict results;
  for (const Exchange& one : out) results[one.tensor->tensor->name.c_str()] = one.array;
  return results;
}

// --- descriptions ------------------------------------------------------------------------------------------------

bool is_meta(const PlanHolder& self) {
  return self.stream->device->type() == DeviceType::kMeta;
}

/// Axes of the tensor in Python.
int axes_of(GraphHolder& graph, const Tensor& tensor) {
  const TensorHandle* handle = graph.find(tensor);
  return handle == nullptr ? least_axes(tensor.shape) : handle->axes;
}

std::vector<std::pair<const Tensor*, meta::Layout>> layouts_of(PlanHolder& self) {
  if (is_meta(self)) return meta::plan_of(*self.plan).layouts;
  std::vector<std::pair<const Tensor*, meta::Layout>> all;
  for (const Tensor* leaf : self.graph().graph.leaves()) all.emplace_back(leaf, meta::Layout::mirrored());
  for (const Tensor* node : self.graph().graph.nodes()) all.emplace_back(node, meta::Layout::mirrored());
  return all;
}

nb::list tensors_list(PlanHolder& self) {
  nb::list all;
  for (const auto& [tensor, layout] : layouts_of(self)) {
    const int axes = axes_of(self.graph(), *tensor);
    nb::dict one;
    one["name"] = tensor->name;
    one["dtype"] = std::string(name_of(tensor->dtype));
    one["shape"] = nb::list(python_shape(tensor->shape, axes));
    one.update(layout_dict(layout, axes));
    all.append(one);
  }
  return all;
}

/// Bytes of the graph's weights or caches on a device without members.
size_t leaf_bytes(const Graph& graph, Role role) {
  size_t bytes = 0;
  for (const Tensor* leaf : graph.leaves()) bytes += leaf->role == role ? leaf->buffer->type().alloc_size(*leaf) : 0;
  return bytes;
}

nb::dict memory_dict(const std::string& device, const meta::MemoryUse& use) {
  nb::dict all;
  all["device"] = device;
  all["weights"] = use.weights;
  all["cache"] = use.cache;
  all["compute"] = use.compute;
  all["communication"] = use.communication;
  all["total"] = use.total();
  return all;
}

/// The content of meta::to_json() for a plan on one device.
nb::dict simple_dict(PlanHolder& self) {
  const Graph& graph = self.graph().graph;
  const std::string device = self.stream->device->name();
  meta::MemoryUse use;
  use.weights = leaf_bytes(graph, Role::kWeight);
  use.cache = leaf_bytes(graph, Role::kCache);
  use.compute = self.plan->allocated_bytes();
  nb::list devices, steps, memory, nodes, range;
  devices.append(device);
  range.append(0);
  range.append(graph.nodes().size());
  nodes.append(range);
  nb::dict step, all;
  step["kind"] = "compute";
  step["nodes"] = nodes;
  steps.append(step);
  memory.append(memory_dict(device, use));
  all["graph"] = graph.name();
  all["devices"] = devices;
  all["tensors"] = tensors_list(self);
  all["steps"] = steps;
  all["memory"] = memory;
  return all;
}

nb::dict to_dict(PlanHolder& self) {
  GraphHolder& graph = self.graph();
  if (!is_meta(self)) return simple_dict(self);
  const meta::Plan& plan = meta::plan_of(*self.plan);
  auto all = nb::cast<nb::dict>(nb::module_::import_("json").attr("loads")(meta::to_json(plan)));
  all["tensors"] = tensors_list(self);
  for (size_t i = 0; i < plan.constraints.size(); ++i) {
    const meta::ConstrainedTensor& one = plan.constraints[i];
    const nb::object entry = all["constraints"][i];
    entry.attr("update")(layout_dict(one.constraint.layout, axes_of(graph, *one.tensor)));
  }
  return all;
}

std::string layouts_text(PlanHolder& self) {
  std::string text = "layouts\n";
  for (const auto& [tensor, layout] : layouts_of(self)) {
    const int axes = axes_of(self.graph(), *tensor);
    text += fmt::format("  {:<28} {:<5} {:<20} {}\n", tensor->name, name_of(tensor->dtype),
                        shape_text(tensor->shape, axes), layout_text(layout, axes));
  }
  return text;
}

/// Like meta::constraints_text(), with axes in NumPy order.
std::string constraints_text(PlanHolder& self, const meta::Plan& plan) {
  if (plan.constraints.empty()) return "";
  std::string text = "constraints, and the conversions that they cause\n";
  for (const meta::ConstrainedTensor& one : plan.constraints) {
    const std::string layout = layout_text(one.constraint.layout, axes_of(self.graph(), *one.tensor));
    text += fmt::format(
        "  {:<28} {:<32} {}\n", one.tensor->name, layout,
        one.followed ? fmt::format("{} conversions, {} bytes", one.conversions, one.bytes) : "not followed");
  }
  return text;
}

std::string memory_text(const nb::dict& plan) {
  constexpr std::string_view kRow = "  {:<8} {:>14} {:>14} {:>14} {:>14} {:>14}\n";
  std::string text = "memory in bytes\n";
  text += fmt::format(kRow, "device", "weights", "cache", "compute", "communication", "total");
  for (const nb::handle one : nb::iter(plan["memory"])) {
    const auto bytes = [&](const char* key) { return nb::cast<size_t>(one[key]); };
    text += fmt::format(kRow, nb::cast<std::string>(one["device"]), bytes("weights"), bytes("cache"), bytes("compute"),
                        bytes("communication"), bytes("total"));
  }
  return text;
}

std::string text_of(PlanHolder& self) {
  const Graph& graph = self.graph().graph;
  const std::string memory = memory_text(to_dict(self));
  if (!is_meta(self)) {
    return fmt::format("plan of {} on {}\n{}steps\n     0  compute         {} nodes\n{}", graph.name(),
                       self.stream->device->name(), layouts_text(self), graph.nodes().size(), memory);
  }
  const meta::Plan& plan = meta::plan_of(*self.plan);
  return fmt::format("plan of {} on {} devices\n{}{}{}{}", plan.graph_name, plan.devices.size(), layouts_text(self),
                     constraints_text(self, plan), meta::steps_text(plan), memory);
}

std::string local_text(PlanHolder& self, int rank) {
  self.graph();
  require<InvalidArgument>(is_meta(self), "{} is one device; only plans of a meta device have local graphs",
                           self.stream->device->name());
  return meta::local_text(meta::plan_of(*self.plan), rank);
}

}  // namespace

void bind_plans(nb::module_& module) {
  auto device = nb::borrow<nb::class_<DeviceHandle>>(module.attr("Device"));
  device.def(
      "compile", &compile, "graph"_a, nb::kw_only(), "shown"_a = std::vector<TensorHandle*>(),
      nb::rv_policy::take_ownership,
      nb::sig("def compile(self, graph: Graph, *, shown: collections.abc.Sequence[Tensor] = ()) -> Plan"),
      "Places the weights and caches of the graph that have no memory yet, and makes a plan. The plan freezes the "
      "graph. A graph has one plan at a time: delete a plan before the next compile(). Nodes in `shown` can be "
      "read after a run, like outputs.");
  nb::class_<PlanHolder>(
      module, "Plan", nb::type_slots(collected<PlanHolder>()),
      "A graph that is ready to run on a device. Several threads may call run(); the runs of a device "
      "follow each other.")
      .def("run", &run, "inputs"_a = nb::dict(),
           nb::sig("def run(self, inputs: dict[str, numpy.typing.ArrayLike] = {}) -> dict[str, numpy.ndarray]"),
           "Writes inputs, runs the graph, and returns a copy of each output by name. An input that is not given keeps "
           "its values.")
      .def(
          "compute", [](PlanHolder& self) { compute(self, {}, {}); },
          "Runs the graph with the present values of its inputs. Tensor.read() then gives the outputs.")
      .def("text", &text_of, "Layouts, steps and memory. Shapes and axes are in NumPy order.")
      .def("to_dict", &to_dict, nb::sig("def to_dict(self) -> dict[str, object]"),
           "The content of text(): graph, devices, tensors, steps, memory and constraints.")
      .def("local_text", &local_text, "rank"_a,
           "The nodes that one device runs, in the text form of the core: the innermost axis is first.")
      .def_ro("graph", &PlanHolder::graph_object, nb::sig("def graph(self) -> Graph"))
      .def_ro("device", &PlanHolder::device_object, nb::sig("def device(self) -> Device"));
}

}  // namespace shoal::python
