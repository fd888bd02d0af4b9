#include "collectives/p2p/peer_access.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "devices/cuda/cuda_api.h"

namespace shoal::collectives::p2p {
namespace {

void check(cudaError_t status, int gpu, std::string_view what) {
  cuda::check(status, fmt::format("GPU {}", gpu), what);
}

/// A stream and memory of one GPU, of the kind that communicators have: from its pool.
class Probe {
 public:
  explicit Probe(int gpu) : gpu_(gpu) {
    const cuda::CurrentGpu current(gpu);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), gpu, "create a stream");
    void* memory = nullptr;
    const cudaError_t status = cudaMallocAsync(&memory, kBytes + sizeof(uint32_t), stream_);
    if (status != cudaSuccess) cudaStreamDestroy(stream_);
    check(status, gpu, "allocate memory to verify peer access");
    words_ = static_cast<uint32_t*>(memory);
  }
  ~Probe() {
    const cuda::CurrentGpu current(gpu_);
    cudaFreeAsync(words_, stream_);
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  uint32_t* words() const { return words_; }

  void clear() {
    const cuda::CurrentGpu current(gpu_);
    check(cudaMemsetAsync(words_, 0, kBytes + sizeof(uint32_t), stream_), gpu_, "clear memory");
    wait();
  }
  void write(uint32_t* words, uint32_t seed) {
    const cuda::CurrentGpu current(gpu_);
    write_pattern(stream_, words, seed);
    wait();
  }
  void copy_to(const Probe& other) {
    const cuda::CurrentGpu current(gpu_);
    check(cudaMemcpyPeerAsync(other.words_, other.gpu_, words_, gpu_, kBytes, stream_), gpu_, "copy to a peer");
    wait();
  }
  /// How many words are not as written with this seed.
  uint32_t wrong(const uint32_t* words, uint32_t seed) {
    const cuda::CurrentGpu current(gpu_);
    uint32_t* const count = words_ + kPatternWords;
    count_wrong_words(stream_, words, seed, count);
    wait();
    uint32_t result = 0;
    check(cudaMemcpy(&result, count, sizeof result, cudaMemcpyDeviceToHost), gpu_, "fetch a count");
    return result;
  }

 private:
  static constexpr size_t kBytes = kPatternWords * sizeof(uint32_t);

  void wait() {
    check(cudaGetLastError(), gpu_, "launch a kernel");
    check(cudaStreamSynchronize(stream_), gpu_, "verify peer access");
  }

  const int gpu_;
  cudaStream_t stream_ = nullptr;
  uint32_t* words_ = nullptr;
};

/// Empty, or why there is no access.
std::string turn_on(int from, int to) {
  const cuda::CurrentGpu current(from);
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), from, "ask for peer access");
  if (can == 0) return fmt::format("GPU {} has no peer access to GPU {}", from, to);
  check(cuda::turn_on_peer_access(from, to), from, fmt::format("turn on peer access to GPU {}", to));
  return "";
}

std::string try_out(int from, int to) {
  const uint32_t seed = static_cast<uint32_t>(from * 64 + to + 1) * 2;
  Probe here(from), there(to);
  here.clear();
  there.clear();
  here.write(there.words(), seed);
  const auto lie = [&](uint32_t wrong, std::string_view what) {
    return fmt::format("GPU {} reports peer access to GPU {}, but {} of {} words {} are wrong", from, to, wrong,
                       kPatternWords, what);
  };
  if (const uint32_t wrong = there.wrong(there.words(), seed); wrong != 0) return lie(wrong, "it wrote there");
  here.write(here.words(), seed + 1);
  here.copy_to(there);
  if (const uint32_t wrong = there.wrong(there.words(), seed + 1); wrong != 0) return lie(wrong, "copied there");
  there.write(there.words(), ~seed);
  if (const uint32_t wrong = here.wrong(there.words(), ~seed); wrong != 0) return lie(wrong, "it read there");
  return "";
}

}  // namespace

std::string verify_peer(int from, int to) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, std::string> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find({from, to});
  if (found != known.end()) return found->second;
  bool is_on = false, is_right = true;
  const auto ways = {std::pair{from, to}, std::pair{to, from}};
  for (const auto& [here, there] : ways) {
    std::string problem = turn_on(here, there);
    is_on |= problem.empty();
    if (problem.empty()) problem = try_out(here, there);
    is_right &= problem.empty();
    known.emplace(std::pair{here, there}, problem);
  }
  if (is_on && !is_right) {
    for (const auto& [here, there] : ways) cuda::turn_off_peer_access(here, there);
  }
  return known.at({from, to});
}

std::vector<std::string> verify_peers(std::span<const int> gpus) {
  const std::set<int> distinct(gpus.begin(), gpus.end());
  std::vector<std::string> problems;
  for (int from : distinct) {
    for (int to : distinct) {
      if (from == to) continue;
      std::string problem = verify_peer(from, to);
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  return problems;
}

}  // namespace shoal::collectives::p2p
