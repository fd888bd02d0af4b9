#include "devices/cuda/peer_access.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "devices/cuda/cuda_api.h"

namespace shoal::cuda {
namespace {

/// Sets the access of `peer` to the memory pool of `gpu`. A pool has its own access list.
cudaError_t set_pool_access(int gpu, int peer, cudaMemAccessFlags flags) {
  cudaMemPool_t pool = nullptr;
  const cudaError_t status = cudaDeviceGetDefaultMemPool(&pool, gpu);
  if (status != cudaSuccess) return status;
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, peer}, flags};
  return cudaMemPoolSetAccess(pool, &access, 1);
}

/// A stream of a GPU, and memory from the GPU's pool. The test uses pool memory because buffers and communicators use
/// pool memory. Pool memory can also be freed while a kernel waits on the GPU.
class Probe {
 public:
  explicit Probe(int gpu) : gpu_(gpu) {
    const CurrentGpu current(gpu);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
    void* memory = nullptr;
    const cudaError_t status = cudaMallocAsync(&memory, kBytes + sizeof(uint32_t), stream_);
    if (status != cudaSuccess) cudaStreamDestroy(stream_);
    check(status, "allocate memory to verify peer access");
    words_ = static_cast<uint32_t*>(memory);
    check(cudaMemsetAsync(words_, 0, kBytes + sizeof(uint32_t), stream_), "clear memory");
    wait();
  }
  ~Probe() {
    const CurrentGpu current(gpu_);
    cudaFreeAsync(words_, stream_);
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  uint32_t* words() const { return words_; }

  void write(uint32_t* words, uint32_t seed) {
    const CurrentGpu current(gpu_);
    write_pattern(stream_, words, seed);
    wait();
  }
  void copy_to(const Probe& other) {
    const CurrentGpu current(gpu_);
    check(cudaMemcpyPeerAsync(other.words_, other.gpu_, words_, gpu_, kBytes, stream_), "copy to a peer GPU");
    wait();
  }
  /// Returns the number of words that differ from the pattern of this seed.
  uint32_t wrong(const uint32_t* words, uint32_t seed) {
    const CurrentGpu current(gpu_);
    uint32_t* const count = words_ + kPatternWords;
    count_wrong_words(stream_, words, seed, count);
    uint32_t result = 0;
    check(cudaMemcpyAsync(&result, count, sizeof result, cudaMemcpyDeviceToHost, stream_), "read the error count");
    wait();
    return result;
  }

 private:
  static constexpr size_t kBytes = kPatternWords * sizeof(uint32_t);

  void check(cudaError_t status, std::string_view what) const {
    cuda::check(status, fmt::format("GPU {}", gpu_), what);
  }
  void wait() {
    check(cudaGetLastError(), "launch a kernel");
    check(cudaStreamSynchronize(stream_), "verify peer access");
  }

  const int gpu_;
  cudaStream_t stream_ = nullptr;
  uint32_t* words_ = nullptr;
};

/// Tests whether GPU `from` correctly writes, copies to, and reads the memory of GPU `to`. Returns a description of the
/// problem, or "" if all patterns are correct.
std::string try_out(int from, int to) {
  const uint32_t seed = static_cast<uint32_t>(from * 64 + to + 1) * 2;
  Probe here(from), there(to);
  here.write(there.words(), seed);
  const auto lie = [&](uint32_t wrong, std::string_view what) {
    return fmt::format("GPU {} reports peer access to GPU {}, but {} of {} words that were {} are wrong", from, to,
                       wrong, kPatternWords, what);
  };
  if (const uint32_t wrong = there.wrong(there.words(), seed); wrong != 0) return lie(wrong, "written");
  here.write(here.words(), seed + 1);
  here.copy_to(there);
  if (const uint32_t wrong = there.wrong(there.words(), seed + 1); wrong != 0) return lie(wrong, "copied");
  there.write(there.words(), ~seed);
  if (const uint32_t wrong = here.wrong(there.words(), ~seed); wrong != 0) return lie(wrong, "read");
  return "";
}

PeerAccess connect(int from, int to) {
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || can == 0) {
    cudaGetLastError();
    return {fmt::format("GPU {} has no peer access to GPU {}", from, to)};
  }
  if (const cudaError_t status = turn_on_peer_access(from, to); status != cudaSuccess) {
    cudaGetLastError();
    return {
        fmt::format("peer access of GPU {} to GPU {} cannot be turned on: {}", from, to, cudaGetErrorString(status))};
  }
  const std::string problem = try_out(from, to);
  return {problem, !problem.empty()};
}

}  // namespace

cudaError_t turn_on_peer_access(int gpu, int peer) {
  const CurrentGpu current(gpu);
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
  } else if (status != cudaSuccess) {
    return status;
  }
  const cudaError_t pool = set_pool_access(peer, gpu, cudaMemAccessFlagsProtReadWrite);
  if (pool != cudaSuccess && status == cudaSuccess) cudaDeviceDisablePeerAccess(peer);
  return pool;
}

void turn_off_peer_access(int gpu, int peer) {
  const CurrentGpu current(gpu);
  set_pool_access(peer, gpu, cudaMemAccessFlagsProtNone);
  cudaDeviceDisablePeerAccess(peer);
  cudaGetLastError();
}

std::array<PeerAccess, 2> connect_peers(int a, int b) {
  std::array<PeerAccess, 2> access{connect(a, b), connect(b, a)};
  if (!access[0].problem.empty() || !access[1].problem.empty()) {
    turn_off_peer_access(a, b);
    turn_off_peer_access(b, a);
  }
  return access;
}

std::vector<std::string> peer_problems(std::span<const int> gpus) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, std::array<PeerAccess, 2>> known;
  const std::lock_guard lock(mutex);
  const std::set<int> distinct(gpus.begin(), gpus.end());
  std::vector<std::string> problems;
  for (auto a = distinct.begin(); a != distinct.end(); ++a) {
    for (auto b = std::next(a); b != distinct.end(); ++b) {
      auto found = known.find({*a, *b});
      if (found == known.end()) found = known.emplace(std::pair{*a, *b}, connect_peers(*a, *b)).first;
      for (const PeerAccess& access : found->second) {
        if (!access.problem.empty()) problems.push_back(access.problem);
      }
    }
  }
  return problems;
}

}  // namespace shoal::cuda
