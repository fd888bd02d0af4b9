#include "devices/cuda/driver_environment.h"

#include <cstdlib>

namespace shoal::cuda {

void set_driver_environment() {
  // Number of streams with a hardware queue of their own. If two streams share a queue, kernels in them that wait for
  // each other never end.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // With lazy loading, the first launch of a kernel may wait until the GPU is idle. That would deadlock while a kernel
  // of a collective on that GPU waits for another rank.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace shoal::cuda
