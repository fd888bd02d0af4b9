// The NCCL communicator: each rank's side is called by the launcher thread of the rank's own stream, so that a call
// that waits for its peers (NCCL connecting them at first use) holds up no other, and can be captured into CUDA
// graphs.
//
// NCCL itself waits for ever for a rank that does not come. Communicators are therefore non-blocking; a thread that
// waits for a stream looks at the time and at NCCL's asynchronous error (Launcher::Watch), and on trouble all ranks
// abort theirs. NCCL ends a rank only when no CUDA graph refers to it: recordings must be gone before the communicator
// is destroyed.
#pragma once

#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace shoal::collectives::nccl {

/// Over backends of CUDA devices. Throws DeviceError without a usable NCCL, or when several ranks share a GPU and it is
/// too old for that.
std::unique_ptr<Communicator> make_nccl_communicator(std::span<Backend* const> ranks, const Options& options);

/// Why these devices cannot use NCCL; empty when they can.
std::string why_not(std::span<Device* const> ranks);

}  // namespace shoal::collectives::nccl
