// Number of blocks that a communicator's kernels may use. A block that waits for another block must never prevent the
// start of the other block. Hence all blocks that the communicators of the process use on a GPU must fit on this GPU at
// the same time. Each communicator therefore reserves a number of multiprocessors for its lifetime. A block (kThreads
// threads) needs up to one multiprocessor. Thread-safe.
//
// If a kernel starts while the previous kernel still waits, these two kernels together may fill the GPU, so that no
// other block can start. Early starts are therefore allowed only if the mesh waits for no other work on its GPUs: each
// rank has a whole GPU, and no other communicator starts kernels early on this GPU.
//
// Example of three communicators that share a GPU with 132 multiprocessors:
//   8 ranks: 4 blocks each, 100 left | then 8 ranks: 3 blocks each, 76 left | then 16 ranks: 1 block each
#pragma once

#include <map>
#include <span>

namespace shoal::collectives::p2p {

class BlockShare {
 public:
  /// `gpus`: the GPU of each rank. `whole_gpus`: whether the process has no other devices on these GPUs. Each rank gets
  /// at least one block, at most `most` blocks, and at most half of the GPU's free multiprocessors. If several ranks
  /// share a GPU, each of them gets at most 8 blocks, and all of them together get at most a quarter of the free
  /// multiprocessors. These limits leave room for other communicators. Throws DeviceError if there is not enough room
  /// for one block per rank.
  BlockShare(std::span<const int> gpus, int most, bool whole_gpus);
  ~BlockShare();
  BlockShare(const BlockShare&) = delete;
  BlockShare& operator=(const BlockShare&) = delete;

  /// Number of blocks of each rank.
  int blocks() const { return blocks_; }
  /// Whether a kernel may let the next kernel start before this kernel has received all its data.
  bool next_may_start() const { return next_may_start_; }
  /// Number of blocks per rank that a new BlockShare would get now. Throws the errors of the constructor.
  static int available(std::span<const int> gpus, int most);

 private:
  std::map<int, int> ranks_;  ///< number of ranks per GPU
  int blocks_ = 0;
  bool next_may_start_ = false;
};

}  // namespace shoal::collectives::p2p
