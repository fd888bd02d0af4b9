// P2pCommunicator: collectives over GPU memory that all ranks can read and write. The ranks are GPUs with peer access,
// or virtual devices of one GPU. The kernels of all ranks synchronize through flags in this memory (flags.h,
// packets.h), without the host. Calls can therefore be captured into CUDA graphs and replayed any number of times. All
// ranks must queue or replay the same calls in the same order. Sums are computed in rank order, so every rank gets the
// same bits in every run, with every all_reduce kernel.
//
// Only one thread at a time may launch for a rank; different threads may launch for different ranks. Any thread may
// call abort() and check().
//
// A kernel that waits keeps its multiprocessors. Between two collective calls, a rank's stream must therefore not wait
// for an event of another rank's stream. Each virtual device of a GPU needs a hardware queue
// (CUDA_DEVICE_MAX_CONNECTIONS >= number of virtual devices).
//
// docs/p2p.md describes the protocol, steps and bytes.
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

/// The largest message (bytes on the wire) for which the one-shot all_reduce is used, for each number of ranks n. For a
/// message of S bytes, one-shot sends 2 (n - 1) S bytes and takes one latency. Two-shot sends 2 (n - 1) / n S bytes and
/// takes two latencies. With 3 us per latency and 300 GB/s out of a GPU, both kernels need the same time at about 880
/// KiB for 2 ranks, 195 KiB for 4 ranks and 72 KiB for 8 ranks. The defaults are smaller than these computed sizes, and
/// no measurement confirms the defaults: see docs/gpu-status.md.
struct Thresholds {
  int64_t one_shot_2 = 256 * 1024;
  int64_t one_shot_4 = 128 * 1024;  ///< for 3 and 4 ranks
  int64_t one_shot_more = 64 * 1024;

  int64_t one_shot(int ranks) const { return ranks <= 2 ? one_shot_2 : ranks <= 4 ? one_shot_4 : one_shot_more; }
};

struct P2pOptions {
  /// Sends f32 sums as bf16. Rounds every addend and the result of an all_reduce to bf16. The sums themselves are
  /// computed in f32.
  bool bf16_wire = false;
  Thresholds thresholds = {};
  int max_blocks = kMaxBlocks;  ///< maximum number of blocks per kernel; ranks that share a GPU may get fewer
                                ///< (BlockShare)
  bool whole_gpus = true;       ///< whether the process has no other devices on the ranks' GPUs
  cuda::SwitchedOff off = {};
};

class P2pCommunicator {
 public:
  /// Allocates and clears the memory of all ranks. Throws InvalidArgument if there are no ranks, if there are more than
  /// kMaxRanks ranks, or if two ranks share a stream. Throws DeviceError if two GPUs have no working peer access, if
  /// other communicators leave too few multiprocessors, or if an allocation fails. The streams must outlive the
  /// communicator. The caller must synchronize the streams before the communicator is destroyed.
  explicit P2pCommunicator(std::span<const Place> places, const Options& options = {}, const P2pOptions& p2p = {});
  ~P2pCommunicator();
  P2pCommunicator(const P2pCommunicator&) = delete;
  P2pCommunicator& operator=(const P2pCommunicator&) = delete;

  int size() const { return static_cast<int>(places_.size()); }
  /// Returns the traits that a communicator on these GPUs would have. `gpus`: CUDA device index of each rank's GPU.
  /// Throws DeviceError if the communicator cannot be made.
  static CommunicatorTraits describe(std::span<const int> gpus, const P2pOptions& p2p = {});
  /// Whether launch() supports the call. The call must be valid (Communicator::validate).
  bool can(const Call& call) const;
  /// Queues the kernel of rank `rank`. Never waits. Allocates host memory only in the first call with each new
  /// Call::what. The caller may free the call's counts and text afterwards. Throws DeviceError if CUDA refuses the
  /// launch.
  void launch(int rank, const Call& call);

  /// Whether launch() supports the fused all_reduce, residual add and RMSNorm (kernels.h). launch() sets
  /// reduction.element.
  bool can(const NormReduction& reduction) const;
  /// Size limits of the fused call. The fused call is one launch of a one-shot kernel. For larger messages, a two-shot
  /// all_reduce and separate kernels are faster.
  FusedLimits fused_limits() const;
  /// Queues the fused call. `what` is the tensor name for messages. If `product` is not null, the call also computes
  /// the row `reduction.in` as the result of this mul_mat. If a fused kernel exists for the call, this kernel computes
  /// everything. Otherwise several kernels run on the rank's stream. Some ranks may use the fused kernel while other
  /// ranks use several kernels. `context`: the launch context of the rank's device.
  void launch(int rank, NormReduction reduction, std::string_view what, Tensor* product = nullptr,
              const cuda::LaunchContext& context = {});

  /// If there was a failure, throws the CommError of the first failure: a rank did not arrive in time, ranks queued
  /// different collectives, or abort() was called. All later calls throw the same error, on every rank. Call check()
  /// after synchronizing the rank's stream; data are valid only if check() does not throw.
  void check(int rank) const;
  /// Makes all current and later kernels stop waiting for other ranks.
  void abort(std::string_view reason);
  /// Size in bytes of the device memory that the communicator allocates for one rank.
  size_t buffer_bytes(int rank) const;

 private:
  /// Tensor names of one rank. Mesh::name is an index into `texts`.
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
  /// Calls `launch`, which launches kernels that may wait for other ranks. Throws DeviceError if a launch fails.
  void launch_kernels(int rank, std::string_view kind, std::string_view what, const auto& launch) const;

  const std::vector<Place> places_;
  const std::vector<cuda::LaunchContext> contexts_;  ///< one context per rank
  const P2pOptions options_;
  const std::chrono::nanoseconds timeout_;
  const BlockShare share_;
  const Layout layout_;
  std::unique_ptr<Memory> memory_;
  mutable std::mutex mutex_;  ///< guards the members below
  std::vector<Names> names_;  ///< one element per rank
  mutable std::string failure_;
  mutable TimeoutReport report_;
};

}  // namespace shoal::collectives::p2p
