#include "devices/cuda/kernels/platform.h"
#include "devices/cuda/peer_access.h"

namespace shoal::cuda {
namespace {

constexpr int kBlocks = 8;
constexpr int kPatternThreads = 256;

/// Returns a word of the pattern, which differs for every index and every seed.
__device__ uint32_t pattern(uint32_t index, uint32_t seed) {
  uint32_t x = (index + 1) * 0x9e3779b1u ^ seed * 0x85ebca6bu;
  x ^= x >> 15;
  return x * 0x2c1b3c6du | 1u;  // never 0, because fresh memory often contains zeros
}

__global__ void write_kernel(uint32_t* words, uint32_t seed) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < kPatternWords;
       i += kBlocks * kPatternThreads) {
    words[i] = pattern(static_cast<uint32_t>(i), seed);
  }
}

__global__ void count_kernel(const uint32_t* words, uint32_t seed, uint32_t* wrong) {
  uint32_t found = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < kPatternWords;
       i += kBlocks * kPatternThreads) {
    found += words[i] != pattern(static_cast<uint32_t>(i), seed);
  }
  if (found != 0) atomicAdd(wrong, found);
}

}  // namespace

void write_pattern(cudaStream_t stream, uint32_t* words, uint32_t seed) {
  launch(stream, write_kernel, dim3(kBlocks), dim3(kPatternThreads), 0, words, seed);
}

void count_wrong_words(cudaStream_t stream, const uint32_t* words, uint32_t seed, uint32_t* wrong) {
  launch(stream, count_kernel, dim3(kBlocks), dim3(kPatternThreads), 0, words, seed, wrong);
}

}  // namespace shoal::cuda
