#include "devices/cuda/driver_environment.h"

#include <cstdlib>

namespace shoal::cuda {

void set_driver_environment() {
  // Number of hardware queues for streams. If two streams share a queue and their kernels wait for each other, these
  // kernels never end.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // With lazy loading, the first launch of a kernel may wait until the GPU is idle. This wait is a deadlock if a kernel
  // of a collective on that GPU waits for another rank.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace shoal::cuda
