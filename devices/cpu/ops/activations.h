// The element-wise functions of unary and glu as loops over a piece of a row.
#pragma once

#include <cstdint>

#include "graph/ops/params.h"

namespace shoal::cpu {

/// to[i] = f(from[i]) for i < n, n <= kChunk; `to` may be `from`.
using Activation = void (*)(const float* from, float* to, int64_t n);

Activation activation_for(UnaryKind kind);

}  // namespace shoal::cpu
