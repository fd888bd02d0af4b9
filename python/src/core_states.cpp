// SplitState and Hint of the Python module, with axes in NumPy order.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "base/error.h"
#include "python/src/core_states.h"

namespace shoal::python {

using namespace nb::literals;

meta::SplitState AnyState::for_tensor(const Tensor& tensor, int axes, int devices) const {
  if (kind == Kind::kMirrored) return meta::SplitState::mirrored();
  if (kind == Kind::kPartial) return meta::SplitState::partial();
  const int on = core_axis(axis, axes, "split state of " + tensor.name);
  if (kind == Kind::kLengths) return meta::SplitState::split(on, segments);
  if (kind == Kind::kRuns) return meta::SplitState::split(on, meta::Partition(devices, runs));
  return meta::SplitState::by_ratio(on, ratio);
}

std::string AnyState::reshard_text(const Tensor& tensor, int axes) const {
  if (kind == Kind::kMirrored) return "mirrored";
  require<InvalidArgument>(kind != Kind::kPartial && kind != Kind::kRatio,
                           "[reshard] {} cannot become {}; use SplitState.mirrored(), even(), split() or runs()",
                           tensor.name, to_string());
  std::string on = fmt::format("axis {}", core_axis(axis, axes, "[reshard] " + tensor.name));
  if (kind == Kind::kEven) return on;
  std::vector<meta::Run> all = runs;
  int devices = 0;
  for (const auto& segment : segments) {
    for (size_t d = 0; d < segment.size(); ++d) all.push_back({segment[d], {static_cast<int>(d)}});
  }
  for (const meta::Run& run : all) {
    for (const int owner : run.owners) devices = std::max(devices, owner + 1);
  }
  return fmt::format("{} [{}]", on, meta::Partition(devices, std::move(all)).to_string());
}

std::string AnyState::to_string() const {
  switch (kind) {
    case Kind::kMirrored:
      return "mirrored()";
    case Kind::kPartial:
      return "partial()";
    case Kind::kEven:
      return fmt::format("even({})", axis);
    case Kind::kLengths:
      return fmt::format("split({}, {})", axis, segments);
    case Kind::kRatio:
      return fmt::format("by_ratio({}, {})", axis, ratio);
    case Kind::kRuns:
      break;
  }
  std::string text;
  for (const meta::Run& run : runs) {
    text += fmt::format("{}({}, {})", text.empty() ? "" : ", ", run.length, run.owners);
  }
  return fmt::format("runs({}, [{}])", axis, text);
}

namespace {

AnyState split(int64_t axis, nb::handle lengths) {
  AnyState state{AnyState::Kind::kLengths, axis, {}, {}, {}};
  std::vector<int64_t> flat;
  for (const nb::handle one : nb::iter(lengths)) {
    if (PyIndex_Check(one.ptr()) != 0) {
      flat.push_back(integer(one));
    } else {
      state.segments.push_back(integers(one));
    }
  }
  if (!flat.empty() && !state.segments.empty()) {
    throw nb::type_error("SplitState.split() takes one length per device, or one list of lengths per segment");
  }
  if (!flat.empty()) state.segments.push_back(std::move(flat));
  return state;
}

AnyState runs(int64_t axis, nb::handle given) {
  AnyState state{AnyState::Kind::kRuns, axis, {}, {}, {}};
  for (const nb::handle one : nb::iter(given)) {
    const nb::tuple both(nb::borrow(one));
    if (both.size() != 2) throw nb::type_error("SplitState.runs() takes pairs (length, devices)");
    meta::Run run{integer(both[0]), {}};
    for (const int64_t owner : integers(both[1])) {
      require<InvalidArgument>(std::in_range<int>(owner), "SplitState.runs(): there is no device {}", owner);
      run.owners.push_back(static_cast<int>(owner));
    }
    state.runs.push_back(std::move(run));
  }
  return state;
}

}  // namespace

void bind_states(nb::module_& module) {
  using Kind = AnyState::Kind;
  nb::class_<AnyState>(module, "SplitState",
                       "Layout of a weight or cache on the devices of a meta device. Axes are in NumPy order.")
      .def_static(
          "mirrored", [] { return AnyState{}; }, "Each device has the whole tensor.")
      .def_static(
          "partial",
          [] {
            return AnyState{Kind::kPartial, 0, {}, {}, {}};
          },
          "Each device has an addend, and the value is the sum.")
      .def_static(
          "even",
          [](int64_t axis) {
            return AnyState{Kind::kEven, axis, {}, {}, {}};
          },
          "axis"_a, "Divides an axis evenly.")
      .def_static("split", &split, "axis"_a, "lengths"_a,
                  nb::sig("def split(axis: int, lengths: collections.abc.Sequence[int] | collections.abc.Sequence["
                          "collections.abc.Sequence[int]]) -> SplitState"),
                  "Divides an axis into one length per device: [4, 2]. A list of lists divides each segment of the "
                  "axis, such as the matrices of a fused Q|K|V weight: [[4, 4], [2, 2], [2, 2]].")
      .def_static(
          "by_ratio",
          [](int64_t axis, std::vector<double> ratio) {
            require<InvalidArgument>(!ratio.empty(),
                                     "SplitState.by_ratio(): the ratio is empty; give one number per device");
            return AnyState{Kind::kRatio, axis, {}, {}, std::move(ratio)};
          },
          "axis"_a, "ratio"_a, nb::sig("def by_ratio(axis: int, ratio: collections.abc.Sequence[float]) -> SplitState"),
          "Divides an axis in proportion to one number per device.")
      .def_static("runs", &runs, "axis"_a, "runs"_a,
                  nb::sig("def runs(axis: int, runs: collections.abc.Sequence[tuple[int, "
                          "collections.abc.Sequence[int]]]) -> SplitState"),
                  "Divides an axis into runs (length, devices). Several devices may own a run: [(32, [0, 1]), (32, "
                  "[2])].")
      .def("__repr__", [](const AnyState& self) { return "SplitState." + self.to_string(); });

  nb::class_<HintedState>(module, "Hint",
                          "A preferred layout of an input or node. Planning follows it if its predicted cost is at "
                          "most `factor` times the cost without it.")
      .def(nb::init<AnyState, double>(), "state"_a, "factor"_a = meta::kHintFactor)
      .def("__repr__", [](const HintedState& self) {
        return fmt::format("Hint(SplitState.{}, {})", self.state.to_string(), self.factor);
      });
}

}  // namespace shoal::python
