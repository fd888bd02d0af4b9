// The element-wise functions of unary and glu as loops over a piece of a row.
#pragma once

#include "devices/cpu/isa.h"
#include "graph/ops/params.h"

namespace shoal::cpu {

/// to[i] = f(from[i]) for i < n; `to` may be `from`.
inline UnaryKernel activation_for(UnaryKind kind) {
  return kernels().rows.unary[static_cast<size_t>(kind)];
}

/// to[i] = f(gate[i]) * up[i]; `to` may be either.
inline GluKernel glu_for(GluKind kind) {
  return kernels().rows.glu[static_cast<size_t>(kind)];
}

}  // namespace shoal::cpu
