// C functions for external ops.
#include "c/guard.h"
#include "graph/external_op.h"
#include "meta/check/check_op.h"

using namespace shoal;
using namespace shoal::c;

shoal_status shoal_op_register(const shoal_op* op) {
  return guard(__func__, [&] { register_op(object(op, "op")); });
}

shoal_status shoal_op_unregister(const char* name) {
  return guard(__func__, [&] { unregister_op(text(name, "name")); });
}

shoal_blob* shoal_op_check_text(const char* name, const char* const* graphs, size_t graph_count) {
  return guard<shoal_blob*>(__func__, nullptr, [&] {
    std::vector<OpCase> cases;
    for (const char* graph : elements(graphs, graph_count, "graphs")) {
      cases.push_back({.graph = std::string(text(graph, "graphs"))});
    }
    return blob_of(to_string(check_op(text(name, "name"), cases)));
  });
}
