// Device and MetaDevice of the Python module, and the callbacks of meta devices.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <map>

#include "base/error.h"
#include "python/src/core_states.h"

namespace shoal::python {

using namespace nb::literals;

namespace {

/// The stream of a device of the registry. All Python objects of the device in a process share the stream.
std::shared_ptr<Stream> stream_of(Device& device) {
  static std::mutex mutex;
  static auto& streams = *new std::map<Device*, std::weak_ptr<Stream>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Stream> stream = streams[&device].lock();
  if (stream == nullptr || !stream->process.is_current()) {
    stream = Stream::create(std::shared_ptr<Device>(&device, [](Device*) {}));
    streams[&device] = stream;
  }
  return stream;
}

DeviceHandle handle_of(Device& device) {
  DeviceHandle handle;
  handle.stream = stream_of(device);
  return handle;
}

nb::object device(std::string_view name) {
  return nb::cast(handle_of(Registry::instance().device(name)));
}

nb::list device_list(std::string_view names) {
  nb::list all;
  for (Device* one : Registry::instance().device_list(names)) all.append(nb::cast(handle_of(*one)));
  return all;
}

// --- callbacks ---------------------------------------------------------------------------------------------------

/// The Python functions of a meta device. The functions are called only while a graph is planned. The Python object of
/// the meta device owns this object and empties it, because the C++ device may live longer.
struct Callbacks {
  nb::object states, constraints, rules;
  GraphHolder* planning = nullptr;
  int devices = 0;
};

/// The tensor of the planned graph. `compare` plans copies of the graph, and copies have the names and numbers of the
/// original tensors. Returns nullptr for a tensor of another graph.
TensorHandle* original_of(const Tensor& tensor, GraphHolder& graph) {
  const auto matches = [&](const Tensor* other) {
    return other == &tensor || (other->name == tensor.name && other->dtype == tensor.dtype &&
                                other->shape == tensor.shape && other->op == tensor.op && other->role == tensor.role);
  };
  if (!tensor.is_persistent()) {
    const auto own = tensor.is_leaf() ? graph.graph.inputs() : graph.graph.nodes();
    const bool is_own = tensor.id >= 0 && tensor.id < static_cast<int>(own.size());
    Tensor* found = is_own ? own[static_cast<size_t>(tensor.id)] : nullptr;
    return found != nullptr && matches(found) ? graph.find(*found) : nullptr;
  }
  TensorHandle* same = nullptr;
  for (const Tensor* leaf : graph.graph.leaves()) {
    if (leaf == &tensor) return graph.find(*leaf);
    if (same == nullptr && matches(leaf)) same = graph.find(*leaf);
  }
  return same;
}

/// Calls a function, or looks the tensor's name up in a dict. Returns None without an answer.
nb::object answer_of(const nb::object& asked, TensorHandle& tensor) {
  if (!nb::isinstance<nb::dict>(asked)) return asked(object_of(tensor));
  const auto& states = static_cast<const nb::dict&>(asked);
  const nb::str name(tensor.tensor->name.data(), tensor.tensor->name.size());
  return states.contains(name) ? nb::object(states[name]) : nb::none();
}

/// The planned tensor that `tensor` stands for. Needs the global interpreter lock.
TensorHandle& planned(const Callbacks& callbacks, const Tensor& tensor) {
  TensorHandle* handle = callbacks.planning == nullptr ? nullptr : original_of(tensor, *callbacks.planning);
  require<InvalidArgument>(handle != nullptr, "{} is not part of a graph that is being compiled", tensor.name);
  return *handle;
}

[[noreturn]] void fail_answer(const char* callback, const TensorHandle& tensor, const nb::object& answer,
                              const char* expected) {
  throw nb::type_error(fmt::format("the {} returned {} for {}; return {}", callback,
                                   nb::cast<std::string>(nb::repr(answer)), tensor.tensor->name, expected)
                           .c_str());
}

meta::SplitState state_of(const Callbacks& callbacks, const Tensor& tensor) {
  const LockedPython lock;
  TensorHandle& handle = planned(callbacks, tensor);
  const nb::object answer = answer_of(callbacks.states, handle);
  if (answer.is_none()) return meta::SplitState::mirrored();
  const AnyState* state = nullptr;
  if (!nb::try_cast(answer, state) || state == nullptr) {
    fail_answer("split-state callback", handle, answer, "a SplitState, or None for mirrored");
  }
  return state->for_tensor(tensor, handle.axes, callbacks.devices);
}

std::optional<meta::Constraint> constraint_of(const Callbacks& callbacks, const Tensor& tensor) {
  const LockedPython lock;
  TensorHandle& handle = planned(callbacks, tensor);
  const nb::object answer = answer_of(callbacks.constraints, handle);
  if (answer.is_none()) return std::nullopt;
  const AnyState* state = nullptr;
  if (nb::try_cast(answer, state) && state != nullptr) {
    return meta::Constraint::requirement(state->for_tensor(tensor, handle.axes, callbacks.devices));
  }
  const HintedState* hint = nullptr;
  if (nb::try_cast(answer, hint) && hint != nullptr) {
    return meta::Constraint::hint(hint->state.for_tensor(tensor, handle.axes, callbacks.devices), hint->factor);
  }
  fail_answer("constraint callback", handle, answer, "a SplitState, a Hint or None");
}

std::optional<std::string> rule_of(const Callbacks& callbacks, const Tensor& node) {
  const LockedPython lock;
  TensorHandle* handle = callbacks.planning == nullptr ? nullptr : original_of(node, *callbacks.planning);
  if (handle == nullptr) return meta::rule_text(node);
  const nb::object answer = callbacks.rules(object_of(*handle));
  if (answer.is_none()) return std::nullopt;
  if (!nb::isinstance<nb::str>(answer)) fail_answer("rule callback", *handle, answer, "a rule as text, or None");
  return checked_text(answer, "the rule of " + handle->tensor->name);
}

// --- meta devices ------------------------------------------------------------------------------------------------

/// The Python class MetaDevice.
struct MetaHandle : DeviceHandle {
  std::shared_ptr<Callbacks> callbacks = std::make_shared<Callbacks>();
  nb::object members;

  ~MetaHandle() override { clear(); }
  template <class Visit>
  void references(Visit visit) {
    for (nb::object* one : {&callbacks->states, &callbacks->constraints, &callbacks->rules, &members}) visit(*one);
  }
  void clear() {
    callbacks->states.reset();
    callbacks->constraints.reset();
    callbacks->rules.reset();
    members.reset();
  }
  void set_planning(GraphHolder* graph) override { callbacks->planning = graph; }
  bool is_planning() const override { return callbacks->planning != nullptr; }
};

nb::list devices_of(nb::handle given) {
  if (nb::isinstance<nb::str>(given)) return device_list(checked_text(given, "the name of a device"));
  nb::list all;
  for (const nb::handle one : nb::iter(given)) {
    all.append(nb::isinstance<DeviceHandle>(one) ? nb::borrow(one) : device(checked_text(one, "the name of a device")));
  }
  return all;
}

void check_callable(const char* name, nb::handle given, bool may_be_dict) {
  if (PyCallable_Check(given.ptr()) != 0 || (may_be_dict && nb::isinstance<nb::dict>(given))) return;
  throw nb::type_error(
      fmt::format("MetaDevice(): {} must be a function{}", name, may_be_dict ? " or a dict of names" : "").c_str());
}

meta::MetaOptions options_of(const std::shared_ptr<Callbacks>& callbacks, std::optional<double> timeout) {
  meta::MetaOptions options;
  if (timeout) {
    require<InvalidArgument>(*timeout > 0 && *timeout < 1e6, "timeout is {}; give a number of seconds above 0",
                             *timeout);
    options.comm_timeout = std::chrono::milliseconds(std::max<int64_t>(1, std::llround(*timeout * 1000)));
  }
  if (!callbacks->constraints.is_none()) {
    options.constraints = [callbacks](const Tensor& tensor) { return constraint_of(*callbacks, tensor); };
  }
  if (!callbacks->rules.is_none()) {
    options.rules = [callbacks](const Tensor& node) { return rule_of(*callbacks, node); };
  }
  return options;
}

void init_meta(MetaHandle* self, nb::handle devices, nb::object states, nb::object constraints, nb::object rules,
               std::optional<double> timeout) {
  check_callable("states", states, true);
  if (!constraints.is_none()) check_callable("constraints", constraints, true);
  if (!rules.is_none()) check_callable("rules", rules, false);
  MetaHandle handle;
  const nb::list members = devices_of(devices);
  handle.members = members;
  *handle.callbacks = {std::move(states), std::move(constraints), std::move(rules), nullptr,
                       static_cast<int>(members.size())};
  std::vector<Device*> all;
  for (const nb::handle member : members) all.push_back(&nb::cast<DeviceHandle&>(member).device());
  handle.stream = Stream::create(meta::MetaDevice::create(
      all, [callbacks = handle.callbacks](const Tensor& tensor) { return state_of(*callbacks, tensor); },
      options_of(handle.callbacks, timeout)));
  new (self) MetaHandle;
  self->stream = std::move(handle.stream);
  std::swap(self->callbacks, handle.callbacks);
  self->members = std::move(handle.members);
}

nb::dict memory_of(const DeviceHandle& self) {
  const DeviceMemory memory = self.device().memory();
  nb::dict all;
  all["free"] = memory.free;
  all["total"] = memory.total;
  return all;
}

}  // namespace

void bind_devices(nb::module_& module) {
  nb::class_<DeviceHandle>(module, "Device", "A device that compiles and runs graphs.")
      .def_prop_ro("name", [](const DeviceHandle& self) { return self.device().name(); })
      .def_prop_ro("description", [](const DeviceHandle& self) { return self.device().description(); })
      .def_prop_ro("type", [](const DeviceHandle& self) { return std::string(name_of(self.device().type())); })
      .def_prop_ro("memory", &memory_of, nb::sig("def memory(self) -> dict[str, int]"), "Free and total bytes.")
      .def(
          "supports",
          [](const DeviceHandle& self, const TensorHandle& node) { return self.device().supports_op(*node.tensor); },
          "node"_a, "Whether the device can compute a node.")
      .def("__repr__", [](const DeviceHandle& self) { return fmt::format("Device('{}')", self.device().name()); });

  bind_states(module);
  nb::class_<MetaHandle, DeviceHandle>(module, "MetaDevice", nb::type_slots(collected<MetaHandle>()),
                                       "Several devices that act as one.")
      .def("__init__", &init_meta, "devices"_a, "states"_a, nb::kw_only(), "constraints"_a = nb::none(),
           "rules"_a = nb::none(), "timeout"_a = nb::none(),
           nb::sig("def __init__(self, devices: str | collections.abc.Sequence[str | Device], states: "
                   "collections.abc.Callable[[Tensor], SplitState | None] | dict[str, SplitState], *, constraints: "
                   "collections.abc.Callable[[Tensor], SplitState | Hint | None] | dict[str, SplitState | Hint] | None "
                   "= None, rules: collections.abc.Callable[[Tensor], str | None] | None = None, timeout: float | None "
                   "= None) -> None"),
           "`states` gives the layout of each weight and cache; None means mirrored. One dict may serve several "
           "graphs, so "
           "names that a graph does not have are ignored. `constraints` gives layouts that "
           "inputs or nodes must have, or should have (Hint). `rules` replaces sharding rules; see rule(). All three "
           "are called only during compile(), and their exceptions pass through compile(). `timeout` is the largest "
           "waiting time of a collective in seconds.")
      .def_prop_ro(
          "members", [](const MetaHandle& self) { return self.members; }, nb::sig("def members(self) -> list[Device]"));
  module.def("device", &device, "name"_a, nb::sig("def device(name: str) -> Device"), "The device of a name: 'CPU0'.");
  module.def("device_list", &device_list, "names"_a, nb::sig("def device_list(names: str) -> list[Device]"),
             "The devices of a list: 'CPU0,CPU1'. SHOAL_CPU_DEVICES decides the number of CPU devices of a process.");
}

}  // namespace shoal::python
