// Lists of dtypes for parametrised tests.
#pragma once

#include <vector>

#include "graph/dtype.h"

namespace shoal::test {

/// The types that weights may have: floating-point and quantised types.
inline std::vector<DType> weight_types() {
  std::vector<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (traits(dtype).is_float || traits(dtype).is_quantized) types.push_back(dtype);
  }
  return types;
}

}  // namespace shoal::test
