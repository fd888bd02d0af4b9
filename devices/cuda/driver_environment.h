// Environment variables that the driver needs before the first CUDA call of a process. The driver reads these variables
// only once. Without these variables, collectives hang if their kernels wait for each other on one GPU.
#pragma once

namespace shoal::cuda {

/// Sets CUDA_DEVICE_MAX_CONNECTIONS=32 and CUDA_MODULE_LOADING=EAGER, each only if the variable has no value yet. The
/// plug-in calls this function when the plug-in is loaded. A program that calls CUDA before it loads the plug-in must
/// set both variables before its first CUDA call. This function changes the environment, so no other thread may read
/// the environment concurrently.
void set_driver_environment();

}  // namespace shoal::cuda
