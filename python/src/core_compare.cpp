// compare(): one graph on two devices, node by node.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "python/src/core.h"
#include "sched/compare.h"
#include "tools/report/comparison.h"

namespace shoal::python {

using namespace nb::literals;

namespace {

/// The difference of one node or cache.
struct Difference {
  std::string name, op, layout;
  double nmse = 0.0, largest = 0.0;
  bool is_finite = true;
};

std::vector<float> floats(const Tensor& tensor, std::span<const std::byte> bytes) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  traits(tensor.dtype).to_f32(bytes.data(), values.data(), tensor.elements());
  return values;
}

std::vector<std::byte> stored(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

Difference difference(const TensorHandle& handle, std::string_view op, const meta::Layout& layout,
                      std::span<const std::byte> first, std::span<const std::byte> second) {
  const std::vector<float> a = floats(*handle.tensor, first), b = floats(*handle.tensor, second);
  Difference result{handle.tensor->name, std::string(op), layout_text(layout, handle.axes),
                    tools::normalised_error(a, b)};
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    result.largest = std::isnan(difference) ? INFINITY : std::max(result.largest, difference);
    result.is_finite = result.is_finite && std::isfinite(a[i]);
  }
  return result;
}

/// Nodes that write into a cache are not compared; the cache is compared after the run.
bool is_compared(const Tensor& node) {
  return info(node.op).alias == Alias::kNone;
}

meta::Layout layout_on(const Tensor& tensor) {
  const bool is_sharded = tensor.buffer->type().device().type() == DeviceType::kMeta;
  return is_sharded ? meta::layout_of(tensor) : meta::Layout::mirrored();
}

/// Both devices get copies of the graph, its weights and its caches, so plans of the graph are not affected.
std::vector<Difference> differences(GraphHolder& graph, DeviceHandle& reference, DeviceHandle& device,
                                    const std::vector<std::pair<Tensor*, const ArrayBytes*>>& inputs,
                                    const std::vector<TensorHandle*>& nodes, const std::vector<TensorHandle*>& leaves) {
  const Planning planning({&reference, &device}, graph);
  sched::LeafCopies first_leaves(reference.device()), second_leaves(device.device());
  sched::GraphCopy first(graph.graph, first_leaves);
  sched::Comparison comparison(reference.stream->open(), first.graph(), device.stream->open(), second_leaves,
                               is_compared);
  for (const auto& [input, bytes] : inputs) tensor_set(*first.find(*input), bytes->data(), 0, bytes->size());
  std::vector<Difference> all;
  comparison.run([&](const sched::ComparedNode& node) {
    const TensorHandle& handle = *nodes[static_cast<size_t>(node.node.id)];
    all.push_back(difference(handle, name_of(node.node.op), layout_on(node.copy), node.first, node.second));
    return true;
  });
  for (const TensorHandle* leaf : leaves) {
    if (leaf->tensor->role != Role::kCache) continue;
    const Tensor& copy = *first_leaves.find(*leaf->tensor);
    const Tensor& other = *second_leaves.find(copy);
    all.push_back(difference(*leaf, "cache", layout_on(other), stored(copy), stored(other)));
  }
  return all;
}

/// Bytes of the inputs. Inputs that are not given must have values already.
class GivenInputs {
 public:
  GivenInputs(GraphHolder& graph, const nb::dict& given) {
    for (const auto& [key, values] : given) {
      const auto name = checked_text(key, "the name of an input");
      const auto known = graph.graph.inputs();
      const auto found = std::ranges::find_if(known, [&](const Tensor* input) { return input->name == name; });
      require<InvalidArgument>(found != known.end(), "graph '{}' has no input '{}'", graph.graph.name(), name);
      arrays_.push_back(stored_array(*graph.handle(*found), values));
      bytes_.push_back(std::make_unique<ArrayBytes>(arrays_.back()));
      all_.emplace_back(*found, bytes_.back().get());
    }
    for (Tensor* input : graph.graph.inputs()) {
      const bool is_given = std::ranges::any_of(all_, [&](const auto& one) { return one.first == input; });
      require<InvalidArgument>(is_given || input->empty(), "compare() needs an array for the input {}",
                               describe(*graph.handle(input)));
    }
  }
  const std::vector<std::pair<Tensor*, const ArrayBytes*>>& all() const { return all_; }

 private:
  std::vector<nb::object> arrays_;
  std::vector<std::unique_ptr<ArrayBytes>> bytes_;
  std::vector<std::pair<Tensor*, const ArrayBytes*>> all_;
};

void check_values(const std::vector<TensorHandle*>& leaves) {
  for (const TensorHandle* leaf : leaves) {
    require<InvalidArgument>(!leaf->tensor->is_persistent() || leaf->tensor->empty() || leaf->is_written,
                             "{} has no values; compile the graph for a device, and write its weights before compare()",
                             describe(*leaf));
  }
}

/// Locks all streams. Waits only while it holds no stream, because a callback of another thread may wait for one stream
/// while it holds another.
std::vector<std::unique_lock<std::recursive_mutex>> locked(const std::set<Stream*>& streams) {
  std::vector<std::unique_lock<std::recursive_mutex>> locks;
  for (Stream* stream : streams) locks.emplace_back(stream->mutex, std::defer_lock);
  for (size_t first = 0;;) {
    locks[first].lock();
    size_t failed = 0;
    while (failed < locks.size() && (failed == first || locks[failed].try_lock())) ++failed;
    if (failed == locks.size()) return locks;
    for (auto& lock : locks) {
      if (lock.owns_lock()) lock.unlock();
    }
    first = failed;
  }
}

nb::list compare(GraphHolder& graph, DeviceHandle& reference, DeviceHandle& device, const nb::dict& inputs) {
  const Marked marked(graph);
  const std::vector<TensorHandle*> leaves = graph.leaves();
  std::set<Stream*> streams{reference.stream.get(), device.stream.get()};
  for (const TensorHandle* leaf : leaves) streams.insert(leaf->graph->stream_of(*leaf->tensor).get());
  streams.erase(nullptr);  // of inputs
  for (const Stream* stream : streams) stream->process.check();
  check_values(leaves);
  const GivenInputs given(graph, inputs);
  std::vector<TensorHandle*> nodes;
  for (const Tensor* node : graph.graph.nodes()) nodes.push_back(graph.find(*node));
  std::vector<Difference> found;
  {
    const UnlockedPython release;
    const auto locks = locked(streams);
    found = differences(graph, reference, device, given.all(), nodes, leaves);
  }
  nb::list all;
  for (const Difference& one : found) {
    all.append(nb::make_tuple(one.name, one.op, one.layout, one.nmse, one.largest, one.is_finite));
  }
  return all;
}

}  // namespace

void bind_compare(nb::module_& module) {
  module.def("compare_nodes", &compare, "graph"_a, "reference"_a, "device"_a, "inputs"_a,
             nb::sig("def compare_nodes(graph: Graph, reference: Device, device: Device, inputs: dict[str, "
                     "numpy.typing.ArrayLike]) -> list[tuple[str, str, str, float, float, bool]]"),
             "Name, op, layout, NMSE, largest difference and finiteness of each node. shoal.compare() wraps this "
             "function.");
}

}  // namespace shoal::python
