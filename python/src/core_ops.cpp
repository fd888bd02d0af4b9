// The ops as methods of Graph. One row of kOps describes one op; names and types of its parameters come from the op
// table of the core. Shapes of these descriptions are in NumPy order.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "graph/text.h"
#include "python/src/core.h"

namespace shoal::python {

using namespace nb::literals;

namespace {

struct OpRow {
  const char* name;
  Op op;
  const char* sources;  ///< names of the sources; "*x": one sequence of sources
  int axes_of;          ///< source with the number of axes of the result; -1: the largest number of all sources
  const char* needed;   ///< parameters without a default
  const char* text;
};

constexpr OpRow kOps[] = {
    {"get_rows", Op::kGetRows, "table ids", 0, "",
     "table (r, x), ids i32 (i,) -> f32 (i, x): rows of the table. The table may have any dtype. Ids "
     "outside of the table give zeros."},
    {"set_rows", Op::kSetRows, "cache rows ids", 0, "",
     "cache (r, x), rows f32 (i, x), ids i32 or i64 (i,) -> the cache with these rows. Rows with ids outside of the "
     "cache "
     "are skipped."},
    {"set_slice", Op::kSetSlice, "cache x", 0, "axis",
     "Writes x to the indices [begin, begin + n) of an axis of the cache. Returns the cache."},
    {"mul_mat", Op::kMulMat, "a b", 1, "",
     "a (m, k), b (n, k) -> (n, m): b @ a.T, like a linear layer with weight a. Outer axes are batches; an axis of "
     "a divides the axis of b."},
    {"mul_mat_id", Op::kMulMatId, "experts x ids", 1, "",
     "experts (e, m, k), x (t, u or 1, k), ids i32 (t, u) -> (t, u, m): products with selected experts. Ids of no "
     "expert give zeros."},
    {"add", Op::kAdd, "a b", -1, "", "a + b with broadcasting of axes of length 1."},
    {"sub", Op::kSub, "a b", -1, "", "a - b with broadcasting."},
    {"mul", Op::kMul, "a b", -1, "", "a * b with broadcasting."},
    {"div", Op::kDiv, "a b", -1, "", "a / b with broadcasting."},
    {"scale", Op::kScale, "x", 0, "", "x * scale + bias."},
    {"unary", Op::kUnary, "x", 0, "kind", "An element-wise function: 'relu', 'silu', 'gelu', 'exp', 'sqr', ..."},
    {"clamp", Op::kClamp, "x", 0, "min max", "min(max(x, min), max)."},
    {"glu", Op::kGlu, "gate up", 0, "kind",
     "act(gate) * up. Without `up`, the last axis of `gate` is gate, then up. Kinds: 'swiglu', 'geglu', 'geglu_erf', "
     "'geglu_quick', 'reglu'."},
    {"compare", Op::kCompare, "a b", -1, "kind", "1 or 0 as i32. Kinds: 'eq', 'ne', 'lt', 'le', 'gt', 'ge'."},
    {"where", Op::kWhere, "condition a b", -1, "", "a if the i32 condition is not 0, else b."},
    {"rms_norm", Op::kRmsNorm, "x", 0, "", "x / sqrt(mean(x * x) + eps) over the last axis."},
    {"layer_norm", Op::kLayerNorm, "x", 0, "", "(x - mean) / sqrt(var + eps) over the last axis."},
    {"soft_max", Op::kSoftMax, "x mask sinks", 0, "",
     "Soft-max over the last axis of x (h, t, s) * scale + mask (1 or h, t, s). sinks (h,) add one logit per head."},
    {"rope", Op::kRope, "x positions freq_factors", 0, "dims",
     "Rotates pairs of elements of x (t, h, d) by positions i32 (t,). Modes: 'neighbours', 'halves'."},
    {"sum_rows", Op::kSumRows, "x", 0, "", "(..., a) -> (..., 1): sums over the last axis."},
    {"cumsum", Op::kCumsum, "x", 0, "", "Cumulative sums along the last axis."},
    {"argmax", Op::kArgmax, "x", 0, "", "(..., a) -> i32 (..., 1): index of the largest element of the last axis."},
    {"top_k", Op::kTopK, "x", 0, "k", "(..., a) -> i32 (..., k): indices of the k largest elements."},
    {"attention", Op::kAttention, "q k v positions mask sinks table sequences", 0, "",
     "q (h, t, d), k (g, s, d), v (g, s, e) -> (t, h, e); g divides h. causal and window need positions i32 (t,). With "
     "page > 0, k and v are a pool of pages, and table i32 (y, w) and sequences i32 (t,) select pages."},
    {"merge_attention", Op::kMergeAttention, "parts lse", 1, "", "Merges attention over parts of the rows."},
    {"conv_2d", Op::kConv2d, "w x", 1, "",
     "w (o, i, kh, kw), x (n, i * groups, h, w) -> (n, o, H, W). stride and dilation are (h, w); pads are (top, "
     "bottom, "
     "left, right)."},
    {"conv_transpose_2d", Op::kConvTranspose2d, "w x", 1, "",
     "w (i, o, kh, kw), x (n, i, h, w) -> (n, o * groups, H, W). Parameters as in conv_2d."},
    {"pool_2d", Op::kPool2d, "x", 0, "kernel",
     "(n, c, h, w) -> (n, c, H, W). Kinds: 'max', 'average'. Parameters as in conv_2d."},
    {"pad", Op::kPad, "x", 0, "",
     "New elements before and after each axis; one number per axis. Modes: 'constant', 'reflect', 'edge'."},
    {"upsample", Op::kUpsample, "x", 0, "size",
     "(n, c, h, w) -> (n, c, *size). Modes: 'nearest', 'bilinear', 'corners'."},
    {"causal_conv", Op::kCausalConv, "x weight state positions sequences slots", 0, "",
     "x (t, c), weight (c, k), state ((k - 1) * slots, c) -> the rows of t tokens, then the new states."},
    {"gated_delta", Op::kGatedDelta, "q k v decay beta state positions sequences slots", 0, "",
     "q, k (t, g, d), v (t, h, d), decay, beta (t, h), state (h, d * slots, d) -> the rows of t tokens, then the new "
     "states."},
    {"cast", Op::kCast, "x", 0, "dtype", "Converts x to another dtype."},
    {"contiguous", Op::kContiguous, "x", 0, "", "A contiguous copy of x."},
    {"concat", Op::kConcat, "*sources", -1, "axis", "Concatenates tensors along an axis."},
    {"repeat", Op::kRepeat, "x", 0, "shape", "Repeats x along its axes up to this shape."},
    {"fill", Op::kFill, "", -1, "shape", "A tensor with one value in all elements."},
    {"reshape", Op::kReshape, "x", 0, "shape", "The same elements with another shape. One length may be -1."},
    {"slice", Op::kSlice, "x", 0, "axis begin length", "The indices begin, begin + step, ... of one axis."},
    {"permute", Op::kPermute, "x", 0, "axes", "Axis i of the result is axis axes[i] of x."},
    {"reshard", Op::kReshard, "x", 0, "layout",
     "The value of x with this SplitState on a meta device: mirrored, even, lengths or runs."},
};

#define SHOAL_OP(id, name, kind, ...) +(OpKind::kind == OpKind::kCompute || OpKind::kind == OpKind::kView)
static_assert(std::size(kOps) + 1 == 0
#include "graph/ops.def"
              ,
              "one row for each op of a user's graph except external");

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) all.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

bool contains(const std::vector<std::string>& all, std::string_view one) {
  return std::ranges::find(all, one) != all.end();
}

// --- signatures --------------------------------------------------------------------------------------------------

template <class Value>
std::string type_text(std::string_view name) {
  if (name == "layout") return "SplitState";
  if constexpr (std::is_same_v<Value, bool>) {
    return "bool";
  } else if constexpr (std::is_floating_point_v<Value>) {
    return "float";
  } else if constexpr (std::is_integral_v<Value>) {
    return "int";
  } else if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, std::string>) {
    return "str";
  } else if constexpr (std::is_same_v<Value, std::vector<IndexRange>>) {
    return "collections.abc.Sequence[tuple[int, int]]";
  } else {
    return "collections.abc.Sequence[int]";
  }
}

template <class Value>
std::string default_text(const Value& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    return value ? "True" : "False";
  } else if constexpr (std::is_same_v<Value, DType>) {
    return fmt::format("'{}'", name_of(value));
  } else if constexpr (std::is_floating_point_v<Value>) {
    const std::string text = fmt::format("{}", value);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  } else if constexpr (std::is_integral_v<Value>) {
    return fmt::format("{}", value);
  } else {
    return "...";
  }
}

/// "def add(self, a: Tensor, b: Tensor, name: str = '') -> Tensor".
std::string signature(const OpRow& row) {
  const OpInfo& op = info(row.op);
  std::string text = fmt::format("def {}(self", row.name);
  int number = 0;
  bool is_optional = false;
  for (const std::string& source : words(row.sources)) {
    is_optional = number++ >= op.min_src;
    text += source.front() == '*' ? fmt::format(", {}: collections.abc.Sequence[Tensor]", source.substr(1))
                                  : fmt::format(", {}: Tensor{}", source, is_optional ? " | None = None" : "");
  }
  if (is_optional) text += ", *";
  const std::vector<std::string> needed = words(row.needed);
  std::string others;
  OpParams params = op.default_params;
  for_each_param(params, [&](std::string_view name, const auto& value) {
    const std::string type = type_text<std::remove_cvref_t<decltype(value)>>(name);
    if (contains(needed, name)) {
      text += fmt::format(", {}: {}", name, type);
    } else {
      others += fmt::format(", {}: {} = {}", name, type, default_text(value));
    }
  });
  return fmt::format("{}{}{}, name: str = '') -> Tensor", text, is_optional ? "" : ", *", others);
}

// --- parameters: Python values to the text form of the core ------------------------------------------------------

std::string list_text(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += fmt::format("{}{}", text.empty() ? "" : ",", value);
  return "[" + text + "]";
}

/// One number per axis of Python, as four numbers of the core.
std::vector<int64_t> all_axes(std::vector<int64_t> values, int64_t outer, std::string_view what) {
  require<InvalidArgument>(values.size() <= kMaxDims, "{} has {} numbers, but a tensor has at most {} axes", what,
                           values.size(), kMaxDims);
  std::ranges::reverse(values);
  values.resize(kMaxDims, outer);
  return values;
}

std::vector<int64_t> permutation(const std::vector<int64_t>& axes, std::string_view what) {
  const int count = static_cast<int>(axes.size());
  require<InvalidArgument>(count <= kMaxDims, "{}: axes has {} numbers, but a tensor has at most {} axes", what, count,
                           kMaxDims);
  std::vector<int64_t> result{0, 1, 2, 3};
  for (int i = 0; i < count; ++i) {
    result[static_cast<size_t>(count - 1 - i)] = core_axis(axes[static_cast<size_t>(i)], count, what);
  }
  return result;
}

/// Numbers for height and width, or one number for both.
std::vector<int64_t> pair(nb::handle value) {
  std::vector<int64_t> both = integers(value);
  if (both.size() == 1) both.push_back(both.front());
  std::ranges::reverse(both);
  return both;
}

std::string ranges_text(nb::handle value) {
  std::string text;
  for (const nb::handle range : nb::iter(value)) {
    const std::vector<int64_t> both = integers(range);
    if (both.size() != 2) throw nb::type_error("ranges is a sequence of pairs (begin, length)");
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", both[0], both[1]);
  }
  return "[" + text + "]";
}

std::string plain_text(std::string_view key, nb::handle value) {
  if (PyBool_Check(value.ptr()) != 0) return value.is(nb::handle(Py_True)) ? "true" : "false";
  if (PyUnicode_Check(value.ptr()) != 0) return checked_text(value, key);
  if (PyFloat_Check(value.ptr()) != 0) return nb::cast<std::string>(nb::repr(value));
  if (PyIndex_Check(value.ptr()) != 0) return fmt::format("{}", integer(value));
  if (PySequence_Check(value.ptr()) != 0) return list_text(integers(value));
  return nb::cast<std::string>(nb::repr(nb::object(nb::float_(value))));
}

/// A call of an op, collected from the arguments of Python.
struct Call {
  std::string what;  ///< "mul_mat y", for messages
  std::vector<TensorHandle*> sources;
  std::string params;
  std::string name;
  int axes = 0;         ///< axes of the source that decides, and then of the result
  bool is_set = false;  ///< whether a parameter has set the axes of the result

  void add_param(std::string_view key, nb::handle value);
};

void Call::add_param(std::string_view key, nb::handle value) {
  std::string text;
  if (key == "shape") {
    const std::vector<int64_t> lengths = integers(value);
    const Shape shape = core_shape(lengths, what);
    text = list_text({shape.begin(), shape.end()});
    axes = static_cast<int>(lengths.size()), is_set = true;
  } else if (key == "axes") {
    const std::vector<int64_t> order = integers(value);
    text = list_text(permutation(order, what));
    axes = static_cast<int>(order.size()), is_set = true;
  } else if (key == "axis") {
    text = fmt::format("{}", core_axis(integer(value), axes, what));
  } else if (key == "stride" || key == "dilation" || key == "kernel" || key == "size" || key == "output_pad") {
    text = list_text(pair(value));
  } else if (key == "pads") {
    std::vector<int64_t> pads = integers(value);
    if (pads.size() == 4) std::swap_ranges(pads.begin(), pads.begin() + 2, pads.begin() + 2);
    text = list_text(pads);
  } else if (key == "before" || key == "after") {
    text = list_text(all_axes(integers(value), 0, key));
  } else if (key == "ranges") {
    text = ranges_text(value);
  } else if (key == "layout") {
    const AnyState* state = nullptr;
    if (!nb::try_cast(value, state) || state == nullptr) {
      throw nb::type_error(
          fmt::format("{}: layout is {}; give a SplitState", what, nb::cast<std::string>(nb::repr(value))).c_str());
    }
    text = fmt::format("\"{}\"", state->reshard_text(*sources.at(0)->tensor, axes));
  } else {
    text = plain_text(key, value);
  }
  params += fmt::format("{}{}={}", params.empty() ? "" : ", ", key, text);
}

// --- calls -------------------------------------------------------------------------------------------------------

[[noreturn]] void raise_type_error(const std::string& text) {
  throw nb::type_error(text.c_str());
}

TensorHandle* tensor_of(const OpRow& row, const std::string& source, nb::handle value) {
  TensorHandle* handle = nullptr;
  if (!nb::try_cast(value, handle) || handle == nullptr) {
    raise_type_error(fmt::format("{}(): {} must be a Tensor, got {}", row.name, source,
                                 nb::cast<std::string>(nb::object(value.type().attr("__name__")))));
  }
  return handle;
}

std::vector<std::string> param_names(Op op) {
  std::vector<std::string> names;
  OpParams params = info(op).default_params;
  for_each_param(params, [&](std::string_view name, const auto&) { names.emplace_back(name); });
  return names;
}

/// Names of the arguments that may be positional: sources, then needed parameters if all sources are present.
std::vector<std::string> positional(const OpRow& row) {
  std::vector<std::string> names = words(row.sources);
  const bool is_list = !names.empty() && names.front().front() == '*';
  if (is_list) names.front().erase(0, 1);
  if (is_list || static_cast<int>(names.size()) <= info(row.op).min_src) {
    for (std::string& needed : words(row.needed)) names.push_back(std::move(needed));
  }
  return names;
}

/// The arguments by name.
nb::dict named(const OpRow& row, const nb::args& given, const nb::kwargs& keywords) {
  const std::vector<std::string> order = positional(row);
  if (given.size() > order.size()) {
    raise_type_error(fmt::format("{}() takes {} positional arguments, got {}", row.name, order.size(), given.size()));
  }
  nb::dict all;
  for (size_t i = 0; i < given.size(); ++i) all[order[i].c_str()] = given[i];
  for (const auto& [key, value] : keywords) {
    if (all.contains(key)) {
      raise_type_error(
          fmt::format("{}() got two values of '{}'", row.name, checked_text(key, "the name of an argument")));
    }
    all[key] = value;
  }
  return all;
}

nb::object take(nb::dict& arguments, const std::string& name) {
  if (!arguments.contains(name.c_str())) return {};
  nb::object value = arguments[name.c_str()];
  nb::del(arguments[name.c_str()]);
  return value;
}

void take_sources(const OpRow& row, nb::dict& arguments, Call& call) {
  int number = 0;
  for (const std::string& source : words(row.sources)) {
    const bool is_list = source.front() == '*';
    const std::string name = is_list ? source.substr(1) : source;
    const nb::object value = take(arguments, name);
    const bool is_given = value.is_valid() && !value.is_none();
    if (!is_given && number < info(row.op).min_src) {
      raise_type_error(fmt::format("{}() needs the argument '{}'", row.name, name));
    }
    if (is_list) {
      for (const nb::handle one : nb::iter(value)) call.sources.push_back(tensor_of(row, name, one));
    } else {
      call.sources.push_back(is_given ? tensor_of(row, name, value) : nullptr);
    }
    ++number;
  }
  if (row.axes_of >= 0) {
    call.axes = call.sources.at(static_cast<size_t>(row.axes_of))->axes;
  } else {
    for (const TensorHandle* source : call.sources) call.axes = std::max(call.axes, source ? source->axes : 0);
  }
}

void take_params(const OpRow& row, nb::dict& arguments, Call& call) {
  const std::vector<std::string> needed = words(row.needed);
  for (const std::string& name : param_names(row.op)) {
    const nb::object value = take(arguments, name);
    if (value.is_valid()) {
      call.add_param(name, value);
    } else if (contains(needed, name)) {
      raise_type_error(fmt::format("{}() needs the argument '{}'", row.name, name));
    }
  }
  for (const auto& [key, value] : arguments) {
    raise_type_error(fmt::format("{}() has no argument '{}'", row.name, checked_text(key, "the name of an argument")));
  }
}

TensorHandle* add_node(GraphHolder& graph, const OpRow& row, const nb::args& given, const nb::kwargs& keywords) {
  nb::dict arguments = named(row, given, keywords);
  Call call;
  if (const nb::object name = take(arguments, "name"); name.is_valid()) call.name = checked_text(name, "name");
  call.what = call.name.empty() ? row.name : fmt::format("{} {}", row.name, call.name);
  take_sources(row, arguments, call);
  take_params(row, arguments, call);
  std::vector<Tensor*> sources;
  for (TensorHandle* source : call.sources) sources.push_back(source == nullptr ? nullptr : graph.source(*source));
  while (!sources.empty() && sources.back() == nullptr) sources.pop_back();
  OpParams params = params_from_string(row.op, "{" + call.params + "}");
  Tensor* node = graph.graph.add_node(row.op, std::move(params), std::move(sources), std::move(call.name));
  return graph.handle(node, call.axes);
}

TensorHandle* add_transpose(GraphHolder& graph, TensorHandle& x, const std::string& name) {
  return graph.handle(transpose(graph.graph, graph.source(x), name), std::max(x.axes, 2));
}

TensorHandle* add_external(GraphHolder& graph, const std::string& op, const std::vector<TensorHandle*>& sources,
                           const std::string& args, const std::string& name) {
  std::vector<Tensor*> tensors;
  int axes = 0;
  for (TensorHandle* source : sources) {
    tensors.push_back(source == nullptr ? nullptr : graph.source(*source));
    axes = std::max(axes, source == nullptr ? 0 : source->axes);
  }
  return graph.handle(external(graph.graph, op, std::move(tensors), args, name), axes);
}

template <class Params, class Build>
auto signal_op(Build build) {
  return [build](GraphHolder& graph, TensorHandle& w, TensorHandle& x, int64_t stride, nb::handle pads,
                 int64_t dilation, int64_t groups, const std::string& name) {
    Params params;
    params.stride[0] = stride, params.dilation[0] = dilation, params.groups = groups;
    const std::vector<int64_t> both = integers(pads);
    require<InvalidArgument>(both.size() == 1 || both.size() == 2, "pads has {} numbers; give 1, or (begin, end)",
                             both.size());
    params.pads[0] = both.front(), params.pads[1] = both.back();
    Tensor* node = build(graph.graph, graph.source(w), graph.source(x), params, name);
    return graph.handle(node, x.axes);
  };
}

template <class Method>
void bind_signal(nb::class_<GraphHolder>& graph, const char* name, Method method, const char* text) {
  const std::string whole = fmt::format(
      "def {}(self, w: Tensor, x: Tensor, *, stride: int = 1, pads: int | collections.abc.Sequence[int] = 0, "
      "dilation: int = 1, groups: int = 1, name: str = '') -> Tensor",
      name);
  graph.def(name, method, "w"_a, "x"_a, nb::kw_only(), "stride"_a = 1, "pads"_a = 0, "dilation"_a = 1, "groups"_a = 1,
            "name"_a = "", nb::rv_policy::reference_internal, nb::sig(whole.c_str()), text);
}

void bind_composed(nb::class_<GraphHolder>& graph) {
  constexpr auto kInside = nb::rv_policy::reference_internal;
  graph.def("transpose", &add_transpose, "x"_a, nb::kw_only(), "name"_a = "", kInside, "Swaps the last two axes.");
  graph.def("external", &add_external, "op"_a, "sources"_a, nb::kw_only(), "args"_a = "", "name"_a = "", kInside,
            nb::sig("def external(self, op: str, sources: collections.abc.Sequence[Tensor], *, args: str = '', name: "
                    "str = '') -> Tensor"),
            "A registered op of the program or a plug-in.");
  graph.def(
      "group_norm",
      [](GraphHolder& self, TensorHandle& x, int64_t groups, float eps, const std::string& name) {
        return self.handle(group_norm(self.graph, self.source(x), groups, {.eps = eps}, name), x.axes);
      },
      "x"_a, "groups"_a, nb::kw_only(), "eps"_a = 1e-5f, "name"_a = "", kInside,
      "layer_norm over each group of channels of x (n, c, h, w).");
  bind_signal(graph, "conv_1d", signal_op<ConvParams>(conv_1d), "w (o, i, k), x (n, i * groups, t) -> (n, o, T).");
  bind_signal(graph, "conv_transpose_1d", signal_op<ConvTransposeParams>(conv_transpose_1d),
              "w (i, o, k), x (n, i, t) -> (n, o * groups, T).");
}

/// relu(x), silu(x), ... of activations.def.
void bind_unary(nb::class_<GraphHolder>& graph, const char* name, UnaryKind kind) {
  graph.def(
      name,
      [kind](GraphHolder& self, TensorHandle& x, const std::string& label) {
        return self.handle(unary(self.graph, self.source(x), kind, label), x.axes);
      },
      "x"_a, nb::kw_only(), "name"_a = "", nb::rv_policy::reference_internal);
}

}  // namespace

void bind_ops(nb::class_<GraphHolder>& graph) {
  for (const OpRow& row : kOps) {
    graph.def(
        row.name,
        [&row](GraphHolder& self, const nb::args& given, const nb::kwargs& keywords) {
          return add_node(self, row, given, keywords);
        },
        nb::sig(signature(row).c_str()), nb::rv_policy::reference_internal, row.text);
  }
  bind_composed(graph);
#define SHOAL_UNARY(id, name) bind_unary(graph, #name, UnaryKind::k##id);
#include "graph/activations.def"
}

}  // namespace shoal::python
