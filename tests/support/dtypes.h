// Lists of types for parameters of tests.
#pragma once

#include <vector>

#include "graph/dtype.h"

namespace shoal::test {

/// Those that weights may have: numbers with a point, and quantised ones.
inline std::vector<DType> weight_types() {
  std::vector<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (traits(dtype).is_float || traits(dtype).is_quantized) types.push_back(dtype);
  }
  return types;
}

}  // namespace shoal::test
