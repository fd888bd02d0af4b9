// Kernels on the emulator: what threads of a block and lanes of a warp see of each other.
#include <gtest/gtest.h>

#include <vector>

#include "devices/cuda/kernels/platform.h"

namespace shoal::cuda {
namespace {

__global__ void reverse(const int* in, int* out) {
  __shared__ int values[256];
  values[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
  __syncthreads();
}

TEST(Emulator, ABarrierShowsWhatOtherThreadsWrote) {
  const int blocks = 3, threads = 256;
  std::vector<int> in(blocks * threads), out(in.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i);
  int *from = nullptr, *to = nullptr;
  const size_t bytes = in.size() * sizeof(int);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&from), bytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&to), bytes), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(from, in.data(), bytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
  launch(stream, reverse, dim3(blocks), dim3(threads), 0, from, to);
  ASSERT_EQ(cudaMemcpyAsync(out.data(), to, bytes, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  for (int i = 0; i < blocks * threads; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], i / threads * threads + threads - 1 - i % threads);
  }
  EXPECT_EQ(cudaFree(from), cudaSuccess);
  EXPECT_EQ(cudaFree(to), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace shoal::cuda
