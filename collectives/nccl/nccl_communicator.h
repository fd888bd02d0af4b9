// The NCCL communicator. The launcher thread of a rank's stream makes the rank's calls to NCCL. A call that waits for
// its peers (NCCL connects ranks at first use) therefore delays no other rank, and calls can be captured into CUDA
// graphs.
//
// NCCL itself waits forever for a missing rank. Communicators are therefore non-blocking. A thread that waits for a
// stream checks the time and NCCL's asynchronous error (Launcher::Watch). On a failure all ranks abort their
// communicators. With several processes, each process calls NCCL for its own ranks, and a failure in one process aborts
// the ranks of all processes. NCCL frees a rank only when no CUDA graph refers to it, so destroy recordings before the
// communicator.
#pragma once

#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace shoal::collectives::nccl {

/// A communicator over backends of CUDA devices. Throws DeviceError if NCCL is not usable or several ranks share a GPU.
/// With several processes (Options::processes) the call is collective and throws the same error in all processes. It
/// throws CommError if the processes have different NCCL versions.
std::unique_ptr<Communicator> make_nccl_communicator(std::span<Backend* const> ranks, const Options& options);

/// The reason why these devices cannot use NCCL; "" if they can. Devices of other processes are not checked.
std::string why_not(std::span<Device* const> ranks);

}  // namespace shoal::collectives::nccl
