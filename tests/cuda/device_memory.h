// A stream and arrays in GPU memory, for tests of kernels.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace shoal::test {

/// Polls `condition`; fails the test after two minutes.
inline void wait_until(const std::function<bool()>& condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// A stream of the current GPU.
class CudaStream {
 public:
  CudaStream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~CudaStream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  /// Waits for the stream. Fails the test if a launch failed.
  void synchronize() const {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An array in the memory of the current GPU.
template <class T>
class CudaArray {
 public:
  explicit CudaArray(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), cudaSuccess);
  }
  /// The constructor waits until all streams see the values, because cudaMemcpy() may return before the values have
  /// arrived in GPU memory.
  explicit CudaArray(const std::vector<T>& values) : CudaArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  ~CudaArray() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  CudaArray(const CudaArray&) = delete;
  CudaArray& operator=(const CudaArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace shoal::test
