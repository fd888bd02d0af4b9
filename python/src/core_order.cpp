// Conversion of shapes, axes and layouts between NumPy order and the order of the core.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "python/src/core.h"

namespace shoal::python {

int64_t integer(nb::handle value) {
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) nb::raise_python_error();
  const int64_t result = PyLong_AsLongLong(number.ptr());
  if (result == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return result;
}

std::vector<int64_t> integers(nb::handle value) {
  if (PyIndex_Check(value.ptr()) != 0) return {integer(value)};
  std::vector<int64_t> all;
  for (const nb::handle one : nb::iter(value)) all.push_back(integer(one));
  return all;
}

Shape core_shape(const std::vector<int64_t>& lengths, std::string_view what) {
  require<InvalidArgument>(lengths.size() <= kMaxDims, "{}: the shape has {} axes, but a tensor has at most {}", what,
                           lengths.size(), kMaxDims);
  Shape shape{1, 1, 1, 1};
  std::copy(lengths.rbegin(), lengths.rend(), shape.begin());
  return shape;
}

int least_axes(const Shape& shape) {
  int axes = kMaxDims;
  while (axes > 0 && shape[static_cast<size_t>(axes) - 1] == 1) --axes;
  return axes;
}

std::vector<int64_t> python_lengths(const Shape& shape, int axes) {
  return {shape.rend() - axes, shape.rend()};
}

nb::tuple python_shape(const Shape& shape, int axes) {
  nb::list lengths;
  for (const int64_t length : python_lengths(shape, axes)) lengths.append(length);
  return nb::tuple(lengths);
}

int core_axis(int64_t axis, int axes, std::string_view what) {
  require<InvalidArgument>(axis >= -axes && axis < axes, "{}: there is no axis {}; the tensor has {} axes", what, axis,
                           axes);
  return static_cast<int>(axis < 0 ? -1 - axis : axes - 1 - axis);
}

namespace {

/// The owners of the whole tensor if the layout splits an axis of length 1 that Python does not show.
const meta::Owners* owners_of_all(const meta::Layout& layout, int axes) {
  return layout.is_split() && layout.axis >= axes ? layout.holders() : nullptr;
}

nb::list list_of(const meta::Owners& owners) {
  nb::list all;
  for (const int owner : owners) all.append(owner);
  return all;
}

}  // namespace

std::string layout_text(const meta::Layout& layout, int axes) {
  if (!layout.is_split()) return layout.to_string();
  if (const meta::Owners* owners = owners_of_all(layout, axes)) {
    return fmt::format("held by {{{}}}", fmt::join(*owners, ","));
  }
  return fmt::format("split {} [{}]", axes - 1 - layout.axis, layout.partition.to_string());
}

nb::dict layout_dict(const meta::Layout& layout, int axes) {
  nb::dict all;
  if (const meta::Owners* owners = owners_of_all(layout, axes)) {
    all["layout"] = "held";
    all["owners"] = list_of(*owners);
    return all;
  }
  all["layout"] = layout.is_split() ? "split" : layout.is_partial() ? "partial" : "mirrored";
  if (!layout.is_split()) return all;
  nb::list runs, lengths;
  for (const meta::Run& run : layout.partition.runs()) {
    nb::list one;
    one.append(run.length);
    one.append(list_of(run.owners));
    runs.append(one);
  }
  for (int device = 0; device < layout.partition.devices(); ++device) {
    lengths.append(layout.partition.local_length(device));
  }
  all["axis"] = axes - 1 - layout.axis;
  all["runs"] = runs;
  all["lengths"] = lengths;
  return all;
}

std::string shape_text(const Shape& shape, int axes) {
  const std::vector<int64_t> lengths = python_lengths(shape, axes);
  return fmt::format("({}{})", fmt::join(lengths, ", "), lengths.size() == 1 ? "," : "");
}

}  // namespace shoal::python
