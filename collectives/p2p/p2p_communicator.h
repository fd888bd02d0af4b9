// P2pCommunicator: collectives over memory that the ranks' GPUs can read and write of each other: GPUs with peer
// access, or virtual devices of one GPU. Kernels of all ranks meet through flags in that memory (flags.h, packets.h),
// so that nothing is asked of the host: calls can be captured into CUDA graphs and replayed any number of times. All
// ranks must queue, or replay, the same calls in the same order. Sums are made in rank order: the same bits on every
// rank, in every run, whichever form of all_reduce is used.
//
// One thread at a time may launch for a rank, different ones for different ranks; abort() and check() may be called by
// any. Kernels that wait occupy a GPU: a rank's stream must not wait for another rank by other means between two calls
// of a collective, and virtual devices of one GPU need a hardware queue each (CUDA_DEVICE_MAX_CONNECTIONS >= their
// number). Protocol, steps and bytes: docs/p2p.md.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/p2p/block_share.h"
#include "collectives/p2p/kernels.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/timeouts.h"

namespace shoal::collectives::p2p {

using shoal::cuda::Place;

/// Up to which message all_reduce is one-shot, by the number of ranks; bytes on the wire. One-shot sends 2 (n - 1) S
/// bytes in one latency, two-shot 2 (n - 1) / n S in two; with 3 us a latency and 300 GB/s out of a GPU they break even
/// at about 900 KiB for 2 ranks, 180 KiB for 4 and 75 KiB for 8. Computed, not measured: docs/gpu-status.md.
struct Thresholds {
  int64_t one_shot_2 = 256 * 1024;
  int64_t one_shot_4 = 128 * 1024;  ///< 3 and 4 ranks
  int64_t one_shot_more = 64 * 1024;

  int64_t one_shot(int ranks) const { return ranks <= 2 ? one_shot_2 : ranks <= 4 ? one_shot_4 : one_shot_more; }
};

struct P2pOptions {
  /// f32 sums travel as bf16: every addend, and the result of all_reduce, are rounded to bf16; added in f32.
  bool bf16_wire = false;
  Thresholds thresholds = {};
  int max_blocks = kMaxBlocks;  ///< of a rank's kernels; fewer where ranks share a GPU (BlockShare)
  bool whole_gpus = true;       ///< the process has no other devices on the ranks' GPUs
  cuda::SwitchedOff off = {};
};

class P2pCommunicator {
 public:
  /// Allocates and clears the ranks' memory. Throws InvalidArgument for no ranks, too many, or a stream named twice;
  /// DeviceError when a pair of GPUs has no peer access that works, other communicators leave too few multiprocessors,
  /// or something cannot be allocated. The streams must outlive the communicator and be synchronized before it is
  /// destroyed.
  explicit P2pCommunicator(std::span<const Place> places, const Options& options = {}, const P2pOptions& p2p = {});
  ~P2pCommunicator();
  P2pCommunicator(const P2pCommunicator&) = delete;
  P2pCommunicator& operator=(const P2pCommunicator&) = delete;

  int size() const { return static_cast<int>(places_.size()); }
  /// What a communicator over these GPUs (of each rank, by CUDA's numbers) will be like. Throws DeviceError where there
  /// can be none.
  static CommunicatorTraits describe(std::span<const int> gpus, const P2pOptions& p2p = {});
  /// Could launch() run this? The call must be valid (Communicator::validate).
  bool can(const Call& call) const;
  /// Queues rank `rank`'s side. Never waits; allocates only for the first call with a new Call::what. The call's counts
  /// and text need not outlive this. Throws DeviceError if CUDA refuses the launch.
  void launch(int rank, const Call& call);

  /// all_reduce + residual + RMSNorm (kernels.h). `element` is chosen here; `what` as in Call.
  bool can(const NormReduction& reduction) const;
  /// One launch, and one-shot: where all_reduce would send less in two shots, that and the other kernels are faster.
  FusedLimits fused_limits() const;
  /// `product`: the mul_mat that still has to make the one row `reduction.in`, on the rank's stream and as its device
  /// would launch it, by `context`. Uses one fused kernel if there is one, several otherwise; ranks may differ.
  void launch(int rank, NormReduction reduction, std::string_view what, Tensor* product = nullptr,
              const cuda::LaunchContext& context = {});

  /// Throws the CommError if there was a failure: a rank that did not come within the time-out, ranks that queued
  /// different collectives, or abort(). For every rank the same and for good. To be called after the rank's stream was
  /// synchronized; data are valid only if it does not throw.
  void check(int rank) const;
  /// Lets all kernels that wait give up, now and from now on.
  void abort(std::string_view reason);
  /// Bytes of device memory.
  size_t buffer_bytes(int rank) const;

 private:
  /// Of one rank's tensors; Mesh::name is an index.
  struct Names {
    std::map<std::string, uint32_t, std::less<>> numbers;
    std::vector<std::string> texts;
  };
  class Memory;

  Mesh mesh(int rank, std::string_view what, uint32_t signature);
  uint32_t name(int rank, std::string_view what);
  Element element(DType dtype) const;
  void launch_alone(const Call& call);
  void all_reduce(int rank, const Mesh& mesh, const Call& call);
  Routes routes(int rank, const Call& call) const;
  std::string failure_message() const;
  std::string describe(int rank, const FailureRecord& record) const;
  /// Calls `launch`, whose kernels may wait for other ranks. Throws DeviceError when they cannot be launched.
  void launch_kernels(int rank, std::string_view kind, std::string_view what, const auto& launch) const;

  const std::vector<Place> places_;
  const std::vector<cuda::LaunchContext> contexts_;  ///< of each rank
  const P2pOptions options_;
  const std::chrono::nanoseconds timeout_;
  const BlockShare share_;
  const Layout layout_;
  std::unique_ptr<Memory> memory_;
  mutable std::mutex mutex_;  ///< of what follows
  std::vector<Names> names_;  ///< of each rank
  mutable std::string failure_;
  mutable TimeoutReport report_;
};

}  // namespace shoal::collectives::p2p
