// The parts of the Python module shoal._shoal. The package (python/shoal) wraps them; users import the package.
#pragma once

#include <nanobind/nanobind.h>

namespace shoal::python {

/// Makes C++ exceptions Python exceptions: InvalidArgument -> ValueError, OutOfMemory -> MemoryError, other errors ->
/// DeviceError or CommError, both subclasses of RuntimeError.
void bind_errors(nanobind::module_& module);
/// Engine, Channel, Output and AnswerSplitter.
void bind_engine(nanobind::module_& module);
/// Session. After bind_engine().
void bind_session(nanobind::module_& module);
/// Tensor, Graph, SplitState, Device, MetaDevice and Plan.
void bind_core(nanobind::module_& module);

}  // namespace shoal::python
