// The communicator of CUDA devices. Each call uses kernels over peer memory (collectives/p2p), NCCL, or staging through
// the host. The choice depends only on the kind and size of the call, on the devices and on the measured thresholds, so
// every rank makes the same choice. Options::implementation can prescribe an implementation. Kernels over peer memory
// need a single process. Ranks of several processes (Options::processes) therefore use NCCL if all processes have NCCL.
// Otherwise these ranks use staging.
#pragma once

#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace shoal::collectives::cuda {

/// Size in bytes of the smallest message for which "auto" uses NCCL instead of p2p. A threshold that was measured for
/// the mesh replaces this value (collectives/thresholds.h). Latency dominates the time of smaller messages. A kernel
/// over peer memory takes a few microseconds, and NCCL takes 17 to 33 microseconds on 8 GPUs. For larger messages, NCCL
/// uses more of the link bandwidth than p2p. The value is estimated, not measured: see docs/gpu-status.md.
inline constexpr size_t kNcclFromBytes = size_t{1} << 20;

/// A communicator for backends of CUDA devices. Throws DeviceError with the reason if the requested implementation
/// cannot be used. Throws InvalidArgument for backends of other devices. Synchronizes the backends. With several
/// processes, all processes must call this function.
std::unique_ptr<Communicator> make_cuda_communicator(std::span<Backend* const> ranks, const Options& options = {});
/// Predicts the traits of the communicator that make_cuda_communicator() would make. Throws the same errors. The
/// prediction assumes that all other processes have NCCL. The actual traits differ if one of these processes has no
/// NCCL.
CommunicatorTraits describe_cuda_communicator(std::span<Device* const> devices, const Options& options = {});

}  // namespace shoal::collectives::cuda
