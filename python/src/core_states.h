// Split states and hints of Python.
#pragma once

#include "python/src/core.h"

namespace shoal::python {

/// The Python class Hint.
struct HintedState {
  AnyState state;
  double factor = meta::kHintFactor;
};

void bind_states(nb::module_& module);

}  // namespace shoal::python
