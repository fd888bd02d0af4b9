#include "collectives/p2p/block_share.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "base/error.h"
#include "devices/cuda/cuda_api.h"

namespace shoal::collectives::p2p {
namespace {

/// Maximum number of blocks of a rank that shares its GPU with other ranks.
constexpr int kMostShared = 8;

/// All blocks and GPUs that the communicators of the process have reserved.
struct Taken {
  std::mutex mutex;
  std::map<int, int> blocks;
  std::set<int> filled;  ///< GPUs on which a kernel may start while another kernel waits
};

Taken& taken() {
  static Taken& taken = *new Taken;  // never destroyed, because communicators may outlive static objects
  return taken;
}

int processors_of(int gpu) {
  int processors = 0;
  cuda::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, gpu), fmt::format("GPU {}", gpu),
              "query the number of multiprocessors");
  return processors;
}

/// Number of ranks on each GPU.
std::map<int, int> count_ranks(std::span<const int> gpus) {
  std::map<int, int> ranks;
  for (const int gpu : gpus) ++ranks[gpu];
  return ranks;
}

/// Number of blocks that each rank of a new communicator gets. The caller must hold the mutex.
int find_blocks(const std::map<int, int>& ranks_of, int most, Taken& all) {
  int blocks = std::max(most, 1);
  for (const auto& [gpu, ranks] : ranks_of) {
    const int processors = processors_of(gpu), left = processors - all.blocks[gpu];
    if (left < ranks) {
      fail<DeviceError>(
          "[p2p communicator] GPU {} has {} multiprocessors, and other communicators use {} of them; each of the {} "
          "new ranks needs a multiprocessor; put fewer devices on a GPU, or use another communicator (staged)",
          gpu, processors, all.blocks[gpu], ranks);
    }
    blocks = std::min(blocks, ranks > 1 ? std::clamp(left / 4 / ranks, 1, kMostShared) : std::max(left / 2, 1));
  }
  return blocks;
}

}  // namespace

BlockShare::BlockShare(std::span<const int> gpus, int most, bool whole_gpus) : ranks_(count_ranks(gpus)) {
  Taken& all = taken();
  const std::lock_guard lock(all.mutex);
  blocks_ = find_blocks(ranks_, most, all);
  for (const auto& [gpu, ranks] : ranks_) all.blocks[gpu] += ranks * blocks_;
  next_may_start_ = whole_gpus && std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& of) {
                      return of.second == 1 && !all.filled.contains(of.first);
                    });
  if (!next_may_start_) return;
  for (const auto& [gpu, ranks] : ranks_) all.filled.insert(gpu);
}

int BlockShare::available(std::span<const int> gpus, int most) {
  Taken& all = taken();
  const std::lock_guard lock(all.mutex);
  return find_blocks(count_ranks(gpus), most, all);
}

BlockShare::~BlockShare() {
  Taken& all = taken();
  const std::lock_guard lock(all.mutex);
  for (const auto& [gpu, ranks] : ranks_) {
    all.blocks[gpu] -= ranks * blocks_;
    if (next_may_start_) all.filled.erase(gpu);
  }
}

}  // namespace shoal::collectives::p2p
