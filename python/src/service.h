// The loaded model behind the Python classes Engine and Session.
#pragma once

#include "python/src/core.h"
#include "tools/startup/service.h"

namespace shoal::python {

/// Ends the engine's thread without the global interpreter lock, because threads of Python may compute the masks for
/// which the thread waits.
struct OpenService : tools::Service {
  using Service::Service;
  ~OpenService() {
    const UnlockedPython release;
    thread().stop();
  }
};

}  // namespace shoal::python
