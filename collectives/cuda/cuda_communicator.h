// The communicator of CUDA devices: chooses for each call between kernels over peer memory (collectives/p2p), NCCL, and
// staging through the host, by size and by what the devices can do; or uses the one that Options::implementation names.
// Every rank chooses the same, because only the call's kind, size and the mesh decide. Ranks of several processes
// (Options::processes) have NCCL, where all of these have it, or staging: peer memory is of one process.
#pragma once

#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace shoal::collectives::cuda {

/// Where auto goes from p2p to NCCL, by the bytes of a rank's message, unless it has been measured for the mesh
/// (collectives/thresholds.h). Latency decides below it: a kernel over peer memory takes a few microseconds, NCCL 17 to
/// 33 on 8 GPUs; above it NCCL's algorithms use the links better. Estimated, not measured: docs/gpu-status.md.
inline constexpr size_t kNcclFromBytes = size_t{1} << 20;

/// Over backends of CUDA devices. Throws DeviceError when the implementation that was asked for cannot be used (saying
/// why), InvalidArgument for backends of other devices. Synchronizes the backends. Over several processes it is
/// collective.
std::unique_ptr<Communicator> make_cuda_communicator(std::span<Backend* const> ranks, const Options& options = {});
/// What it will be like; throws the same. Of other processes nothing is asked: where NCCL is missing in one of them,
/// the communicator itself is another one than this says.
CommunicatorTraits describe_cuda_communicator(std::span<Device* const> devices, const Options& options = {});

}  // namespace shoal::collectives::cuda
