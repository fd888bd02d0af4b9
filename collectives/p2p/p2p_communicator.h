// P2pCommunicator: collectives over GPU memory that all ranks can read and write. The ranks are GPUs with peer access,
// or virtual devices of one GPU. The kernels of all ranks synchronize through flags in this memory (flags.h,
// packets.h), without the host. Calls can therefore be captured into CUDA graphs and replayed any number of times. All
// ranks must queue or replay the same calls in the same order. Sums are computed in rank order, so every rank gets the
// same bits in every run, with every form of all_reduce.
//
// Only one thread at a time may launch for a rank; different threads may launch for different ranks. Any thread may
// call abort() and check(). Waiting kernels occupy a GPU. Between two collective calls, a rank's stream must therefore
// not wait for another rank's stream by an event. Each virtual device of a GPU needs a hardware queue
// (CUDA_DEVICE_MAX_CONNECTIONS >= number of virtual devices). Protocol, steps and bytes: docs/p2p.md.
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

/// Largest message, in bytes on the wire, of a one-shot all_reduce, by number of ranks. One-shot sends 2 (n - 1) S
/// bytes and takes one latency; two-shot sends 2 (n - 1) / n S bytes and takes two latencies. With 3 us per latency and
/// 300 GB/s out of a GPU, both take the same time at about 900 KiB for 2 ranks, 180 KiB for 4 and 75 KiB for 8. The
/// values are computed, not measured: see docs/gpu-status.md.
struct Thresholds {
  int64_t one_shot_2 = 256 * 1024;
  int64_t one_shot_4 = 128 * 1024;  ///< 3 and 4 ranks
  int64_t one_shot_more = 64 * 1024;

  int64_t one_shot(int ranks) const { return ranks <= 2 ? one_shot_2 : ranks <= 4 ? one_shot_4 : one_shot_more; }
};

struct P2pOptions {
  /// Sends f32 sums as bf16: every addend and the result of an all_reduce are rounded to bf16; sums are computed in
  /// f32.
  bool bf16_wire = false;
  Thresholds thresholds = {};
  int max_blocks = kMaxBlocks;  ///< maximum number of blocks per kernel; lower if ranks share a GPU (BlockShare)
  bool whole_gpus = true;       ///< whether the process has no other devices on the ranks' GPUs
  cuda::SwitchedOff off = {};
};

class P2pCommunicator {
 public:
  /// Allocates and clears the ranks' memory. Throws InvalidArgument for no ranks, for more than kMaxRanks, or if two
  /// ranks share a stream. Throws DeviceError if two GPUs have no working peer access, other communicators leave too
  /// few multiprocessors, or an allocation fails. The streams must outlive the communicator and be synchronized before
  /// it is destroyed.
  explicit P2pCommunicator(std::span<const Place> places, const Options& options = {}, const P2pOptions& p2p = {});
  ~P2pCommunicator();
  P2pCommunicator(const P2pCommunicator&) = delete;
  P2pCommunicator& operator=(const P2pCommunicator&) = delete;

  int size() const { return static_cast<int>(places_.size()); }
  /// The traits of a communicator. `gpus`: CUDA device index of each rank's GPU. Throws DeviceError if this
  /// communicator cannot be made.
  static CommunicatorTraits describe(std::span<const int> gpus, const P2pOptions& p2p = {});
  /// Whether launch() supports the call, which must be valid (Communicator::validate).
  bool can(const Call& call) const;
  /// Queues the side of rank `rank`. Never waits; allocates only for the first call with a new Call::what. The call's
  /// counts and text may be freed afterwards. Throws DeviceError if CUDA refuses the launch.
  void launch(int rank, const Call& call);

  /// all_reduce + residual + RMSNorm (kernels.h). launch() sets `element`; `what` is as in Call.
  bool can(const NormReduction& reduction) const;
  /// Limits of the fused call, which is one launch of a one-shot kernel. For larger messages a two-shot all_reduce and
  /// separate kernels are faster.
  FusedLimits fused_limits() const;
  /// Also computes the row `reduction.in`, the result of the mul_mat `product`, on the rank's stream. `context` is the
  /// launch context of the rank's device. Uses one fused kernel if there is one, and several kernels otherwise. Ranks
  /// may use different kernels.
  void launch(int rank, NormReduction reduction, std::string_view what, Tensor* product = nullptr,
              const cuda::LaunchContext& context = {});

  /// Throws the CommError of the first failure, if any: a rank that did not arrive in time, ranks that queued different
  /// collectives, or abort(). The error is final and the same for every rank. Call check() after synchronizing the
  /// rank's stream; data are valid only if it does not throw.
  void check(int rank) const;
  /// Makes all present and later kernels give up their waits.
  void abort(std::string_view reason);
  /// Bytes of device memory of one rank.
  size_t buffer_bytes(int rank) const;

 private:
  /// The names of one rank's tensors; Mesh::name is an index into them.
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
  /// Calls `launch`, whose kernels may wait for other ranks. Throws DeviceError if they cannot be launched.
  void launch_kernels(int rank, std::string_view kind, std::string_view what, const auto& launch) const;

  const std::vector<Place> places_;
  const std::vector<cuda::LaunchContext> contexts_;  ///< per rank
  const P2pOptions options_;
  const std::chrono::nanoseconds timeout_;
  const BlockShare share_;
  const Layout layout_;
  std::unique_ptr<Memory> memory_;
  mutable std::mutex mutex_;  ///< guards the members below
  std::vector<Names> names_;  ///< per rank
  mutable std::string failure_;
  mutable TimeoutReport report_;
};

}  // namespace shoal::collectives::p2p
