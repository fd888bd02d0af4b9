// How many blocks a communicator's kernels may have. A block that waits must never keep away the one that it waits for:
// the blocks of all ranks that share a GPU, of all communicators of the process, must fit there at the same time. So
// each takes its share of the multiprocessors for as long as it lives; kThreads threads need up to a whole one.
// Thread-safe.
//
// A kernel behind one that waits may fill a GPU, and keep away the blocks of everything else. So it may start beside
// that one only if all else that the mesh waits for runs on other GPUs: each rank has a whole GPU, on which no other
// communicator does the same.
//
//   132 processors:  8 ranks  4 blocks each, 100 left |  8 more ranks  3 blocks each, 76 left | 16 ranks  1 block each
#pragma once

#include <map>
#include <span>

namespace shoal::collectives::p2p {

class BlockShare {
 public:
  /// gpus: of each rank. At most `most` blocks for each, and half of what is left of a GPU; where ranks share it, at
  /// most 8, and a quarter for all, so that others find room; at least one. Throws DeviceError when there is no room
  /// for one block each. whole_gpus: the process has no other devices on these GPUs.
  BlockShare(std::span<const int> gpus, int most, bool whole_gpus);
  ~BlockShare();
  BlockShare(const BlockShare&) = delete;
  BlockShare& operator=(const BlockShare&) = delete;

  /// Of each rank.
  int blocks() const { return blocks_; }
  /// May kernels let the next one start before they have received everything?
  bool next_may_start() const { return next_may_start_; }
  /// What such a share would have now. Throws as the constructor does.
  static int available(std::span<const int> gpus, int most);

 private:
  std::map<int, int> ranks_;  ///< of each GPU
  int blocks_ = 0;
  bool next_may_start_ = false;
};

}  // namespace shoal::collectives::p2p
