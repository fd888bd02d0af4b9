#include "devices/cuda/driver_environment.h"

#include <cstdlib>

namespace shoal::cuda {

void set_driver_environment() {
  // Each stream has a queue of its own in the hardware only as far as this goes; kernels of two streams in one queue
  // that wait for each other would never end.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // A kernel that is loaded at its first launch may have to wait until the GPU is idle, which it is not while a kernel
  // of a collective waits there for another rank.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace shoal::cuda
