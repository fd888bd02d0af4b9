// Tensor and Graph of the Python module.
#include "python/src/core.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "graph/text.h"
#include "meta/rules/rule.h"
#include "python/src/module.h"

namespace shoal::python {

using namespace nb::literals;

void Process::check() const {
  require<Error>(is_current(),
                 "a fork has no threads of the devices; load the model or compile the graph in the child process");
}

std::shared_ptr<Stream> Stream::create(std::shared_ptr<Device> device) {
  std::shared_ptr<Stream> stream(new Stream, DeleteInProcess());
  stream->device = std::move(device);
  return stream;
}

Backend& Stream::open() {
  if (backend == nullptr) backend = device->init();
  return *backend;
}

UnlockedPython::~UnlockedPython() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    for (;;) pause();
  }
}

LockedPython::~LockedPython() {
  while (PyGILState_Check() == 0) pause();  // the interpreter ends, and unwinds the stack without its lock
  PyGILState_Release(state_);
}

GraphHolder::~GraphHolder() {
  for (StoredMemory& one : memory) {
    if (!one.stream->process.is_current()) continue;
    const Locked lock(*one.stream);
    one.buffer.reset();
  }
}

std::shared_ptr<Stream> GraphHolder::stream_of(const Tensor& tensor) const {
  const auto found = std::ranges::find_if(memory, [&](const StoredMemory& one) {
    return one.buffer.get() == tensor.buffer ||
           std::ranges::any_of(one.buffer->parts(), [&](const auto& part) { return part.get() == tensor.buffer; });
  });
  return found == memory.end() ? nullptr : found->stream;
}

TensorHandle* GraphHolder::handle(Tensor* tensor, int axes) {
  TensorHandle*& known = by_tensor[tensor];
  if (known == nullptr) {
    known = &handles.emplace_back();
    *known = {this, tensor, std::max(axes, least_axes(tensor->shape))};
  }
  return known;
}

TensorHandle* GraphHolder::find(const Tensor& tensor) {
  const auto known = by_tensor.find(&tensor);
  if (known != by_tensor.end()) return known->second;
  if (!tensor.is_persistent()) return handle(const_cast<Tensor*>(&tensor));
  for (const nb::object& other : others) {
    const auto& theirs = nb::inst_ptr<GraphHolder>(other)->by_tensor;
    if (const auto found = theirs.find(&tensor); found != theirs.end()) return found->second;
  }
  return nullptr;
}

std::vector<TensorHandle*> GraphHolder::leaves() {
  std::vector<TensorHandle*> all;
  for (const Tensor* leaf : graph.leaves()) all.push_back(find(*leaf));
  return all;
}

void GraphHolder::check_open() const {
  require<InvalidArgument>(planned == 0, "graph '{}' is being compiled or compared; change it before or after",
                           graph.name());
}

Tensor* GraphHolder::source(TensorHandle& given) {
  check_open();
  if (given.graph == this) return given.tensor;
  require<InvalidArgument>(given.tensor->is_persistent() && given.tensor->is_leaf(),
                           "{} belongs to graph '{}' and cannot be used in graph '{}'; only weights and caches can be "
                           "shared",
                           describe(given), given.graph->graph.name(), graph.name());
  const nb::object owner = nb::find(*given.graph);
  if (std::ranges::none_of(others, [&](const nb::object& other) { return other.is(owner); })) others.push_back(owner);
  return given.tensor;
}

Planning::Planning(std::vector<DeviceHandle*> devices, GraphHolder& graph) : devices_(std::move(devices)) {
  for (const DeviceHandle* device : devices_) {
    require<InvalidArgument>(!device->is_planning(),
                             "{} is compiling a graph, and its callbacks cannot compile or compare on the same device",
                             device->device().name());
  }
  for (DeviceHandle* device : devices_) device->set_planning(&graph);
}

Planning::~Planning() {
  for (DeviceHandle* device : devices_) device->set_planning(nullptr);
}

nb::object object_of(TensorHandle& handle) {
  return nb::cast(&handle, nb::rv_policy::reference_internal, nb::find(*handle.graph));
}

std::string checked_text(nb::handle value, std::string_view what) {
  if (PyUnicode_Check(value.ptr()) == 0) {
    const auto text = nb::cast<std::string>(nb::repr(value));
    throw nb::type_error(fmt::format("{} is {}; give a string", what, text).c_str());
  }
  std::string text;
  require<InvalidArgument>(nb::try_cast(value, text), "{} has a lone surrogate; give valid Unicode", what);
  return text;
}

std::string describe(const TensorHandle& handle) {
  const Tensor& tensor = *handle.tensor;
  return fmt::format("{} {} {}", tensor.name, name_of(tensor.dtype), shape_text(tensor.shape, handle.axes));
}

DType dtype_of(std::string_view name) {
  const std::optional<DType> found = dtype_from_name(name);
  require<InvalidArgument>(found.has_value(),
                           "there is no dtype '{}'; use f32, f16, bf16, i32, i64 or a quantised dtype such as q8_0",
                           name);
  return *found;
}

namespace {

const char* role_of(const Tensor& tensor) {
  switch (tensor.role) {
    case Role::kInput:
      return "input";
    case Role::kWeight:
      return "weight";
    case Role::kCache:
      return "cache";
    case Role::kCompute:
      return "node";
  }
  return "node";
}

nb::list objects(GraphHolder& graph, const auto& tensors, const auto& wanted) {
  nb::list all;
  for (Tensor* tensor : tensors) {
    TensorHandle* handle = tensor == nullptr || !wanted(*tensor) ? nullptr : graph.find(*tensor);
    if (handle != nullptr) all.append(object_of(*handle));
  }
  return all;
}

bool any(const Tensor&) {
  return true;
}

nb::object sources_of(TensorHandle& handle) {
  nb::list all;
  for (Tensor* source : handle.tensor->src) {
    TensorHandle* found = source == nullptr ? nullptr : handle.graph->find(*source);
    all.append(found == nullptr ? nb::none() : object_of(*found));
  }
  return nb::tuple(all);
}

TensorHandle* add_input(GraphHolder& graph, const std::string& name, std::string_view dtype, nb::handle shape) {
  graph.check_open();
  const std::vector<int64_t> lengths = integers(shape);
  Tensor* input = graph.graph.input(name, dtype_of(dtype), core_shape(lengths, "input " + name));
  return graph.handle(input, static_cast<int>(lengths.size()));
}

TensorHandle* add_persistent(GraphHolder& graph, Role role, const std::string& name, std::string_view dtype,
                             nb::handle shape) {
  graph.check_open();
  const std::vector<int64_t> lengths = integers(shape);
  const Shape core = core_shape(lengths, fmt::format("{} {}", role == Role::kCache ? "cache" : "weight", name));
  Tensor* tensor = graph.weights.add(name, dtype_of(dtype), core, role);
  return graph.handle(tensor, static_cast<int>(lengths.size()));
}

TensorHandle* get(GraphHolder& graph, const std::string& name) {
  if (Tensor* weight = graph.weights.find(name)) return graph.handle(weight);
  Tensor* found = graph.graph.find(name);
  if (found == nullptr)
    throw nb::key_error(fmt::format("graph '{}' has no tensor '{}'", graph.graph.name(), name).c_str());
  return graph.find(*found);
}

nb::list outputs_of(GraphHolder& graph) {
  const auto wanted = [](const Tensor& tensor) { return tensor.is_output; };
  nb::list all = objects(graph, graph.graph.inputs(), wanted);
  all.extend(objects(graph, graph.graph.nodes(), wanted));
  return all;
}

void check_can_be_output(const TensorHandle& tensor) {
  require<InvalidArgument>(!tensor.tensor->is_persistent() || !tensor.tensor->is_leaf(),
                           "{} is a {}; only inputs and nodes can be outputs", describe(tensor),
                           role_of(*tensor.tensor));
}

GraphHolder* parse(std::string_view text, const std::string& name) {
  auto graph = std::make_unique<GraphHolder>(name);
  parse_graph(text, graph->graph, graph->weights);
  for (Tensor* weight : graph->weights.tensors()) {
    const TensorHandle& handle = *graph->handle(weight);
    if (weight->is_output) check_can_be_output(handle);
  }
  return graph.release();
}

void bind_graph(nb::module_& module) {
  constexpr auto kInside = nb::rv_policy::reference_internal;
  nb::class_<GraphHolder> graph(module, "Graph", nb::type_slots(collected<GraphHolder>()),
                                "Inputs, weights, caches and nodes in execution order. Build a graph on one thread. "
                                "Device.compile() freezes the graph. One method adds one op.");
  graph.def(nb::init<const std::string&>(), "name"_a = "")
      .def("input", &add_input, "name"_a, "dtype"_a, "shape"_a, kInside,
           nb::sig("def input(self, name: str, dtype: str, shape: collections.abc.Sequence[int]) -> Tensor"),
           "A tensor that the caller writes before each run.")
      .def(
          "weight",
          [](GraphHolder& self, const std::string& name, const std::string& dtype, nb::handle shape) {
            return add_persistent(self, Role::kWeight, name, dtype, shape);
          },
          "name"_a, "dtype"_a, "shape"_a, kInside,
          nb::sig("def weight(self, name: str, dtype: str, shape: collections.abc.Sequence[int]) -> Tensor"),
          "A constant. Device.compile() places it, and Tensor.write() sets its values. Other graphs may also use it.")
      .def(
          "cache",
          [](GraphHolder& self, const std::string& name, const std::string& dtype, nb::handle shape) {
            return add_persistent(self, Role::kCache, name, dtype, shape);
          },
          "name"_a, "dtype"_a, "shape"_a, kInside,
          nb::sig("def cache(self, name: str, dtype: str, shape: collections.abc.Sequence[int]) -> Tensor"),
          "A tensor of zeros that set_rows and set_slice may write. Its values persist between runs.")
      .def(
          "output",
          [](GraphHolder& self, TensorHandle& tensor) {
            self.check_open();
            check_can_be_output(tensor);
            self.graph.output(tensor.tensor);
            return &tensor;
          },
          "tensor"_a, kInside, "Marks a tensor as a result of the graph and returns the tensor.")
      .def("__getitem__", &get, "name"_a, kInside)
      .def(
          "text", [](const GraphHolder& self) { return to_string(self.graph); },
          "The text form of the graph. Shapes in square brackets have the innermost axis first.")
      .def_static("parse", &parse, "text"_a, "name"_a = "", nb::rv_policy::take_ownership, "The inverse of text().")
      .def_prop_ro("name", [](const GraphHolder& self) { return self.graph.name(); })
      .def_prop_ro(
          "inputs", [](GraphHolder& self) { return objects(self, self.graph.inputs(), any); },
          nb::sig("def inputs(self) -> list[Tensor]"))
      .def_prop_ro(
          "nodes", [](GraphHolder& self) { return objects(self, self.graph.nodes(), any); },
          nb::sig("def nodes(self) -> list[Tensor]"))
      .def_prop_ro(
          "weights", [](GraphHolder& self) { return objects(self, self.weights.tensors(), any); },
          nb::sig("def weights(self) -> list[Tensor]"), "The weights and caches that this graph owns.")
      .def_prop_ro("outputs", &outputs_of, nb::sig("def outputs(self) -> list[Tensor]"))
      .def("__repr__", [](const GraphHolder& self) {
        return fmt::format("Graph('{}', {} nodes)", self.graph.name(), self.graph.nodes().size());
      });
  bind_ops(graph);
}

}  // namespace

void bind_tensors(nb::module_& module) {
  nb::class_<TensorHandle> tensor(module, "Tensor",
                                  "A tensor of a graph. Its shape has the slowest axis first, as in NumPy.");
  tensor.def_prop_ro("name", [](const TensorHandle& self) { return self.tensor->name; })
      .def_prop_ro("dtype", [](const TensorHandle& self) { return std::string(name_of(self.tensor->dtype)); })
      .def_prop_ro(
          "shape", [](const TensorHandle& self) { return python_shape(self.tensor->shape, self.axes); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_ro("ndim", &TensorHandle::axes)
      .def_prop_ro(
          "role", [](const TensorHandle& self) { return role_of(*self.tensor); }, nb::sig("def role(self) -> str"),
          "'input', 'weight', 'cache' or 'node'.")
      .def_prop_ro(
          "op", [](const TensorHandle& self) { return std::string(name_of(self.tensor->op)); },
          "Name of the op that computes this tensor; 'none' for inputs, weights and caches.")
      .def_prop_ro(
          "params",
          [](const TensorHandle& self) {
            return self.tensor->is_leaf() ? std::string() : params_to_string(self.tensor->op, self.tensor->params);
          },
          "Parameters of the op that differ from the defaults, as text of the core.")
      .def_prop_ro("sources", &sources_of, nb::sig("def sources(self) -> tuple[Tensor | None, ...]"))
      .def_prop_ro("is_output", [](const TensorHandle& self) { return self.tensor->is_output; })
      .def_prop_ro("nbytes", [](const TensorHandle& self) { return self.tensor->bytes(); })
      .def_prop_ro(
          "graph", [](const TensorHandle& self) { return nb::find(*self.graph); }, nb::sig("def graph(self) -> Graph"))
      .def("__repr__", [](const TensorHandle& self) {
        return fmt::format("Tensor({}, {})", describe(self), role_of(*self.tensor));
      });
  bind_arrays(tensor);
  bind_graph(module);
  module.def(
      "rule",
      [](const TensorHandle& node) -> nb::object {
        const std::optional<std::string> text = meta::rule_text(*node.tensor);
        return text ? nb::cast(*text) : nb::none();
      },
      "node"_a, nb::sig("def rule(node: Tensor) -> str | None"),
      "The sharding rule of a node, or None. Axes of rules have the innermost axis first (meta/rules/rule.h).");
}

void bind_core(nb::module_& module) {
  bind_tensors(module);
  bind_devices(module);
  bind_plans(module);
  bind_compare(module);
}

}  // namespace shoal::python
