// C functions for graphs.
#include "c/guard.h"
#include "graph/text.h"

using namespace shoal;
using namespace shoal::c;

namespace {

shoal_tensor* nth(std::span<Tensor* const> tensors, size_t index, const char* what) {
  require<InvalidArgument>(index < tensors.size(), "there is no {} number {}; their number is {}", what, index,
                           tensors.size());
  return handle_of<shoal_tensor>(tensors[index]);
}

}  // namespace

shoal_graph* shoal_graph_new(const char* name) {
  return guard<shoal_graph*>(__func__, nullptr,
                             [&] { return handle_of<shoal_graph>(new Graph(std::string(text_or_empty(name)))); });
}

shoal_graph* shoal_graph_parse(const char* name, const char* text_form, shoal_weights* weights) {
  return guard<shoal_graph*>(__func__, nullptr, [&] {
    auto graph = std::make_unique<Graph>(std::string(text_or_empty(name)));
    parse_graph(text(text_form, "text"), *graph, object(weights, "weights"));
    return handle_of<shoal_graph>(graph.release());
  });
}

void shoal_graph_free(shoal_graph* graph) {
  destroy(graph);
}

shoal_tensor* shoal_graph_input(shoal_graph* graph, const char* name, shoal_dtype dtype, size_t axes,
                                const int64_t* shape) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] {
    return handle_of<shoal_tensor>(
        object(graph, "graph").input(std::string(text(name, "name")), dtype_of(dtype), shape_of(axes, shape)));
  });
}

shoal_tensor* shoal_graph_node(shoal_graph* graph, const char* op, shoal_tensor* const* sources, size_t source_count,
                               const char* params, const char* name) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] {
    const auto found = op_from_name(text(op, "op"));
    require<InvalidArgument>(found.has_value() && *found != Op::kNone,
                             "there is no op '{}'; graph/ops/ops.h lists the ops", op);
    std::vector<Tensor*> tensors;
    for (shoal_tensor* source : elements(sources, source_count, "sources")) {
      tensors.push_back(source == nullptr ? nullptr : &object(source, "sources"));
    }
    return handle_of<shoal_tensor>(object(graph, "graph")
                                       .add_node(*found, params_from_string(*found, text_or_empty(params)),
                                                 std::move(tensors), std::string(text_or_empty(name))));
  });
}

shoal_status shoal_graph_output(shoal_graph* graph, shoal_tensor* tensor) {
  return guard(__func__, [&] { object(graph, "graph").output(&object(tensor, "tensor")); });
}

size_t shoal_graph_input_count(const shoal_graph* graph) {
  return guard<size_t>(__func__, 0, [&] { return object(graph, "graph").inputs().size(); });
}

shoal_tensor* shoal_graph_get_input(const shoal_graph* graph, size_t index) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] { return nth(object(graph, "graph").inputs(), index, "input"); });
}

size_t shoal_graph_node_count(const shoal_graph* graph) {
  return guard<size_t>(__func__, 0, [&] { return object(graph, "graph").nodes().size(); });
}

shoal_tensor* shoal_graph_get_node(const shoal_graph* graph, size_t index) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] { return nth(object(graph, "graph").nodes(), index, "node"); });
}

shoal_tensor* shoal_graph_find(const shoal_graph* graph, const char* name) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] {
    const Tensor* found = object(graph, "graph").find(text(name, "name"));
    require<InvalidArgument>(found != nullptr, "the graph has no tensor '{}'", name);
    return handle_of<shoal_tensor>(found);
  });
}

shoal_blob* shoal_graph_text(const shoal_graph* graph) {
  return guard<shoal_blob*>(__func__, nullptr, [&] { return blob_of(to_string(object(graph, "graph"))); });
}
