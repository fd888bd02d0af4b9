// The NCCL communicator. The launcher thread of a rank's stream makes the rank's calls to NCCL. NCCL connects ranks at
// first use, so the first call of a rank waits for its peers. This wait delays no other rank, because each rank has its
// own thread. Calls can also be captured into CUDA graphs.
//
// NCCL itself waits forever for a missing rank. Communicators are therefore non-blocking: a thread that waits for a
// stream checks the time and NCCL's asynchronous error (Launcher::Watch). After a failure all ranks abort their
// communicators.
//
// With several processes, each process calls NCCL for its own ranks, and a failure in one process aborts the ranks of
// all processes.
//
// NCCL frees a rank only when no CUDA graph refers to the rank, so destroy recordings before the communicator.
#pragma once

#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace shoal::collectives::nccl {

/// A communicator for backends of CUDA devices. Throws DeviceError if NCCL is not usable or if several ranks share a
/// GPU. With several processes (Options::processes), all processes must call this function, and the function throws the
/// same error in all processes. It throws CommError if the processes have different NCCL versions.
std::unique_ptr<Communicator> make_nccl_communicator(std::span<Backend* const> ranks, const Options& options);

/// The reason why these devices cannot use NCCL, or "" if these devices can use NCCL. Does not check devices of other
/// processes.
std::string why_not(std::span<Device* const> ranks);

}  // namespace shoal::collectives::nccl
