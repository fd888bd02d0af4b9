// Values of tensors as NumPy arrays.
#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "python/src/core.h"

namespace shoal::python {

using namespace nb::literals;

namespace {

nb::module_ numpy() {
  return nb::module_::import_("numpy");
}

/// Name of the NumPy type of the stored values. bf16 has no NumPy type, so its bits are stored as uint16. Quantised
/// dtypes are bytes.
const char* numpy_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "uint16";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    default:
      return "uint8";
  }
}

/// Lengths of the array with the stored values. The last axis of a quantised tensor counts bytes.
std::vector<int64_t> array_lengths(DType dtype, const Shape& shape, int axes) {
  std::vector<int64_t> lengths = python_lengths(shape, axes);
  if (traits(dtype).is_quantized) lengths.back() = static_cast<int64_t>(bytes_for(dtype, shape[0]));
  return lengths;
}

nb::tuple tuple_of(const std::vector<int64_t>& lengths) {
  nb::list all;
  for (const int64_t length : lengths) all.append(length);
  return nb::tuple(all);
}

nb::object empty(const std::vector<int64_t>& lengths, const char* type) {
  return numpy().attr("empty")(tuple_of(lengths), type);
}

bool is_type(nb::handle array, const char* name) {
  return nb::cast<bool>(array.attr("dtype").attr("__eq__")(numpy().attr("dtype")(name)));
}

void check_shape(const TensorHandle& handle, nb::handle array, const std::vector<int64_t>& lengths) {
  if (array.attr("shape").equal(tuple_of(lengths))) return;
  fail<InvalidArgument>("{} needs an array of shape {}, but the array has shape {}", describe(handle),
                        nb::str(tuple_of(lengths)).c_str(), nb::str(nb::object(array.attr("shape"))).c_str());
}

/// Converts an array with NumPy's rule "same_kind": floats never become integers. Throws for integers that do not fit.
nb::object converted(const TensorHandle& handle, nb::handle array, const char* type) {
  if (!nb::cast<bool>(numpy().attr("can_cast")(array.attr("dtype"), type, "same_kind"))) {
    fail<InvalidArgument>(
        "{} needs values of type {}, but the array has type {}; convert it with "
        "array.astype(numpy.{})",
        describe(handle), type, nb::str(nb::object(array.attr("dtype"))).c_str(), type);
  }
  nb::object result = numpy().attr("ascontiguousarray")(array, "dtype"_a = type).attr("reshape")(array.attr("shape"));
  const bool may_wrap =
      nb::cast<bool>(numpy().attr("issubdtype")(type, numpy().attr("integer"))) && !is_type(array, type);
  require<InvalidArgument>(!may_wrap || nb::cast<bool>(numpy().attr("array_equal")(result, array)),
                           "{} has type {}, and a value of the array is outside its range", describe(handle), type);
  return result;
}

/// Converts an array of numbers to the tensor's dtype, which has no NumPy type.
nb::object encoded(const TensorHandle& handle, nb::handle array) {
  const Tensor& tensor = *handle.tensor;
  const DTypeTraits& type = traits(tensor.dtype);
  require<InvalidArgument>(
      type.from_f32 != nullptr, "{}: shoal cannot quantise to {}; write the bytes as an array of uint8 with shape {}",
      describe(handle), type.name, nb::str(tuple_of(array_lengths(tensor.dtype, tensor.shape, handle.axes))).c_str());
  check_shape(handle, array, python_lengths(tensor.shape, handle.axes));
  const nb::object numbers = converted(handle, array, "float32");
  nb::object result = empty_array(tensor.dtype, tensor.shape, handle.axes);
  const ArrayBytes from(numbers), to(result, true);
  type.from_f32(reinterpret_cast<const float*>(from.data()), to.data(), tensor.elements());
  return result;
}

/// The stream that uses the tensor's memory, and the plan that owns the memory of inputs and nodes. Other threads may
/// drop their references during a call without the global interpreter lock.
struct Use {
  std::shared_ptr<Stream> stream;
  nb::object plan;
};

/// Without a stream for tensors without memory, and for memory that a compile() of another thread has not kept yet.
Use find_use(const TensorHandle& handle) {
  const Tensor& tensor = *handle.tensor;
  Use use;
  if (tensor.storage()->is_persistent()) {
    TensorHandle* owner = handle.graph->find(*tensor.storage());
    if (owner != nullptr) use.stream = owner->graph->stream_of(*tensor.storage());
  } else if (handle.graph->plan != nullptr) {
    use = {handle.graph->plan->stream, nb::find(*handle.graph->plan)};
  }
  if (tensor.buffer == nullptr) use.stream.reset();
  return use;
}

/// Throws for tensors without memory.
Use use_of(const TensorHandle& handle) {
  Use use = find_use(handle);
  require<InvalidArgument>(use.stream != nullptr, "{} has no memory; compile its graph first, and keep the plan",
                           describe(handle));
  return use;
}

/// Throws for memory without values, and for a node whose memory other nodes reuse.
void check_readable(const TensorHandle& handle) {
  const Tensor& tensor = *handle.tensor;
  const TensorHandle* leaf = tensor.storage()->is_leaf() ? handle.graph->find(*tensor.storage()) : nullptr;
  const PlanHolder* runs = handle.graph->plan;
  const bool has_values = leaf != nullptr ? leaf->is_written : runs == nullptr || runs->has_results;
  require<InvalidArgument>(has_values || tensor.empty(), "{} has no values; {}", describe(handle),
                           leaf != nullptr ? "write them with Tensor.write()" : "run the plan first");
  if (tensor.is_output || tensor.storage()->is_leaf()) return;
  const PlanHolder* plan = handle.graph->plan;
  if (plan == nullptr || plan->shown.contains(&tensor)) return;
  fail<InvalidArgument>(
      "{} cannot be read, because later nodes reuse its memory; mark it with graph.output(), or pass "
      "it to compile(shown=[...])",
      describe(handle));
}

void write(TensorHandle& self, nb::handle values) {
  require<InvalidArgument>(self.tensor->is_leaf(),
                           "{} is computed by {}; only inputs, weights and caches can be written", describe(self),
                           name_of(self.tensor->op));
  const Use use = use_of(self);
  const nb::object array = stored_array(self, values);
  const ArrayBytes bytes(array);
  {
    const Locked lock(*use.stream);
    tensor_set(*self.tensor, bytes.data(), 0, bytes.size());
  }
  self.is_written = true;
}

/// Reads `tensor`, which is the tensor of `handle` or one of its shards.
nb::object read_from(const TensorHandle& handle, const Tensor& tensor) {
  const Use use = use_of(handle);
  nb::object array = empty_array(tensor.dtype, tensor.shape, handle.axes);
  const ArrayBytes bytes(array, true);
  const Locked lock(*use.stream);
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return array;
}

nb::object read(const TensorHandle& self) {
  use_of(self);
  check_readable(self);
  return read_from(self, *self.tensor);
}

nb::object values(const TensorHandle& self) {
  const nb::object stored = read(self);
  nb::object result = empty(python_lengths(self.tensor->shape, self.axes), "float32");
  const ArrayBytes from(stored), to(result, true);
  traits(self.tensor->dtype).to_f32(from.data(), reinterpret_cast<float*>(to.data()), self.tensor->elements());
  return result;
}

nb::dlpack::dtype element_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return nb::dtype<float>();
    case DType::kF16:
      return {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    case DType::kBF16:
      return nb::dtype<uint16_t>();
    case DType::kI32:
      return nb::dtype<int32_t>();
    case DType::kI64:
      return nb::dtype<int64_t>();
    default:
      return nb::dtype<uint8_t>();
  }
}

/// A read-only array of the tensor's own memory, if the host can address this memory. Otherwise a read-only copy.
nb::object view(const TensorHandle& self) {
  use_of(self);
  check_readable(self);
  const Tensor& tensor = *self.tensor;
  if (!tensor.buffer->is_host() || !tensor.is_contiguous() || tensor.empty()) {
    nb::object copy = read(self);
    copy.attr("setflags")("write"_a = false);
    return copy;
  }
  const nb::object owner = tensor.storage()->is_persistent() ? nb::find(*self.graph->find(*tensor.storage())->graph)
                                                             : nb::find(*self.graph->plan);
  const std::vector<int64_t> lengths = array_lengths(tensor.dtype, tensor.shape, self.axes);
  const std::vector<size_t> shape(lengths.begin(), lengths.end());
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(tensor.data, shape.size(), shape.data(), owner, nullptr,
                                                 element_of(tensor.dtype)));
}

Tensor& shard_of(const TensorHandle& handle, int rank) {
  use_of(handle);
  require<InvalidArgument>(dynamic_cast<const meta::MetaDevice*>(&handle.tensor->buffer->type().device()) != nullptr,
                           "{} is not stored on a meta device, so it has no shards", describe(handle));
  return meta::shard(*handle.tensor, rank);
}

nb::object read_shard(const TensorHandle& self, int rank) {
  const Tensor& shard = shard_of(self, rank);
  check_readable(self);
  return read_from(self, shard);
}

void write_shard(TensorHandle& self, int rank, nb::handle values) {
  require<InvalidArgument>(self.tensor->is_leaf(),
                           "{} is computed by {}; only inputs, weights and caches can be written", describe(self),
                           name_of(self.tensor->op));
  const Use use = use_of(self);
  Tensor& shard = shard_of(self, rank);
  TensorHandle local{self.graph, &shard, self.axes};
  const nb::object array = stored_array(local, values);
  const ArrayBytes bytes(array);
  {
    const Locked lock(*use.stream);
    tensor_set(shard, bytes.data(), 0, bytes.size());
  }
  self.is_written = true;
}

nb::object layout(const TensorHandle& self) {
  const Use use = find_use(self);
  if (use.stream == nullptr || use.stream->device->type() != DeviceType::kMeta) return nb::none();
  const std::string text = layout_text(meta::layout_of(*self.tensor), self.axes);
  return nb::str(text.data(), text.size());
}

}  // namespace

ArrayBytes::ArrayBytes(nb::handle array, bool writable) {
  if (PyObject_GetBuffer(array.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) nb::raise_python_error();
}

nb::object empty_array(DType dtype, const Shape& shape, int axes) {
  return empty(array_lengths(dtype, shape, axes), numpy_name(dtype));
}

nb::object stored_array(const TensorHandle& handle, nb::handle values) {
  const Tensor& tensor = *handle.tensor;
  const char* type = numpy_name(tensor.dtype);
  nb::object array = numpy().attr("asarray")(values);
  if (!nb::cast<bool>(array.attr("dtype").attr("isnative"))) {
    array = array.attr("astype")(array.attr("dtype").attr("newbyteorder")("="));
  }
  if (nb::cast<std::string_view>(nb::str(nb::object(array.attr("dtype")))) == "bfloat16") {
    array = array.attr("view")("uint16");
    if (tensor.dtype != DType::kBF16) {
      fail<InvalidArgument>(
          "{} needs values of type {}, but the array has type bfloat16; convert it with "
          "array.astype(numpy.float32)",
          describe(handle), type);
    }
  }
  const bool is_plain = tensor.dtype != DType::kBF16 && !traits(tensor.dtype).is_quantized;
  if (!is_plain && !is_type(array, type)) return encoded(handle, array);
  check_shape(handle, array, array_lengths(tensor.dtype, tensor.shape, handle.axes));
  return converted(handle, array, type);
}

void bind_arrays(nb::class_<TensorHandle>& tensor) {
  tensor
      .def("write", &write, "values"_a, nb::sig("def write(self, values: numpy.typing.ArrayLike) -> None"),
           "Sets all values of an input, weight or cache. The array has the shape of the tensor. bf16 takes numbers or "
           "bits as uint16. Quantised dtypes with blocks of 32 elements take numbers, and all quantised dtypes take "
           "bytes as uint8, with the bytes of a row on the last axis.")
      .def("read", &read, nb::sig("def read(self) -> numpy.ndarray"),
           "A copy of the stored values. bf16 gives uint16, and quantised dtypes give bytes.")
      .def("view", &view, nb::sig("def view(self) -> numpy.ndarray"),
           "The stored values as a read-only array. The array refers to the tensor's memory if this memory is in one "
           "piece that the host can address (a CPU device, but no packed weights); otherwise it is a copy. Later runs "
           "change an array without a copy. The array keeps the memory alive.")
      .def("values", &values, nb::sig("def values(self) -> numpy.ndarray"), "A copy of the values as float32.")
      .def("read_shard", &read_shard, "rank"_a, nb::sig("def read_shard(self, rank: int) -> numpy.ndarray"),
           "A copy of the shard of one device of a meta device.")
      .def("write_shard", &write_shard, "rank"_a, "values"_a,
           nb::sig("def write_shard(self, rank: int, values: numpy.typing.ArrayLike) -> None"),
           "Sets the shard of one device, such as one addend of a partial tensor.")
      .def_prop_ro("layout", &layout, nb::sig("def layout(self) -> str | None"),
                   "Layout on a meta device, such as 'split 0 [4:{0} 2:{1}]' with an axis in NumPy order; otherwise "
                   "None.");
}

}  // namespace shoal::python
