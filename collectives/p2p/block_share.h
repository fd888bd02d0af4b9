// Number of blocks that a communicator's kernels may use. A waiting block must never occupy the place of the block that
// it waits for. Hence all blocks that use a GPU, of all ranks and all communicators of the process, must fit on it at
// the same time. Each communicator reserves its share of the multiprocessors while it lives. A block (kThreads threads)
// needs up to one multiprocessor. Thread-safe.
//
// A kernel that starts while the previous kernel still waits may fill a GPU, so that no other block can start. It may
// therefore start early only if the mesh waits for no other work on this GPU: each rank has a whole GPU, on which no
// other communicator starts kernels early.
//
//   132 processors:  8 ranks  4 blocks each, 100 left |  8 more ranks  3 blocks each, 76 left | 16 ranks  1 block each
#pragma once

#include <map>
#include <span>

namespace shoal::collectives::p2p {

class BlockShare {
 public:
  /// `gpus`: the GPU of each rank. Each rank gets at least one block, at most `most`, and at most half of the GPU's
  /// free multiprocessors. If several ranks share a GPU, each gets at most 8 blocks, and together they get at most a
  /// quarter of the free multiprocessors. This leaves room for other communicators. Throws DeviceError if there is not
  /// enough room for one block per rank. `whole_gpus`: whether the process has no other devices on these GPUs.
  BlockShare(std::span<const int> gpus, int most, bool whole_gpus);
  ~BlockShare();
  BlockShare(const BlockShare&) = delete;
  BlockShare& operator=(const BlockShare&) = delete;

  /// Number of blocks of each rank.
  int blocks() const { return blocks_; }
  /// Whether a kernel may let the next kernel start before it has received all its data.
  bool next_may_start() const { return next_may_start_; }
  /// Number of blocks per rank that a new BlockShare would get now. Throws the errors of the constructor.
  static int available(std::span<const int> gpus, int most);

 private:
  std::map<int, int> ranks_;  ///< number of ranks per GPU
  int blocks_ = 0;
  bool next_may_start_ = false;
};

}  // namespace shoal::collectives::p2p
