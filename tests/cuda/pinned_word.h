// A pinned word of host memory. The host sets this word to release waiting kernels, or kernels set it to notify the
// host.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "devices/cuda/kernels/platform.h"

namespace shoal::test {

class PinnedWord {
 public:
  PinnedWord() {
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof(uint32_t), cudaHostAllocMapped), cudaSuccess);
    *word_ = 0;
  }
  ~PinnedWord() { EXPECT_EQ(cudaFreeHost(word_), cudaSuccess); }
  PinnedWord(const PinnedWord&) = delete;
  PinnedWord& operator=(const PinnedWord&) = delete;

  uint32_t* get() const { return word_; }
  uint32_t value() const { return cuda::load_acquire(word_); }
  void set() { cuda::store_release(word_, 1); }

 private:
  uint32_t* word_ = nullptr;
};

}  // namespace shoal::test
