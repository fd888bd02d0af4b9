// Helpers for tests of the p2p communicator: ranks on one or several GPUs, and collectives with expected results.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/p2p/p2p_communicator.h"
#include "devices/cuda/cuda_api.h"
#include "tests/collectives/cases.h"

namespace shoal::collectives::p2p {

inline void check_cuda(cudaError_t status) {
  shoal::cuda::check(status, "test", "do that");
}

/// Memory of one GPU.
class DeviceBytes {
 public:
  DeviceBytes(int gpu, size_t size) : gpu_(gpu), size_(size) {
    const shoal::cuda::CurrentGpu current(gpu);
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, std::max<size_t>(size, 1)));
    data_.reset(static_cast<std::byte*>(memory));
  }

  std::byte* data() const { return data_.get(); }
  /// Copies the bytes to the GPU and waits for the copy, because cudaMemcpy() may return before the bytes have arrived
  /// in GPU memory.
  void set(const Bytes& bytes, size_t offset = 0) const {
    if (bytes.empty()) return;
    const shoal::cuda::CurrentGpu current(gpu_);
    check_cuda(cudaMemcpy(data() + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    check_cuda(cudaStreamSynchronize(nullptr));
  }
  Bytes get(size_t offset, size_t size) const {
    Bytes bytes(size);
    if (size > 0) check_cuda(cudaMemcpy(bytes.data(), data() + offset, size, cudaMemcpyDeviceToHost));
    return bytes;
  }
  Bytes get() const { return get(0, size_); }

 private:
  int gpu_;
  size_t size_;
  std::unique_ptr<std::byte, cudaError_t (*)(void*)> data_{nullptr, &cudaFree};
};

/// Largest number of blocks per rank in these tests. The emulator needs a stack for each thread of every waiting block,
/// so this number is smaller on the emulator.
inline int most_blocks([[maybe_unused]] int ranks) {
#ifdef SHOAL_CUDA_EMULATED
  return std::clamp(16 / ranks, 1, kMaxBlocks);
#else
  return kMaxBlocks;
#endif
}

/// Ranks on one or several GPUs: rank r uses GPU r % gpus.
class Rig {
 public:
  explicit Rig(int ranks, int gpus = 1, P2pOptions p2p = {}, const Options& options = {}) {
    p2p.max_blocks = std::min(p2p.max_blocks, most_blocks(ranks));
    // Only the emulator reads these two variables. With real GPUs, the ranks share the GPUs of the machine.
    setenv("SHOAL_EMULATED_GPUS", std::to_string(gpus).c_str(), 1);
    setenv("SHOAL_EMULATED_PROCESSORS", "132", 0);
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count));
    for (int rank = 0; rank < ranks; ++rank) {
      const int gpu = rank % std::min(gpus, count);
      const shoal::cuda::CurrentGpu current(gpu);
      cudaStream_t stream = nullptr;
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      places_.push_back({gpu, stream, "D" + std::to_string(rank)});
    }
    communicator_ = std::make_unique<P2pCommunicator>(places_, options, p2p);
  }
  ~Rig() {
    synchronize();
    communicator_.reset();
    for (const Place& place : places_) cudaStreamDestroy(place.stream);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  int size() const { return static_cast<int>(places_.size()); }
  int gpu(int rank) const { return places_[rank].gpu; }
  cudaStream_t stream(int rank) const { return places_[rank].stream; }
  P2pCommunicator& communicator() { return *communicator_; }

  void synchronize() const {
    for (const Place& place : places_) check_cuda(cudaStreamSynchronize(place.stream));
  }
  void synchronize_and_check() const {
    synchronize();
    for (int rank = 0; rank < size(); ++rank) communicator_->check(rank);
  }
  /// Waits for all ranks. Returns the error of each rank, or nullopt for a rank without an error.
  std::vector<std::optional<std::string>> errors() const {
    synchronize();
    std::vector<std::optional<std::string>> messages(places_.size());
    for (int rank = 0; rank < size(); ++rank) {
      try {
        communicator_->check(rank);
      } catch (const CommError& error) {
        messages[rank] = error.what();
      }
    }
    return messages;
  }

 private:
  std::vector<Place> places_;
  std::unique_ptr<P2pCommunicator> communicator_;
};

/// A case with buffers in the memory of the rig's GPUs.
struct Case : CollectiveCase {
  Case(CollectiveCase one) : CollectiveCase(std::move(one)) {}
  std::vector<DeviceBytes> sources = {}, targets = {};  ///< filled by prepare()
  size_t shift = 0;                                     ///< misalignment of the buffers, in bytes
  const char* what = "x";                               ///< value of Call::what
  std::vector<Call> calls;                              ///< one per rank, filled by prepare()

  template <class Ranks>
  void prepare(const Ranks& rig) {
    for (int rank = 0; rank < rig.size(); ++rank) {
      sources.emplace_back(rig.gpu(rank), in[rank].size() + shift);
      sources.back().set(in[rank], shift);
      // 64 guard bytes follow the result.
      targets.emplace_back(rig.gpu(rank), expected[rank].size() + shift + 64);
      targets.back().set(Bytes(expected[rank].size() + shift + 64, std::byte{0x5a}));
      calls.push_back(
          {kind, dtype, sources[rank].data() + shift, targets[rank].data() + shift, count, counts, root, what});
    }
  }
  void queue(Rig& rig) {
    prepare(rig);
    for (int rank = 0; rank < rig.size(); ++rank) rig.communicator().launch(rank, calls[rank]);
  }
  /// Queues the prepared calls of these ranks only.
  void queue(Communicator& communicator, const std::vector<int>& ranks) const {
    for (const int rank : ranks) communicator.enqueue(rank, calls[static_cast<size_t>(rank)]);
  }
  void verify() const {
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      const Bytes all = targets[rank].get();
      const Bytes out(all.begin() + shift, all.end() - 64);
      ASSERT_TRUE(out == expected[rank]) << name_of(kind) << " " << name_of(dtype) << " count " << count << ": rank "
                                         << rank << " is wrong from byte " << first_difference(out, expected[rank]);
      ASSERT_EQ(Bytes(all.end() - 64, all.end()), Bytes(64, std::byte{0x5a})) << "a kernel wrote behind the end";
    }
  }
  static size_t first_difference(const Bytes& a, const Bytes& b) {
    return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
  }
};

}  // namespace shoal::collectives::p2p
