// The communicator of CUDA devices. For each call it chooses kernels over peer memory (collectives/p2p), NCCL, or
// staging through the host, by message size and device capabilities. Options::implementation can fix the choice. The
// choice depends only on the call's kind, its size and the mesh, so it is the same on every rank. Peer memory needs a
// single process. Ranks of several processes (Options::processes) therefore use NCCL if all processes have it, and
// staging otherwise.
#pragma once

#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace shoal::collectives::cuda {

/// Message size in bytes from which auto uses NCCL instead of p2p, unless the mesh has a measured threshold
/// (collectives/thresholds.h). For smaller messages latency decides: a kernel over peer memory takes a few
/// microseconds, NCCL takes 17 to 33 on 8 GPUs. For larger messages NCCL's algorithms use the links better. The value
/// is estimated, not measured: see docs/gpu-status.md.
inline constexpr size_t kNcclFromBytes = size_t{1} << 20;

/// A communicator over backends of CUDA devices. Throws DeviceError with the reason if the requested implementation
/// cannot be used, and InvalidArgument for backends of other devices. Synchronizes the backends. The call is collective
/// if there are several processes.
std::unique_ptr<Communicator> make_cuda_communicator(std::span<Backend* const> ranks, const Options& options = {});
/// The traits that the communicator will have. Throws the same errors as make_cuda_communicator(). It does not ask
/// other processes, so the actual communicator has other traits if one of these processes has no NCCL.
CommunicatorTraits describe_cuda_communicator(std::span<Device* const> devices, const Options& options = {});

}  // namespace shoal::collectives::cuda
