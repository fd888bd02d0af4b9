// The op external: see graph/external_op.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::external(Tensor& node) {
  Expect(node, "x")(false, "a registered op, got '{}'", params_of<ExternalParams>(node).op);
}

}  // namespace shoal
