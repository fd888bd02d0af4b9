// The NCCL communicator: each rank's side is called by the launcher thread of the rank's own stream, so that a call
// that waits for its peers (NCCL connecting them at first use) holds up no other, and can be captured into CUDA
// graphs.
//
// NCCL itself waits for ever for a rank that does not come. Communicators are therefore non-blocking; a thread that
// waits for a stream looks at the time and at NCCL's asynchronous error (Launcher::Watch), and on trouble all ranks
// abort theirs. Over several processes each calls for its own ranks; what it finds wrong ends those of all. NCCL ends a
// rank only when no CUDA graph refers to it: recordings must be gone before the communicator is destroyed.
#pragma once

#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace shoal::collectives::nccl {

/// Over backends of CUDA devices. Throws DeviceError without a usable NCCL, or when several ranks share a GPU. Over
/// several processes (Options::processes) it is collective and throws the same everywhere; and CommError where they
/// have different versions.
std::unique_ptr<Communicator> make_nccl_communicator(std::span<Backend* const> ranks, const Options& options);

/// Why these devices cannot use NCCL, as far as this process knows; empty when they can. Of devices of other processes
/// nothing is known.
std::string why_not(std::span<Device* const> ranks);

}  // namespace shoal::collectives::nccl
