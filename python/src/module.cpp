#include "python/src/module.h"

#include <dlfcn.h>
#include <nanobind/stl/string.h>

#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/text.h"

namespace shoal::python {

void bind_errors(nanobind::module_& module) {
  // nanobind tries the newest translator first, so base classes come before derived classes.
  nanobind::exception<Error>(module, "Error", PyExc_RuntimeError);
  nanobind::exception<DeviceError>(module, "DeviceError", module.attr("Error"));
  nanobind::exception<CommError>(module, "CommError", module.attr("Error"));
  nanobind::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const InvalidArgument& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const OutOfMemory& error) {
      PyErr_SetString(PyExc_MemoryError, error.what());
    }
  });
}

namespace {

/// Makes the symbols of this module visible to plug-ins, which link no library of shoal. Python loads modules with
/// hidden symbols.
void export_symbols() {
  Dl_info object{};
  if (dladdr(reinterpret_cast<void*>(&export_symbols), &object) != 0) {
    dlopen(object.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  }
}

}  // namespace

NB_MODULE(_shoal, module) {
  nanobind::set_leak_warnings(false);  // objects that live until the interpreter exits are no error
  module.doc() = "C++ part of the package shoal.";
  export_symbols();
  setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 0);  // hwloc's plug-ins only delay the start
  module.attr("version") = SHOAL_VERSION;
  module.attr("commit") = tools::build_commit();
  bind_errors(module);
  bind_engine(module);
  bind_session(module);
  module.def("report_truncated_mappings", &tools::report_truncated_mappings,
             "Ends the process with one line if a mapped model file is truncated.");
  bind_core(module);
}

}  // namespace shoal::python
