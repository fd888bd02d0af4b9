// The loaded model behind the Python classes Engine and Session.
#pragma once

#include "python/src/core.h"
#include "tools/startup/service.h"

namespace shoal::python {

/// Ends the engine's thread without the global interpreter lock, because threads of Python may compute the masks for
/// which the thread waits.
struct OpenService {
  explicit OpenService(std::unique_ptr<tools::Service> loaded) : service(loaded.release()) {}
  ~OpenService() {
    if (!service.get_deleter().is_current()) return;
    const UnlockedPython release;
    service->thread().stop();
  }
  /// Throws Error in a child process.
  tools::Service* operator->() const {
    service.get_deleter().check();
    return service.get();
  }

  Owned<tools::Service> service;
};

}  // namespace shoal::python
