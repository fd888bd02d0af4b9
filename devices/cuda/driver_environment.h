// What the driver must be told before CUDA is first called in a process: it reads the environment once. Collectives
// whose kernels wait for each other on one GPU hang without it.
#pragma once

namespace shoal::cuda {

/// Sets CUDA_DEVICE_MAX_CONNECTIONS=32 and CUDA_MODULE_LOADING=EAGER where they are not set. The plug-in does it when
/// it is loaded: early enough unless the program has called CUDA by itself, in which case the program or what starts
/// it has to set both. Changes the environment: not beside other threads that read it.
void set_driver_environment();

}  // namespace shoal::cuda
